"""The additive masks of tree forwards, without building one from scratch.

Every node sees the whole context, so a mask is zero but for its last columns, the nodes'
themselves. One buffer, aligned to the right, serves every forward of a model: only those last
columns are written. This module does not know how a tree grew.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

BoolArray = npt.NDArray[np.bool_]

_COLUMNS: Final = 1024
_ROWS: Final = 32


class TreeMasks:
    """Masks of one model's forwards; each is valid until the next is asked for."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = torch.zeros((0, 0), dtype=dtype, device=device)
        self._hidden = torch.finfo(dtype).min
        self._written = (0, 0)

    def additive(self, visible: BoolArray, num_slots: int) -> torch.Tensor:
        """Return what is added to the scores of a forward, [1, 1, N, slots].

        Args:
            visible: Which of the last T slots each node attends to, [N, T].
            num_slots: All slots, context and nodes.
        """
        rows, tail = visible.shape
        self._reserve(rows, num_slots)
        columns = self._buffer.shape[1]
        old_rows, old_tail = self._written
        if old_rows > rows or old_tail > tail:  # else all of it is written anew
            self._buffer[:old_rows, columns - old_tail :] = 0
        # numpy is quicker than torch with so few elements, and one copy takes them anywhere.
        scores = np.where(visible, np.float32(0), np.float32(self._hidden))
        self._buffer[:rows, columns - tail :] = torch.from_numpy(scores)
        self._written = (rows, tail)
        return self._buffer[None, None, :rows, columns - num_slots :]

    def _reserve(self, rows: int, columns: int) -> None:
        old_rows, old_columns = self._buffer.shape
        if rows <= old_rows and columns <= old_columns:
            return
        shape = (
            max(old_rows, _rounded(rows, _ROWS)),
            max(old_columns, _rounded(columns, _COLUMNS)),
        )
        self._buffer = self._buffer.new_zeros(shape)
        self._written = (0, 0)


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step
