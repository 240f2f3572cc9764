"""Energy from two constant powers, for devices without a counter.

This module reads no hardware: the figure is as good as the two powers it is given, and its label
``modelled`` says so wherever it is shown.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelledMeter:
    """A device that draws one power while it computes and another while it waits.

    Attributes:
        watts: Power while computing, in watts.
        idle_watts: Power while waiting, in watts.
    """

    watts: float
    idle_watts: float

    @property
    def method(self) -> str:
        """The label of these figures: ``modelled``."""
        return "modelled"

    def energy_j(self, busy_s: float, idle_s: float) -> float:
        """Return ``busy_s * watts + idle_s * idle_watts``, in joules."""
        return busy_s * self.watts + idle_s * self.idle_watts
