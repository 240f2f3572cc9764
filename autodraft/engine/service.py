"""The target server's conversation with one client, and the server that holds many.

A connection says hello once, then opens, runs and closes sessions one after another. Every model
call goes through the worker, so that sessions of several connections queue for the model. Sockets
and tokens are the door's business.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from autodraft import __version__
from autodraft.config import ServerConfig
from autodraft.decoding.stopping import FinishReason, StopRules, answer_limit
from autodraft.engine.host import Loader, ModelHost
from autodraft.engine.refusal import Refusal
from autodraft.engine.verifier import Verifier
from autodraft.engine.worker import ModelWorker, Timed
from autodraft.errors import ProtocolError
from autodraft.models.hardware import device_label
from autodraft.models.loader import LoadedModel, load_model
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import (
    DEFAULT_MAX_FRAME_BYTES,
    pack_path,
    pack_tokens,
    unpack_nodes,
    unpack_tokens,
)
from autodraft.transport.server import Door, Sender
from autodraft.units import US_PER_S

_FINISH: Final[dict[FinishReason | None, msg.Finish]] = {
    None: msg.Finish.RUNNING,
    "stop": msg.Finish.STOP,
    "length": msg.Finish.LENGTH,
}

logger = logging.getLogger(__name__)


def _us(seconds: float) -> int:
    return round(seconds * US_PER_S)


@dataclass
class _Session:
    """One request in progress: what it may do and what it has cost."""

    request: msg.Open
    opened_at: float = field(default_factory=time.perf_counter)
    session_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    verifier: Verifier | None = None
    round: int = 0
    busy_s: float = 0.0
    stop_wanted: bool = False
    generation: asyncio.Task[None] | None = None

    def running(self) -> Verifier:
        """Return the verifier of an answer that still goes on."""
        if self.verifier is None or self.verifier.emitted == 0:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "The session has no prompt yet.")
        if self.verifier.finish is not None:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "The session's answer has ended.")
        if self.generation is not None and not self.generation.done():
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "The server is decoding; send Stop first.")
        return self.verifier


class Conversation:
    """The handler of one connection."""

    def __init__(
        self, config: ServerConfig, host: ModelHost, worker: ModelWorker, send: Sender
    ) -> None:
        self._config = config
        self._host = host
        self._worker = worker
        self._send = send
        self._model: LoadedModel | None = None
        self._session: _Session | None = None
        self._actions: Final[dict[type[Any], Callable[[Any], Awaitable[None]]]] = {
            msg.Hello: self._hello,
            msg.Open: self._open,
            msg.Prefill: self._prefill,
            msg.Verify: self._verify,
            msg.Generate: self._generate,
            msg.Stop: self._stop,
            msg.Close: self._close,
            msg.Ping: self._ping,
        }

    async def handle(self, message: msg.ClientMessage) -> bool:
        """Act on one message; an error ends the connection, and only this one."""
        try:
            await self._actions[type(message)](message)
        except Refusal as refusal:
            await self._send(msg.Error(refusal.code, str(refusal)))
            return False
        except ProtocolError as error:
            await self._send(msg.Error(msg.ErrorCode.BAD_MESSAGE, str(error)))
            return False
        except Exception as error:
            logger.exception("a %s failed", type(message).__name__)
            await self._send(
                msg.Error(
                    msg.ErrorCode.INTERNAL,
                    f"{type(message).__name__} failed on the server: {error}. See its log.",
                )
            )
            return False
        return True

    async def close(self) -> None:
        """Free the session and the model when the connection ends."""
        session, self._session = self._session, None
        if session is not None and session.generation is not None:
            session.generation.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await session.generation
        if self._model is not None:
            self._model = None
            self._host.release()

    async def _hello(self, hello: msg.Hello) -> None:
        if self._model is not None:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "Hello was said before.")
        if hello.version != msg.PROTOCOL_VERSION:
            raise Refusal(
                msg.ErrorCode.VERSION,
                f"The client speaks protocol version {hello.version}, this server (AutoDraft "
                f"{__version__}) version {msg.PROTOCOL_VERSION}. Install the same release on both.",
            )
        if hello.server_name != self._config.server_name:
            raise Refusal(
                msg.ErrorCode.SERVER_NAME,
                f"The client expects the server {hello.server_name!r}, this one is "
                f"{self._config.server_name!r}. Correct SERVER_NAME, or --server-name.",
            )
        self._model = await self._host.acquire(hello.model, hello.quantization, hello.dtype)
        await self._send(self._welcome(self._model))

    def _welcome(self, model: LoadedModel) -> msg.Welcome:
        return msg.Welcome(
            version=msg.PROTOCOL_VERSION,
            software=__version__,
            server_name=self._config.server_name,
            model=model.source.name,
            revision=model.revision,
            quantization=model.source.quantization,
            dtype=model.runner.dtype,
            device=f"{model.runner.device} ({device_label(model.runner.device)})",
            tokenizer_hash=model.tokenizer.fingerprint(),
            added_tokens=model.tokenizer.added_tokens(),
            eos_ids=sorted(model.tokenizer.eos_ids),
            vocab_size=model.runner.vocab_size,
            max_context=self._max_context(model),
            max_nodes=self._config.max_nodes,
            max_depth=self._config.max_depth,
            max_frame_bytes=DEFAULT_MAX_FRAME_BYTES,
        )

    def _max_context(self, model: LoadedModel) -> int:
        own = model.runner.max_context
        return min(own, self._config.max_context) if self._config.max_context else own

    def _ready(self) -> LoadedModel:
        if self._model is None:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "Say Hello first.")
        return self._model

    def _opened(self) -> _Session:
        self._ready()
        if self._session is None:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "No session is open.")
        return self._session

    async def _open(self, request: msg.Open) -> None:
        self._ready()
        if self._session is not None:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "A session is open already; close it first.")
        if not 0 <= request.node_budget <= self._config.max_nodes:
            raise Refusal(
                msg.ErrorCode.LIMIT,
                f"A node budget of {request.node_budget}; this server allows 0 to "
                f"{self._config.max_nodes}.",
            )
        if request.max_new_tokens < 1:
            raise Refusal(msg.ErrorCode.LIMIT, "max_new_tokens must be at least 1.")
        self._session = _Session(request)
        logger.info("session %s open: %.64r", self._session.session_id, request.label)
        await self._send(msg.Opened(self._session.session_id))

    async def _prefill(self, request: msg.Prefill) -> None:
        model, session = self._ready(), self._opened()
        if session.verifier is not None:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "The session has a prompt already.")
        prompt = unpack_tokens(request.tokens)
        limit = answer_limit(session.request.max_new_tokens, len(prompt), self._max_context(model))
        if len(prompt) == 0 or limit < 1:
            raise Refusal(
                msg.ErrorCode.CONTEXT_LENGTH,
                f"A prompt of {len(prompt)} tokens; this server takes 1 to "
                f"{self._max_context(model) - 1}.",
            )
        if int(prompt.max()) >= model.runner.vocab_size:
            raise ProtocolError(f"Token id {int(prompt.max())} is not one of the target's.")
        rules = StopRules(frozenset(model.tokenizer.eos_ids), limit)
        session.verifier = Verifier(model.runner, prompt, rules, session.request.node_budget)
        timed = await self._run(session, session.verifier.prefill)
        await self._send(msg.Prefilled(timed.value, _us(timed.queue_s), _us(timed.run_s)))

    async def _verify(self, request: msg.Verify) -> None:
        session = self._opened()
        verifier = session.running()
        if request.round != session.round + 1:
            raise Refusal(
                msg.ErrorCode.OUT_OF_ORDER,
                f"Round {request.round} came where round {session.round + 1} was due.",
            )
        tokens, parents = unpack_nodes(request.nodes)
        if len(tokens) > session.request.node_budget:
            raise Refusal(
                msg.ErrorCode.LIMIT,
                f"{len(tokens)} nodes in a session opened for {session.request.node_budget}.",
            )
        session.round += 1
        timed = await self._run(session, verifier.verify, tokens, parents, self._config.max_depth)
        path, bonus = timed.value
        await self._send(
            msg.Verified(
                request.round,
                pack_path(path, len(tokens)),
                bonus,
                _us(timed.queue_s),
                _us(timed.run_s),
            )
        )

    async def _generate(self, _: msg.Generate) -> None:
        session = self._opened()
        verifier = session.running()
        session.stop_wanted = False
        session.generation = asyncio.create_task(self._decode(session, verifier))

    async def _decode(self, session: _Session, verifier: Verifier) -> None:
        """Stream single-token decoding until the answer ends or the client says stop."""
        try:
            while not session.stop_wanted:
                timed = await self._run(session, verifier.step)
                last = verifier.finish is not None or session.stop_wanted
                await self._send(
                    msg.Tokens(
                        pack_tokens([timed.value]),
                        _FINISH[verifier.finish],
                        last,
                        _us(timed.queue_s),
                        _us(timed.run_s),
                    )
                )
                if last:
                    return
            await self._send(msg.Tokens(b"", msg.Finish.RUNNING, True, 0, 0))
        except Exception as error:
            logger.exception("decoding failed")
            await self._send(msg.Error(msg.ErrorCode.INTERNAL, f"Decoding failed: {error}"))

    async def _stop(self, _: msg.Stop) -> None:
        self._opened().stop_wanted = True

    async def _close(self, _: msg.Close) -> None:
        session = self._opened()
        if session.generation is not None and not session.generation.done():
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "The server is decoding; send Stop first.")
        self._session = None
        held_s = time.perf_counter() - session.opened_at
        forwards = session.verifier.forwards if session.verifier else 0
        logger.info(
            "session %s closed: %d forwards, busy %.3f s, held %.3f s",
            session.session_id,
            forwards,
            session.busy_s,
            held_s,
        )
        await self._send(msg.Closed(forwards, _us(session.busy_s), _us(held_s)))

    async def _ping(self, _: msg.Ping) -> None:
        await self._send(msg.Pong())

    async def _run(self, session: _Session, function: Callable[..., Any], *args: Any) -> Timed[Any]:
        timed = await self._worker.run(function, *args)
        session.busy_s += timed.run_s
        return timed


class TargetService:
    """A target server: its door, its model and its conversations."""

    def __init__(
        self, config: ServerConfig, token: str | None, loader: Loader = load_model
    ) -> None:
        self._config = config
        self._worker = ModelWorker()
        self._host = ModelHost(config, self._worker, loader)
        self._door = Door(self._converse, token)

    async def start(self) -> int:
        """Load what is to be loaded now, listen, and return the port.

        Raises:
            ConnectError: If the address cannot be bound.
            ModelLoadError: If the eager model cannot be loaded.
        """
        if not self._config.lazy_load:
            await self._host.load_default()
        return await self._door.start(self._config.host, self._config.port)

    async def stop(self) -> None:
        """Close all connections and end the model's thread."""
        await self._door.stop()
        self._worker.close()

    def _converse(self, send: Sender) -> Conversation:
        return Conversation(self._config, self._host, self._worker, send)
