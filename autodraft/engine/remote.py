"""The client's view of a target server: a handshake, then one session at a time.

Turns token lists and trees into messages and back. Does not decide what to send.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from autodraft.errors import ProtocolError
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import (
    pack_nodes,
    pack_tokens,
    unpack_path,
    unpack_tokens,
)
from autodraft.transport.client import Link
from autodraft.tree.draft_tree import DraftTree
from autodraft.units import US_PER_S

LOAD_TIMEOUT_S: Final = 1800.0
"""A lazy server may have to fetch and load a large model before it can say welcome."""


@dataclass(frozen=True)
class TargetWish:
    """What the client asks of the server in its hello.

    Attributes:
        server_name: Name the server must have.
        model: Target model; None takes the server's.
        quantization: Quantisation; None takes the server's.
        dtype: dtype; None takes the server's.
    """

    server_name: str
    model: str | None = None
    quantization: str | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What the target said of a tree.

    Attributes:
        path: Accepted nodes, root excluded, from the top down.
        bonus: The target's own token after them.
        queue_s: Time waited for the model, on the server's clock.
        verify_s: Time of forward and walk, on the server's clock.
    """

    path: npt.NDArray[np.int64]
    bonus: int
    queue_s: float
    verify_s: float


@dataclass(frozen=True)
class Step:
    """A server-side answer outside a round: prefill, or a piece of a decoding stream.

    Attributes:
        tokens: New tokens of the answer.
        queue_s: Time waited for the model, on the server's clock.
    """

    tokens: list[int]
    queue_s: float


@dataclass(frozen=True)
class Bill:
    """What the server charges for a session.

    Attributes:
        forwards: Target forwards.
        busy_s: Model compute.
        held_s: Wall time from open to close.
    """

    forwards: int
    busy_s: float
    held_s: float


class RemoteTarget:
    """A target server that has welcomed this client.

    Attributes:
        welcome: What it said of itself.
    """

    def __init__(self, link: Link, wish: TargetWish) -> None:
        """Shake hands.

        Raises:
            RemoteError: If the server refuses: another name, version or model.
            LinkError: If the link fails.
        """
        self._link = link
        self._round = 0
        hello = msg.Hello(
            msg.PROTOCOL_VERSION, wish.server_name, wish.model, wish.quantization, wish.dtype
        )
        self.welcome = link.request(hello, msg.Welcome, LOAD_TIMEOUT_S)

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        return self._link.uplink_bytes, self._link.downlink_bytes

    def open(self, max_new_tokens: int, node_budget: int, label: str) -> None:
        """Open a session; the answer is awaited together with the prefill's."""
        self._round = 0
        self._link.send(msg.Open(max_new_tokens, node_budget, label))

    def send_prompt(self, prompt: Sequence[int]) -> None:
        """Send the prompt; ``first_token`` waits for the answer."""
        self._link.send(msg.Prefill(pack_tokens(prompt)))

    def first_token(self) -> Step:
        """Wait for the session and its prefill, and return the first token of the answer."""
        self._link.receive(msg.Opened)
        reply = self._link.receive(msg.Prefilled)
        return Step([reply.token], reply.queue_us / US_PER_S)

    def verify(self, tree: DraftTree) -> Verdict:
        """Send one round's tree and wait for the verdict."""
        self._round += 1
        nodes = pack_nodes(tree.tokens[1:], tree.parents[1:])
        reply = self._link.request(msg.Verify(self._round, nodes), msg.Verified)
        if reply.round != self._round:
            raise ProtocolError(
                f"The server answered round {reply.round} where {self._round} was asked."
            )
        path = unpack_path(reply.path, tree.num_nodes)
        return Verdict(path, reply.bonus, reply.queue_us / US_PER_S, reply.forward_us / US_PER_S)

    def generate(self) -> Iterator[Step]:
        """Let the server decode to the end of the answer and yield its stream.

        A consumer that stops early stops the server, and what it made until then is dropped.
        """
        self._link.send(msg.Generate())
        ended = False
        try:
            while not ended:
                piece = self._link.receive(msg.Tokens)
                ended = piece.last
                yield Step(unpack_tokens(piece.tokens).tolist(), piece.queue_us / US_PER_S)
        except GeneratorExit:
            self._link.send(msg.Stop())
            while not ended:
                ended = self._link.receive(msg.Tokens).last
            raise

    def close_session(self) -> Bill:
        """End the session and return its bill."""
        closed = self._link.request(msg.Close(), msg.Closed)
        return Bill(closed.forwards, closed.busy_us / US_PER_S, closed.held_us / US_PER_S)

    def ping(self) -> float:
        """Return the seconds of one empty round trip."""
        started = time.perf_counter()
        self._link.request(msg.Ping(), msg.Pong)
        return time.perf_counter() - started

    def close(self) -> None:
        """Close the link."""
        self._link.close()
