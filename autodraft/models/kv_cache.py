"""A preallocated key-value cache that stock transformers models write into.

Slots are filled in the order tokens are forwarded. A draft tree's nodes take slots behind the
committed context; after verification the accepted path is gathered to the front and the rest is
trimmed. The cache does not know which token stands in which slot.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

from autodraft.errors import ModelLoadError


@dataclass(frozen=True)
class SlotLayout:
    """Shape of one layer's keys or values in one slot.

    Attributes:
        heads: Key-value heads.
        head_dim: Elements per head.
        dtype: Element type.
        device: Where the layer runs.
    """

    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def nbytes(self) -> int:
        """Bytes of one slot."""
        return self.heads * self.head_dim * self.dtype.itemsize


@dataclass(frozen=True)
class CacheLayout:
    """Layouts of all layers: ``(keys, values)`` of each, in layer order."""

    layers: tuple[tuple[SlotLayout, SlotLayout], ...]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.layers)

    @classmethod
    def observed(cls, cache: Cache, model_name: str) -> "CacheLayout":
        """Read the layout off a stock cache that a forward has filled.

        Raises:
            ModelLoadError: If a layer is not plain full attention. A sliding window or a
                recurrent state cannot be rolled back to an accepted path.
        """
        layouts = []
        for index, layer in enumerate(cache.layers):
            if type(layer) is not DynamicLayer or layer.keys is None:
                raise ModelLoadError(
                    f"{model_name}: layer {index} keeps its past in a {type(layer).__name__}. Tree "
                    "verification needs full attention in every layer; choose a model without "
                    "sliding-window or recurrent layers."
                )
            layouts.append((_slot_layout(layer.keys), _slot_layout(layer.values)))
        return cls(tuple(layouts))


def _slot_layout(states: torch.Tensor) -> SlotLayout:
    _, heads, _, head_dim = states.shape
    return SlotLayout(heads, head_dim, states.dtype, states.device)


class _Layer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped
    """One layer's view of the storage, as stock attention modules use it."""

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys = keys
        self.values = values
        self.is_initialized = True
        self.length = 0
        self.added = 0
        self.slots: torch.Tensor | None = None
        self.window = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is left to initialise: storage is allocated with the cache."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.slots is not None:
            self.keys.index_copy_(-2, self.slots, key_states)
            self.values.index_copy_(-2, self.slots, value_states)
            return self.keys[..., : self.window, :], self.values[..., : self.window, :]
        end = self.length + key_states.shape[-2]
        self.keys[..., self.length : end, :] = key_states
        self.values[..., self.length : end, :] = value_states
        end += self.added
        return self.keys[..., :end, :], self.values[..., :end, :]

    # A compiled program must not depend on the length: it would be another for each.

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length if self.slots is None else self.window, 0

    def get_seq_length(self) -> int:
        return self.length if self.slots is None else 0

    def get_max_length(self) -> int:
        return int(self.keys.shape[-2])

    def get_max_cache_shape(self) -> int:  # its name before transformers 5.21
        return self.get_max_length()


class KVCache(Cache):  # type: ignore[misc]  # transformers is untyped
    """Keys and values of up to ``capacity`` tokens, allocated once.

    Layers of equal shape on one device share one storage tensor, so that gathering a path is one
    operation per device rather than two per layer.

    Attributes:
        capacity: Slots.
        length: Slots filled.
    """

    def __init__(self, layout: CacheLayout, capacity: int, spare: int = 0) -> None:
        """Allocate.

        Args:
            layout: What one token takes.
            capacity: Slots for tokens.
            spare: Slots behind those, for writes that nobody is to see.
        """
        flat = [slot for pair in layout.layers for slot in pair]
        members: dict[SlotLayout, list[int]] = defaultdict(list)
        for index, slot in enumerate(flat):
            members[slot].append(index)
        states: list[torch.Tensor] = [torch.empty(0)] * len(flat)
        self._storages: list[torch.Tensor] = []
        for slot, indices in members.items():
            shape = (len(indices), 1, slot.heads, capacity + spare, slot.head_dim)
            storage = torch.empty(shape, dtype=slot.dtype, device=slot.device)
            self._storages.append(storage)
            for index, state in zip(indices, storage, strict=True):
                states[index] = state
        super().__init__(
            layers=[_Layer(*pair) for pair in zip(states[::2], states[1::2], strict=True)]
        )
        self.capacity = capacity
        self.length = 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(storage.nbytes for storage in self._storages)

    @contextmanager
    def fixed(self, slots: torch.Tensor, window: int) -> Iterator[None]:
        """Within this context, write to named slots and show the first ``window`` ones.

        Args:
            slots: Where a forward's keys and values go, [N]; the length does not matter.
            window: Slots that attention gets to see.
        """
        self._fix(slots, window)
        try:
            yield
        finally:
            self._fix(None, 0)

    def _fix(self, slots: torch.Tensor | None, window: int) -> None:
        for layer in self.layers:
            layer.slots, layer.window = slots, window

    def show(self, rows: int, slots: int) -> None:
        """Show the next forward of ``rows`` so many slots: those behind the rows' own are empty."""
        end = self.length + rows
        for storage in self._storages:
            storage[..., end:slots, :] = 0  # hidden, but what is no number would show
        for layer in self.layers:
            layer.added = slots - end

    def advance(self, count: int) -> None:
        """Count the slots that a finished forward has filled."""
        self._set_length(self.length + count)

    def adopt(self, other: "KVCache", count: int) -> None:
        """Begin with the first ``count`` slots of another cache of the same model."""
        for storage, theirs in zip(self._storages, other._storages, strict=True):
            storage[..., :count, :] = theirs[..., :count, :]
        self._set_length(count)

    def trim(self, length: int) -> None:
        """Forget every slot from ``length`` on.

        Raises:
            ValueError: If fewer slots than that are filled.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot trim a cache of {self.length} tokens to {length}")
        self._set_length(length)

    def keep(self, base: int, slots: npt.NDArray[np.int64] | Sequence[int]) -> None:
        """Keep the first ``base`` slots and, gathered in place behind them, the named ones.

        Args:
            base: Slots of committed context that stay where they are.
            slots: Absolute slots of the accepted path, rising, each at least ``base``.
        """
        wanted = np.asarray(slots, dtype=np.int64)
        end = base + len(wanted)
        # The leading part of the path often stands where it belongs: nothing to move for it.
        moved = int((wanted != np.arange(base, end)).argmax()) if len(wanted) else 0
        if len(wanted) and wanted[moved] != base + moved:
            for storage in self._storages:
                index = torch.from_numpy(wanted[moved:]).to(storage.device)
                storage[..., base + moved : end, :] = storage.index_select(-2, index)
        self._set_length(end)

    def _set_length(self, length: int) -> None:
        self.length = length
        for layer in self.layers:
            layer.length, layer.added = length, 0
