"""Retrieval alone: no node is expanded, and of what was grafted the likely part is sent."""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from autodraft.policy.base import StaticPolicy, TreeLimits
from autodraft.tree.growth import TreeGrowth

MIN_PROBABILITY: Final = 0.1
"""Least probability of a path that is worth a node of verification."""


class LookupPolicy(StaticPolicy):
    """Let no draft model grow anything; send the nodes that are likely enough."""

    def __init__(self, limits: TreeLimits) -> None:
        self.limits = replace(limits, width=0)

    def width(self, growth: TreeGrowth) -> int:
        """Return 0: there is no draft model that could expand a node."""
        return 0

    def num_nodes(self, growth: TreeGrowth) -> int:
        """Return how many nodes are at least ``MIN_PROBABILITY``, up to the node budget."""
        likely = np.count_nonzero(growth.log_values[1:] >= math.log(MIN_PROBABILITY))
        return min(self.limits.node_budget, int(likely))
