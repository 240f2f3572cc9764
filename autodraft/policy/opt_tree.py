"""OPT-Tree: the tree's shape follows the draft's probabilities, its limits are fixed.

Wang et al. 2024 (arXiv 2406.17276): the tree is the one of ``node_budget`` nodes with the largest
expected accepted length; it grows by a level as long as that raises the expectation by more than a
threshold. The paper finds thresholds between the ratio of draft and target step time and 1 useful.
"""

from typing import Final

from autodraft.policy.base import StaticPolicy, TreeLimits
from autodraft.tree.growth import TreeGrowth

MIN_GAIN: Final = 0.2
"""Expected tokens that another level must have added for the growth to go on."""


class OptTreePolicy(StaticPolicy):
    """Grow level by level while the expectation rises, send the ``node_budget`` best nodes."""

    def __init__(self, limits: TreeLimits, min_gain: float = MIN_GAIN) -> None:
        self.limits = limits
        self._min_gain = min_gain

    def width(self, growth: TreeGrowth) -> int:
        """Return the width ceiling while levels pay, else 0."""
        if growth.depth >= self.limits.max_depth:
            return 0
        if growth.depth > 0 and self._last_gain(growth) <= self._min_gain:
            return 0
        return self.limits.width

    def _last_gain(self, growth: TreeGrowth) -> float:
        budget = self.limits.node_budget
        return growth.expected_tokens(budget) - growth.expected_tokens(budget, growth.depth - 1)

    def num_nodes(self, growth: TreeGrowth) -> int:
        """Return the node budget, or all nodes where fewer grew."""
        return min(self.limits.node_budget, growth.num_nodes)
