"""Forwards of a stock causal language model over our own cache.

The runner turns arrays into tensors and back and synchronises once per call. It does not know
drafting from verifying, nor where its model came from.
"""

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from autodraft.errors import ContextLengthError
from autodraft.models.attention import group_attention
from autodraft.models.compiled import CompiledForward
from autodraft.models.fused import fuse_linears, let_go_of_checkpoint
from autodraft.models.kv_cache import KVCache
from autodraft.models.masks import TreeMasks
from autodraft.models.memory import MappedFile
from autodraft.models.output_head import cut_output_head
from autodraft.models.probe import forward_once, observe_layout, require_tree_attention
from autodraft.models.rows import MOST_ADDED, SIZES, padded_rows, padded_slots, padded_view
from autodraft.models.sharp_head import RowSharpener, SharpHead, rounds_off

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

PREFILL_CHUNK: Final = 512
"""Prompt tokens per forward: bounds the memory of a long prompt's attention."""


class ModelRunner:
    """One loaded model.

    Attributes:
        max_context: Most tokens that the model's positions allow.
        vocab_size: Token ids it knows; its logits have as many columns, or one for each output id.
        layout: What one token takes in the cache.
        weights_bytes: Bytes of all its weights, as the checkpoint has them.
    """

    def __init__(
        self, model: Any, name: str, output_ids: IntArray | None = None, compile: bool = False
    ) -> None:
        """Wrap a loaded ``PreTrainedModel`` in evaluation mode.

        Args:
            model: The model.
            name: What to call it in messages.
            output_ids: The only token ids it is to say, rising, [O]; None is all. The head is cut
                to their rows, so that a step does not pay for the others.
            compile: Whether to compile the forwards of tree nodes, for a few fixed shapes.

        Raises:
            ModelLoadError: If its past cannot be rolled back, its attention follows no tree, or its
                head cannot be cut.
        """
        self._model = model.eval()
        self._output_ids = output_ids
        self._cache_argument = cache_argument(model)
        self._device = model.get_input_embeddings().weight.device
        self._dtype = model.dtype
        config = model.config.get_text_config()
        self.max_context = int(config.max_position_embeddings)
        self.vocab_size = int(config.vocab_size)
        if output_ids is not None:
            cut_output_head(model, output_ids, name)
        self.weights_bytes = sum(weight.nbytes for weight in model.parameters())
        self._masks = TreeMasks(self._dtype, self._device)
        self._compiled: CompiledForward | None = None
        self._head: SharpHead | None = None
        self._pads = False
        self._embedding_file: MappedFile | None = None
        with torch.inference_mode():
            self.layout = observe_layout(model, self._cache_argument, name)
            if not compile:
                once = partial(forward_once, model, self._cache_argument)
                self._pads = fuse_linears(model, once, name)
                group_attention(model)
                if self._pads:
                    self._embedding_file = let_go_of_checkpoint(model)
            require_tree_attention(self, model, name)
        if compile:
            self._compiled = CompiledForward(model, self._cache_argument)
        elif rounds_off(self._dtype) and output_ids is None:  # a cut head only drafts
            self._head = SharpHead(model)

    @property
    def device(self) -> str:
        """Device of the model's input, in torch's words."""
        return str(self._device)

    @property
    def devices(self) -> frozenset[torch.device]:
        """Devices that hold the weights: several where the model is spread."""
        return frozenset(weight.device for weight in self._model.parameters())

    @property
    def dtype(self) -> str:
        """Floating-point type of the weights, for example ``bfloat16``."""
        return str(self._dtype).removeprefix("torch.")

    @property
    def rounds_off(self) -> bool:
        """Whether it computes in numbers coarser than float32."""
        return rounds_off(self._dtype)

    @property
    def eps(self) -> float:
        """Step between 1 and the next number that it computes in."""
        return float(torch.finfo(self._dtype).eps)

    @property
    def output_ids(self) -> IntArray | None:
        """The only token ids it says, rising, [O]; None is all."""
        return self._output_ids

    @property
    def padding(self) -> tuple[int, ...]:
        """Numbers of rows that it pads others to, rising; empty where it pads none."""
        return SIZES if self._pads or self._compiled is not None else ()

    def columns_of(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the columns of the logits that stand for token ids; unsaid ones have none."""
        ids = np.asarray(token_ids, dtype=np.int64)
        if self._output_ids is not None:
            ids = np.flatnonzero(np.isin(self._output_ids, ids))
        return torch.from_numpy(ids).to(self._device)

    def token_ids(self, columns: IntArray) -> IntArray:
        """Return the token ids that columns of the logits stand for, in the same shape."""
        return columns if self._output_ids is None else self._output_ids[columns]

    def new_cache(self, capacity: int) -> KVCache:
        """Allocate an empty cache for ``capacity`` tokens."""
        if self._compiled is not None:
            return self._compiled.new_cache(self.layout, capacity)
        return KVCache(self.layout, capacity, spare=MOST_ADDED if self._pads else 0)

    def release(self, cache: KVCache) -> None:
        """Take back a cache that is used no more, and let go of what its request has read."""
        if self._compiled is not None:
            self._compiled.release(cache)
        if self._embedding_file is not None:
            self._embedding_file.drop_pages()

    @torch.inference_mode()
    def prefill(self, cache: KVCache, tokens: Sequence[int] | IntArray) -> torch.Tensor:
        """Forward tokens that follow the cache one by one; return the last one's logits, [1, V].

        Raises:
            ContextLengthError: If the cache has no room for them.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        logits = torch.empty(0)
        for start in range(0, len(ids), PREFILL_CHUNK):
            chunk = ids[start : start + PREFILL_CHUNK]
            _require_room(cache, len(chunk))
            positions = np.arange(cache.length, cache.length + len(chunk))
            logits = self._forward(
                cache, chunk, positions, self._causal(cache, len(chunk)), self._last(len(chunk))
            )
        return logits

    @torch.inference_mode()
    def forward(
        self, cache: KVCache, tokens: IntArray, positions: IntArray, visible: BoolArray
    ) -> torch.Tensor:
        """Forward tree nodes and return the logits after each, [N, V].

        Args:
            cache: Takes the nodes' keys and values in its next N slots.
            tokens: Token ids, [N].
            positions: Absolute positions, [N].
            visible: Which of the last S slots (these N included) each node attends to, [N, S];
                all slots before those are visible to every node.

        Raises:
            ContextLengthError: If the cache has no room for them.
        """
        _require_room(cache, len(tokens))
        if self._compiled is not None:
            logits = self._compiled.forward(cache, tokens, positions, visible)
            cache.advance(len(tokens))
            return logits
        if len(tokens) == 1 and visible.all():  # a plain decoding step, without a mask
            return self._forward(cache, tokens, positions, None, 0)
        mask = self._additive(cache, visible)
        return self._forward(cache, tokens, positions, mask, 0)[: len(tokens)]

    def sharpener(self, row: int, highest: float) -> RowSharpener:
        """Return what computes logits of a row of the last forward again.

        Args:
            row: The row.
            highest: Its highest logit: what lies close to it may stand in the wrong order.
        """
        return RowSharpener(self._head, row, highest, self._dtype)

    def _causal(self, cache: KVCache, count: int) -> torch.Tensor | None:
        """Return the mask of tokens in a row; none where the model needs none.

        Left to itself the model makes one out of truth values, which every layer converts again.
        """
        if cache.length == 0 or count == 1:
            return None
        return self._additive(cache, np.tri(count, dtype=np.bool_))

    def _additive(self, cache: KVCache, visible: BoolArray) -> torch.Tensor:
        """Return the mask of rows that are the next of a cache, those added to them included."""
        count = len(visible)
        rows = self._rows(count)
        end = cache.length + rows
        slots = padded_slots(cache.length, rows) if self._pads else end
        if slots > end:
            cache.show(rows, slots)
        view = visible if slots == cache.length + count else padded_view(visible, rows, slots - end)
        return self._masks.additive(view, slots)

    def _last(self, count: int) -> int | torch.Tensor:
        """Return what keeps the logits of the last row that counts, in the model's words."""
        return 1 if self._rows(count) == count else torch.tensor([count - 1])

    def _rows(self, count: int) -> int:
        return padded_rows(count) if self._pads else count

    def _forward(
        self,
        cache: KVCache,
        tokens: IntArray,
        positions: IntArray,
        mask: torch.Tensor | None,
        logits_to_keep: int | torch.Tensor,
    ) -> torch.Tensor:
        count = len(tokens)
        inputs = np.zeros((2, self._rows(count)), dtype=np.int64)
        inputs[0, :count], inputs[1, :count] = tokens, positions
        both = torch.from_numpy(inputs).to(self._device, non_blocking=True)
        output = self._model(
            input_ids=both[:1],
            position_ids=both[1:],
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=logits_to_keep,
            **{self._cache_argument: cache},
        )
        cache.advance(count)
        if self._head is not None:
            self._head.settle(output.logits)
        logits: torch.Tensor = output.logits[0]
        return logits


def _require_room(cache: KVCache, count: int) -> None:
    if cache.length + count > cache.capacity:
        raise ContextLengthError(
            f"{count} more tokens do not fit a cache of {cache.capacity} that holds {cache.length}."
        )


def cache_argument(model: Any) -> str:
    """Return what this version of transformers calls the cache."""
    known = inspect.signature(model.forward).parameters
    return "cache" if "cache" in known else "past_key_values"
