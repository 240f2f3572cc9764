"""From logits to what a decoder chooses or a draft proposes: one synchronisation with the device.

On a CPU the search is numpy's: its loops are vectorised where torch's are not, and they wake no
other thread. Knows neither trees nor caches; columns of the logits are not yet token ids.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_PARTS: Final = 32
"""Columns whose largest stands for them all in the first look at a row."""
_COLUMN_BITS: Final = 32


def best_tokens(logits: torch.Tensor) -> IntArray:
    """Return the arg-max of each row, [N]; the lowest id wins a tie."""
    tokens: IntArray
    if not logits.is_cpu:
        tokens = logits.max(dim=-1).indices.cpu().numpy()
        return tokens
    if logits.element_size() == 2:
        # Positive floats are ordered as their bits, and integers are compared many at a time.
        bits = logits.view(torch.int16).numpy()
        tokens = bits.argmax(axis=-1)
        if (bits[np.arange(len(bits)), tokens] > 0).all():
            return tokens
        logits = logits.float()
    tokens = logits.numpy().argmax(axis=-1)
    return tokens


class GreedyChoices:
    """The arg-max of each row of logits, found where it is asked for.

    A walk through a verified tree asks for a few rows of many. On an accelerator all are found at
    the first question, in one synchronisation.
    """

    def __init__(self, logits: torch.Tensor) -> None:
        """Take the logits after each node, [N, V]."""
        self._logits = logits
        self._all: IntArray | None = None

    def __getitem__(self, row: int) -> int:
        """Return the arg-max of a row; the lowest id wins a tie."""
        if self._logits.is_cpu:
            return int(best_tokens(self._logits[row : row + 1])[0])
        if self._all is None:
            self._all = best_tokens(self._logits)
        return int(self._all[row])


def top_candidates(
    logits: torch.Tensor, count: int, excluded: torch.Tensor | None = None
) -> tuple[IntArray, FloatArray]:
    """Return the most probable columns of each row and their log-probabilities.

    Args:
        logits: [N, V].
        count: Candidates per row, K, at least 1.
        excluded: Columns that must not be proposed, or None.

    Returns:
        Columns [N, K], best first and of equals the lowest first, and natural log-probabilities
        [N, K], computed in float32.
    """
    if excluded is not None:
        logits = logits.index_fill(-1, excluded, -torch.inf)
    count = min(count, logits.shape[-1])
    if logits.is_cpu:
        return _best_here(_single_precision(logits), count)
    return _best_on_device(logits.log_softmax(dim=-1, dtype=torch.float32), count)


def host_rows(logits: torch.Tensor) -> npt.NDArray[np.float32]:
    """Return a copy of logits in this machine's memory, [N, V]."""
    return _single_precision(logits.cpu())


def _single_precision(logits: torch.Tensor) -> npt.NDArray[np.float32]:
    """Return a copy of logits in this machine's memory."""
    if logits.dtype != torch.bfloat16:
        return np.array(logits.numpy(), dtype=np.float32)
    halves = logits.view(torch.int16).numpy().view(np.uint16)  # they are the upper ones
    return np.left_shift(halves, 16, dtype=np.uint32).view(np.float32)


def _best_here(values: npt.NDArray[np.float32], count: int) -> tuple[IntArray, FloatArray]:
    """Find the candidates of rows in this machine's memory, which is written over."""
    num_rows, width = values.shape
    parts = _PARTS if width >= _PARTS * count else 1
    # Each maximum is a candidate, so the last of the best is not below the last of their best.
    maxima = values[:, : width // parts * parts].reshape(num_rows, parts, -1).max(axis=1)
    last = maxima.shape[1] - count
    maxima.partition(last, axis=1)
    places = np.flatnonzero(~(values < maxima[:, last, None]))  # few; a row of NaN counts whole
    rows = places // width
    found = values.ravel()[places]
    order = np.lexsort((-found, rows))  # stable: of equals the lowest column stays first
    best = order[rows.searchsorted(np.arange(num_rows))[:, None] + np.arange(count)]
    scores = found[best]
    # In one thread: to wake another takes longer than the sum.
    largest = scores[:, :1]
    values -= largest
    np.exp(values, out=values)
    log_probs = scores - largest - np.log(values.sum(axis=1, keepdims=True))
    return places[best] % width, log_probs.astype(np.float64)


def _best_on_device(log_probs: torch.Tensor, count: int) -> tuple[IntArray, FloatArray]:
    """Find the candidates on the rows' device and bring them here in one transfer."""
    # The bits of a positive float rise with it, so that with the column behind them they order the
    # candidates, ties included, and carry all there is to know of one.
    costs = log_probs.neg().view(torch.int32).long()
    columns = torch.arange(log_probs.shape[-1], device=log_probs.device)
    keys = (costs << _COLUMN_BITS) + columns
    best = keys.topk(count, dim=-1, largest=False).values.cpu().numpy()
    costs_here = (best >> _COLUMN_BITS).astype(np.int32).view(np.float32)
    return best & (2**_COLUMN_BITS - 1), -costs_here.astype(np.float64)
