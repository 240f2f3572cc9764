"""A tree of fixed width, depth and size: the usual static setting.

Every round expands the same number of frontier nodes to the same depth and sends the best nodes of
what grew (dynamic positions inside fixed limits, as in EAGLE-2, Li et al. 2024, arXiv 2406.16858).
"""

from autodraft.policy.base import StaticPolicy, TreeLimits
from autodraft.tree.growth import TreeGrowth


class FixedTreePolicy(StaticPolicy):
    """Expand ``width`` nodes on each of ``max_depth`` levels, send the ``node_budget`` best."""

    def __init__(self, limits: TreeLimits) -> None:
        self.limits = limits

    def width(self, growth: TreeGrowth) -> int:
        """Return the fixed width until the fixed depth is reached."""
        return self.limits.width if growth.depth < self.limits.max_depth else 0

    def num_nodes(self, growth: TreeGrowth) -> int:
        """Return the fixed node budget, or all nodes where fewer grew."""
        return min(self.limits.node_budget, growth.num_nodes)
