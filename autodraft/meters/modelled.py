"""Energy from two constant powers, for devices without a counter.

This module reads no hardware: the figure is as good as the two powers it is given, and its label
``modelled`` says so wherever it is shown.
"""

from dataclasses import dataclass

from autodraft.meters.base import Energy


@dataclass(frozen=True)
class ModelledMeter:
    """A device that draws one power while it computes and another while it waits.

    It is its own window: what it says depends on the durations alone.

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

    @property
    def shortest_s(self) -> float:
        """Any window gives a figure."""
        return 0.0

    def begin(self) -> "ModelledMeter":
        """Begin a window."""
        return self

    def end(self, busy_s: float, total_s: float) -> Energy:
        """Return the energy of a window; waiting is charged at the idle power.

        Args:
            busy_s: Compute time, in seconds; what exceeds ``total_s`` is left out.
            total_s: Wall time of the window, in seconds.
        """
        busy_s = min(busy_s, total_s)
        gross_j = busy_s * self.watts + (total_s - busy_s) * self.idle_watts
        return Energy(gross_j, busy_s * (self.watts - self.idle_watts))

    def measure_idle(self, seconds: float) -> float:
        """Return the configured idle power, in watts; nothing is measured."""
        return self.idle_watts

    def close(self) -> None:
        """Nothing is held."""
