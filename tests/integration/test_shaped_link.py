"""A shaped link against a real server on a real socket: times, order, faults and clean-up.

A time is judged from below without mercy, and from above only where the wrong behaviour would take
much longer: other programs may share the machine.
"""

import asyncio
import base64
import contextlib
import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from websockets.sync.client import ClientConnection

from autodraft.errors import LinkClosed, LinkTimeout, RemoteError
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import encode
from autodraft.transport.client import Link
from autodraft.transport.server import Door, Sender
from autodraft.transport.shaping import LinkShape

LONG_S = 30.0
"""A delay that no test waits for."""
PONG_BYTES = len(encode(msg.Pong()))


def prompt(size: int) -> msg.Prefill:
    """A message whose frame has ``size`` bytes."""
    around = len(encode(msg.Prefill(bytes(size)))) - size
    return msg.Prefill(bytes(size - around))


class Scripted:
    """Answers as the message's type says; keeps what arrived, and when.

    ``Ping`` gets a ``Pong``, ``Prefill`` too. ``Generate`` gets a piece of 20,000 bytes. ``Stop``
    gets two pongs, and the connection ends. ``Close`` gets an error, and the connection ends.
    """

    def __init__(self, send: Sender, arrived: list[tuple[float, msg.ClientMessage]]) -> None:
        self._send = send
        self._arrived = arrived

    async def handle(self, message: msg.ClientMessage) -> bool:
        self._arrived.append((time.perf_counter(), message))
        match message:
            case msg.Generate():
                await self._send(msg.Tokens(bytes(20_000), msg.Finish.RUNNING, False, 0, 0))
            case msg.Stop():
                await self._send(msg.Pong())
                await self._send(msg.Pong())
            case msg.Close():
                await self._send(msg.Error(msg.ErrorCode.INTERNAL, "enough"))
            case _:
                await self._send(msg.Pong())
        return not isinstance(message, msg.Stop | msg.Close)

    async def close(self) -> None:
        pass


class Server:
    """A door on an event loop in a thread of its own; times are of the same clock as the test's."""

    def __init__(self) -> None:
        self.arrived: list[tuple[float, msg.ClientMessage]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._door = Door(lambda send: Scripted(send, self.arrived), None)
        self.port: int = self._call(self._door.start("127.0.0.1", 0))

    def _call(self, coroutine: object) -> int:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)  # type: ignore[arg-type]

    def stop(self) -> None:
        self._call(self._door.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.stop()


@pytest.fixture
def linked(server: Server) -> Iterator[Callable[..., Link]]:
    """Make links of a shape; all are closed at the end, and must leave no thread behind."""
    server.arrived.clear()
    with contextlib.ExitStack() as stack:

        def make(**shape: float) -> Link:
            link = Link("127.0.0.1", server.port, None, LinkShape(**shape))  # type: ignore[arg-type]
            return stack.enter_context(link)

        yield make
    assert link_threads() == []


def link_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("autodraft-link")]


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ping(link: Link) -> float:
    return seconds(lambda: link.request(msg.Ping(), msg.Pong))


def test_a_shape_that_adds_nothing_leaves_the_plain_connection(
    linked: Callable[..., Link],
) -> None:
    link = linked(seed=5)
    ping(link)
    assert type(link._socket) is ClientConnection
    assert link_threads() == []


def test_a_round_trip_takes_the_set_time_longer(linked: Callable[..., Link]) -> None:
    plain, shaped = linked(), linked(rtt_s=0.05)
    ping(plain), ping(shaped)
    bare, delayed = zip(*((ping(plain), ping(shaped)) for _ in range(15)), strict=True)
    assert min(delayed) >= 0.05
    # The least of many, since another program can only make one longer.
    assert min(delayed) - 0.05 - min(bare) < 0.005


def test_half_of_it_passes_before_the_server_sees_the_frame(
    server: Server, linked: Callable[..., Link]
) -> None:
    link = linked(rtt_s=0.4)
    started = time.perf_counter()
    link.request(msg.Ping(), msg.Pong)
    (arrived, _), ended = server.arrived[0], time.perf_counter()
    assert arrived - started >= 0.2
    assert ended - arrived >= 0.2
    assert ended - started < 0.8


def test_sending_does_not_wait_and_frames_are_under_way_together(
    linked: Callable[..., Link],
) -> None:
    link = linked(rtt_s=0.4)
    assert seconds(lambda: [link.send(msg.Ping()) for _ in range(4)]) < 0.2
    assert link.uplink_bytes == 4 * len(encode(msg.Ping()))
    assert link.downlink_bytes == 0
    assert seconds(lambda: [link.receive(msg.Pong) for _ in range(4)]) < 0.8
    assert link.downlink_bytes == 4 * PONG_BYTES


def test_a_reply_is_under_way_while_the_client_is_busy(linked: Callable[..., Link]) -> None:
    link = linked(rtt_s=0.2)
    link.send(msg.Ping())
    time.sleep(0.5)
    link.receive(msg.Pong, timeout_s=0)


def test_a_reply_that_has_arrived_but_is_not_due_is_no_reply_yet(
    linked: Callable[..., Link],
) -> None:
    link = linked(rtt_s=0.8)
    link.send(msg.Ping())
    started = time.perf_counter()
    time.sleep(0.1)
    with pytest.raises(LinkTimeout, match=r"within 0\.05 s"):
        link.receive(msg.Pong, timeout_s=0.05)
    assert time.perf_counter() - started < 0.8  # else the machine was too slow to tell
    link.receive(msg.Pong)
    assert time.perf_counter() - started >= 0.8


def test_the_uplink_takes_a_frames_bytes_over_its_bandwidth(
    server: Server, linked: Callable[..., Link]
) -> None:
    link = linked(uplink_bytes_per_s=100_000.0)
    started = time.perf_counter()
    link.send(prompt(20_000))
    link.send(prompt(10_000))
    assert link.uplink_bytes == 30_000
    link.receive(msg.Pong)
    link.receive(msg.Pong)
    first, second = (arrived - started for arrived, _ in server.arrived)
    assert first >= 0.2
    assert second >= 0.3  # it began when the first was through


def test_the_downlink_takes_a_frames_bytes_over_its_bandwidth(
    linked: Callable[..., Link],
) -> None:
    link = linked(downlink_bytes_per_s=100_000.0)
    assert seconds(lambda: link.request(msg.Generate(), msg.Tokens)) >= 0.2
    assert link.downlink_bytes > 20_000
    assert ping(link) < 0.2  # the uplink, and a small frame, are not held up


def test_jitter_keeps_the_order(linked: Callable[..., Link], server: Server) -> None:
    link = linked(rtt_s=0.01, jitter_s=0.1)
    for number in range(50):
        link.send(msg.Verify(number, b""))
    for _ in range(50):
        link.receive(msg.Pong)
    assert [message.round for _, message in server.arrived] == list(range(50))  # type: ignore[union-attr]


def test_an_error_of_the_server_comes_through(linked: Callable[..., Link]) -> None:
    link = linked(rtt_s=0.05)
    with pytest.raises(RemoteError, match="enough"):
        link.request(msg.Close(), msg.Closed)


def test_the_end_of_the_connection_comes_after_the_frames_before_it(
    linked: Callable[..., Link],
) -> None:
    link = linked(rtt_s=0.3)
    started = time.perf_counter()
    link.send(msg.Stop())
    link.receive(msg.Pong)
    link.receive(msg.Pong)
    for _ in range(2):
        with pytest.raises(LinkClosed, match="ended"):
            link.receive(msg.Pong)
    assert time.perf_counter() - started >= 0.3
    with pytest.raises(LinkClosed, match="ended"):
        link.send(msg.Ping())
    for thread in link_threads():  # they end by themselves
        thread.join(10)
    assert link_threads() == []


def test_what_is_sent_before_the_end_can_be_known_is_lost_without_an_error(
    server: Server, linked: Callable[..., Link]
) -> None:
    link = linked(rtt_s=1.0)
    link.send(msg.Stop())
    time.sleep(0.7)  # the server has ended it; the news arrives at 1.0
    link.send(msg.Ping())
    link.receive(msg.Pong)
    link.receive(msg.Pong)
    with pytest.raises(LinkClosed):
        link.receive(msg.Pong)
    assert [type(message) for _, message in server.arrived] == [msg.Stop]


def test_a_lost_connection_wakes_who_waits(linked: Callable[..., Link]) -> None:
    link = linked(rtt_s=0.1)
    ping(link)
    raw = link._socket._connection.socket  # type: ignore[union-attr]
    threading.Timer(0.1, lambda: raw.shutdown(socket.SHUT_RDWR)).start()
    with pytest.raises(LinkClosed):
        link.receive(msg.Pong, timeout_s=LONG_S)


def test_closing_drops_what_is_under_way_and_is_quick(
    server: Server, linked: Callable[..., Link]
) -> None:
    link = linked(rtt_s=2 * LONG_S)
    for _ in range(3):
        link.send(msg.Ping())
    assert len(link_threads()) == 2
    assert seconds(link.close) < 5
    assert link_threads() == []
    link.close()
    assert server.arrived == []
    with pytest.raises(LinkClosed):
        link.send(msg.Ping())
    with pytest.raises(LinkClosed):
        link.receive(msg.Pong)


def test_closing_drops_replies_that_are_not_due(linked: Callable[..., Link]) -> None:
    link = linked(downlink_bytes_per_s=1.0)
    link.send(msg.Generate())
    time.sleep(0.2)
    assert seconds(link.close) < 5
    with pytest.raises(LinkClosed):
        link.receive(msg.Tokens)


def test_closing_wakes_who_waits_for_a_reply(linked: Callable[..., Link]) -> None:
    link = linked(rtt_s=LONG_S)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            link.receive(msg.Pong)
        except LinkClosed as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.1)
    link.close()
    waiting.join(10)
    assert len(ended) == 1


def test_closing_does_not_wait_for_a_peer_that_no_longer_reads(
    linked: Callable[..., Link],
) -> None:
    with deaf_server() as port:
        link = Link("127.0.0.1", port, None, LinkShape(rtt_s=0.01))
        for _ in range(64):
            link.send(prompt(500_000))
        time.sleep(0.5)
        assert seconds(link.close) < 8
    assert link_threads() == []


@contextlib.contextmanager
def deaf_server() -> Iterator[int]:
    """Open WebSockets and then read nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                request = connection.recv(65_536).decode()
                key = next(
                    line.split(": ")[1]
                    for line in request.split("\r\n")
                    if line.lower().startswith("sec-websocket-key")
                )
                digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode())
                accept = base64.b64encode(digest.digest()).decode()
                connection.sendall(
                    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                    f"Connection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode()
                )
                done.wait(60)

        thread = threading.Thread(target=answer)
        thread.start()
        yield int(listener.getsockname()[1])
        done.set()
        thread.join()


@pytest.mark.parametrize("rtt_s", [0.0, 0.3], ids=["bare", "shaped"])
def test_a_link_tells_whether_a_reply_is_awaited_and_takes_none(
    linked: Callable[..., Link], rtt_s: float
) -> None:
    link = linked(rtt_s=rtt_s)
    assert link.waiting()  # nothing was asked, so nothing comes
    started = time.perf_counter()
    link.send(msg.Ping())
    assert link.waiting() or not rtt_s
    while link.waiting():
        assert time.perf_counter() - started < LONG_S
    assert time.perf_counter() - started >= rtt_s
    assert not link.waiting()
    before = link.downlink_bytes
    link.receive(msg.Pong, timeout_s=0.0)
    assert link.downlink_bytes - before == PONG_BYTES  # counted once, where it is delivered
    assert link.waiting()
    link.request(msg.Ping(), msg.Pong)


@pytest.mark.parametrize("rtt_s", [0.0, 0.05], ids=["bare", "shaped"])
def test_a_link_that_has_ended_is_not_awaited(linked: Callable[..., Link], rtt_s: float) -> None:
    link = linked(rtt_s=rtt_s)
    link.send(msg.Close())
    started = time.perf_counter()
    while link.waiting():
        assert time.perf_counter() - started < LONG_S
    with pytest.raises(RemoteError, match="enough"):
        link.receive(msg.Closed)
    while link.waiting():
        assert time.perf_counter() - started < LONG_S
    with pytest.raises(LinkClosed):
        link.receive(msg.Closed)


def test_an_error_that_was_seen_while_waiting_is_reported_by_the_next_message(
    linked: Callable[..., Link],
) -> None:
    link = linked(rtt_s=0.01)
    link.send(msg.Close())
    while link.waiting():
        pass
    time.sleep(0.1)  # until this end knows that the connection has ended
    with pytest.raises(RemoteError, match="enough"):
        link.send(msg.Ping())
