"""Runs the requests of ``drift.py``: two clients of one server, one of which lives through a step.

A client is draft model, link and controller with everything the controller has learned. Knows no
score and no table.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import _common as common
import _live_target as live
from _drift_scores import Answer, Piece, Turn
from _drift_target import Target

from autodraft.config import ADAPTIVE, MethodSpec, NetworkSetting
from autodraft.decoding.stopping import StopRules
from autodraft.engine.methods import make_method
from autodraft.engine.remote import RemoteTarget, Step
from autodraft.engine.session import Request
from autodraft.engine.user import UserSide
from autodraft.policy.base import Outcome
from autodraft.transport.shaping import ShapedSocket
from autodraft.units import MS_PER_S

SETTLING: Final = 3
"""Prompts that are never measured."""


class Condition(NamedTuple):
    """What a client works under.

    Attributes:
        rtt_ms: Round trip that the link is shaped to.
        slowdown: How many times as long the target's forwards take.
    """

    rtt_ms: float
    slowdown: float


BEFORE: Final = Condition(5.0, 1.0)
CASES: Final = {"rtt": Condition(100.0, 1.0), "load": Condition(5.0, 3.0)}
"""What the condition steps to in mid-answer."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of answers, and how many come first.

    Attributes:
        answer: A measured one; shorter answers are left out.
        step: After so many of them the condition changes.
        settling: Of a request that is not measured.
        warmups: Requests of each client before anything is measured.
    """

    answer: int
    step: int
    settling: int
    warmups: int


class Client:
    """The user's side of the pair, with what its controller has learned."""

    def __init__(self, target: Target, dtype: str, rtt_ms: float) -> None:
        """Connect to the server and find out about the pair, or read what is known of it.

        Args:
            target: The server.
            dtype: Of both models.
            rtt_ms: Round trip that the link is shaped to at first.

        Raises:
            AutodraftError: If models, link or server fail.
        """
        self.config = live.pair_config(dtype, (ADAPTIVE,), target.port)
        self._target = target
        self._user = UserSide(self.config, live.TOKEN, None)
        self._user.use_network(NetworkSetting(rtt_ms=rtt_ms))
        try:
            self._user.profile()
        except BaseException:
            self._user.close()
            raise

    def close(self) -> None:
        """Close the link."""
        self._user.close()

    def encode(self, text: str) -> list[int]:
        """Return a user's turn as token ids, in the chat template."""
        return self._user.tokenizer.encode_chat([{"role": "user", "content": text}])

    def live_under(self, condition: Condition) -> None:
        """Let a condition hold from now on; a request may be running."""
        self._target.slowdown.value = condition.slowdown
        set_rtt(self._user.connect(), condition.rtt_ms / MS_PER_S)

    def answer(
        self,
        prompt: Sequence[int],
        spec: MethodSpec,
        tokens: int,
        step: tuple[int, Condition] | None = None,
    ) -> Answer:
        """Answer a prompt.

        Args:
            prompt: Token ids.
            spec: The method; it adapts.
            tokens: Most tokens.
            step: Tokens after which the condition changes, at the end of a round, and the new one.

        Raises:
            LinkError: If the link or the server fails.
        """
        target = self._user.prepare_for(spec)
        pair = self._user.side.pair
        assert pair is not None, "the client has profiled it"
        weigh = pair.policy(spec).cost_of
        watched = _Watched(target)
        rules = StopRules(frozenset(target.welcome.eos_ids), tokens)
        method = make_method(spec, self._user.side)
        request = Request(cast(RemoteTarget, watched), method, prompt, rules, self._user.meters())
        pieces: list[Piece] = []
        stepped_at = None
        for block in request:
            took = watched.since_last(request)
            if took is not None:
                pieces.append(Piece(weigh(cast(Outcome, took)), len(block), watched.was_alone))
            written = 1 + sum(piece.tokens for piece in pieces)
            if step is not None and stepped_at is None and step[0] <= written < tokens:
                self.live_under(step[1])
                stepped_at = len(pieces)
        return Answer(tuple(request.record.output_ids), tuple(pieces), stepped_at)


class _Watched:
    """A target that also tells what its stream of single tokens took."""

    def __init__(self, target: RemoteTarget) -> None:
        self._target = target
        self._forward_s = 0.0
        self._rounds = 0
        self._traffic = target.traffic
        self._at: float | None = None
        self.was_alone = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def steps(self) -> Iterator[Step]:
        """Yield the stream of what the server makes alone."""
        for step in self._target.steps():
            self._forward_s += step.forward_s
            yield step

    def since_last(self, request: Request) -> Any:
        """Return what the newest block took, as a round does; None for the first token.

        A token that the server makes alone lasts from the one before it to its arrival.
        """
        now, rounds, traffic = time.perf_counter(), len(request.rounds), self._target.traffic
        before, forward_s, gone = self._at, self._forward_s, traffic.since(self._traffic)
        self.was_alone = rounds == self._rounds
        self._at, self._forward_s = now, 0.0
        self._rounds, self._traffic = rounds, traffic
        if not self.was_alone:
            return request.rounds[-1]
        if before is None:
            return None
        return SimpleNamespace(
            draft_s=0.0,
            verify_s=forward_s,
            round_s=now - before,
            uplink_bytes=gone.uplink_bytes,
            downlink_bytes=gone.downlink_bytes,
        )


def set_rtt(target: RemoteTarget, rtt_s: float) -> None:
    """Shape a link anew without closing it: frames that are on their way keep their times.

    Users have no such knob: their links do it by themselves.

    Raises:
        CannotMeasure: If the link is not a shaped one.
    """
    socket = target._link._socket
    if not isinstance(socket, ShapedSocket):
        raise common.CannotMeasure("The link is not shaped, so it cannot be shaped anew.")
    for line in (socket._up, socket._down):
        line._way._delay_s = rtt_s / 2


@dataclass(frozen=True)
class Cell:
    """One case at one cost sensitivity.

    Attributes:
        case: Name of the step.
        spec: The method.
        lengths: Tokens of the answers.
        prompts: Most prompts that are measured.
    """

    case: str
    spec: MethodSpec
    lengths: Lengths
    prompts: int


class Runner:
    """Measures cells against one server."""

    def __init__(self, target: Target, dtype: str, texts: Sequence[str]) -> None:
        """Take a server and users' turns; the first ``SETTLING`` of them only settle clients."""
        self._target = target
        self._dtype = dtype
        self._warming, self._texts = texts[:SETTLING], texts[SETTLING:]
        self._short: set[str] = set()

    def run(self, cell: Cell) -> list[Turn]:
        """Measure a cell with two fresh clients, which take turns at going first.

        Raises:
            AutodraftError: If models, link or server fail.
            CannotMeasure: If no answer is long enough.
        """
        after, turns = CASES[cell.case], []
        drifting = Client(self._target, self._dtype, BEFORE.rtt_ms)
        try:
            steady = Client(self._target, self._dtype, after.rtt_ms)
            try:
                for number in range(cell.lengths.warmups):
                    self._settle(drifting, cell, BEFORE, number)
                    self._settle(steady, cell, after, number)
                for text in self._texts:
                    if len(turns) < cell.prompts and text not in self._short:
                        turns += self._turn(cell, drifting, steady, text, len(turns))
            finally:
                steady.close()
        finally:
            drifting.close()
            self._target.slowdown.value = 1.0
        if not turns:
            raise common.CannotMeasure(
                f"No answer reached {cell.lengths.answer} tokens. Lower --tokens."
            )
        return turns

    def _turn(
        self, cell: Cell, drifting: Client, steady: Client, text: str, number: int
    ) -> list[Turn]:
        """Return both answers to a prompt; nothing where one of them ends early."""
        after, lengths = CASES[cell.case], cell.lengths
        found: dict[bool, Answer] = {}
        for drifts in (True, False) if number % 2 == 0 else (False, True):
            client, condition = (drifting, BEFORE) if drifts else (steady, after)
            self._settle(client, cell, condition, number)
            step = (lengths.step, after) if drifts else None
            found[drifts] = client.answer(client.encode(text), cell.spec, lengths.answer, step)
            if len(found[drifts].token_ids) < lengths.answer:
                self._short.add(text)
                return []
        return [Turn(found[True], found[False])]

    def _settle(self, client: Client, cell: Cell, condition: Condition, number: int) -> None:
        """Let a client get used to a condition on an answer that is not measured."""
        client.live_under(condition)
        text = self._warming[number % len(self._warming)]
        client.answer(client.encode(text), cell.spec, cell.lengths.settling)
