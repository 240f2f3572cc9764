"""Sizes of real models, what they take in memory, and which pair fits a device.

Names are those of the published models whose sizes these are; nothing of theirs is loaded. Knows no
torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

GIB: Final = 2**30
RESERVE_BYTES: Final = 4 * GIB
"""Beside weights and caches: two CUDA contexts, attention's workspace, logits, recorded graphs."""
RESERVE_SHARE: Final = 0.05
"""Further part of the free memory that is left alone: allocators round up."""


class CannotCheck(Exception):
    """A part of the check cannot be done here; its message says why and what to do."""


@dataclass(frozen=True)
class Shape:
    """The size of one decoder-only model.

    Attributes:
        name: Whose size it is.
        family: transformers' model type.
        layers: Decoder layers.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key-value heads.
        head_dim: Elements of a head.
        intermediate: Width of the feed-forward layers.
        vocab: Rows of the embedding and of the head.
        tied: Whether the head is the embedding.
    """

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool

    @property
    def parameters(self) -> int:
        """Elements of all weights."""
        hidden, keys = self.hidden, self.kv_heads * self.head_dim
        queries = self.heads * self.head_dim
        biases = queries + 2 * keys if self.family == "qwen2" else 0
        attention = 2 * hidden * queries + 2 * hidden * keys + biases
        layer = attention + 3 * hidden * self.intermediate + 2 * hidden
        return self.layers * layer + hidden + (1 if self.tied else 2) * self.vocab * hidden

    @property
    def parameters_read(self) -> int:
        """Elements that a forward of one token reads: of an untied embedding only a row."""
        return self.parameters - (0 if self.tied else (self.vocab - 1) * self.hidden)

    def cache_bytes(self, tokens: int, itemsize: int) -> int:
        """Return the bytes of a key-value cache for so many tokens."""
        return 2 * self.layers * self.kv_heads * self.head_dim * itemsize * tokens

    def config(self) -> dict[str, Any]:
        """Return the fields of transformers' configuration, but for the model type."""
        return {
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": 32_768,
            "tie_word_embeddings": self.tied,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }


@dataclass(frozen=True)
class Pair:
    """A draft and a target that could share a tokenizer."""

    target: Shape
    draft: Shape


_QWEN: Final = {
    "14B": Shape("Qwen2.5-14B", "qwen2", 48, 5120, 40, 8, 128, 13_824, 152_064, False),
    "7B": Shape("Qwen2.5-7B", "qwen2", 28, 3584, 28, 4, 128, 18_944, 152_064, False),
    "3B": Shape("Qwen2.5-3B", "qwen2", 36, 2048, 16, 2, 128, 11_008, 151_936, True),
    "1.5B": Shape("Qwen2.5-1.5B", "qwen2", 28, 1536, 12, 2, 128, 8960, 151_936, True),
    "0.5B": Shape("Qwen2.5-0.5B", "qwen2", 24, 896, 14, 2, 64, 4864, 151_936, True),
}
_LLAMA: Final = {
    "8B": Shape("Llama-3.1-8B", "llama", 32, 4096, 32, 8, 128, 14_336, 128_256, False),
    "3B": Shape("Llama-3.2-3B", "llama", 28, 3072, 24, 8, 128, 8192, 128_256, True),
    "1B": Shape("Llama-3.2-1B", "llama", 16, 2048, 32, 8, 64, 8192, 128_256, True),
}
PAIRS: Final[dict[str, tuple[Pair, ...]]] = {
    "qwen2": (
        Pair(_QWEN["14B"], _QWEN["1.5B"]),
        Pair(_QWEN["7B"], _QWEN["1.5B"]),
        Pair(_QWEN["3B"], _QWEN["0.5B"]),
        Pair(_QWEN["1.5B"], _QWEN["0.5B"]),
    ),
    "llama": (Pair(_LLAMA["8B"], _LLAMA["1B"]), Pair(_LLAMA["3B"], _LLAMA["1B"])),
}
"""Of each family the largest first; the first family is the one that is measured in full."""

_TINY: Final = (2, 32, 4, 2, 8, 64)
TINY_PAIRS: Final[dict[str, tuple[Pair, ...]]] = {
    family: (
        Pair(
            Shape(f"tiny {family} target", family, *_TINY, 264, False),
            Shape(f"tiny {family} draft", family, *_TINY, 256, True),
        ),
    )
    for family in ("qwen2", "llama")
}


def small_shape(family: str, tiny: bool) -> Shape:
    """Return the size of the models whose outputs are compared token for token."""
    if tiny:
        return Shape(f"tiny {family}", family, 3, 32, 4, 2, 8, 64, 256, False)
    return Shape(f"small {family}", family, 6, 512, 8, 2, 64, 1408, 4096, False)


def pair_bytes(pair: Pair, itemsize: int, slots: int) -> int:
    """Return what both models and a cache of ``slots`` tokens each take."""
    models = (pair.target, pair.draft)
    weights = sum(shape.parameters for shape in models) * itemsize
    return weights + sum(shape.cache_bytes(slots, itemsize) for shape in models)


def choose_pair(
    pairs: Sequence[Pair],
    free_bytes: int,
    itemsize: int,
    slots: int,
    reserve_bytes: int = RESERVE_BYTES,
) -> tuple[Pair, str]:
    """Return the largest pair that fits, and why it is this one.

    Args:
        pairs: To choose from, the largest first.
        free_bytes: Free memory of the device.
        itemsize: Bytes of a weight.
        slots: Tokens that each model's cache is to hold.
        reserve_bytes: Memory to leave beside the models and their caches.

    Raises:
        CannotCheck: If none fits.
    """
    usable = int(free_bytes * (1 - RESERVE_SHARE))
    for number, pair in enumerate(pairs):
        needed = pair_bytes(pair, itemsize, slots) + reserve_bytes
        if needed <= usable:
            rank = "the largest pair" if number == 0 else "the largest pair that fits"
            return pair, f"{rank}: it needs {_gib(needed)} of {_gib(free_bytes)} free"
    smallest = pairs[-1]
    needed = pair_bytes(smallest, itemsize, slots) + reserve_bytes
    raise CannotCheck(
        f"{smallest.target.name} with {smallest.draft.name} needs {_gib(needed)}, and "
        f"{_gib(free_bytes)} are free. Free some memory, or check the workings alone with --tiny."
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
