"""What every energy meter answers: the joules of a window that was part work, part waiting.

This module knows no device, no clock and no price: it is handed durations.
"""

from typing import Protocol


class Meter(Protocol):
    """A source of energy figures for one device."""

    @property
    def method(self) -> str:
        """How the joules are found, for example ``modelled``; goes into every record."""
        ...

    def energy_j(self, busy_s: float, idle_s: float) -> float | None:
        """Return the energy of one window in joules.

        Args:
            busy_s: Time in which the device computed, in seconds.
            idle_s: Time in which the device waited, in seconds.

        Returns:
            The energy in joules, or None when it could not be measured (never 0 in that case).
        """
        ...
