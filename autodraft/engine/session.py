"""One request from prompt to last token: the round loop, and what was measured on the way.

The loop is the same for every method: prefill on both sides at once, then whatever the method does
until the answer ends. This module does not know what a tree costs or why it has its shape.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autodraft.decoding.stopping import FinishReason, StopRules
from autodraft.engine.drafter import Draft, DraftSource
from autodraft.engine.remote import Bill, RemoteTarget, Step, Verdict
from autodraft.meters import Meter
from autodraft.policy.base import Policy
from autodraft.records import RequestRecord, RoundRecord


@dataclass(frozen=True)
class Meters:
    """Energy meters of both sides; None where energy is not known."""

    draft: Meter | None = None
    target: Meter | None = None


@dataclass
class Progress:
    """The state of one answer, and its tally.

    Attributes:
        target: The server that verifies it.
        rules: When it ends.
        context: Committed token ids, prompt included.
        meters: Energy meters.
        node_budget: Most nodes a round sends: the method's wish, within what the server allows.
        output: Tokens of the answer.
        finish: Why it has ended; None while it goes on.
        rounds: Records of its speculative rounds.
        draft_s: Time spent drafting so far; None where the user's device does not draft.
        queue_s: Time waited for the target model.
    """

    target: RemoteTarget
    rules: StopRules
    context: list[int]
    meters: Meters
    node_budget: int
    output: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    rounds: list[RoundRecord] = field(default_factory=list)
    draft_s: float | None = None
    queue_s: float = 0.0

    @property
    def remaining(self) -> int:
        """Tokens the answer may still have."""
        return self.rules.max_new_tokens - len(self.output)

    def commit(self, block: Sequence[int]) -> list[int]:
        """Add new tokens to the answer, cut where it ends, and return those added."""
        kept, self.finish = self.rules.cut(len(self.output), block)
        self.output += kept
        self.context += kept
        return kept

    def take(self, step: Step) -> list[int]:
        """Commit what the server made outside a round."""
        self.queue_s += step.queue_s
        return self.commit(step.tokens)


class Method(Protocol):
    """How an answer is decoded after its first token."""

    @property
    def label(self) -> str:
        """Method id for records, placement suffix included."""
        ...

    @property
    def node_budget(self) -> int:
        """Most nodes a round sends."""
        ...

    def prefill(self, prompt: Sequence[int], max_new_tokens: int) -> float | None:
        """Prepare while the target prefills; return the seconds of draft compute, if any."""
        ...

    def decode(self, progress: Progress) -> Iterator[list[int]]:
        """Decode to the end of the answer, yielding each block of committed tokens."""
        ...

    def finish(self) -> None:
        """Free what the request held."""
        ...


class ServerOnly:
    """Plain decoding on the server, streamed: the baseline of every comparison."""

    node_budget = 0

    def __init__(self, label: str) -> None:
        self.label = label

    def prefill(self, prompt: Sequence[int], max_new_tokens: int) -> None:
        """Nothing to prepare: the user's device takes no part."""

    def decode(self, progress: Progress) -> Iterator[list[int]]:
        """Yield the server's stream."""
        for step in progress.target.generate():
            yield progress.take(step)

    def finish(self) -> None:
        """Nothing is held."""


class Speculative:
    """Draft, send, verify, commit, until the answer ends."""

    def __init__(self, label: str, policy: Policy, drafter: DraftSource) -> None:
        self.label = label
        self._policy = policy
        self._drafter = drafter

    @property
    def node_budget(self) -> int:
        """Most nodes the policy ever sends."""
        return self._policy.limits.node_budget

    def prefill(self, prompt: Sequence[int], max_new_tokens: int) -> float:
        """Let the drafter take in the prompt."""
        started = time.perf_counter()
        self._drafter.start(prompt, max_new_tokens, self._policy.limits)
        return time.perf_counter() - started

    def decode(self, progress: Progress) -> Iterator[list[int]]:
        """Yield the tokens of one round after another."""
        while progress.finish is None:
            yield self._round(progress)

    def finish(self) -> None:
        """Free what the drafter held."""
        self._drafter.finish()

    def _round(self, progress: Progress) -> list[int]:
        context_tokens, before = len(progress.context), progress.target.traffic
        started = time.perf_counter()
        # The bonus token takes one of the tokens that are left.
        max_depth = min(progress.remaining - 1, progress.target.welcome.max_depth)
        draft = self._drafter.draft(progress.context, self._policy, max_depth, progress.node_budget)
        drafted = time.perf_counter()
        verdict = progress.target.verify(draft.tree)
        verified = time.perf_counter()
        self._drafter.commit(verdict.path)
        block = progress.commit([*draft.tree.tokens[verdict.path].tolist(), verdict.bonus])
        ended = time.perf_counter()
        times = _RoundTimes(drafted - started, verified - drafted, ended - started)
        after = progress.target.traffic
        traffic = (after[0] - before[0], after[1] - before[1])
        self._record(progress, draft, verdict, times, traffic, context_tokens, len(block))
        return block

    def _record(
        self,
        progress: Progress,
        draft: Draft,
        verdict: Verdict,
        times: "_RoundTimes",
        traffic: tuple[int, int],
        context_tokens: int,
        emitted: int,
    ) -> None:
        progress.draft_s = (progress.draft_s or 0.0) + times.draft_s
        progress.queue_s += verdict.queue_s
        progress.rounds.append(
            RoundRecord(
                round=len(progress.rounds) + 1,
                context_tokens=context_tokens,
                width=draft.width,
                depth=draft.tree.depth,
                drafted_nodes=draft.drafted_nodes,
                num_nodes=draft.tree.num_nodes,
                accepted_length=len(verdict.path),
                emitted_tokens=emitted,
                draft_s=times.draft_s,
                wait_s=times.wait_s,
                queue_s=verdict.queue_s,
                verify_s=verdict.verify_s,
                round_s=times.round_s,
                uplink_bytes=traffic[0],
                downlink_bytes=traffic[1],
                draft_j=_joules(
                    progress.meters.draft, times.draft_s, times.round_s - times.draft_s
                ),
                target_j=_joules(
                    progress.meters.target, verdict.verify_s, times.round_s - verdict.verify_s
                ),
            )
        )


@dataclass(frozen=True)
class _RoundTimes:
    draft_s: float
    wait_s: float
    round_s: float


def _joules(meter: Meter | None, busy_s: float, idle_s: float) -> float | None:
    return meter.energy_j(busy_s, idle_s) if meter else None


class Request:
    """Runs one prompt through one method.

    Iterate for the blocks of committed tokens; ``record`` is there when the iteration has ended.
    """

    def __init__(
        self,
        target: RemoteTarget,
        method: Method,
        prompt: Sequence[int],
        rules: StopRules,
        meters: Meters,
    ) -> None:
        self._method = method
        self._prompt = prompt
        node_budget = min(method.node_budget, target.welcome.max_nodes)
        self._progress = Progress(target, rules, list(prompt), meters, node_budget)
        self._record: RequestRecord | None = None

    @property
    def record(self) -> RequestRecord:
        """The finished request's record."""
        if self._record is None:
            raise RuntimeError("the request has not been iterated to its end")
        return self._record

    @property
    def rounds(self) -> list[RoundRecord]:
        """Records of the rounds so far."""
        return self._progress.rounds

    def __iter__(self) -> Iterator[list[int]]:
        progress, method, target = self._progress, self._method, self._progress.target
        traffic = target.traffic
        started = time.perf_counter()
        try:
            target.open(progress.rules.max_new_tokens, progress.node_budget, method.label)
            target.send_prompt(self._prompt)
            progress.draft_s = method.prefill(self._prompt, progress.rules.max_new_tokens)
            first = progress.take(target.first_token())
            ttft_s = time.perf_counter() - started
            yield first
            if progress.finish is None:
                yield from method.decode(progress)
            total_s = time.perf_counter() - started
        except GeneratorExit:  # the consumer stopped early: leave the link ready for the next
            target.close_session()
            raise
        finally:
            method.finish()
        bill = target.close_session()
        self._record = self._build_record(bill, ttft_s, total_s, traffic)

    def _build_record(
        self, bill: Bill, ttft_s: float, total_s: float, before: tuple[int, int]
    ) -> RequestRecord:
        progress, rounds = self._progress, self._progress.rounds
        after = progress.target.traffic
        later_tokens = len(progress.output) - 1
        draft_s, meters = progress.draft_s, progress.meters
        return RequestRecord(
            method=self._method.label,
            prompt_tokens=len(self._prompt),
            output_tokens=len(progress.output),
            finish_reason=progress.finish or "length",
            ttft_s=ttft_s,
            total_s=total_s,
            rounds=len(rounds) if draft_s is not None else later_tokens,
            round_tokens=later_tokens,
            drafted_nodes=sum(round_.drafted_nodes for round_ in rounds),
            sent_nodes=sum(round_.num_nodes for round_ in rounds),
            accepted_tokens=sum(round_.accepted_length for round_ in rounds),
            target_forwards=bill.forwards,
            draft_s=draft_s,
            target_busy_s=bill.busy_s,
            target_held_s=bill.held_s,
            queue_s=progress.queue_s,
            uplink_bytes=after[0] - before[0],
            downlink_bytes=after[1] - before[1],
            draft_j=0.0 if draft_s is None else _joules(meters.draft, draft_s, total_s - draft_s),
            target_j=_joules(meters.target, bill.busy_s, bill.held_s - bill.busy_s),
            energy_method=meters.draft.method if meters.draft else None,
            output_ids=list(progress.output),
        )
