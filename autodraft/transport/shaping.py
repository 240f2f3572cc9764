"""A link with a settable round trip, jitter and bandwidth, at the client's end of a real one.

What it adds comes on top of the connection's own time. Frames are whole WebSocket messages; the
opening handshake, pings of the WebSocket protocol and the closing handshake are not delayed. This
module knows sockets and frames, no messages. `Way` has no clock, `DelayLine` no socket.
"""

import contextlib
import math
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from autodraft.config import NetworkSetting
from autodraft.units import MS_PER_S

_BYTES_PER_S_PER_MBPS: Final = 1e6 / 8
_STUCK_AFTER_S: Final = 0.5
"""A thread that is still writing so long after it was told to stop waits for a full socket."""

Frame = TypeVar("Frame")


@dataclass(frozen=True)
class LinkShape:
    """What is added to a link.

    Each way is delayed by half the round trip; with jitter, each frame by a time that is uniform
    over ``(rtt_s ± jitter_s) / 2`` and never below 0. Frames never overtake each other. With a
    bandwidth, a frame takes up its way for its payload over the bandwidth, behind the frames before
    it, and is delayed after that (store and forward).

    Attributes:
        rtt_s: Round-trip time added, in seconds.
        jitter_s: Spread of that time, in seconds.
        uplink_bytes_per_s: Bandwidth from the client to the server; None is unlimited.
        downlink_bytes_per_s: Bandwidth from the server to the client; None is unlimited.
        seed: Of the jitter; each way of each connection draws a sequence of its own from it.
    """

    rtt_s: float = 0.0
    jitter_s: float = 0.0
    uplink_bytes_per_s: float | None = None
    downlink_bytes_per_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rtt_s", "jitter_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; give 0 or more seconds.")
        for name in ("uplink_bytes_per_s", "downlink_bytes_per_s"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name} is {value}; give more than 0, or None for unlimited.")

    @classmethod
    def from_setting(cls, setting: NetworkSetting, seed: int) -> "LinkShape":
        """Return a configuration's network setting as a shape."""
        return cls(
            setting.rtt_ms / MS_PER_S,
            setting.jitter_ms / MS_PER_S,
            _bytes_per_s(setting.uplink_mbps),
            _bytes_per_s(setting.downlink_mbps),
            seed,
        )

    @property
    def adds_nothing(self) -> bool:
        """Whether a link of this shape is the plain one."""
        bandwidths = self.uplink_bytes_per_s, self.downlink_bytes_per_s
        return not self.rtt_s and not self.jitter_s and bandwidths == (None, None)

    @property
    def uplink(self) -> "Way":
        """A fresh way from the client to the server."""
        return self._way(self.uplink_bytes_per_s, "uplink")

    @property
    def downlink(self) -> "Way":
        """A fresh way from the server to the client."""
        return self._way(self.downlink_bytes_per_s, "downlink")

    def _way(self, bytes_per_s: float | None, name: str) -> "Way":
        rng = random.Random(f"{self.seed} {name}")
        return Way(self.rtt_s / 2, self.jitter_s / 2, bytes_per_s, rng)


def _bytes_per_s(mbps: float | None) -> float | None:
    return None if mbps is None else mbps * _BYTES_PER_S_PER_MBPS


class Way:
    """One direction of a link: tells when a frame that is handed in gets out at the other end."""

    def __init__(
        self, delay_s: float, spread_s: float, bytes_per_s: float | None, rng: random.Random
    ) -> None:
        """Begin with a free way.

        Args:
            delay_s: Mean delay of a frame.
            spread_s: Most that a frame's delay differs from that, up or down.
            bytes_per_s: Bandwidth; None is unlimited.
            rng: Draws the delays.
        """
        self._delay_s = delay_s
        self._spread_s = spread_s
        self._bytes_per_s = bytes_per_s
        self._rng = rng
        self._free_at = -math.inf
        self._last_due = -math.inf

    def due(self, now: float, size: int) -> float:
        """Return when a frame is out at the other end; frames come in the order of their times.

        Args:
            now: When it is handed in, on any clock, in seconds.
            size: Its payload in bytes.
        """
        self._free_at = max(now, self._free_at)
        if self._bytes_per_s is not None:
            self._free_at += size / self._bytes_per_s
        delay = self._delay_s + self._rng.uniform(-self._spread_s, self._spread_s)
        self._last_due = max(self._last_due, self._free_at + max(0.0, delay))
        return self._last_due


class LineShut(Exception):
    """The delay line was shut: no frame comes out of it any more."""


class DelayLine(Generic[Frame]):
    """Frames on their way: put in by one thread, taken out by another when they are due."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._frames: deque[tuple[float, Frame]] = deque()
        self._changed = threading.Condition()
        self._shut = False

    def put(self, frame: Frame, size: int) -> float:
        """Hand in a frame of ``size`` bytes now, and return when it is due.

        A line that was shut loses it.
        """
        with self._changed:
            now = time.perf_counter()
            if self._shut:
                return now
            due = self._way.due(now, size)
            self._frames.append((due, frame))
            self._changed.notify()
            return due

    def take(self, timeout_s: float | None = None) -> Frame:
        """Wait until the next frame is due and return it.

        Raises:
            TimeoutError: If none is due in time; None waits for ever.
            LineShut: If the line is shut, before or meanwhile.
        """
        deadline = math.inf if timeout_s is None else time.perf_counter() + timeout_s
        with self._changed:
            while not self._shut:
                now = time.perf_counter()
                due = self._frames[0][0] if self._frames else math.inf
                if due <= now:
                    return self._frames.popleft()[1]
                if deadline <= now:
                    raise TimeoutError(f"timed out in {timeout_s:.1f}s")
                until = min(due, deadline)
                self._changed.wait(None if until == math.inf else until - now)
            raise LineShut

    def shut(self) -> None:
        """Drop what is on the way and wake who waits for it; safe to call twice."""
        with self._changed:
            self._shut = True
            self._frames.clear()
            self._changed.notify_all()


class ShapedSocket:
    """A WebSocket connection seen through a shaped link; two threads do the waiting.

    Takes the place of the connection: the same calls, the same errors. ``send`` returns at once, as
    a socket with a buffer does. A frame from the server is on its way from the moment it reached
    the real socket, not from when somebody asks for it. The end of the connection is on its way
    like a frame, so the frames before it are delivered first.
    """

    def __init__(self, connection: ClientConnection, shape: LinkShape) -> None:
        """Shape an open connection, which belongs to this object from now on."""
        self._connection = connection
        self._up: DelayLine[bytes] = DelayLine(shape.uplink)
        self._down: DelayLine[str | bytes | None] = DelayLine(shape.downlink)
        self._end_due = math.inf
        self._sender = _started(self._send_when_due, "send")
        self._reader = _started(self._stamp_arrivals, "receive")

    def send(self, frame: bytes) -> None:
        """Put a frame on its way.

        Raises:
            ConnectionClosed: If the connection has ended and this end can know it.
        """
        if time.perf_counter() >= self._end_due:
            self._connection.send(frame)  # it has ended: raises why
        self._up.put(frame, len(frame))

    def recv(self, timeout: float | None = None) -> str | bytes:
        """Wait for the next frame.

        Raises:
            TimeoutError: If none is due within ``timeout`` seconds from now.
            ConnectionClosed: If the connection has ended, after the last frame before the end.
        """
        try:
            frame = self._down.take(timeout)
        except LineShut:
            frame = None
        if frame is not None:
            return frame
        self._down.shut()
        self._reader.join()
        return self._connection.recv(timeout=0)  # it has ended: raises why

    def close(self) -> None:
        """Close the connection and end both threads; safe to call twice.

        Frames still on their way are dropped, in both directions.
        """
        self._up.shut()
        self._down.shut()
        self._sender.join(_STUCK_AFTER_S)
        if self._sender.is_alive():  # it holds the lock that an orderly close needs
            self._cut()
        self._connection.close()
        self._sender.join()
        self._reader.join()
        self._end_due = -math.inf

    def _cut(self) -> None:
        with contextlib.suppress(OSError):  # it is cut already
            self._connection.socket.shutdown(socket.SHUT_RDWR)

    def _send_when_due(self) -> None:
        with contextlib.suppress(LineShut, ConnectionClosed):
            while True:
                self._connection.send(self._up.take())

    def _stamp_arrivals(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                frame = self._connection.recv()
                self._down.put(frame, len(frame))
        self._end_due = self._down.put(None, 0)
        self._up.shut()  # what is on its way to a connection that has ended gets lost


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=f"autodraft-link-{name}", daemon=True)
    thread.start()
    return thread
