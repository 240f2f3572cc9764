"""How long a forward takes, by the rows it computes and the tokens behind which it runs.

Only some sizes are measured; what lies between is interpolated. Rows are not: a model that pads
its rows takes the same time for 9 rows as for 32, and the table knows these steps. This module
measures nothing and knows no clock.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

CONTEXTS: Final = (128, 768)
"""Tokens of context at which forwards are timed."""


class LatencyTable:
    """Seconds of one forward, bilinear between what was measured.

    Attributes:
        rows: Rows at which it was timed, rising, [R].
        contexts: Tokens of context at which it was timed, rising, [C].
        seconds: The times, [C, R].
        padding: Numbers of rows that other numbers are padded to, rising; empty where the model
            computes just the rows it is given.
    """

    def __init__(
        self,
        rows: Sequence[int],
        contexts: Sequence[int],
        seconds: Sequence[Sequence[float]] | FloatArray,
        padding: Sequence[int] = (),
    ) -> None:
        """Take what was measured.

        Raises:
            ValueError: If the sizes do not rise, the shapes do not fit or a time is not positive.
        """
        self.rows: IntArray = np.array(rows, dtype=np.int64)
        self.contexts: IntArray = np.array(contexts, dtype=np.int64)
        self.seconds: FloatArray = np.array(seconds, dtype=np.float64)
        self.padding: IntArray = np.array(padding, dtype=np.int64)
        if self.seconds.shape != (len(self.contexts), len(self.rows)) or not self.seconds.size:
            raise ValueError(
                f"{self.seconds.shape} times for {len(contexts)} contexts and {len(rows)} sizes"
            )
        if not (np.isfinite(self.seconds) & (self.seconds > 0)).all():
            raise ValueError("a time in the table is not a positive number")
        for sizes in (self.rows, self.contexts, self.padding):
            if (np.diff(sizes) <= 0).any():
                raise ValueError(f"sizes do not rise: {sizes.tolist()}")
        self._contexts: list[int] = self.contexts.tolist()
        # Asked for again and again, at one context after another.
        self._of_rows: dict[int, list[float]] = {}
        self._up_to: dict[int, FloatArray] = {}

    def at(self, rows: int, context: int) -> float:
        """Return the seconds of one forward.

        Beyond the largest size or context measured, times go on growing as between the last two.
        """
        if rows not in self._of_rows:
            self._of_rows[rows] = self._each_context(np.array([rows]))[:, 0].tolist()
        times = self._of_rows[rows]
        upper, share = self._place(context)
        if upper == 0:
            return times[0]
        low, high = times[upper - 1], times[upper]
        return max(low + share * (high - low), min(low, high))

    def up_to(self, count: int, context: int) -> FloatArray:
        """Return the seconds of forwards of 1, 2, … rows behind one context, [count]."""
        if count not in self._up_to:
            self._up_to[count] = self._each_context(np.arange(1, count + 1))
        return self._behind(self._up_to[count], context)

    def computed(self, rows: IntArray) -> IntArray:
        """Return the rows that the model computes for rows that it is given, [N]."""
        return padded(rows, self.padding)

    def _each_context(self, rows: IntArray) -> FloatArray:
        """Return the times of forwards of several sizes behind every measured context, [C, N]."""
        computed = self.computed(rows)
        return np.array([_interpolate(computed, self.rows, times) for times in self.seconds])

    def _behind(self, times: FloatArray, context: int) -> FloatArray:
        """Return times of sizes behind one context, [N], of those behind all, [C, N].

        None falls below its least.
        """
        upper, share = self._place(context)
        if upper == 0:
            only: FloatArray = times[0].copy()
            return only
        lower, higher = times[upper - 1], times[upper]
        found: FloatArray = np.maximum(lower + share * (higher - lower), np.minimum(lower, higher))
        return found

    def _place(self, context: int) -> tuple[int, float]:
        """Return the measured context above one, and how far it is there from the one below.

        The first is 0 where only one context was measured.
        """
        contexts = self._contexts
        if len(contexts) == 1:
            return 0, 0.0
        upper = min(max(bisect_left(contexts, context), 1), len(contexts) - 1)
        low, high = contexts[upper - 1], contexts[upper]
        return upper, (max(context, contexts[0]) - low) / (high - low)


def padded(rows: IntArray, padding: IntArray) -> IntArray:
    """Return the rows that a model computes for rows that it is given, [N].

    Args:
        rows: Rows given, [N].
        padding: Numbers of rows that others are padded to, rising; beyond the last one its
            multiples. Empty where a model computes just what it is given.
    """
    if not len(padding):
        return rows
    places = padding.searchsorted(rows)
    largest = padding[-1]
    fitting = padding[np.minimum(places, len(padding) - 1)]
    return np.where(places < len(padding), fitting, -(-rows // largest) * largest)


def _interpolate(wanted: IntArray, sizes: IntArray, times: FloatArray) -> FloatArray:
    found: FloatArray = np.interp(wanted, sizes, times)
    if len(sizes) > 1 and int(wanted.max(initial=0)) > sizes[-1]:
        slope = max(0.0, (times[-1] - times[-2]) / (sizes[-1] - sizes[-2]))
        found = found + slope * np.maximum(wanted - sizes[-1], 0)
    return found
