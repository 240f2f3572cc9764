"""The server's door: accepts WebSocket connections and hands their messages on.

Knows sockets, the access token and the codec. What a message means is the application's business:
it gives one ``Handler`` per connection. A malformed frame ends its connection with a typed error
and touches no other.
"""

import asyncio
import contextlib
import hmac
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from autodraft.errors import ConnectError, ProtocolError
from autodraft.protocol.codec import DEFAULT_MAX_FRAME_BYTES, decode_client, encode
from autodraft.protocol.messages import ClientMessage, Error, ErrorCode, ServerMessage

CLOSE_TIMEOUT_S: Final = 2.0

_BEARER: Final = "Bearer "

logger = logging.getLogger(__name__)


class Sender(Protocol):
    """Sends a message to the client of one connection."""

    async def __call__(self, message: ServerMessage) -> None:
        """Send; a client that is gone is not an error."""
        ...


class Handler(Protocol):
    """What the application does with one connection."""

    async def handle(self, message: ClientMessage) -> bool:
        """Act on one message; False ends the connection."""
        ...

    async def close(self) -> None:
        """Free everything the connection held; called exactly once."""
        ...


class Door:
    """A listening socket behind which every connection gets a handler of its own."""

    def __init__(self, make_handler: Callable[[Sender], Handler], token: str | None) -> None:
        """Prepare; ``start`` listens.

        Args:
            make_handler: Called with the connection's sender for each accepted connection.
            token: Access token; None lets anybody in.
        """
        self._make_handler = make_handler
        self._token = token
        self._server: Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port (of use when 0 was asked for).

        Raises:
            ConnectError: If the address cannot be bound.
        """
        try:
            self._server = await serve(
                self._serve_connection,
                host,
                port,
                process_request=self._check_request,
                compression=None,
                close_timeout=CLOSE_TIMEOUT_S,
                max_size=DEFAULT_MAX_FRAME_BYTES,
                server_header=None,
            )
        except OSError as error:
            raise ConnectError(
                f"The server cannot listen on {host}:{port} ({error.strerror or error}). Stop "
                "what uses that port, or choose another with --port."
            ) from error
        return int(next(iter(self._server.sockets)).getsockname()[1])

    async def stop(self) -> None:
        """Close all connections and stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def _check_request(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse browsers and strangers before the WebSocket opens."""
        if request.headers.get("Origin") is not None:
            return connection.respond(HTTPStatus.FORBIDDEN, "Web pages may not connect.\n")
        if self._token is None:
            return None
        given = request.headers.get("Authorization", "")
        if given.startswith(_BEARER) and hmac.compare_digest(
            given.removeprefix(_BEARER).encode(), self._token.encode()
        ):
            return None
        response = connection.respond(HTTPStatus.UNAUTHORIZED, "Missing or wrong access token.\n")
        response.headers["WWW-Authenticate"] = "Bearer"
        return response

    async def _serve_connection(self, connection: ServerConnection) -> None:
        async def send(message: ServerMessage) -> None:
            with contextlib.suppress(ConnectionClosed):  # the read loop sees the end as well
                await connection.send(encode(message))

        handler = self._make_handler(send)
        try:
            await _read_messages(connection, handler, send)
        finally:
            await asyncio.shield(handler.close())


async def _read_messages(connection: ServerConnection, handler: Handler, send: Sender) -> None:
    """Hand on every message until one side has had enough."""
    with contextlib.suppress(ConnectionClosed):
        async for frame in connection:
            if isinstance(frame, str):
                await send(Error(ErrorCode.BAD_MESSAGE, "Only binary messages are allowed."))
                return
            try:
                message = decode_client(frame)
            except ProtocolError as error:
                await send(Error(ErrorCode.BAD_MESSAGE, str(error)))
                return
            if not await handler.handle(message):
                return
