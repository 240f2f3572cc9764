"""Server-only decoding in another bucket: rounds whose drafted tokens are never right.

Every token then comes from a forward of several rows, over a cache that such forwards filled, as
in speculation: what differs from plain decoding is rounding, and nothing that speculation adds.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from autodraft.engine.drafter import Draft
from autodraft.engine.rounds import Rounds
from autodraft.engine.session import Method, Speculative
from autodraft.models.rows import SIZES
from autodraft.policy import FixedTreePolicy, TreeLimits
from autodraft.policy.base import Policy
from autodraft.tree.draft_tree import NO_PARENT, DraftTree, IntArray

PADDED: Final = "server_only_padded"
JUNK: Final = SIZES[1] - 1
"""Drafted tokens of a round: with the root they fill the smallest bucket of several rows."""


class JunkDrafter:
    """Proposes the same tokens behind every context, siblings of each other."""

    def __init__(self, tokens: Sequence[int]) -> None:
        """Take the token ids, each once."""
        self._tokens = tokens

    def start(
        self, prompt: Sequence[int], max_new_tokens: int, limits: TreeLimits, *, ahead: bool = True
    ) -> None:
        """Nothing depends on the request."""

    def draft(
        self, context: Sequence[int], policy: Policy, max_depth: int, node_budget: int
    ) -> Draft:
        """Propose the tokens, as ``DraftSource`` says; none where only one token is left."""
        count = min(len(self._tokens), node_budget) if max_depth >= 1 else 0
        tree = DraftTree(
            np.array([context[-1], *self._tokens[:count]], dtype=np.int64),
            np.array([NO_PARENT] + [0] * count, dtype=np.int64),
            np.array([0] + [1] * count, dtype=np.int64),
            np.zeros(1 + count),
        )
        return Draft.whole(tree, width=0)

    def commit(self, path: IntArray) -> None:
        """Nothing is kept."""

    def finish(self) -> None:
        """Nothing is held."""


def junk_tokens(vocab_size: int, said: Iterable[int], eos_ids: Iterable[int]) -> list[int]:
    """Return token ids that a target practically never says.

    Args:
        vocab_size: Token ids that it has.
        said: Those that a draft distilled from it says; the others were left out for being rare.
        eos_ids: Those that end an answer.
    """
    ending, common_ids = set(eos_ids), set(said)
    allowed = [token for token in range(vocab_size) if token not in ending]
    return sorted(allowed, key=lambda token: (token in common_ids, -token))[:JUNK]


def padded_method(tokens: Sequence[int]) -> Method:
    """Return the decoder of one request."""
    limits = TreeLimits(width=len(tokens), max_depth=1, node_budget=len(tokens))
    return Speculative(PADDED, Rounds(FixedTreePolicy(limits), JunkDrafter(tokens)))
