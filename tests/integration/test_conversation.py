"""What a target server does with clients that do not follow the protocol.

A server in this process on a real socket, spoken to frame by frame: each fault ends its own
connection with a typed error, and the next client is served as if nothing had happened.
"""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from autodraft.config import ServerConfig
from autodraft.engine.service import TargetService
from autodraft.models.loader import LoadedModel, ModelSource, load_model
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import decode_server, encode, pack_nodes, pack_tokens
from tests.fakes import save_tiny_model

HELLO = msg.Hello(msg.PROTOCOL_VERSION, "autodraft")
OPEN = msg.Open(50, 8, "chain")
PREFILL = msg.Prefill(pack_tokens([5, 6, 7]))
RUNNING = [HELLO, OPEN, PREFILL]


class LocalServer:
    """A target service on an event loop in a thread of its own."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.loads: list[ModelSource] = []

        def loader(source: ModelSource) -> LoadedModel:
            self.loads.append(source)
            return load_model(source)

        config = ServerConfig(**{"port": 0, "base_model_path": str(folder), **settings})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.service = TargetService(config, None, loader)
        self.port: int = self._call(self.service.start())

    def _call(self, coroutine: object) -> int:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)  # type: ignore[arg-type]

    def stop(self) -> None:
        self._call(self.service.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[LocalServer]:
    running = LocalServer(folder, max_nodes=64, max_depth=4)
    yield running
    running.stop()


@contextmanager
def client(server: LocalServer) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{server.port}/", compression=None) as connection:
        yield connection


def ask(connection: ClientConnection, message: msg.ClientMessage) -> msg.ServerMessage:
    connection.send(encode(message))
    return receive(connection)


def receive(connection: ClientConnection) -> msg.ServerMessage:
    frame = connection.recv(timeout=30)
    assert isinstance(frame, bytes)
    return decode_server(frame)


def assert_served(server: LocalServer) -> None:
    with client(server) as connection:
        replies = [type(ask(connection, message)) for message in [*RUNNING, msg.Close()]]
    assert replies == [msg.Welcome, msg.Opened, msg.Prefilled, msg.Closed]


def nodes(*parents: int, tokens: list[int] | None = None) -> bytes:
    chosen = np.array(tokens or range(1, len(parents) + 1))
    return pack_nodes(chosen, np.array(parents, dtype=np.int64))


@pytest.mark.parametrize(
    ("before", "message", "code", "words"),
    [
        ([], OPEN, "OUT_OF_ORDER", "Say Hello"),
        ([], PREFILL, "OUT_OF_ORDER", "Say Hello"),
        ([HELLO], HELLO, "OUT_OF_ORDER", "said before"),
        ([HELLO], PREFILL, "OUT_OF_ORDER", "No session is open"),
        ([HELLO], msg.Close(), "OUT_OF_ORDER", "No session is open"),
        ([HELLO, OPEN], OPEN, "OUT_OF_ORDER", "open already"),
        ([HELLO, OPEN], msg.Verify(1, nodes(0)), "OUT_OF_ORDER", "no prompt"),
        ([HELLO, OPEN], msg.Generate(), "OUT_OF_ORDER", "no prompt"),
        (RUNNING, PREFILL, "OUT_OF_ORDER", "prompt already"),
        (RUNNING, msg.Verify(2, nodes(0)), "OUT_OF_ORDER", "round 1 was due"),
        ([], msg.Hello(99, "autodraft"), "VERSION", "version 99"),
        ([], msg.Hello(msg.PROTOCOL_VERSION, "other"), "SERVER_NAME", "'other'"),
        ([HELLO], msg.Open(0, 8, "chain"), "LIMIT", "at least 1"),
        ([HELLO], msg.Open(5, 65, "chain"), "LIMIT", "0 to 64"),
        ([HELLO, OPEN], msg.Prefill(b""), "CONTEXT_LENGTH", "0 tokens"),
        ([HELLO, OPEN], msg.Prefill(pack_tokens([5] * 4096)), "CONTEXT_LENGTH", "4096 tokens"),
        ([HELLO, OPEN], msg.Prefill(b"1234"), "BAD_MESSAGE", "multiple of 3"),
        ([HELLO, OPEN], msg.Prefill(pack_tokens([9999])), "BAD_MESSAGE", "9999"),
        (RUNNING, msg.Verify(1, nodes(*[0] * 9)), "LIMIT", "9 nodes"),
        (RUNNING, msg.Verify(1, nodes(0, 1, 2, 3, 4)), "BAD_MESSAGE", "depth 5"),
        (RUNNING, msg.Verify(1, nodes(1)), "BAD_MESSAGE", "after its parent"),
        (RUNNING, msg.Verify(1, nodes(0, 0, tokens=[3, 3])), "BAD_MESSAGE", "same token"),
        (RUNNING, msg.Verify(1, nodes(0, tokens=[9999])), "BAD_MESSAGE", "9999"),
        (RUNNING, msg.Verify(1, b"12345"), "BAD_MESSAGE", "multiple of 4"),
    ],
)
def test_a_wrong_message_ends_its_own_connection_with_a_typed_error(
    server: LocalServer,
    before: list[msg.ClientMessage],
    message: msg.ClientMessage,
    code: str,
    words: str,
) -> None:
    with client(server) as connection:
        for earlier in before:
            assert not isinstance(ask(connection, earlier), msg.Error)
        reply = ask(connection, message)
        assert isinstance(reply, msg.Error)
        assert reply.code.name == code
        assert words in reply.message
        with pytest.raises(ConnectionClosed):
            connection.recv(timeout=30)
    assert_served(server)


def test_an_answer_that_has_ended_takes_no_further_round(server: LocalServer) -> None:
    with client(server) as connection:
        ask(connection, HELLO)
        ask(connection, msg.Open(1, 8, "chain"))
        ask(connection, PREFILL)
        reply = ask(connection, msg.Verify(1, nodes(0)))
    assert isinstance(reply, msg.Error)
    assert "has ended" in reply.message


def test_stop_ends_a_stream_at_a_token_and_the_session_goes_on(server: LocalServer) -> None:
    with client(server) as connection:
        ask(connection, HELLO)
        ask(connection, msg.Open(1500, 8, "server_only"))
        ask(connection, PREFILL)
        connection.send(encode(msg.Generate()))
        connection.send(encode(msg.Stop()))
        streamed = 0
        while True:
            piece = receive(connection)
            assert isinstance(piece, msg.Tokens)
            streamed += len(piece.tokens) // 3
            if piece.last:
                break
        assert streamed < 1499
        assert piece.finish is msg.Finish.RUNNING
        assert isinstance(ask(connection, msg.Verify(1, nodes(0))), msg.Verified)
        bill = ask(connection, msg.Close())
    assert isinstance(bill, msg.Closed)
    assert bill.forwards == 1 + streamed + 1
    assert 0 < bill.busy_us <= bill.held_us


def test_a_round_while_the_server_decodes_is_out_of_order(server: LocalServer) -> None:
    with client(server) as connection:
        for message in (HELLO, msg.Open(1500, 8, "server_only"), PREFILL):
            ask(connection, message)
        connection.send(encode(msg.Generate()))
        connection.send(encode(msg.Verify(1, nodes(0))))
        while not isinstance(reply := receive(connection), msg.Error):
            assert isinstance(reply, msg.Tokens)
    assert reply.code is msg.ErrorCode.OUT_OF_ORDER
    assert_served(server)


def test_ping_is_answered_before_anything_else(server: LocalServer) -> None:
    with client(server) as connection:
        assert ask(connection, msg.Ping()) == msg.Pong()


def test_text_is_refused(server: LocalServer) -> None:
    with client(server) as connection:
        connection.send("hello")
        reply = receive(connection)
    assert isinstance(reply, msg.Error)
    assert "binary" in reply.message


def test_an_oversized_frame_ends_the_connection(server: LocalServer) -> None:
    with client(server) as connection:
        connection.send(b"\x00" * (2**20 + 1))
        with pytest.raises(ConnectionClosed) as caught:
            connection.recv(timeout=30)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1009
    assert_served(server)


def test_mutated_frames_never_bring_the_server_down(server: LocalServer) -> None:
    generator = random.Random(5)
    originals = [encode(message) for message in [*RUNNING, msg.Verify(1, nodes(0, 1)), msg.Close()]]
    for _ in range(150):
        with client(server) as connection:
            for frame in originals:
                mutated = bytearray(frame)
                for _ in range(generator.randrange(3)):
                    mutated[generator.randrange(len(mutated))] = generator.randrange(256)
                try:
                    connection.send(bytes(mutated))
                    reply = receive(connection)
                except ConnectionClosed:
                    break
                if isinstance(reply, msg.Error):
                    assert reply.code is not msg.ErrorCode.INTERNAL, reply.message
                    break
    assert_served(server)


def test_a_lazy_server_switches_models_only_when_nobody_uses_the_present_one(
    folder: Path,
) -> None:
    lazy = LocalServer(folder, lazy_load=True)
    try:
        assert lazy.loads == []
        wanted = msg.Hello(msg.PROTOCOL_VERSION, "autodraft", dtype="bfloat16")
        present = msg.Hello(msg.PROTOCOL_VERSION, "autodraft", dtype="float32")
        with client(lazy) as first:
            welcome = ask(first, present)
            with client(lazy) as second:
                refusal = ask(second, wanted)
        assert isinstance(welcome, msg.Welcome)
        assert isinstance(refusal, msg.Error)
        assert refusal.code is msg.ErrorCode.BUSY
        assert "1 other client" in refusal.message
        switched = None
        for _ in range(100):  # the server notices the end of the first connection in its own time
            with client(lazy) as third:
                switched = ask(third, wanted)
            if isinstance(switched, msg.Welcome):
                break
        assert isinstance(switched, msg.Welcome)
        assert switched.dtype == "bfloat16"
        assert [source.dtype for source in lazy.loads] == ["float32", "bfloat16"]
    finally:
        lazy.stop()
