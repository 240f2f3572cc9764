"""Method ids to the classes that decode that way: the one table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from autodraft.config import MethodSpec
from autodraft.decoding.retrieval import AcceptanceTable, Retriever
from autodraft.engine.drafter import Drafter, DraftSource
from autodraft.engine.lookup import LookupDrafter
from autodraft.engine.session import Method, ServerOnly, Speculative
from autodraft.models.runner import ModelRunner
from autodraft.policy import POLICIES, Policy, TreeLimits


@dataclass
class DraftSide:
    """What an engine drafts with, shared by all its requests.

    Attributes:
        acceptance: What retrieval has learned so far.
        runner: The draft model; None until a method needs one.
        excluded: Token ids that the draft model has and the target does not.
    """

    acceptance: AcceptanceTable = field(default_factory=AcceptanceTable)
    runner: ModelRunner | None = None
    excluded: Sequence[int] = ()

    def drafter(self, spec: MethodSpec) -> DraftSource:
        """Return the drafter of one request."""
        retriever = Retriever(self.acceptance)
        if not spec.needs_draft_model:
            return LookupDrafter(retriever)
        assert self.runner is not None, "the draft model is loaded before a method that needs it"
        return Drafter(self.runner, self.excluded, retriever if spec.retrieval else None)


def _server_only(spec: MethodSpec, side: DraftSide) -> Method:
    return ServerOnly(spec.label)


def _speculative(
    policy: Callable[[TreeLimits], Policy], spec: MethodSpec, side: DraftSide
) -> Method:
    limits = TreeLimits(spec.width, spec.max_depth, spec.node_budget)
    return Speculative(spec.label, policy(limits), side.drafter(spec))


METHODS: Final[dict[str, Callable[[MethodSpec, DraftSide], Method]]] = {
    "server_only": _server_only,
    **{name: partial(_speculative, policy) for name, policy in POLICIES.items()},
}


def make_method(spec: MethodSpec, side: DraftSide) -> Method:
    """Return the decoder of one request.

    The caller has checked that the method is available, and has loaded the draft model where
    ``spec.needs_draft_model``.
    """
    return METHODS[spec.method](spec, side)
