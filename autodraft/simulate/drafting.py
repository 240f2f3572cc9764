"""Drafting from a trace: trees grown by a policy, with a trace in the place of the draft model.

On the path of the target's own text the candidates are the draft's, as it gave them. Behind a node
that is off it nobody has asked the draft: the simulator takes the candidates of the same place of
the text. Only how sure the draft is there matters, for such a node is never accepted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from autodraft.decoding.retrieval import Retriever
from autodraft.policy.base import Policy
from autodraft.policy.growing import grow
from autodraft.profiling.traces import Places
from autodraft.tree.draft_tree import DraftTree, FloatArray, IntArray
from autodraft.tree.growth import TreeGrowth

_NOTHING = np.empty(0)


@dataclass
class Drafted:
    """What one round drafted.

    Attributes:
        tree: The tree to send.
        kept: Node of the growth that each node of the tree was, [N + 1].
        growth: All that was proposed.
        width: Most nodes expanded in one level.
        expanded: Nodes of the growth that were expanded, level by level.
    """

    tree: DraftTree
    kept: IntArray
    growth: TreeGrowth
    width: int
    expanded: list[IntArray] = field(default_factory=list)


class _Oracle:
    """Proposes what a trace holds."""

    def __init__(self, places: Places, first: int, count: int) -> None:
        self._places = places
        self._first = first
        self._count = count
        self.expanded: list[IntArray] = []

    def propose(self, growth: TreeGrowth, nodes: IntArray) -> tuple[IntArray, FloatArray]:
        """Return the candidates of the level's place, the same behind all its nodes."""
        self.expanded.append(nodes)
        place = min(self._first + growth.depth, len(self._places.tokens) - 1)
        tokens = self._places.tokens[place : place + 1, : self._count]
        log_probs = self._places.log_probs[place : place + 1, : self._count]
        return tokens.repeat(len(nodes), axis=0), log_probs.repeat(len(nodes), axis=0)


def draft(
    policy: Policy,
    places: Places,
    context: Sequence[int],
    first: int,
    room: tuple[int, int],
    retriever: Retriever | None,
    drafts: bool,
) -> Drafted:
    """Draft one round's tree, as the real drafter does.

    Args:
        policy: Decides the shape.
        places: What the draft says.
        context: All committed token ids; the last one is the root.
        first: Place of the answer that the round's first token has, from 0.
        room: Deepest level and most nodes that the round allows.
        retriever: Finds continuations in the context; None grafts none.
        drafts: Whether there is a draft model.
    """
    growth = TreeGrowth(context[-1])
    max_depth, node_budget = room
    oracle = _Oracle(places, first, policy.limits.most_children)
    if max_depth < 1 or node_budget < 1:
        policy.begin(len(context), _NOTHING)
        tree, kept = growth.best(0)
        return Drafted(tree, kept, growth, 0)
    found = None
    if retriever is not None:
        found = retriever.propose(context, min(max_depth, policy.limits.max_depth))
    policy.begin(len(context), _NOTHING if found is None else found.path_log_probs)
    width = grow(growth, policy, oracle, max_depth) if drafts else 0
    if found is not None:
        growth.graft(found.parents, found.tokens, found.log_probs)
    tree, kept = growth.best(min(policy.num_nodes(growth), node_budget))
    return Drafted(tree, kept, growth, width, oracle.expanded)


def follow(tree: DraftTree, truth: Sequence[int]) -> IntArray:
    """Return the nodes of a tree that the target's text goes along, from the top down.

    Args:
        tree: What was sent.
        truth: The text behind its root.
    """
    path: list[int] = []
    node = 0
    for token in truth:
        found = np.flatnonzero((tree.parents == node) & (tree.tokens == token))
        if not len(found):
            break
        node = int(found[0])
        path.append(node)
    return np.array(path, dtype=np.int64)
