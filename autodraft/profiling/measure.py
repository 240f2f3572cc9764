"""Timing forwards of many sizes, until each time is known well enough.

What is timed is handed in as a function that returns its own seconds. This module knows no models
and no clock.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from autodraft.profiling.tables import CONTEXTS, IntArray, LatencyTable, padded

Timer = Callable[[int, int], float]
"""Seconds of one forward of so many rows behind so many tokens of context."""

WARM_UPS: Final = 2
"""Calls before those that count: they find cold caches, or make kernels."""
MOST_TIMES: Final = 5
"""At most so many times the calls that are wanted are made while the times scatter."""
ENOUGH: Final = 0.05
"""Standard error of the median, as a share of it, at which an entry is known well enough."""
_IQR_PER_SIGMA: Final = 1.349
_MEDIAN_PER_MEAN: Final = 1.25
"""How much larger the standard error of a median is than that of a mean, of normal times."""


def measure_table(
    timer: Timer,
    rows: Sequence[int],
    contexts: Sequence[int],
    padding: Sequence[int] = (),
    calls: int = 10,
) -> LatencyTable:
    """Time every size behind every context.

    Args:
        timer: Makes one forward; called with one context after the other.
        rows: Rows wanted.
        contexts: Tokens of context wanted, rising.
        padding: Numbers of rows that the model pads others to, rising.
        calls: Timed forwards for each entry, at least.
    """
    sizes = sizes_to_time(rows, padding)
    most = max(rows)  # what pads to more than that is given just that
    seconds = [
        [time_entry(partial(timer, min(size, most), context), calls) for size in sizes]
        for context in contexts
    ]
    return LatencyTable(sizes, contexts, seconds, padding)


def time_entry(call: Callable[[], float], calls: int) -> float:
    """Return the median seconds of a call, made until it is known to 5 % or a limit is reached."""
    for _ in range(WARM_UPS):
        call()
    seconds = [call() for _ in range(calls)]
    while len(seconds) < MOST_TIMES * calls and _standard_error(seconds) > ENOUGH:
        seconds.append(call())
    return float(np.median(seconds))


def sizes_to_time(rows: Sequence[int], padding: Sequence[int] = ()) -> list[int]:
    """Return the rows that a table must hold, rising: each number that is computed once.

    Where a model pads, that is every number it pads to, up to that of the most rows wanted.
    """
    wanted: IntArray = np.array(sorted(set(rows)), dtype=np.int64)
    steps: IntArray = np.array(padding, dtype=np.int64)
    sizes = padded(wanted, steps)
    between = steps[steps < sizes[-1]]
    found: list[int] = np.union1d(sizes, between).tolist()
    return found


def contexts_within(max_context: int, room: int) -> tuple[int, ...]:
    """Return the contexts to time behind that leave room in a model's context.

    Args:
        max_context: Most tokens that the model takes.
        room: Tokens that the forwards need behind the context.
    """
    fitting = tuple(context for context in CONTEXTS if context + room <= max_context)
    return fitting or (max(1, max_context - room),)


def _standard_error(seconds: Sequence[float]) -> float:
    """Return the standard error of a median as a share of it; outliers count little."""
    lower, median, upper = np.percentile(seconds, (25, 50, 75))
    sigma = (upper - lower) / _IQR_PER_SIGMA
    return float(_MEDIAN_PER_MEAN * sigma / np.sqrt(len(seconds)) / median)
