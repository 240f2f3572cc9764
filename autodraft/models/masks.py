"""The additive masks of tree forwards, without building one from scratch.

Every node sees the whole context, so a mask is zero but for its last columns, the nodes'
themselves. One buffer, aligned to the right, serves every forward of a model: only those last
columns are written. This module does not know how a tree grew.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

BoolArray = npt.NDArray[np.bool_]

_COLUMNS: Final = 1024
_ROWS: Final = 32


class TreeMasks:
    """Masks of one model's forwards; each is valid until the next is asked for."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._buffer = torch.zeros((1, 1, 0, 0), dtype=dtype, device=device)
        self._cells: npt.NDArray[Any] | None = None  # the same memory, where it is this machine's
        self._shown, self._hidden = _cells(torch.tensor([0, torch.finfo(dtype).min], dtype=dtype))
        self._written = (0, 0)

    def additive(self, visible: BoolArray, num_slots: int) -> torch.Tensor:
        """Return what is added to the scores of a forward, [1, 1, N, slots].

        Args:
            visible: Which of the last T slots each node attends to, [N, T].
            num_slots: All slots, context and nodes.
        """
        rows, tail = visible.shape
        self._reserve(rows, num_slots)
        columns = self._buffer.shape[-1]
        old_rows, old_tail = self._written
        cells: Any = self._buffer[0, 0] if self._cells is None else self._cells
        if old_rows > rows or old_tail > tail:  # else all of it is written anew
            cells[:old_rows, columns - old_tail :] = 0
        # numpy is quicker than torch with so few elements, and one copy takes them anywhere.
        scores: Any = np.where(visible, self._shown, self._hidden)
        if self._cells is None:
            scores = torch.from_numpy(scores).view(self._buffer.dtype)
        cells[:rows, columns - tail :] = scores
        self._written = (rows, tail)
        return self._buffer[:, :, :rows, columns - num_slots :]

    def _reserve(self, rows: int, columns: int) -> None:
        old_rows, old_columns = self._buffer.shape[2:]
        if rows <= old_rows and columns <= old_columns:
            return
        shape = (
            max(old_rows, _rounded(rows, _ROWS)),
            max(old_columns, _rounded(columns, _COLUMNS)),
        )
        self._buffer = self._buffer.new_zeros((1, 1, *shape))
        self._cells = _cells(self._buffer)[0, 0] if self._buffer.is_cpu else None
        self._written = (0, 0)


def _cells(values: torch.Tensor) -> npt.NDArray[Any]:
    """Return floats of this machine's memory as numpy sees them: 16-bit ones as integers."""
    return (values.view(torch.int16) if values.element_size() == 2 else values).numpy()


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step
