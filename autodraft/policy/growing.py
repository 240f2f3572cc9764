"""Growing one tree level by level: a policy says how wide, a proposer says with what.

Knows no model: candidates may come from a draft model, or from what one said at another time.
"""

from typing import Protocol

from autodraft.policy.base import Policy
from autodraft.tree.draft_tree import FloatArray, IntArray
from autodraft.tree.growth import TreeGrowth


class Proposer(Protocol):
    """Says what may come behind the nodes of a tree."""

    def propose(self, growth: TreeGrowth, nodes: IntArray) -> tuple[IntArray, FloatArray]:
        """Return candidates behind nodes and the logs of their probabilities, [W, K] each.

        Args:
            growth: The tree so far.
            nodes: Nodes of its newest level, best first, [W]; the bare root comes first.
        """
        ...


def grow(growth: TreeGrowth, policy: Policy, proposer: Proposer, max_depth: int) -> int:
    """Add levels until the policy, or ``max_depth``, ends it; return the widest one's width."""
    widest = 0
    while growth.depth < max_depth:
        nodes = growth.frontier(min(policy.width(growth), policy.limits.width))
        if len(nodes) == 0:
            break
        tokens, log_probs = proposer.propose(growth, nodes)
        growth.add_level(nodes, tokens, policy.value(growth, nodes, tokens, log_probs))
        widest = max(widest, len(nodes))
    return widest
