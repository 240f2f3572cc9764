"""A target that accepts what a trace says: recorded lengths, real forwards.

After a real forward over a tree, the logits along one of its paths are raised and those of the
children at its end are lowered, so that the walk keeps exactly the recorded length. Everything else
is left alone; a result that was made this way says ``"acceptance": "replayed"``.
"""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from autodraft.models.kv_cache import KVCache
from autodraft.models.runner import BoolArray, IntArray, ModelRunner
from autodraft.policy import ChainPolicy, FixedTreePolicy, TreeLimits

TRACE_PATH: Final = Path(__file__).with_name("trace.json")


@dataclass(frozen=True)
class TreeShape:
    """A fixed shape whose acceptance was recorded.

    Attributes:
        method: ``chain`` or ``fixed_tree``.
        width: Frontier nodes expanded in one level.
        max_depth: Deepest level.
        node_budget: Most nodes sent.
    """

    method: str
    width: int
    max_depth: int
    node_budget: int

    @property
    def label(self) -> str:
        """The shape in words."""
        return f"{self.method} {self.width}x{self.max_depth}, {self.node_budget} nodes"

    def policy(self) -> FixedTreePolicy:
        """Return the policy that drafts this shape."""
        kinds = {"chain": ChainPolicy, "fixed_tree": FixedTreePolicy}
        return kinds[self.method](TreeLimits(self.width, self.max_depth, self.node_budget))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


SHAPES: Final = (
    TreeShape("fixed_tree", 8, 6, 32),
    TreeShape("chain", 1, 5, 5),
    TreeShape("fixed_tree", 16, 8, 64),
)
"""What is recorded and replayed, the most usual one first."""


class Trace(NamedTuple):
    """Accepted lengths of a real pair.

    Attributes:
        source: Where they come from, in words.
        accepted: Accepted length of each round, by the shape of the trees.
    """

    source: str
    accepted: dict[TreeShape, list[int]]


def load_trace(path: Path = TRACE_PATH) -> Trace:
    """Read a recorded trace."""
    found = json.loads(path.read_text(encoding="utf-8"))
    accepted = {}
    for entry in found["shapes"]:
        lengths = entry.pop("accepted")
        accepted[TreeShape(**entry)] = lengths
    return Trace(found["source"], accepted)


class ReplayingRunner(ModelRunner):
    """A model whose trees are accepted as deep as it was told."""

    def __init__(self, model: Any, name: str, compile: bool = False) -> None:
        """Wrap a model; until ``replay`` is called its logits are its own."""
        self._lengths: deque[int] = deque()
        super().__init__(model, name, compile=compile)

    def replay(self, lengths: Iterable[int]) -> None:
        """Set the accepted lengths of the next trees; after them logits are the model's own."""
        self._lengths = deque(lengths)

    @torch.inference_mode()
    def forward(
        self, cache: KVCache, tokens: IntArray, positions: IntArray, visible: BoolArray
    ) -> torch.Tensor:
        """Forward tree nodes, as ``ModelRunner`` does, and steer what follows each."""
        logits = super().forward(cache, tokens, positions, visible)
        if len(tokens) > 1 and self._lengths:
            steer(logits, tokens, visible, self._lengths.popleft())
        return logits


def steer(logits: torch.Tensor, tokens: IntArray, visible: BoolArray, length: int) -> None:
    """Change the logits of a tree, in place, so that ``length`` of its tokens are accepted.

    Where the tree is not that deep, all of its depth is.

    Args:
        logits: After each node, [N, V].
        tokens: Token of each node, [N]; node 0 is the root.
        visible: Which nodes each one attends to, its ancestors and itself, [N, N].
        length: Tokens to accept.
    """
    depths = visible.sum(axis=1) - 1
    last = int(np.flatnonzero(depths == min(length, int(depths.max())))[0])
    path = np.flatnonzero(visible[last])
    below = np.flatnonzero(visible[:, last] & (depths == depths[last] + 1))
    bounds = torch.finfo(logits.dtype)
    _put(logits, path[:-1], tokens[path[1:]], bounds.max)
    _put(logits, np.full(len(below), last), tokens[below], bounds.min)


def _put(logits: torch.Tensor, rows: IntArray, columns: IntArray, value: float) -> None:
    if len(rows):
        places = torch.from_numpy(np.stack((rows, columns))).to(logits.device)
        logits[places[0], places[1]] = value
