"""A few logits of the last forward again, in float32: what a 16-bit head rounds away.

The states that enter a model's output head are kept, and the rows of its weight that belong to a
few tokens are multiplied with them once more. Only for models whose logits are what the head gives:
one that scales or caps them has no sharper ones here.
"""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from autodraft.models.fused import PackedLinear

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class SharpHead:
    """The output head of one model, watched.

    Attributes:
        faithful: Whether the model's logits are what the head gives, by the last forward.
    """

    def __init__(self, model: Any) -> None:
        """Watch the head of a loaded model from now on."""
        head = self._head = model.get_output_embeddings()
        self._model = model
        self.faithful = False
        self._states = torch.empty(0)
        self._output: torch.Tensor | None = None
        if isinstance(head, PackedLinear) or head.weight.is_floating_point():
            head.register_forward_hook(self._watch)

    def settle(self, logits: torch.Tensor) -> None:
        """Take note of what the model made of the head's output, [1, N, V]."""
        self.faithful = self._output is not None and logits is self._output
        self._output = None

    def logits(self, row: int, columns: IntArray) -> FloatArray:
        """Return logits of a row of the last forward, computed in float32, [K]."""
        weight, bias = self._weight, self._head.bias
        chosen = torch.from_numpy(columns).to(weight.device)
        products = weight[chosen].float() @ self._states[row].float()
        if bias is not None:
            products += bias[chosen].float()
        logits: FloatArray = products.cpu().numpy().astype(np.float64)
        return logits

    @cached_property
    def _weight(self) -> torch.Tensor:
        """The head's weight, [V, H]; a packed one in its own order again, which takes memory."""
        return _weight_of(self._model, self._head)

    def _watch(
        self, head: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        self._states, self._output = inputs[0][0], output


def _weight_of(model: Any, head: Any) -> torch.Tensor:
    """Return the head's weight, [V, H]; a packed one in its own order again."""
    layer: Any = head
    if isinstance(layer, PackedLinear):
        if not model.config.get_text_config().tie_word_embeddings:
            return torch.Tensor.to_dense(layer.packed)  # type: ignore[arg-type]
        layer = model.get_input_embeddings()
    weight: torch.Tensor = layer.weight.detach()
    return weight


class RowSharpener:
    """Computes logits of one row of the last forward again.

    Attributes:
        margin: Logits that lie closer than this may stand in the wrong order.
    """

    def __init__(
        self, head: SharpHead | None, row: int, highest: float, dtype: torch.dtype
    ) -> None:
        """Prepare.

        Args:
            head: The head; None where it cannot be watched.
            row: The row.
            highest: Its highest logit.
            dtype: What the model computes in.
        """
        self.margin = abs(highest) * torch.finfo(dtype).eps
        self._head = head if head is not None and head.faithful else None
        self._row = row

    def __call__(self, columns: IntArray) -> FloatArray | None:
        """Return the logits of some columns, [K]; None where there are no better ones."""
        return None if self._head is None else self._head.logits(self._row, columns)


def rounds_off(dtype: torch.dtype) -> bool:
    """Tell whether numbers of a type are coarser than float32."""
    return torch.finfo(dtype).eps > torch.finfo(torch.float32).eps
