"""Does a loaded model really do what tree verification needs of it? Tried out, not looked up.

Every node of a tree must see its ancestors and the context at its own position, whatever slot its
keys stand in. A model whose attention goes by slot (ALiBi), looks back over a window, or keeps a
recurrent state would decode wrong tokens in silence; here it is refused when it is loaded. This
module knows no model families.
"""

from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import DynamicCache

from autodraft.errors import ModelLoadError
from autodraft.models.kv_cache import CacheLayout, KVCache

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_PREFIX: Final = 4
_SIBLINGS: Final = 16
"""Nodes between the root and the path that is checked: slots and positions must differ widely."""
_TOLERANCE_FLOAT32: Final = 1e-3
_TOLERANCE_BELOW: Final = 0.05
"""How far two orders of computing may lie apart, relative to the largest logit. Seen: 1e-6 in
float32, 0.012 in bfloat16, 0.035 in 8 bits; a wrong position or mask gives 0.1 and more."""
_FAULTS: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)
"""What foreign model code raises when it is driven in a way it was not written for."""


class TreeRunner(Protocol):
    """The forwards of a model, as ``ModelRunner`` has them."""

    vocab_size: int

    def new_cache(self, capacity: int) -> KVCache:
        """Allocate a cache."""
        ...

    def prefill(self, cache: KVCache, tokens: IntArray) -> torch.Tensor:
        """Forward a prompt."""
        ...

    def forward(
        self, cache: KVCache, tokens: IntArray, positions: IntArray, visible: BoolArray
    ) -> torch.Tensor:
        """Forward tree nodes."""
        ...


def observe_layout(model: Any, cache_argument: str, name: str) -> CacheLayout:
    """Find out what one token takes in the cache, by one forward.

    Raises:
        ModelLoadError: If the model keeps its past in a way that cannot be rolled back.
    """
    try:
        cache = forward_once(model, cache_argument)
    except _FAULTS as error:
        raise _unsuitable(name, f"it cannot be driven with a key-value cache ({error})") from error
    return CacheLayout.observed(cache, name)


def forward_once(model: Any, cache_argument: str) -> DynamicCache:
    """Forward one token and return the cache that it filled."""
    token = torch.zeros(
        (1, 1), dtype=torch.int64, device=model.get_input_embeddings().weight.device
    )
    cache = DynamicCache(config=model.config)
    model(input_ids=token, use_cache=True, logits_to_keep=1, **{cache_argument: cache})
    return cache


def require_tree_attention(runner: TreeRunner, model: Any, name: str) -> None:
    """Check that a node of a tree gets the logits that a plain forward of its path gives.

    Raises:
        ModelLoadError: If it does not, or if the model takes no tree mask at all.
    """
    config = model.config.get_text_config()
    if "local" in str(getattr(config, "attention_types", "")):
        raise _unsuitable(name, "some of its layers attend to a local window")
    ids = np.arange(1, _PREFIX + _SIBLINGS + 4) % runner.vocab_size
    prefix, root, siblings, path = np.split(ids, (_PREFIX, _PREFIX + 1, _PREFIX + 1 + _SIBLINGS))
    try:
        plain = _plain_logits(model, np.concatenate((prefix, root, path)))
        chain = _tree_logits(runner, prefix, np.concatenate((root, path)), num_siblings=0)
        tree = np.concatenate((root, siblings, path))
        branched = _tree_logits(runner, prefix, tree, num_siblings=_SIBLINGS)
    except _FAULTS as error:
        raise _unsuitable(name, f"it takes no tree mask ({error})") from error
    allowed = _tolerance(model) * float(plain.abs().max())
    errors = [float((logits - plain).abs().max()) for logits in (chain, branched)]
    if not max(errors) <= allowed:  # a NaN is refused too
        raise _unsuitable(name, "its attention does not follow a tree mask and explicit positions")


def _tolerance(model: Any) -> float:
    quantized = getattr(model, "quantization_method", None) is not None
    exact = model.dtype == torch.float32 and not quantized
    return _TOLERANCE_FLOAT32 if exact else _TOLERANCE_BELOW


def _plain_logits(model: Any, ids: IntArray) -> torch.Tensor:
    device = model.get_input_embeddings().weight.device
    output = model(input_ids=torch.from_numpy(ids).unsqueeze(0).to(device), use_cache=False)
    logits: torch.Tensor = output.logits[0, -1].float()
    return logits


def _tree_logits(
    runner: TreeRunner, prefix: IntArray, nodes: IntArray, num_siblings: int
) -> torch.Tensor:
    """Return the logits of the last node: a root, its leaf children, then a path below it."""
    count = len(nodes)
    first_of_path = 1 + num_siblings
    depths = np.ones(count, dtype=np.int64)
    depths[0] = 0
    depths[first_of_path:] = np.arange(1, count - num_siblings)
    visible = np.eye(count, dtype=np.bool_)
    visible[:, 0] = True
    on_path = slice(first_of_path, count)
    visible[on_path, on_path] = np.tri(count - first_of_path, dtype=np.bool_)
    cache = runner.new_cache(len(prefix) + count)
    runner.prefill(cache, prefix)
    return runner.forward(cache, nodes, len(prefix) + depths, visible)[-1].float()


def _unsuitable(name: str, reason: str) -> ModelLoadError:
    return ModelLoadError(
        f"{name} cannot be used for tree verification: {reason}. Choose a decoder-only model with "
        "full attention and rotary or learned positions in every layer, for example of the Llama "
        "or Qwen families."
    )
