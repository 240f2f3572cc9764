"""One request from prompt to last token, and what was measured on the way.

The frame is the same for every method: prefill on both sides at once, then whatever the method
does until the answer ends, then the bill.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from autodraft.decoding.stopping import Decode, Ending, StopRules
from autodraft.decoding.wish import PLAIN, Wish
from autodraft.engine.remote import Beginning, Bill, RemoteTarget
from autodraft.engine.rounds import Meters, Progress, Rounds, Traffic
from autodraft.meters import Energy, Meter
from autodraft.protocol.messages import Welcome
from autodraft.records import RequestRecord, RoundRecord, TokenScore

_NO_PART: Final = Energy(0.0, 0.0)
_UNKNOWN: Final = Energy(None, None)


@dataclass(frozen=True)
class MethodReport:
    """What only some methods know of a request; fields as in ``RequestRecord``."""

    handed_over_tokens: int | None = None
    draft_reliability: list[tuple[int, float, int]] | None = None
    reliability: list[tuple[int, float, int]] | None = None


NO_REPORT: Final = MethodReport()


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

    @property
    def speculates(self) -> bool:
        """Whether it decodes in rounds; else every token is a step of its own."""
        ...

    @property
    def on_server(self) -> bool:
        """Whether it drafts on the server."""
        ...

    def start(
        self, target: RemoteTarget, prompt: Sequence[int], max_new_tokens: int
    ) -> float | None:
        """Prepare while the target prefills; return the seconds of draft compute here, if any."""
        ...

    def decode(self, progress: Progress, target: RemoteTarget) -> Iterator[list[int]]:
        """Decode to the end of the answer, yielding each block of committed tokens."""
        ...

    def finish(self) -> None:
        """Free what the request held."""
        ...

    def report(self) -> MethodReport:
        """Return what the method alone knows, when the answer has ended."""
        ...


class Speculative:
    """Drafting at the user, verifying over the link."""

    speculates = True
    on_server = False

    def __init__(self, label: str, rounds: Rounds) -> None:
        self.label = label
        self._rounds = rounds

    @property
    def node_budget(self) -> int:
        """Most nodes the policy ever sends."""
        return self._rounds.node_budget

    def start(self, target: RemoteTarget, prompt: Sequence[int], max_new_tokens: int) -> float:
        """Let the drafter take in the prompt."""
        return self._rounds.start(prompt, max_new_tokens)

    def decode(self, progress: Progress, target: RemoteTarget) -> Iterator[list[int]]:
        """Yield the tokens of one round after another."""
        return self._rounds.decode(progress, target)

    def finish(self) -> None:
        """Free what the drafter held."""
        self._rounds.finish()

    def report(self) -> MethodReport:
        """Nothing that the rounds do not say."""
        return NO_REPORT


def never() -> bool:
    """Return that an answer is not cancelled."""
    return False


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
        decode: Decode | None = None,
        wish: Wish = PLAIN,
        cancelled: Callable[[], bool] = never,
    ) -> None:
        """Prepare a request; iterating sends it.

        Args:
            target: The server that verifies it.
            method: How it is decoded.
            prompt: Token ids.
            rules: When the answer ends.
            meters: Energy meters.
            decode: Turns token ids into text, where the rules have stop strings.
            wish: What else is asked of the answer.
            cancelled: Asked after every block; once it says yes the answer ends there.
        """
        self._wish = wish
        self._cancelled = cancelled
        self._beginning: Beginning | None = None
        self._target = target
        self._method = method
        self._prompt = prompt
        node_budget = min(method.node_budget, target.welcome.max_nodes)
        self._progress = Progress(Ending(rules, decode), list(prompt), node_budget, meters)
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

    @property
    def scores(self) -> list[TokenScore] | None:
        """How surely each token was chosen; None where it was not asked for."""
        return None if self._wish.top_logprobs is None else self._progress.scores

    def __iter__(self) -> Iterator[list[int]]:
        progress, target = self._progress, self._target
        clock = _Clock(target.traffic, progress.meters.draft)
        try:
            for block in self._blocks(clock):
                over = self._cancelled()
                if over or progress.finish is not None:
                    clock.end(progress.busy_s)
                if block:
                    yield block
                if over:
                    break
        except GeneratorExit:  # the consumer stopped early: leave the link ready for the next
            target.close_session()
            raise
        finally:
            self._method.finish()
        self._record = self._build_record(target.close_session(), clock)

    def _blocks(self, clock: "_Clock") -> Iterator[list[int]]:
        progress, method, target = self._progress, self._method, self._target
        rules = progress.ending.rules
        target.open(rules, progress.node_budget, method.label, self._wish)
        target.send_prompt(self._prompt)
        progress.draft_s = method.start(target, self._prompt, rules.max_new_tokens)
        first = self._beginning = target.first_token()
        progress.queue_s += first.queue_s
        block = progress.commit(first.tokens, first.scores)
        clock.first()
        yield block
        yield from method.decode(progress, target)

    def _build_record(self, bill: Bill, clock: "_Clock") -> RequestRecord:
        progress, rounds, meters = self._progress, self._progress.rounds, self._progress.meters
        traffic = self._target.traffic.since(clock.traffic)
        later_tokens = len(progress.output) - 1
        draft = clock.energy
        report = self._method.report()
        alone = report.handed_over_tokens or 0  # each is a step of its own, like server-only's
        begun, scores = self._beginning, self.scores
        assert begun is not None, "there is no answer without a first token"
        target, target_method = _target_energy(bill, meters.target, self._target.welcome)
        return RequestRecord(
            method=self._method.label,
            prompt_tokens=len(self._prompt),
            output_tokens=len(progress.output),
            finish_reason=progress.finish or "cancelled",
            ttft_s=clock.ttft_s,
            total_s=clock.total_s,
            rounds=len(rounds) + alone if self._method.speculates else later_tokens,
            round_tokens=later_tokens,
            drafted_nodes=sum(round_.drafted_nodes for round_ in rounds),
            sent_nodes=sum(round_.num_nodes for round_ in rounds),
            accepted_tokens=sum(round_.accepted_length for round_ in rounds),
            target_forwards=bill.forwards,
            draft_s=progress.draft_s,
            server_draft_s=bill.draft_s if self._method.on_server else None,
            target_busy_s=bill.busy_s,
            target_held_s=bill.held_s,
            queue_s=progress.queue_s,
            uplink_bytes=traffic.uplink_bytes,
            downlink_bytes=traffic.downlink_bytes,
            draft_j=draft.gross_j,
            draft_net_j=draft.net_j,
            target_j=target.gross_j,
            target_net_j=target.net_j,
            draft_energy_method=meters.draft.method if meters.draft else None,
            target_energy_method=target_method,
            output_ids=list(progress.output),
            output_gaps=None if scores is None else [score.gap for score in scores],
            exact=begun.exact,
            redecided_tokens=bill.redecided,
            reused_prompt_tokens=begun.reused,
            ahead_s=progress.ahead_s,
            ahead_nodes=sum(round_.ahead_nodes for round_ in rounds),
            ahead_rounds=sum(round_.ahead_hit is not None for round_ in rounds),
            ahead_hits=sum(bool(round_.ahead_hit) for round_ in rounds),
            saved_s=math.fsum(round_.saved_s for round_ in rounds),
            wasted_s=math.fsum(round_.wasted_s for round_ in rounds),
            **vars(report),
        )


class _Clock:
    """The times, the traffic and the user's energy of one request.

    Attributes:
        traffic: Bytes that had gone over the link before it.
        ttft_s: Submit to first token.
        total_s: Submit to last token.
        energy: Of the user's device until then.
    """

    def __init__(self, traffic: Traffic, meter: Meter | None) -> None:
        self.traffic = traffic
        self._window = meter.begin() if meter else None
        self._started = time.perf_counter()
        self.ttft_s = self.total_s = math.nan
        self.energy = _UNKNOWN

    def first(self) -> None:
        """The first token is there."""
        self.ttft_s = time.perf_counter() - self._started

    def end(self, draft_s: float | None) -> None:
        """The last token is there, after so many seconds of drafting at the user, if any."""
        if not math.isnan(self.total_s):
            return
        self.total_s = time.perf_counter() - self._started
        if draft_s is None:
            self.energy = _NO_PART
        elif self._window is not None:
            self.energy = self._window.end(draft_s, self.total_s)


def _target_energy(bill: Bill, meter: Meter | None, welcome: Welcome) -> tuple[Energy, str | None]:
    """Return the target's energy and how it was found: the server's own figure goes first."""
    if bill.energy.gross_j is not None:
        return bill.energy, welcome.energy_method
    if meter is None:
        return _UNKNOWN, None
    return meter.begin().end(bill.busy_s, bill.held_s), meter.method
