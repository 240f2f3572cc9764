"""One request on the server: prompt, rounds or a stream, bill.

Every model call goes through the worker, so that sessions of several connections queue for the
models. What a client may ask, and in which order, is checked here; who the client is, and what the
models are, is the conversation's business.
"""

import asyncio
import contextlib
import logging
import operator
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from autodraft.config import MethodSpec
from autodraft.decoding.stopping import Ending, FinishReason, StopRules, answer_limit
from autodraft.engine.colocated import InPlace, LocalTarget, RoundDone
from autodraft.engine.judge import is_exact
from autodraft.engine.kept import Kept
from autodraft.engine.methods import DraftSide, make_rounds
from autodraft.engine.refusal import Refusal
from autodraft.engine.verifier import Verifier
from autodraft.engine.wishes import scores_message, wish_of
from autodraft.engine.worker import ModelWorker, Timed
from autodraft.errors import ConfigError, ProtocolError
from autodraft.meters import Energy, Meter
from autodraft.models.loader import LoadedModel
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import pack_path, pack_tokens, unpack_nodes, unpack_tokens
from autodraft.records import TokenScore
from autodraft.transport.server import Sender
from autodraft.units import MJ_PER_J, US_PER_S

_FINISH: Final[dict[FinishReason | None, msg.Finish]] = {
    None: msg.Finish.RUNNING,
    "stop": msg.Finish.STOP,
    "length": msg.Finish.LENGTH,
}

_STEPS_AHEAD: Final = 2
"""Decoding steps in the worker's queue, the running one included."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionHost:
    """What a session is given by its conversation.

    Attributes:
        target: The target model.
        side: What co-located methods draft with.
        worker: Runs every model call.
        send: Reaches the client.
        meter: Energy meter of this machine; None without one.
        max_context: Most tokens of prompt and answer.
        max_nodes: Most nodes a round may send, or a level may expand.
        max_depth: Deepest tree a round may send.
        kept: What the connection's last session left in the target's cache.
    """

    target: LoadedModel
    side: DraftSide
    worker: ModelWorker
    send: Sender
    meter: Meter | None
    max_context: int
    max_nodes: int
    max_depth: int
    kept: Kept


class _Decoded(NamedTuple):
    """One step of plain decoding, and how long the model was busy elsewhere before it."""

    token: int
    finish: FinishReason | None
    waited_s: float
    scores: list[TokenScore]


class HostedSession:
    """One request in progress: what it may do and what it has cost.

    Attributes:
        session_id: Its name in the log.
        exact: Whether the gap that rounding leaves between rounds and plain decoding is narrowed.
    """

    def __init__(self, host: SessionHost, request: msg.Open) -> None:
        """Open a session.

        Raises:
            Refusal: If it asks for more than the server allows.
        """
        _require_within(request, host.max_nodes)
        self.session_id = uuid.uuid4().hex[:12]
        self._host = host
        self._request = request
        self._opened_at = time.perf_counter()
        self._window = host.meter.begin() if host.meter else None
        self._prompt: list[int] = []
        self._first_token = -1
        self._verifier: Verifier | None = None
        self._round = 0
        self._busy_s = 0.0
        self._draft_s = 0.0
        self._stop_wanted = False
        self._stream: asyncio.Task[None] | None = None
        self.exact = is_exact(request.exact, host.target.runner)
        self._wish = wish_of(request, exact=self.exact)
        logger.info("session %s open: %.64r", self.session_id, request.label)

    async def prefill(self, request: msg.Prefill) -> None:
        """Take the prompt and answer with the first token."""
        if self._verifier is not None:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "The session has a prompt already.")
        target, most = self._host.target, self._host.max_context
        prompt = unpack_tokens(request.tokens)
        limit = answer_limit(self._request.max_new_tokens, len(prompt), most)
        if len(prompt) == 0 or limit < 1:
            raise Refusal(
                msg.ErrorCode.CONTEXT_LENGTH,
                f"A prompt of {len(prompt)} tokens; this server takes 1 to {most - 1}.",
            )
        if int(prompt.max()) >= target.runner.vocab_size:
            raise ProtocolError(f"Token id {int(prompt.max())} is not one of the target's.")
        eos_ids = frozenset(target.tokenizer.eos_ids)
        rules = StopRules(eos_ids, limit, tuple(self._request.stop or ()))
        budget, decode = self._request.node_budget, target.tokenizer.decode
        self._prompt = prompt.tolist()
        kept = self._host.kept if self._wish.reuse else None
        verifier = Verifier(target.runner, prompt, rules, budget, decode, self._wish, kept)
        self._verifier = verifier
        timed = await self._run(verifier.prefill)
        self._first_token = timed.value
        await self._host.send(
            msg.Prefilled(
                timed.value,
                _us(timed.queue_s),
                _us(timed.run_s),
                verifier.reused,
                scores_message(verifier.take_scores()),
            )
        )

    async def verify(self, request: msg.Verify) -> None:
        """Verify one round's tree."""
        verifier = self._begun()
        if verifier.finish is not None:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "The session's answer has ended.")
        if request.round != self._round + 1:
            raise Refusal(
                msg.ErrorCode.OUT_OF_ORDER,
                f"Round {request.round} came where round {self._round + 1} was due.",
            )
        tokens, parents = unpack_nodes(request.nodes)
        if len(tokens) > self._request.node_budget:
            raise Refusal(
                msg.ErrorCode.LIMIT,
                f"{len(tokens)} nodes in a session opened for {self._request.node_budget}.",
            )
        self._round += 1
        timed = await self._run(verifier.verify, tokens, parents, self._host.max_depth)
        path, bonus = timed.value
        await self._host.send(
            msg.Verified(
                request.round,
                pack_path(path, len(tokens)),
                bonus,
                _us(timed.queue_s),
                _us(timed.run_s),
                scores_message(verifier.take_scores()),
            )
        )

    async def generate(self, _: msg.Generate) -> None:
        """Begin to stream single-token decoding."""
        self._begin_stream(self._decode(self._begun()))

    async def speculate(self, request: msg.Speculate) -> None:
        """Begin to stream rounds that are drafted and verified here."""
        verifier = self._begun()
        if verifier.emitted > 1:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "Speculate comes right behind the prompt.")
        self._begin_stream(self._decode_in_rounds(verifier, self._in_place(request, verifier)))

    async def stop(self, _: msg.Stop) -> None:
        """End the stream at the next token or round."""
        self._stop_wanted = True

    async def close(self) -> None:
        """Send the bill; the session is over."""
        self._require_quiet()
        held_s = time.perf_counter() - self._opened_at
        energy = self._energy(held_s)
        forwards, redecided = 0, 0
        if (verifier := self._verifier) is not None:
            forwards, redecided = verifier.forwards, verifier.redecided
        self._release()
        logger.info(
            "session %s closed: %d forwards, busy %.3f s, held %.3f s",
            self.session_id,
            forwards,
            self._busy_s,
            held_s,
        )
        await self._host.send(
            msg.Closed(
                forwards,
                _us(self._busy_s),
                _us(held_s),
                _us(self._draft_s),
                _mj(energy.gross_j),
                _mj(energy.net_j),
                redecided,
            )
        )

    async def abandon(self) -> None:
        """End a stream that nobody listens to any more."""
        if self._stream is not None:
            self._stream.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._stream
        self._release()

    def _release(self) -> None:
        """Give the target's cache back, behind whatever still runs over it."""
        verifier, self._verifier = self._verifier, None
        if verifier is not None:
            self._host.worker.submit(verifier.release)

    def _begun(self) -> Verifier:
        """Return the verifier of an answer that has its first token and is not being streamed."""
        if self._verifier is None or self._verifier.emitted == 0:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "The session has no prompt yet.")
        self._require_quiet()
        return self._verifier

    def _require_quiet(self) -> None:
        if self._stream is not None and not self._stream.done():
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "The server is decoding; send Stop first.")

    def _begin_stream(self, stream: Coroutine[Any, Any, None]) -> None:
        self._stop_wanted = False
        self._stream = asyncio.create_task(self._guarded(stream))

    async def _guarded(self, stream: Coroutine[Any, Any, None]) -> None:
        try:
            await stream
        except Exception as error:
            logger.exception("decoding failed")
            await self._host.send(msg.Error(msg.ErrorCode.INTERNAL, f"Decoding failed: {error}"))

    async def _decode(self, verifier: Verifier) -> None:
        """Stream single-token decoding until the answer ends or the client says stop.

        The model's thread finds its next step queued when it is done with one: it does not wait
        for a token to be sent. Every token that it makes is sent.
        """
        ready = time.perf_counter()

        def step() -> _Decoded | None:
            nonlocal ready
            if self._over(verifier):
                return None
            waited_s = time.perf_counter() - ready
            token = verifier.step()
            ready = time.perf_counter()
            return _Decoded(token, verifier.finish, waited_s, verifier.take_scores())

        steps = deque(self._host.worker.submit(step) for _ in range(_STEPS_AHEAD))
        finish: FinishReason | None = None
        try:
            while finish is None:
                timed = await steps.popleft()
                if (made := timed.value) is None:
                    await self._host.send(msg.Tokens(b"", _FINISH[verifier.finish], True, 0, 0))
                    return
                self._busy_s += timed.run_s
                if (finish := made.finish) is None:
                    steps.append(self._host.worker.submit(step))
                await self._host.send(_piece(made, timed.run_s))
        finally:
            for waiting in steps:
                waiting.cancel()

    async def _decode_in_rounds(self, verifier: Verifier, in_place: InPlace) -> None:
        """Stream rounds until the answer ends or the client says stop."""
        last = False
        try:
            if not self._over(verifier):
                await self._run(in_place.start, self._first_token)
            while not self._over(verifier):
                timed = await self._run(in_place.round)
                last = self._over(verifier)
                await self._host.send(_block(timed, _FINISH[verifier.finish], last))
        finally:
            self._draft_s += in_place.draft_s
            self._host.worker.submit(in_place.finish)  # behind a round that may still run
        if not last:
            await self._host.send(msg.Block(b"", _FINISH[verifier.finish], True))

    def _over(self, verifier: Verifier) -> bool:
        return verifier.finish is not None or self._stop_wanted

    def _in_place(self, request: msg.Speculate, verifier: Verifier) -> InPlace:
        """Return the rounds that a client asks for, within what the server allows."""
        host, spec = self._host, _method(request)
        most = (host.max_nodes, host.max_depth, self._request.node_budget)
        if any(map(operator.gt, (spec.width, spec.max_depth, spec.node_budget), most)):
            raise Refusal(
                msg.ErrorCode.LIMIT,
                f"Width {spec.width}, depth {spec.max_depth} and {spec.node_budget} nodes; this "
                f"session allows at most {most[0]}, {most[1]} and {most[2]}.",
            )
        if spec.needs_draft_model and host.side.runner is None:
            raise Refusal(
                msg.ErrorCode.MODEL_REFUSED,
                f"{spec.name} drafts on the server, and the client's Hello wanted no draft model.",
            )
        return InPlace(
            make_rounds(spec, host.side, self._wish, verifier.rules.eos_ids),
            LocalTarget(verifier, host.max_depth),
            self._prompt,
            Ending(verifier.rules, host.target.tokenizer.decode),
        )

    def _energy(self, held_s: float) -> Energy:
        """Return what a counter says; a modelled figure is the client's, who knows the watts."""
        if self._window is None or self._host.meter is None or not self._host.meter.shortest_s:
            return Energy(None, None)
        return self._window.end(self._busy_s, held_s)

    async def _run(self, function: Callable[..., Any], *args: Any) -> Timed[Any]:
        timed = await self._host.worker.run(function, *args)
        self._busy_s += timed.run_s
        return timed


def _us(seconds: float) -> int:
    return round(seconds * US_PER_S)


def _mj(joules: float | None) -> int | None:
    return None if joules is None else round(joules * MJ_PER_J)


def _require_within(request: msg.Open, max_nodes: int) -> None:
    if not 0 <= request.node_budget <= max_nodes:
        raise Refusal(
            msg.ErrorCode.LIMIT,
            f"A node budget of {request.node_budget}; this server allows 0 to {max_nodes}.",
        )
    if request.max_new_tokens < 1:
        raise Refusal(msg.ErrorCode.LIMIT, "max_new_tokens must be at least 1.")
    if not msg.stop_strings_fit(request.stop or ()):
        raise Refusal(
            msg.ErrorCode.LIMIT,
            f"A session takes at most {msg.MAX_STOP_STRINGS} stop strings, each of 1 to "
            f"{msg.MAX_STOP_LENGTH} characters.",
        )


def _method(request: msg.Speculate) -> MethodSpec:
    try:
        spec = MethodSpec(
            method=request.method,
            placement="server",
            width=request.width,
            max_depth=request.max_depth,
            node_budget=request.node_budget,
            retrieval=request.retrieval,
        )
        spec.require_available()
    except ConfigError as error:
        raise ProtocolError(str(error)) from error
    return spec


def _piece(made: _Decoded, run_s: float) -> msg.Tokens:
    return msg.Tokens(
        pack_tokens([made.token]),
        _FINISH[made.finish],
        made.finish is not None,
        _us(made.waited_s),
        _us(run_s),
        scores_message(made.scores),
    )


def _block(timed: Timed[RoundDone], finish: msg.Finish, last: bool) -> msg.Block:
    tokens, record, scores = timed.value
    return msg.Block(
        tokens=pack_tokens(tokens),
        finish=finish,
        last=last,
        width=record.width,
        depth=record.depth,
        drafted_nodes=record.drafted_nodes,
        num_nodes=record.num_nodes,
        accepted=record.accepted_length,
        queue_us=_us(timed.queue_s),
        draft_us=_us(record.draft_s),
        verify_us=_us(record.verify_s),
        scores=scores_message(scores),
    )
