"""Method ids to the classes that decode that way: the one table."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from autodraft.config import MethodSpec
from autodraft.decoding.retrieval import AcceptanceTable, Retriever
from autodraft.decoding.wish import PLAIN, Wish
from autodraft.engine.adaptive import Adaptive
from autodraft.engine.ahead import AheadDrafter
from autodraft.engine.drafter import Drafter, DraftSource, Guessing
from autodraft.engine.kept import Kept
from autodraft.engine.lookup import LookupDrafter
from autodraft.engine.rounds import DraftingAhead, Rounds
from autodraft.engine.session import Method, Speculative
from autodraft.engine.streamed import Colocated, ServerOnly
from autodraft.models.runner import ModelRunner
from autodraft.policy import POLICIES, Policy, TreeLimits
from autodraft.policy.pair import Pair


@dataclass
class DraftSide:
    """What one side drafts with, shared by all its requests.

    Attributes:
        acceptance: What retrieval has learned so far, by the kind of sampling.
        runner: The draft model; None until a method needs one.
        excluded: Token ids that the draft model has and the target does not.
        pair: What is known of it and the target; None until a method adapts to it.
        kept: What the last request left in the draft's cache.
    """

    acceptance: dict[str, AcceptanceTable] = field(default_factory=dict)
    runner: ModelRunner | None = None
    excluded: Sequence[int] = ()
    pair: Pair | None = None
    kept: Kept = field(default_factory=Kept)

    def drafter(self, spec: MethodSpec, wish: Wish, eos_ids: Iterable[int]) -> DraftSource:
        """Return the drafter of one request."""
        kind = wish.sampling.kind
        retriever = Retriever(self.acceptance.setdefault(kind, AcceptanceTable()))
        if not spec.needs_draft_model:
            return LookupDrafter(retriever)
        assert self.runner is not None, "the draft model is loaded before a method that needs it"
        kind_of_drafter = AheadDrafter if spec.proactive else Drafter
        return kind_of_drafter(
            self.runner,
            self.excluded,
            retriever if spec.retrieval else None,
            Guessing(wish.sampling, frozenset(eos_ids)),
            self.kept if wish.reuse else None,
        )


def make_rounds(
    spec: MethodSpec, side: DraftSide, wish: Wish = PLAIN, eos_ids: Iterable[int] = ()
) -> Rounds:
    """Return the rounds of one request, for whichever side drafts.

    Args:
        spec: A method that speculates: ``spec.method`` is one of ``POLICIES``.
        side: What it drafts with; holds the draft model where ``spec.needs_draft_model``.
        wish: What is asked of the answer.
        eos_ids: Token ids that end it.
    """
    limits = TreeLimits(spec.width, spec.max_depth, spec.node_budget)
    policy: Callable[[TreeLimits], Policy] = POLICIES[spec.method]
    return Rounds(policy(limits), side.drafter(spec, wish, eos_ids))


Maker = Callable[[MethodSpec, DraftSide, Wish, Iterable[int]], Method]


def _server_only(spec: MethodSpec, side: DraftSide, wish: Wish, eos_ids: Iterable[int]) -> Method:
    return ServerOnly(spec.label)


def _at_user(spec: MethodSpec, side: DraftSide, wish: Wish, eos_ids: Iterable[int]) -> Method:
    return Speculative(spec.label, make_rounds(spec, side, wish, eos_ids))


def _at_server(spec: MethodSpec, side: DraftSide, wish: Wish, eos_ids: Iterable[int]) -> Method:
    return Colocated(spec)


def _adaptive(spec: MethodSpec, side: DraftSide, wish: Wish, eos_ids: Iterable[int]) -> Method:
    assert side.pair is not None, "the pair is profiled before a method that adapts to it"
    policy = side.pair.policy(spec, wish.sampling.kind)
    drafter = side.drafter(spec, wish, eos_ids)
    ahead = None
    if isinstance(drafter, AheadDrafter):
        ahead = DraftingAhead(drafter, policy.draft_ahead())
    rounds = Rounds(policy, drafter, ahead)
    return Adaptive(spec.label, rounds, policy, handover=spec.handover)


METHODS: Final[dict[str, Maker]] = {
    "server_only": _server_only,
    "autodraft": _adaptive,
    **dict.fromkeys(POLICIES, _at_user),
    **{f"{name}@server": _at_server for name in POLICIES},
}


def make_method(
    spec: MethodSpec, side: DraftSide, wish: Wish = PLAIN, eos_ids: Iterable[int] = ()
) -> Method:
    """Return the client's decoder of one request.

    The caller has checked that the method is available, and has loaded the draft model where
    ``spec.needs_draft_model`` and it drafts at the user.
    """
    return METHODS[spec.name](spec, side, wish, eos_ids)
