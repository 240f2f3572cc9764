"""Method ids to the classes that decode that way: the one table."""

from collections.abc import Callable
from functools import partial
from typing import Final

from autodraft.config import MethodSpec
from autodraft.engine.drafter import Drafter
from autodraft.engine.session import Method, ServerOnly, Speculative
from autodraft.policy import POLICIES, Policy, TreeLimits


def _server_only(spec: MethodSpec, _: Drafter) -> Method:
    return ServerOnly(spec.label)


def _speculative(
    policy: Callable[[TreeLimits], Policy], spec: MethodSpec, drafter: Drafter
) -> Method:
    limits = TreeLimits(spec.width, spec.max_depth, spec.node_budget)
    return Speculative(spec.label, policy(limits), drafter)


METHODS: Final[dict[str, Callable[[MethodSpec, Drafter], Method]]] = {
    "server_only": _server_only,
    **{name: partial(_speculative, policy) for name, policy in POLICIES.items()},
}


def make_method(spec: MethodSpec, drafter: Drafter) -> Method:
    """Return the decoder of one request; the caller has checked that the method is available."""
    return METHODS[spec.method](spec, drafter)
