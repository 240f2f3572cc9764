"""The speculative round: draft, verify, commit, and what was measured of it.

The loop runs wherever the drafting does: at the user, where the tree is verified over the link, or
on the server itself. It does not know which, nor what a tree costs or why it has its shape.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from autodraft.decoding.stopping import Ending, FinishReason
from autodraft.engine.ahead import AheadDrafter
from autodraft.engine.drafter import Draft, DraftSource
from autodraft.meters import Meter
from autodraft.policy.base import AheadPolicy, Outcome, Policy
from autodraft.records import RoundRecord, TokenScore
from autodraft.tree.draft_tree import DraftTree


@dataclass(frozen=True)
class Verdict:
    """What the target said of a tree.

    Attributes:
        path: Accepted nodes, root excluded, from the top down.
        bonus: The target's own token after them.
        queue_s: Time waited for the model, on the target's clock.
        verify_s: Time of forward and walk, on the target's clock.
        scores: Of the accepted tokens and the bonus token, where they were asked for.
    """

    path: npt.NDArray[np.int64]
    bonus: int
    queue_s: float
    verify_s: float
    scores: Sequence[TokenScore] = ()


class Traffic(NamedTuple):
    """Bytes, as WebSocket payload.

    Attributes:
        uplink_bytes: Sent to the target.
        downlink_bytes: Received from it.
    """

    uplink_bytes: int
    downlink_bytes: int

    def since(self, before: "Traffic") -> "Traffic":
        """Return what has come on top of an earlier reading."""
        return Traffic(
            self.uplink_bytes - before.uplink_bytes, self.downlink_bytes - before.downlink_bytes
        )


Meanwhile = Callable[[Callable[[], bool]], None]
"""Something to do while a reply is awaited; it is told whether that is still so."""


class RoundTarget(Protocol):
    """Whoever verifies the trees."""

    @property
    def max_depth(self) -> int:
        """Deepest tree that it takes."""
        ...

    @property
    def traffic(self) -> Traffic:
        """Bytes sent to it and received from it so far."""
        ...

    def verify(self, tree: DraftTree, meanwhile: Meanwhile | None = None) -> Verdict:
        """Verify one round's tree and commit what the target agrees with.

        Args:
            tree: The tree.
            meanwhile: Done while the reply is awaited, where there is one to wait for.
        """
        ...


@dataclass(frozen=True)
class Meters:
    """Energy meters of both sides; None where energy is not known.

    Attributes:
        draft: The user's device.
        target: The target's machine, where it has no counter of its own to report.
    """

    draft: Meter | None = None
    target: Meter | None = None


@dataclass
class Progress:
    """The state of one answer, and its tally.

    Attributes:
        ending: Where it ends.
        context: Committed token ids, prompt included.
        node_budget: Most nodes a round sends: the method's wish, within what the server allows.
        meters: Energy meters.
        output: Tokens of the answer.
        rounds: Records of its speculative rounds.
        draft_s: Time spent drafting so far, on the side that runs the rounds; None where it does
            not draft.
        ahead_s: Time spent drafting ahead, while replies were awaited.
        queue_s: Time waited for the target model.
        scores: Of the tokens of the answer, where they were asked for.
    """

    ending: Ending
    context: list[int]
    node_budget: int
    meters: Meters = field(default_factory=Meters)
    output: list[int] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)
    draft_s: float | None = None
    ahead_s: float = 0.0
    queue_s: float = 0.0
    scores: list[TokenScore] = field(default_factory=list)

    @property
    def finish(self) -> FinishReason | None:
        """Why the answer has ended; None while it goes on."""
        return self.ending.finish

    @property
    def busy_s(self) -> float | None:
        """Time spent drafting, ahead or not; None where this side does not draft."""
        return None if self.draft_s is None else self.draft_s + self.ahead_s

    @property
    def remaining(self) -> int:
        """Tokens the answer may still have."""
        return self.ending.rules.max_new_tokens - len(self.output)

    def commit(self, block: Sequence[int], scores: Sequence[TokenScore] = ()) -> list[int]:
        """Add new tokens to the answer, cut where it ends, and return those added."""
        kept = self.ending.cut(block)
        self.output += kept
        self.context += kept
        self.scores += scores[: len(kept)]
        return kept


class DraftingAhead:
    """Drafting ahead in the rounds of one request, and what became of it.

    Attributes:
        seconds: Time of it in this round.
        nodes: Nodes that were forwarded.
        overdue: Whether the reply may have waited for the last forward.
        hit: Whether this round began from what the one before had drafted ahead; None where that
            was nothing.
        used: Nodes of it that this round has used.
        saved_s: Time that this round was spared.
    """

    def __init__(self, drafter: AheadDrafter, policy: AheadPolicy) -> None:
        """Take who drafts, and who decides whether that pays."""
        self._drafter = drafter
        self._policy = policy
        self.seconds, self.nodes, self.overdue = 0.0, 0, False
        self.hit: bool | None = None
        self.used, self.saved_s = 0, 0.0

    def begin(self, *, last: bool) -> Meanwhile | None:
        """Begin with a tree that has been drafted; return what to do while it is verified.

        Args:
            last: Whether the answer may end with this round: then nothing.
        """
        self.seconds, self.nodes, self.overdue = 0.0, 0, False
        self.hit, self.used, replaced = self._drafter.reuse
        self.saved_s = self._policy.remember(replaced)
        return None if last or not self._policy.begin() else self._draft

    def commit(self, verdict: Verdict) -> None:
        """Let the drafter keep what the target agrees with, and what lies ahead of it."""
        self._drafter.commit_ahead(verdict.path, verdict.bonus)

    def settle(self, rounds: list[RoundRecord]) -> None:
        """Take what this round has used off the waste of the one before."""
        if self.used:
            last = rounds[-1]
            wasted_s = last.ahead_s * (1.0 - self.used / last.ahead_nodes)
            rounds[-1] = msgspec.structs.replace(last, wasted_s=wasted_s)

    def _draft(self, waiting: Callable[[], bool]) -> None:
        started = time.perf_counter()

        def awaited() -> float | None:
            return time.perf_counter() - started if waiting() else None

        self.nodes = self._drafter.draft_ahead(self._policy, awaited)
        if self.nodes:
            self.seconds = time.perf_counter() - started
            self.overdue = not waiting()


class Rounds:
    """Draft, send, verify, commit, until the answer ends."""

    def __init__(
        self, policy: Policy, drafter: DraftSource, ahead: DraftingAhead | None = None
    ) -> None:
        """Take who decides and who drafts.

        Args:
            policy: Decides the shapes.
            drafter: Drafts the trees.
            ahead: Lets that drafter draft ahead; None never does.
        """
        self._policy = policy
        self._drafter = drafter
        self._ahead = ahead

    @property
    def node_budget(self) -> int:
        """Most nodes the policy ever sends."""
        return self._policy.limits.node_budget

    def start(self, prompt: Sequence[int], max_new_tokens: int, *, ahead: bool = True) -> float:
        """Let the drafter take in the prompt, if a round is about to come; return the seconds."""
        started = time.perf_counter()
        self._drafter.start(prompt, max_new_tokens, self._policy.limits, ahead=ahead)
        return time.perf_counter() - started

    def decode(self, progress: Progress, target: RoundTarget) -> Iterator[list[int]]:
        """Yield the tokens of one round after another."""
        while progress.finish is None:
            yield self.round(progress, target)[0]

    def finish(self) -> None:
        """Free what the drafter held."""
        self._drafter.finish()

    def round(self, progress: Progress, target: RoundTarget) -> tuple[list[int], Outcome]:
        """Run one round of an answer that has not ended; return its tokens and what it took."""
        context_tokens, before = len(progress.context), target.traffic
        started = time.perf_counter()
        # The bonus token takes one of the tokens that are left.
        max_depth = min(progress.remaining - 1, target.max_depth)
        draft = self._drafter.draft(progress.context, self._policy, max_depth, progress.node_budget)
        drafted = time.perf_counter()
        ahead = self._ahead
        last = progress.remaining <= draft.tree.depth + 1
        meanwhile = None if ahead is None else ahead.begin(last=last)
        verdict = target.verify(draft.tree, meanwhile)
        verified = time.perf_counter()
        if ahead is None:
            self._drafter.commit(verdict.path)
        else:
            ahead.commit(verdict)
        truths = [*draft.tree.tokens[verdict.path].tolist(), verdict.bonus]
        block = progress.commit(truths, verdict.scores)
        ended = time.perf_counter()
        traffic = target.traffic.since(before)
        outcome = Outcome(
            growth=draft.growth,
            reached=draft.kept[np.concatenate(([0], verdict.path))],
            truths=truths,
            context_tokens=context_tokens,
            num_nodes=draft.tree.num_nodes,
            draft_s=drafted - started,
            wait_s=verified - drafted,
            queue_s=verdict.queue_s,
            verify_s=verdict.verify_s,
            round_s=ended - started,
            uplink_bytes=traffic.uplink_bytes,
            downlink_bytes=traffic.downlink_bytes,
            ahead_s=0.0 if ahead is None else ahead.seconds,
            overdue=ahead is not None and ahead.overdue,
        )
        self._record(progress, draft, outcome, len(block))
        self._policy.observe(outcome)
        return block, outcome

    def _record(self, progress: Progress, draft: Draft, outcome: Outcome, emitted: int) -> None:
        progress.draft_s = (progress.draft_s or 0.0) + outcome.draft_s
        progress.ahead_s += outcome.ahead_s
        progress.queue_s += outcome.queue_s
        ahead = self._ahead
        if ahead is not None:
            ahead.settle(progress.rounds)
        busy_s = outcome.draft_s + outcome.ahead_s
        meters, expected = progress.meters, self._policy.prediction()
        progress.rounds.append(
            RoundRecord(
                round=len(progress.rounds) + 1,
                context_tokens=outcome.context_tokens,
                width=draft.width,
                depth=draft.tree.depth,
                drafted_nodes=draft.drafted_nodes,
                num_nodes=outcome.num_nodes,
                accepted_length=len(outcome.reached) - 1,
                emitted_tokens=emitted,
                draft_s=outcome.draft_s,
                wait_s=outcome.wait_s,
                queue_s=outcome.queue_s,
                verify_s=outcome.verify_s,
                round_s=outcome.round_s,
                uplink_bytes=outcome.uplink_bytes,
                downlink_bytes=outcome.downlink_bytes,
                draft_j=round_joules(meters.draft, busy_s, outcome.round_s),
                target_j=round_joules(meters.target, outcome.verify_s, outcome.round_s),
                predicted_s=expected and expected.round_s,
                predicted_tokens=expected and expected.tokens,
                ahead_s=outcome.ahead_s,
                ahead_nodes=0 if ahead is None else ahead.nodes,
                ahead_hit=None if ahead is None else ahead.hit,
                saved_s=0.0 if ahead is None else ahead.saved_s,
                wasted_s=outcome.ahead_s,  # until the next round uses some of it
            )
        )


def round_joules(meter: Meter | None, busy_s: float, total_s: float) -> float | None:
    """Return the energy of one round; None from a counter, which is too slow for one."""
    if meter is None or meter.shortest_s > 0:
        return None
    return meter.begin().end(busy_s, total_s).gross_j
