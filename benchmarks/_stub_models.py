"""Models that cost nothing, for measuring everything around them.

The stub target knows the token after every token, so what a round must accept can be worked out on
either side of the link. Key-value caches are real ones in the shape of the embedded models.
"""

import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch

from autodraft.engine.drafter import Draft
from autodraft.models.kv_cache import CacheLayout, KVCache, SlotLayout
from autodraft.models.loader import LoadedModel, ModelSource
from autodraft.models.runner import ModelRunner
from autodraft.models.tokenizer import Tokenizer
from autodraft.policy import Policy, TreeLimits
from autodraft.tree.draft_tree import NO_PARENT, DraftTree, IntArray, node_depths

VOCAB_SIZE: Final = 151_936
"""Rows of Qwen2.5's output head: ids above 65,535 are real there."""
FIRST_ID: Final = 65_536
"""Lowest token id used: every id on the wire needs its third byte."""
TARGET_LAYERS: Final = 30
DRAFT_LAYERS: Final = 4


def next_tokens(tokens: IntArray) -> IntArray:
    """Return the token that the stub target puts after each token, all above 65,535."""
    return FIRST_ID + (tokens * 7_919 + 13) % (VOCAB_SIZE - FIRST_ID)


def follow(token: int, count: int) -> list[int]:
    """Return the ``count`` tokens that the stub target decodes after a token."""
    tokens = np.array([token])
    chain: list[int] = []
    while len(chain) < count:
        tokens = next_tokens(tokens)
        chain.append(int(tokens[0]))
    return chain


def layout(layers: int) -> CacheLayout:
    """Return the cache layout of SmolLM2-135M cut to ``layers``: 3 heads of 64, bfloat16."""
    slot = SlotLayout(3, 64, torch.bfloat16, torch.device("cpu"))
    return CacheLayout(((slot, slot),) * layers)


class Best(NamedTuple):
    """What ``Tensor.max(dim)`` returns, without the values."""

    indices: torch.Tensor


class StubLogits:
    """Logits that are never spelt out: only their arg-max exists."""

    is_cpu = False  # the way of an accelerator's logits: one ``max`` for all rows

    def __init__(self, best: IntArray) -> None:
        self._best = torch.from_numpy(best)

    def max(self, dim: int) -> Best:
        """Return the best token of each row, whatever ``dim``."""
        return Best(self._best)


class StubRunner:
    """The runner of a target whose forward costs nothing; it counts cache slots, fills none."""

    max_context = 8_192
    vocab_size = VOCAB_SIZE
    device = "cpu"
    devices = frozenset({torch.device("cpu")})
    dtype = "bfloat16"
    padding = ()
    rounds_off = False

    def new_cache(self, capacity: int) -> KVCache:
        """Allocate a real cache, shaped like the embedded target's."""
        return KVCache(layout(TARGET_LAYERS), capacity)

    def release(self, cache: KVCache) -> None:
        """Take a cache back; there is nothing to do with it."""

    def prefill(self, cache: KVCache, tokens: Sequence[int]) -> StubLogits:
        """Answer with the token after the last one."""
        cache.advance(len(tokens))
        return StubLogits(next_tokens(np.array(tokens[-1:])))

    def forward(
        self, cache: KVCache, tokens: IntArray, positions: IntArray, visible: Any
    ) -> StubLogits:
        """Answer with the token after every node."""
        cache.advance(len(tokens))
        return StubLogits(next_tokens(tokens))


class StubTokenizer:
    """A tokenizer of which only the identity is asked for."""

    eos_ids: frozenset[int] = frozenset()

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the ids as text; no answer here has a stop string that would need it."""
        return " ".join(map(str, token_ids))

    def fingerprint(self) -> str:
        """Return a made-up fingerprint."""
        return "0" * 64

    def added_tokens(self) -> dict[int, str]:
        """Return no added token."""
        return {}


def load_stub(source: ModelSource) -> LoadedModel:
    """Stand in for ``load_model``."""
    return LoadedModel(
        source, cast(ModelRunner, StubRunner()), cast(Tokenizer, StubTokenizer()), ""
    )


class StubDrafter:
    """Makes up trees that hold the stub target's own tokens on one path as deep as allowed.

    Its key-value cache is real (two layers), and so is the gathering of the path.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._shapes = random.Random(seed)
        self._cache: KVCache | None = None
        self._root_slot = 0

    def start(
        self, prompt: Sequence[int], max_new_tokens: int, limits: TreeLimits, *, ahead: bool = True
    ) -> None:
        """Allocate the request's cache and count the prompt in."""
        slots = len(prompt) + max_new_tokens + limits.node_budget + 1
        self._cache = KVCache(layout(DRAFT_LAYERS), slots)
        self._cache.advance(len(prompt))

    def draft(
        self, context: Sequence[int], policy: Policy, max_depth: int, node_budget: int
    ) -> Draft:
        """Return a tree of ``node_budget`` nodes; the path to accept lies anywhere in it."""
        depth = min(policy.limits.max_depth, max_depth)
        parents, path = _shape(self._shapes, node_budget + 1, depth)
        chain = follow(context[-1], depth)
        drawn = self._rng.choice(VOCAB_SIZE - FIRST_ID, len(parents) + depth, replace=False)
        # No other node may carry a token of the path: it would be a second right one.
        tokens = np.setdiff1d(FIRST_ID + drawn, chain)[: len(parents)]
        tokens[path] = [context[-1], *chain]
        assert self._cache is not None, "start() comes first"
        self._root_slot = self._cache.length
        self._cache.advance(len(parents))
        tree = DraftTree(tokens, parents, node_depths(parents), np.zeros(len(parents)))
        return Draft.whole(tree, policy.limits.width)

    def commit(self, path: IntArray) -> None:
        """Keep the accepted path."""
        assert self._cache is not None, "start() comes first"
        root = self._root_slot
        self._cache.keep(root, np.concatenate(([root], root + path)))

    def finish(self) -> None:
        """Free the cache."""
        self._cache = None


def _shape(rng: random.Random, count: int, depth: int) -> tuple[IntArray, list[int]]:
    """Return the parents of a random tree of ``count`` nodes, and a path of ``depth`` edges."""
    path = [0, *sorted(rng.sample(range(1, count), depth))]
    above = dict(zip(path[1:], path, strict=False))
    parents, depths = [NO_PARENT], [0]
    for node in range(1, count):
        shallow = [other for other in range(node) if depths[other] < depth]
        parent = above.get(node, rng.choice(shallow))
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return np.array(parents, dtype=np.int64), path
