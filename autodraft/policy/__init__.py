"""What shape to draft next: one class per method behind the ``Policy`` interface.

Policies know shapes and values, never models or sockets.
"""

from collections.abc import Callable
from typing import Final

from autodraft.policy.base import Policy, TreeLimits
from autodraft.policy.chain import ChainPolicy
from autodraft.policy.fixed import FixedTreePolicy
from autodraft.policy.lookup import LookupPolicy
from autodraft.policy.opt_tree import OptTreePolicy

POLICIES: Final[dict[str, Callable[[TreeLimits], Policy]]] = {
    "chain": ChainPolicy,
    "fixed_tree": FixedTreePolicy,
    "opt_tree": OptTreePolicy,
    "lookup": LookupPolicy,
}

__all__ = [
    "POLICIES",
    "ChainPolicy",
    "FixedTreePolicy",
    "LookupPolicy",
    "OptTreePolicy",
    "Policy",
    "TreeLimits",
]
