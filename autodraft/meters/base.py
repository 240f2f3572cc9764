"""What every energy meter answers: the joules of a window that was part work, part waiting.

This module knows no device and no price.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Energy:
    """The energy of one window.

    Attributes:
        gross_j: All that the device drew, in joules; None when it could not be measured.
        net_j: The same less what the device would have drawn idle; None when that is not known.
    """

    gross_j: float | None
    net_j: float | None


class Window(Protocol):
    """A stretch of time that has begun."""

    def end(self, busy_s: float, total_s: float) -> Energy:
        """End the window.

        Args:
            busy_s: Model compute of this side in the window, in seconds.
            total_s: Wall time of the window, in seconds.
        """
        ...


class Meter(Protocol):
    """A source of energy figures for one machine."""

    @property
    def method(self) -> str:
        """How the joules are found, for example ``modelled``; goes into every record."""
        ...

    @property
    def shortest_s(self) -> float:
        """Shortest window, in seconds, that gives a figure; 0 where any does."""
        ...

    def begin(self) -> Window:
        """Begin a window."""
        ...

    def measure_idle(self, seconds: float) -> float | None:
        """Measure what the machine draws idle, remember it and return it, in watts."""
        ...

    def close(self) -> None:
        """Free what the meter holds."""
        ...
