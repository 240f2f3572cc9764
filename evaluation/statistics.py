"""Ratios over the questions of a benchmark, and how much of them may be chance.

The unit is the question: its turns and repeats are drawn together, because they are no independent
trials. Intervals are percentile bootstraps (Efron and Tibshirani, An Introduction to the Bootstrap,
1993, chapter 13): with few questions they are somewhat too narrow. The draws come from a fixed
seed, so that the same records give the same intervals. This module knows no records, no prices
and no names of columns.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

RESAMPLES: Final = 2000
CONFIDENCE: Final = 0.95
FEWEST_QUESTIONS: Final = 2
_SEED: Final = 20_260_417  # any constant does
_RESAMPLES_AT_ONCE: Final = 250  # bounds the memory: 23 MB for 11,490 questions

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.uint16]


class Ratio(NamedTuple):
    """A ratio of totals, question by question.

    Attributes:
        numerators: What each question adds to the upper total, [Q].
        denominators: What each question adds to the lower total, [Q].
    """

    numerators: Sequence[float]
    denominators: Sequence[float]

    @property
    def value(self) -> float | None:
        """Total over total; ``None`` where there is nothing to divide by."""
        return _divide(math.fsum(self.numerators), math.fsum(self.denominators))

    @property
    def values(self) -> list[float | None]:
        """The ratio of each question, [Q]."""
        return [_divide(*parts) for parts in zip(self.numerators, self.denominators, strict=True)]


class Interval(NamedTuple):
    """Where the true value lies with a probability of ``CONFIDENCE``."""

    low: float
    high: float


class Estimate(NamedTuple):
    """What is said about one ratio; ``None`` is unknown.

    Attributes:
        value: Total over total.
        interval: Interval of ``value``.
        mean_of_questions: Mean of the questions' own ratios, each counting the same.
    """

    value: float | None = None
    interval: Interval | None = None
    mean_of_questions: float | None = None


def _divide(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None


def estimate(ratio: Ratio, base: Ratio | None = None) -> Estimate:
    """Return a ratio of totals with its interval and its mean over questions.

    Args:
        ratio: The ratio.
        base: What it is divided by, of the same questions in the same order; ``None`` for 1.
    """
    value, means = ratio.value, ratio.values
    if base is not None:
        value = None if value is None else _divide(value, base.value)
        means = [
            None if own is None else _divide(own, other)
            for own, other in zip(means, base.values, strict=True)
        ]
    known = [mean for mean in means if mean is not None]
    return Estimate(value, bootstrap(ratio, base), _divide(math.fsum(known), len(known)))


@lru_cache(maxsize=16)
def _draws(questions: int) -> Counts:
    """Return how often each question is in each resample, [R, Q]."""
    generator = np.random.default_rng(_SEED)
    counts = np.empty((RESAMPLES, questions), dtype=np.uint16)
    for row in counts:
        row[:] = np.bincount(generator.integers(questions, size=questions), minlength=questions)
    counts.flags.writeable = False  # shared by all callers
    return counts


def _resampled_totals(parts: Floats) -> Floats:
    """Return the total of each resample, [R], of what each question adds, [Q]."""
    counts = _draws(len(parts))
    totals = np.empty(RESAMPLES)
    for start in range(0, RESAMPLES, _RESAMPLES_AT_ONCE):
        rows = slice(start, start + _RESAMPLES_AT_ONCE)
        # Not by a matrix product: its last bits depend on the library and its threads.
        totals[rows] = np.einsum("rq,q->r", counts[rows].astype(np.float64), parts)
    return totals


def bootstrap(ratio: Ratio, base: Ratio | None = None) -> Interval | None:
    """Find the interval of a ratio of totals by drawing questions with replacement.

    Args:
        ratio: The ratio, of Q questions.
        base: What it is divided by, of the same questions in the same order: every resample
            draws the same questions for both, so that what makes a question slow for both
            cancels out. ``None`` for 1.

    Returns:
        The percentiles that leave (1 − ``CONFIDENCE``) / 2 of the resamples out on either side.
        ``None`` with fewer than ``FEWEST_QUESTIONS`` questions that add anything, or where there
        is nothing to divide by.
    """
    parts = np.array([*ratio, *(base or ())], dtype=np.float64)  # [2 or 4, Q]
    parts = parts[:, (parts != 0).any(axis=0)]
    if parts.shape[1] < FEWEST_QUESTIONS:
        return None
    totals = [_resampled_totals(row) for row in parts]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = totals[0] / totals[1]
        if base is not None:
            values /= totals[2] / totals[3]
    values = values[np.isfinite(values)]  # a resample may have drawn nothing to divide by
    if not len(values):
        return None
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(values, (tail, 100 - tail))
    return Interval(float(low), float(high))


def percentiles(values: Sequence[float], ranks: Sequence[float]) -> list[float | None]:
    """Return percentiles, linear between neighbours; ``None`` each where there are no values.

    Args:
        values: What was measured, in any order.
        ranks: The percentiles wanted, 0 … 100.
    """
    if not values:
        return [None] * len(ranks)
    return [float(value) for value in np.percentile(values, ranks)]
