"""The time of a check: what is left, and what was left out for want of it.

Knows nothing of what it is spent on.
"""

import time
from collections.abc import Callable
from typing import Final

Clock = Callable[[], float]

RESERVE_S: Final = 15.0
"""Kept for ending in order: the server's stop, the report."""


class Budget:
    """The seconds of one check.

    Attributes:
        dropped: What was left out because time ran short, in words.
    """

    def __init__(
        self, seconds: float, clock: Clock = time.perf_counter, began: float | None = None
    ) -> None:
        """Begin.

        Args:
            seconds: For all of it.
            clock: Gives the time, in seconds.
            began: When the time began, by that clock; None is now.
        """
        self.seconds = seconds
        self.dropped: list[str] = []
        self._clock = clock
        self._began = clock() if began is None else began

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        """Seconds left for measuring; negative when they are over."""
        return self.seconds - min(RESERVE_S, 0.05 * self.seconds) - self.spent_s

    def part(self, share: float) -> "Part":
        """Begin a part of the check that may take a share of the whole, or what is left."""
        return Part(self, min(share * self.seconds, self.left_s), self._clock)


class Part:
    """The seconds of one part of a check."""

    def __init__(self, budget: Budget, seconds: float, clock: Clock) -> None:
        self._budget = budget
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left; negative when they are over."""
        return self._end - self._clock()

    def drop(self, what: str) -> None:
        """Note what was left out."""
        self._budget.dropped.append(what)
