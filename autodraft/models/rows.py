"""How many rows a forward runs with: a few sizes, so that few kernels are kept.

oneDNN keeps kernels and working memory for every number of rows that a bfloat16 product has seen,
megabytes each, and a compiled program has one shape. Rows that are added are computed and thrown
away; nobody sees them. This module knows no models.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

BoolArray = npt.NDArray[np.bool_]

SIZES: Final = (1, 2, 4, 8, 16, 32, 40, 64, 96, 128, 192, 256, 384, 512)
MOST_ADDED: Final = SIZES[-1] - 1
"""Spare slots that a cache needs behind its last token: more is never added."""


def padded_rows(count: int) -> int:
    """Return the rows that ``count`` rows are padded to."""
    for size in SIZES:
        if size >= count:
            return size
    return -(-count // SIZES[-1]) * SIZES[-1]


def padded_view(visible: BoolArray, rows: int) -> BoolArray:
    """Return whom padded rows see, [rows, S + added]; the rows that count see none of the added.

    Args:
        visible: Whom the rows that count see, [N, S].
        rows: Rows after padding, at least N.
    """
    count, seen = visible.shape
    view = np.ones((rows, seen + rows - count), dtype=np.bool_)
    view[:count, :seen] = visible
    view[:count, seen:] = False
    return view
