"""The interface between the drafter and whatever decides the shape of its tree."""

from dataclasses import dataclass
from typing import Protocol

from autodraft.tree.growth import TreeGrowth


@dataclass(frozen=True)
class TreeLimits:
    """Ceilings of a tree.

    Attributes:
        width: Most frontier nodes expanded in one level, and most children of a node.
        max_depth: Most edges from the root.
        node_budget: Most nodes sent, root excluded.
    """

    width: int
    max_depth: int
    node_budget: int


class Policy(Protocol):
    """Decides, while a tree grows, how to go on and how much of it to send.

    The drafter holds every answer to the round's hard limits, so a policy need not know how many
    tokens are left to generate or what the server allows.
    """

    @property
    def limits(self) -> TreeLimits:
        """The ceilings that the method asks for."""
        ...

    def width(self, growth: TreeGrowth) -> int:
        """Return how many nodes of the newest level to expand; 0 ends the growth.

        The first question of a round is asked of the bare root (depth 0).
        """
        ...

    def num_nodes(self, growth: TreeGrowth) -> int:
        """Return how many of the grown tree's nodes to send, grafted ones included."""
        ...
