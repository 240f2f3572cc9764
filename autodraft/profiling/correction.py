"""Correcting a measured table from what is served: how much slower or faster is it now?

A table is measured alone; rounds run beside other programs, with cold caches, on machines whose
load changes. The factor between both is the median of the last few rounds: a lasting change is
followed within half a window, a single outlier never. This module knows no clock.
"""

import math
import statistics
from collections import deque
from typing import Final

import numpy as np

from autodraft.profiling.tables import FloatArray, IntArray, LatencyTable

WINDOW: Final = 9
"""Observations whose median is the present factor."""
LARGEST_FACTOR: Final = 20.0
"""No observation counts as more than so many times slower or faster than measured."""
_STEP: Final = 0.1
"""Share of a new observation in what is known of one size."""
_LARGEST_STEP: Final = 0.05
"""No observation moves what is known of one size by more than this, as a logarithm: an outlier
hardly shows, and a lasting change is the factor's to follow."""


class Factor:
    """How many times as long something takes now as was measured; 1 before any observation."""

    def __init__(self, *, fixed: bool = False) -> None:
        """Prepare.

        Args:
            fixed: Never learn.
        """
        self._fixed = fixed
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self.value = 1.0

    def observe(self, expected_s: float, seconds: float) -> None:
        """Take note of what a measured duration should have been."""
        if self._fixed or expected_s <= 0 or seconds <= 0:
            return
        ratio = seconds / expected_s
        self._recent.append(min(max(ratio, 1 / LARGEST_FACTOR), LARGEST_FACTOR))
        self.value = statistics.median(self._recent)


class CorrectedTable:
    """A latency table times a present factor, and times a slow one for each size."""

    def __init__(self, table: LatencyTable, *, fixed: bool = False) -> None:
        """Wrap a table.

        Args:
            table: What was measured.
            fixed: Leave it as it was measured.
        """
        self.table = table
        self._fixed = fixed
        self.factor = Factor(fixed=fixed)
        self._sizes: dict[int, float] = {}
        self._size_of: dict[int, int] = {}
        self._computed: dict[int, IntArray] = {}
        self._recent: deque[tuple[int, float]] = deque(maxlen=WINDOW)

    def at(self, rows: int, context: int) -> float:
        """Return the seconds of one forward."""
        shift = self._sizes.get(self._size(rows), 0.0) if self._sizes else 0.0
        return self.table.at(rows, context) * self.factor.value * math.exp(shift)

    def up_to(self, count: int, context: int) -> FloatArray:
        """Return the seconds of forwards of 1, 2, … rows behind one context, [count]."""
        seconds = self.table.up_to(count, context) * self.factor.value
        if self._sizes:
            if count not in self._computed:
                self._computed[count] = self.table.computed(np.arange(1, count + 1))
            for size, shift in self._sizes.items():
                seconds[self._computed[count] == size] *= math.exp(shift)
        return seconds

    def _size(self, rows: int) -> int:
        """Return the rows that are computed for so many."""
        if rows not in self._size_of:
            self._size_of[rows] = int(self.table.computed(np.array([rows]))[0])
        return self._size_of[rows]

    def observe(self, rows: int, context: int, seconds: float) -> None:
        """Take note of one served forward: of its own time, without that of a queue."""
        if self._fixed or seconds <= 0:
            return
        size = self._size(rows)
        shift = self._sizes.get(size, 0.0)
        expected_s = self.table.at(rows, context)
        self.factor.observe(expected_s * math.exp(shift), seconds)
        self._recent.append((size, math.log(seconds / expected_s)))
        self._learn_size(*self._recent[len(self._recent) // 2])

    def _learn_size(self, size: int, logarithm: float) -> None:
        """Learn from the forward in the middle of the window, whose factor is known by now.

        The newest one would mistake a step, which the median follows late, for its size.
        """
        shift = self._sizes.get(size, 0.0)
        left = logarithm - math.log(self.factor.value) - shift
        left = min(max(left, -_LARGEST_STEP / _STEP), _LARGEST_STEP / _STEP)
        self._sizes[size] = shift + _STEP * left
