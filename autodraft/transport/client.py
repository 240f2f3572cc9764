"""The client's end of the link: blocking, one message at a time.

Knows sockets and the codec; does not know sessions, trees or models, nor how a shaped link delays
its frames. Bytes are counted as WebSocket payload.
"""

import contextlib
from types import TracebackType
from typing import Final, TypeVar

from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    WebSocketException,
)
from websockets.sync.client import ClientConnection, connect

from autodraft.errors import (
    AuthError,
    ConnectError,
    LinkClosed,
    LinkTimeout,
    ProtocolError,
    RemoteError,
)
from autodraft.protocol.codec import DEFAULT_MAX_FRAME_BYTES, decode_server, encode
from autodraft.protocol.messages import ClientMessage, Error, ServerMessage
from autodraft.transport.shaping import LinkShape, ShapedSocket

OPEN_TIMEOUT_S: Final = 10.0
REPLY_TIMEOUT_S: Final = 600.0
"""Long enough for the prefill of a long prompt on a slow target; a dead peer shows much sooner."""
CLOSE_TIMEOUT_S: Final = 2.0

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403

Reply = TypeVar("Reply", bound=ServerMessage)


class Link:
    """An open connection to a target server.

    Attributes:
        address: ``host:port``, as errors name it.
        uplink_bytes: Payload handed over for sending so far.
        downlink_bytes: Payload delivered so far.
    """

    def __init__(
        self, host: str, port: int, token: str | None, shape: LinkShape | None = None
    ) -> None:
        """Connect.

        Args:
            host: Address of the server.
            port: Its port.
            token: Access token; None sends none.
            shape: Delay and bandwidth that are added to the link, the opening handshake left out;
                None, or a shape that adds nothing, leaves it alone.

        Raises:
            ConnectError: If nothing that speaks WebSocket answers there.
            AuthError: If the server wants another token.
        """
        self.address = f"{host}:{port}"
        self.uplink_bytes = 0
        self.downlink_bytes = 0
        self._arrived: str | bytes | None = None
        self._stack = contextlib.ExitStack()
        connection = self._opened(host, port, token)
        self._socket: ClientConnection | ShapedSocket = connection
        if shape is not None and not shape.adds_nothing:
            self._socket = self._stack.enter_context(
                contextlib.closing(ShapedSocket(connection, shape))
            )

    def _opened(self, host: str, port: int, token: str | None) -> ClientConnection:
        bracketed = f"[{host}]" if ":" in host else host
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            return self._stack.enter_context(
                connect(
                    f"ws://{bracketed}:{port}/",
                    additional_headers=headers,
                    compression=None,
                    proxy=None,
                    open_timeout=OPEN_TIMEOUT_S,
                    close_timeout=CLOSE_TIMEOUT_S,
                    max_size=DEFAULT_MAX_FRAME_BYTES,
                )
            )
        except InvalidStatus as error:
            raise _refusal(self.address, error.response.status_code, token) from error
        except (InvalidHandshake, WebSocketException) as error:
            raise ConnectError(
                f"Something answers at {self.address}, but it is no AutoDraft target server "
                f"({error}). Check TARGET_PORT against the server's --port."
            ) from error
        except (OSError, TimeoutError) as error:
            raise ConnectError(
                f"No target server can be reached at {self.address} ({error}). Start one there "
                f"with ./run_target.sh --host HOST --port {port}, or correct TARGET_HOST and "
                "TARGET_PORT."
            ) from error

    def send(self, message: ClientMessage) -> None:
        """Send one message.

        Raises:
            RemoteError: If the server has reported an error and closed the connection.
            LinkClosed: If the connection has ended otherwise.
        """
        frame = encode(message)
        try:
            self._socket.send(frame)
        except ConnectionClosed as error:
            raise self._last_word() or self._closed(error) from error
        self.uplink_bytes += len(frame)

    def receive(self, expected: type[Reply], timeout_s: float = REPLY_TIMEOUT_S) -> Reply:
        """Wait for the next message, which must be of the expected type.

        Raises:
            RemoteError: If the server reports an error instead.
            LinkTimeout: If nothing arrives in time.
            LinkClosed: If the connection ends.
            ProtocolError: If something else arrives.
        """
        try:
            frame = self._taken()
            if frame is None:
                frame = self._socket.recv(timeout=timeout_s)
        except TimeoutError as error:
            raise LinkTimeout(
                f"The target server at {self.address} did not answer within {timeout_s:g} s. "
                "See its log; it may be overloaded or its machine suspended."
            ) from error
        except ConnectionClosed as error:
            raise self._closed(error) from error
        if isinstance(frame, str):
            raise ProtocolError(f"The server at {self.address} sent text; only binary is allowed.")
        self.downlink_bytes += len(frame)
        message = decode_server(frame)
        if isinstance(message, Error):
            raise self._refused(message)
        if not isinstance(message, expected):
            raise ProtocolError(
                f"The server at {self.address} sent {type(message).__name__} where "
                f"{expected.__name__} was due."
            )
        return message

    def waiting(self) -> bool:
        """Return whether ``receive`` would have to wait.

        Where the connection has ended it would not: it raises.
        """
        if self._arrived is None:
            try:
                self._arrived = self._socket.recv(timeout=0)
            except TimeoutError:
                return True
            except ConnectionClosed:
                return False
        return False

    def _taken(self) -> str | bytes | None:
        """Return a frame that ``waiting`` has taken in, once."""
        frame, self._arrived = self._arrived, None
        return frame

    def request(
        self, message: ClientMessage, expected: type[Reply], timeout_s: float = REPLY_TIMEOUT_S
    ) -> Reply:
        """Send a message and wait for its answer; raises as ``send`` and ``receive`` do."""
        self.send(message)
        return self.receive(expected, timeout_s)

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        self._stack.close()

    def __enter__(self) -> "Link":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _last_word(self) -> RemoteError | None:
        """Return the error that a server reported before it closed the connection, if it did.

        Messages that are sent without waiting for an answer can meet a connection that the answer
        to the first of them has ended.
        """
        with contextlib.suppress(ConnectionClosed, TimeoutError, ProtocolError):
            while True:
                frame = self._taken() or self._socket.recv(timeout=0)
                message = decode_server(frame) if isinstance(frame, bytes) else None
                if isinstance(message, Error):
                    return self._refused(message)
        return None

    def _refused(self, error: Error) -> RemoteError:
        return RemoteError(
            f"The target server at {self.address} refused: {error.message}", error.code.name
        )

    def _closed(self, error: ConnectionClosed) -> LinkClosed:
        return LinkClosed(
            f"The connection to the target server at {self.address} ended ({error}). See whether "
            "the server is still running and what its log says, then start again."
        )


def _refusal(address: str, status: int, token: str | None) -> AuthError | ConnectError:
    """Return the error for a handshake that was answered with an HTTP status."""
    if status == _UNAUTHORIZED:
        given = "the token given is not the server's" if token else "no token was given"
        return AuthError(
            f"The target server at {address} refused access: {given}. Set AUTODRAFT_TOKEN (or "
            "token=) to the content of the file `token` in the configuration folder of the "
            "server's user; the server prints that file's path when it starts."
        )
    if status == _FORBIDDEN:
        return AuthError(f"The target server at {address} refuses connections from web pages.")
    return ConnectError(
        f"The server at {address} answered with HTTP status {status}, so it is no AutoDraft "
        "target server. Check TARGET_HOST and TARGET_PORT."
    )
