"""How long a forward takes, by the rows it computes and the tokens behind which it runs.

Only some sizes are measured; what lies between is interpolated. Rows are not: a model that pads
its rows takes the same time for 9 rows as for 32, and the table knows these steps. This module
measures nothing and knows no clock.
"""

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

    def at(self, rows: int, context: int) -> float:
        """Return the seconds of one forward."""
        return float(self.across(np.array([rows]), context)[0])

    def across(self, rows: IntArray, context: int) -> FloatArray:
        """Return the seconds of forwards of several sizes behind one context, [N].

        Beyond the largest size or context measured, times go on growing as between the last two.
        """
        return _interpolate(self.computed(rows), self.rows, self._behind(context))

    def computed(self, rows: IntArray) -> IntArray:
        """Return the rows that the model computes for rows that it is given, [N]."""
        return padded(rows, self.padding)

    def _behind(self, context: int) -> FloatArray:
        """Return the times of all sizes behind one context, [R]; none falls below its least."""
        if len(self.contexts) == 1:
            only: FloatArray = self.seconds[0]
            return only
        last = len(self.contexts) - 1
        upper = min(max(int(np.searchsorted(self.contexts, context)), 1), last)
        low, high = int(self.contexts[upper - 1]), int(self.contexts[upper])
        share = (max(context, int(self.contexts[0])) - low) / (high - low)
        lower, higher = self.seconds[upper - 1], self.seconds[upper]
        times: FloatArray = np.maximum(lower + share * (higher - lower), np.minimum(lower, higher))
        return times


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
