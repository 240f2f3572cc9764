"""Compiled forwards of tree nodes: a few fixed shapes, so that compiling pays and graphs replay.

``torch.compile`` makes one program for each shape; on CUDA its mode ``reduce-overhead`` records it
as a graph. So rows are padded up to a bucket, attention looks at a window of a power of two, and
keys and values are written where an index tensor says. Padded rows write to a spare slot that
nobody sees. This module does not know what the rows mean.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from autodraft.models.kv_cache import CacheLayout, KVCache
from autodraft.models.rows import padded_rows

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

SMALLEST_WINDOW: Final = 512
_SPARE_SLOTS: Final = 1
_MOST_PROGRAMS: Final = 64
"""torch gives up on a function after 8 programs; rows times windows are more."""


def window_of(slots: int) -> int:
    """Return the slots that attention looks at where ``slots`` are filled."""
    return max(SMALLEST_WINDOW, 1 << (slots - 1).bit_length())


class CompiledForward:
    """The compiled forwards of one model, and the caches they run over.

    A cache is used again for later requests: a recorded graph holds its address.
    """

    def __init__(self, model: Any, cache_argument: str) -> None:
        weight = model.get_input_embeddings().weight
        self._device: torch.device = weight.device
        self._dtype: torch.dtype = model.dtype
        self._cache_argument = cache_argument
        self._on_cuda = self._device.type == "cuda"
        mode = "reduce-overhead" if self._on_cuda else "default"
        self._call: Any = torch.compile(model.forward, mode=mode, dynamic=False)
        self._free: list[KVCache] = []

    def new_cache(self, layout: CacheLayout, capacity: int) -> KVCache:
        """Return an empty cache for at least ``capacity`` tokens, a used one where one fits."""
        capacity = window_of(capacity)
        for cache in self._free:
            if cache.capacity == capacity:
                self._free.remove(cache)
                return cache
        cache = KVCache(layout, capacity, spare=_SPARE_SLOTS)
        for layer in cache.layers:
            for states in (layer.keys, layer.values):
                states.zero_()  # what is masked is still multiplied, by zero: no NaN may be there
                torch._dynamo.mark_static_address(states, guard=False)
        return cache

    def release(self, cache: KVCache) -> None:
        """Keep a cache for the next request."""
        cache.trim(0)
        self._free.append(cache)

    def forward(
        self, cache: KVCache, tokens: IntArray, positions: IntArray, visible: BoolArray
    ) -> torch.Tensor:
        """Forward nodes behind a cache of this object; return the logits after each, [N, V].

        The cache is not advanced.

        Args:
            cache: Takes the nodes' keys and values in its next N slots.
            tokens: Token ids, [N].
            positions: Absolute positions, [N].
            visible: Which of the last S slots each node attends to, [N, S].
        """
        count = len(tokens)
        rows, window = padded_rows(count), window_of(cache.length + count)
        inputs = np.zeros((3, rows), dtype=np.int64)
        inputs[0, :count], inputs[1, :count] = tokens, positions
        inputs[2] = cache.capacity  # the spare slot
        inputs[2, :count] = np.arange(cache.length, cache.length + count)
        ids, places, slots = torch.from_numpy(inputs).to(self._device, non_blocking=True)
        mask = self._mask(visible, cache.length + count, rows, window)
        patience = torch._dynamo.config.patch(recompile_limit=_MOST_PROGRAMS)
        with patience, cache.fixed(slots, window):
            if self._on_cuda:
                torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            output = self._call(
                input_ids=ids[None],
                position_ids=places[None],
                attention_mask=mask,
                use_cache=True,
                **{self._cache_argument: cache},
            )
        logits: torch.Tensor = output.logits[0, :count]
        # A replayed graph writes its output to the same place again.
        return logits.clone() if self._on_cuda else logits

    def _mask(self, visible: BoolArray, filled: int, rows: int, window: int) -> torch.Tensor:
        """Return the additive mask, [1, 1, rows, window]: nobody sees what is not filled."""
        count, tail = visible.shape
        hidden = torch.finfo(self._dtype).min
        mask = torch.full((rows, window), hidden, dtype=self._dtype, device=self._device)
        mask[:, : filled - tail] = 0
        seen = torch.from_numpy(visible).to(self._device, non_blocking=True)
        mask[:count, filled - tail : filled].masked_fill_(seen, 0)
        return mask[None, None]
