"""The target server's conversation with one client, and the server that holds many.

A connection says hello once, then opens, runs and closes sessions one after another. Sockets and
tokens are the door's business, a request is the session's.
"""

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

from autodraft import __version__
from autodraft.config import ServerConfig
from autodraft.engine.host import Loader, Loan, ModelHost
from autodraft.engine.hosted import HostedSession, SessionHost
from autodraft.engine.kept import Kept
from autodraft.engine.methods import DraftSide
from autodraft.engine.refusal import Refusal
from autodraft.engine.worker import ModelWorker
from autodraft.errors import ProtocolError
from autodraft.models.hardware import device_label
from autodraft.models.loader import LoadedModel, load_model
from autodraft.models.memory import give_back_memory, settle_large_blocks
from autodraft.models.tokenizer import unknown_to_target
from autodraft.profiling.tables import LatencyTable
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import DEFAULT_MAX_FRAME_BYTES
from autodraft.transport.server import Door, Sender

logger = logging.getLogger(__name__)


class Conversation:
    """The handler of one connection."""

    def __init__(
        self, config: ServerConfig, host: ModelHost, worker: ModelWorker, send: Sender
    ) -> None:
        self._config = config
        self._host = host
        self._worker = worker
        self._send = send
        self._models: Loan | None = None
        self._side = DraftSide()
        self._kept = Kept()
        self._session: HostedSession | None = None
        self._actions: Final[dict[type[Any], Callable[[Any], Awaitable[None]]]] = {
            msg.Hello: self._hello,
            msg.Open: self._open,
            msg.Prefill: lambda message: self._opened().prefill(message),
            msg.Verify: lambda message: self._opened().verify(message),
            msg.Generate: lambda message: self._opened().generate(message),
            msg.Speculate: lambda message: self._opened().speculate(message),
            msg.Stop: lambda message: self._opened().stop(message),
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
        """Free the session and the models when the connection ends."""
        session, self._session = self._session, None
        if session is not None:
            await session.abandon()
        if self._models is not None:
            await self._worker.run(self._forget)
            self._models = None
            self._host.release()

    def _forget(self) -> None:
        """Release what the connection's sessions left in caches."""
        self._kept.drop()
        self._side.kept.drop()
        give_back_memory(collect=False)

    async def _hello(self, hello: msg.Hello) -> None:
        if self._models is not None:
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
        loan = self._models = await self._host.acquire(
            hello.model, hello.quantization, hello.dtype, hello.draft
        )
        target, draft = loan.target, loan.draft
        if draft is not None:
            identities = target.tokenizer.identity, draft.tokenizer.identity
            rows = target.runner.vocab_size, draft.runner.vocab_size
            self._side.runner = draft.runner
            self._side.excluded = unknown_to_target(*identities, *rows)
        await self._send(self._welcome(loan))

    def _welcome(self, loan: Loan) -> msg.Welcome:
        model, draft, meter = loan.target, loan.draft, self._host.meter
        return msg.Welcome(
            version=msg.PROTOCOL_VERSION,
            software=__version__,
            server_name=self._config.server_name,
            model=model.source.name,
            revision=model.revision,
            quantization=model.source.quantization,
            dtype=model.runner.dtype,
            device=_device(model),
            tokenizer_hash=model.tokenizer.fingerprint(),
            added_tokens=model.tokenizer.added_tokens(),
            eos_ids=sorted(model.tokenizer.eos_ids),
            vocab_size=model.runner.vocab_size,
            max_context=self._max_context(model),
            max_nodes=self._config.max_nodes,
            max_depth=self._config.max_depth,
            max_frame_bytes=DEFAULT_MAX_FRAME_BYTES,
            energy_method=meter.method if meter else "modelled",
            draft=None if draft is None else _draft_info(draft),
            profile=model.profile_key,
            latencies=None if loan.latencies is None else _latencies(loan.latencies),
            row_padding=model.runner.padding,
        )

    def _max_context(self, model: LoadedModel) -> int:
        own = model.runner.max_context
        return min(own, self._config.max_context) if self._config.max_context else own

    def _ready(self) -> LoadedModel:
        if self._models is None:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "Say Hello first.")
        return self._models.target

    def _opened(self) -> HostedSession:
        self._ready()
        if self._session is None:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "No session is open.")
        return self._session

    async def _open(self, request: msg.Open) -> None:
        target = self._ready()
        if self._session is not None:
            raise Refusal(msg.ErrorCode.OUT_OF_ORDER, "A session is open already; close it first.")
        host = SessionHost(
            target=target,
            side=self._side,
            worker=self._worker,
            send=self._send,
            meter=self._host.meter,
            max_context=self._max_context(target),
            max_nodes=self._config.max_nodes,
            max_depth=self._config.max_depth,
            kept=self._kept,
        )
        self._session = HostedSession(host, request)
        await self._send(msg.Opened(self._session.session_id, self._session.exact))

    async def _close(self, _: msg.Close) -> None:
        await self._opened().close()
        self._session = None

    async def _ping(self, ping: msg.Ping) -> None:
        most = msg.MAX_PING_BYTES
        if len(ping.payload) > most or not 0 <= ping.reply_bytes <= most:
            raise Refusal(
                msg.ErrorCode.LIMIT,
                f"A ping with {len(ping.payload)} bytes that asks for {ping.reply_bytes}; this "
                f"server takes 0 to {most} of both.",
            )
        await self._send(msg.Pong(os.urandom(ping.reply_bytes)))  # random: a tunnel may compress


def _device(model: LoadedModel) -> str:
    return f"{model.runner.device} ({device_label(model.runner.device)})"


def _draft_info(draft: LoadedModel) -> msg.DraftInfo:
    return msg.DraftInfo(
        model=draft.source.name,
        revision=draft.revision,
        quantization=draft.source.quantization,
        dtype=draft.runner.dtype,
        device=_device(draft),
        profile=draft.profile_key,
    )


def _latencies(table: LatencyTable) -> msg.Latencies:
    return msg.Latencies(
        table.rows.tolist(),
        table.contexts.tolist(),
        table.seconds.tolist(),
        table.padding.tolist(),
    )


class TargetService:
    """A target server: its door, its models and its conversations."""

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
            ModelLoadError: If an eager model cannot be loaded.
            ProfileError: If its latency profile is damaged or cannot be written.
        """
        settle_large_blocks()
        if not self._config.lazy_load:
            await self._host.load_default()
        return await self._door.start(self._config.host, self._config.port)

    async def stop(self) -> None:
        """Close all connections and end the model's thread."""
        await self._door.stop()
        self._worker.close()
        self._host.close()

    def _converse(self, send: Sender) -> Conversation:
        return Conversation(self._config, self._host, self._worker, send)
