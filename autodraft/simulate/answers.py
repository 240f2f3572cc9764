"""One simulated answer: the policies of the real thing over a trace, in no time at all.

The loops are those of ``autodraft.engine``, without models and sockets: what a forward takes is
read from tables, what the target says from the trace. The output is the trace's by definition.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from autodraft.decoding.retrieval import Retriever
from autodraft.policy.adaptive import AdaptivePolicy
from autodraft.policy.base import Outcome, Policy
from autodraft.policy.handover import HandOver
from autodraft.profiling.traces import Places, Trace
from autodraft.records import RoundRecord
from autodraft.simulate.clock import Tally
from autodraft.simulate.drafting import Drafted, draft, follow
from autodraft.tree.draft_tree import IntArray

_NODE_BYTES: Final = 4
_FRAME_BYTES: Final = 14


@dataclass(frozen=True)
class Drafter:
    """Who drafts an answer.

    Attributes:
        policy: Decides the shapes.
        retriever: Grafts what the text itself suggests; None where nothing is grafted.
        has_model: Whether there is a draft model.
        on_server: Whether it drafts on the server.
    """

    policy: Policy
    retriever: Retriever | None
    has_model: bool
    on_server: bool = False


class Answer:
    """An answer that goes on as its trace does.

    Attributes:
        tally: What it has used.
        done: Tokens of it so far.
    """

    def __init__(self, trace: Trace, places: Places, tally: Tally, limit: int) -> None:
        """Begin it.

        Args:
            trace: What the target says.
            places: What the draft says.
            tally: Takes what it uses.
            limit: Most tokens of an answer; a trace that is shorter has ended by itself.
        """
        self.tally = tally
        self._places = places
        self._truth = trace.output_ids[:limit]
        self._limit = limit
        self._context = list(trace.prompt_ids)
        self._prompt_tokens = len(self._context)
        self._cached = 0
        self.done = 0

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.done >= len(self._truth)

    @property
    def remaining(self) -> int:
        """Tokens that it may still have, as far as those who decode it know."""
        return self._limit - self.done

    @property
    def context_tokens(self) -> int:
        """Committed tokens, prompt included."""
        return len(self._context)

    @property
    def output_ids(self) -> list[int]:
        """Its tokens so far."""
        return self._truth[: self.done]

    @property
    def ended(self) -> bool:
        """Whether the target ended it, and not the limit."""
        return len(self._truth) < self._limit

    def begin(self, *, drafts_here: bool) -> None:
        """Forward the prompt; the first token is there."""
        self.tally.prefill(self._prompt_tokens, drafts_here=drafts_here)
        if drafts_here:
            self._cached = self._prompt_tokens
        self._commit(1)

    def plain(self) -> float:
        """The server makes one token; return the seconds of its forward."""
        step_s = self.tally.plain(len(self._context))
        self._commit(1)
        return step_s

    def round(self, by: Drafter, node_budget: int) -> Outcome:
        """Run one round of an answer that is not over.

        Args:
            by: Who drafts.
            node_budget: Most nodes that the method sends.
        """
        policy, context_tokens = by.policy, len(self._context)
        room = (self.remaining - 1, node_budget)
        drafted = draft(
            policy, self._places, self._context, self.done, room, by.retriever, by.has_model
        )
        path = follow(drafted.tree, self._truth[self.done :])
        outcome = self._outcome(drafted, path, by.on_server)
        self._cached = context_tokens + _kept(drafted, path) if drafted.expanded else self._cached
        emitted = min(len(path) + 1, len(self._truth) - self.done)
        self.tally.verified(self._record(drafted, outcome, emitted, policy), on_server=by.on_server)
        self._commit(emitted)
        policy.observe(outcome)
        return outcome

    def _commit(self, count: int) -> None:
        self._context += self._truth[self.done : self.done + count]
        self.done += count

    def _outcome(self, drafted: Drafted, path: IntArray, on_server: bool) -> Outcome:
        world, tree, context = self.tally.world, drafted.tree, len(self._context)
        steps = [len(nodes) for nodes in drafted.expanded]
        if steps:  # the first one catches up with what was committed since
            steps[0] = context - self._cached
        draft_s = sum(world.devices.draft.at(rows, context) for rows in steps)
        verify_s = world.devices.target.at(tree.num_nodes + 1, context)
        up, down = _FRAME_BYTES + _NODE_BYTES * tree.num_nodes, _FRAME_BYTES
        trip_s = 0.0 if on_server else world.link.seconds(up, down)
        after = self.done + len(path)
        bonus = self._truth[after] if after < len(self._truth) else -1
        return Outcome(
            growth=drafted.growth,
            reached=drafted.kept[np.concatenate(([0], path))],
            truths=[*tree.tokens[path].tolist(), bonus],
            context_tokens=context,
            num_nodes=tree.num_nodes,
            draft_s=draft_s,
            wait_s=trip_s + verify_s,
            queue_s=0.0,
            verify_s=verify_s,
            round_s=draft_s + trip_s + verify_s + world.devices.round_s,
            uplink_bytes=0 if on_server else up,
            downlink_bytes=down,
        )

    def _record(
        self, drafted: Drafted, outcome: Outcome, emitted: int, policy: Policy
    ) -> RoundRecord:
        expected = policy.prediction()
        return RoundRecord(
            round=len(self.tally.rounds) + 1,
            context_tokens=outcome.context_tokens,
            width=drafted.width,
            depth=drafted.tree.depth,
            drafted_nodes=drafted.growth.num_nodes,
            num_nodes=outcome.num_nodes,
            accepted_length=len(outcome.reached) - 1,
            emitted_tokens=emitted,
            draft_s=outcome.draft_s,
            wait_s=outcome.wait_s,
            queue_s=0.0,
            verify_s=outcome.verify_s,
            round_s=outcome.round_s,
            uplink_bytes=outcome.uplink_bytes,
            downlink_bytes=outcome.downlink_bytes,
            predicted_s=expected and expected.round_s,
            predicted_tokens=expected and expected.tokens,
        )


def _kept(drafted: Drafted, path: IntArray) -> int:
    """Return how many accepted nodes the draft's cache holds: those that were expanded."""
    expanded = {node for nodes in drafted.expanded for node in nodes.tolist()}
    return sum(node in expanded for node in drafted.kept[path].tolist())


def decode_alone(answer: Answer) -> None:
    """Let the server decode all of an answer."""
    answer.begin(drafts_here=False)
    while not answer.over:
        answer.plain()


def decode_in_rounds(answer: Answer, by: Drafter, node_budget: int) -> None:
    """Decode an answer in rounds of one method."""
    answer.begin(drafts_here=by.has_model and not by.on_server)
    while not answer.over:
        answer.round(by, node_budget)


def decode_adaptively(
    answer: Answer, by: Drafter, policy: AdaptivePolicy, handover: HandOver
) -> None:
    """Decode an answer in rounds where they pay, and let the server decode where they do not."""
    policy.start(answer.context_tokens, answer.remaining)
    handover.begin(policy.opening_cost, policy.loss)
    asked = handover.alone  # right behind the prompt: no round trip is lost
    answer.begin(drafts_here=not asked)
    policy.observe_beginning(answer.tally.ttft_s, answer.tally.busy_s)
    while not answer.over:
        if not handover.alone:
            outcome = answer.round(by, policy.limits.node_budget)
            handover.observe_round(policy.weigh(outcome), policy.transfer)
            continue
        if not asked:
            answer.tally.wait(answer.tally.world.link.rtt_s)
        asked = False
        _decode_stretch(answer, policy, handover)
    handover.end()


def _decode_stretch(answer: Answer, policy: AdaptivePolicy, handover: HandOver) -> None:
    """Let the server decode until a trial of rounds is due, or the answer is over.

    While the word to stop is on its way the server goes on, and so do its tokens.
    """
    stopped_at, on_trial = None, False
    while not answer.over and (stopped_at is None or answer.tally.now_s < stopped_at):
        before_s = answer.tally.now_s
        step_s = answer.plain()
        policy.observe_plain(answer.context_tokens, step_s, answer.tally.now_s - before_s)
        answer.tally.alone += 1
        plain = policy.plain
        handover.observe_alone(plain)
        if stopped_at is not None:
            continue
        on_trial = handover.probe_is_due(policy.loss, plain * answer.remaining)
        if on_trial or policy.pays_again:
            stopped_at = answer.tally.now_s + answer.tally.world.link.rtt_s
    if not answer.over:
        handover.begin_probe(on_trial=on_trial)
