"""A chain of d tokens: the draft's greedy continuation, no branches (SPADE)."""

from dataclasses import replace

from autodraft.policy.base import TreeLimits
from autodraft.policy.fixed import FixedTreePolicy


class ChainPolicy(FixedTreePolicy):
    """A fixed tree of width 1: d levels, d nodes, d the smaller of depth and node budget."""

    def __init__(self, limits: TreeLimits) -> None:
        length = min(limits.max_depth, limits.node_budget)
        super().__init__(replace(limits, width=1, max_depth=length, node_budget=length))
