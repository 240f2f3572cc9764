"""How many rows a forward runs with, and over how many slots: few, so that few kernels are kept.

oneDNN keeps kernels and working memory for every number of rows that a bfloat16 product has seen,
megabytes each; attention of many rows keeps kernels for every number of slots; and a compiled
program has one shape. Rows that are added are computed and thrown away; nobody sees them, nor what
stands in slots that are added. This module knows no models.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]

SIZES: Final = (1, 8, 32, 40, 64, 128, 256, 512)
MANY_ROWS: Final = 64
"""From so many rows on, attention packs the keys, with kernels of their own for each length."""
SLOT_STEP: Final = 64
MOST_ADDED: Final = SIZES[-1] - 1 + SLOT_STEP - 1
"""Spare slots that a cache needs behind its last token: more is never added."""


def padded_rows(count: int) -> int:
    """Return the rows that ``count`` rows are padded to."""
    for size in SIZES:
        if size >= count:
            return size
    return -(-count // SIZES[-1]) * SIZES[-1]


def padded_slots(length: int, rows: int) -> int:
    """Return the slots that rows behind ``length`` filled ones attend over, their own included."""
    end = length + rows
    return end if rows < MANY_ROWS else -(-end // SLOT_STEP) * SLOT_STEP


def padded_view(visible: BoolArray, rows: int, slots: int = 0) -> BoolArray:
    """Return whom padded rows see, [rows, S + added]; the rows that count see none of the added.

    Args:
        visible: Whom the rows that count see, [N, S].
        rows: Rows after padding, at least N.
        slots: Slots that are added behind those of the rows.
    """
    count, seen = visible.shape
    view = np.ones((rows, seen + rows - count + slots), dtype=np.bool_)
    view[:count, :seen] = visible
    view[:count, seen:] = False
    return view
