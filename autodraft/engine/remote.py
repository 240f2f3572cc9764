"""The client's view of a target server: a handshake, then one session at a time.

Turns token lists and trees into messages and back. Does not decide what to send.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from autodraft.config import MethodSpec
from autodraft.decoding.stopping import StopRules
from autodraft.decoding.wish import PLAIN, Wish
from autodraft.engine.rounds import Meanwhile, Traffic, Verdict
from autodraft.engine.wishes import sampling_message, scores_of
from autodraft.errors import ProtocolError
from autodraft.meters import Energy
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import (
    pack_nodes,
    pack_tokens,
    unpack_path,
    unpack_tokens,
)
from autodraft.records import TokenScore
from autodraft.transport.client import Link
from autodraft.tree.draft_tree import DraftTree
from autodraft.units import MJ_PER_J, US_PER_S

LOAD_TIMEOUT_S: Final = 1800.0
"""A lazy server may have to fetch and load a large model before it can say welcome."""

Piece = TypeVar("Piece", msg.Tokens, msg.Block)


@dataclass(frozen=True)
class TargetWish:
    """What the client asks of the server in its hello.

    Attributes:
        server_name: Name the server must have.
        model: Target model; None takes the server's.
        quantization: Quantisation; None takes the server's.
        dtype: dtype; None takes the server's.
        draft: Draft model wanted on the server, for co-located methods; None wants none.
    """

    server_name: str
    model: str | None = None
    quantization: str | None = None
    dtype: str | None = None
    draft: msg.DraftWish | None = None


@dataclass(frozen=True)
class Step:
    """A server-side answer outside a round: prefill, or a piece of a decoding stream.

    Attributes:
        tokens: New tokens of the answer.
        queue_s: Time waited for the model, on the server's clock.
        forward_s: Time of the model, on the server's clock.
        scores: Of the tokens, where they were asked for.
    """

    tokens: list[int]
    queue_s: float
    forward_s: float
    scores: Sequence[TokenScore] = ()


@dataclass(frozen=True)
class Beginning(Step):
    """The first token of an answer.

    Attributes:
        exact: Whether the gap that rounding leaves is narrowed.
        reused: Tokens of the prompt that the server's cache held already.
    """

    exact: bool = False
    reused: int = 0


@dataclass(frozen=True)
class ServerRound:
    """A round that the server drafted and verified; times are on its clock.

    Attributes:
        tokens: New tokens of the answer.
        width: Most frontier nodes expanded in one level.
        depth: Depth of the deepest node verified.
        drafted_nodes: Nodes proposed, verified or not.
        num_nodes: Nodes verified, root excluded.
        accepted: Drafted tokens kept.
        queue_s: Time waited for the model.
        draft_s: Time of drafting.
        verify_s: Time of the target's forward and walk.
        scores: Of the tokens, where they were asked for.
    """

    tokens: list[int]
    width: int
    depth: int
    drafted_nodes: int
    num_nodes: int
    accepted: int
    queue_s: float
    draft_s: float
    verify_s: float
    scores: Sequence[TokenScore] = ()


@dataclass(frozen=True)
class Bill:
    """What the server charges for a session.

    Attributes:
        forwards: Target forwards.
        busy_s: Model compute, drafting on the server included.
        held_s: Wall time from open to close.
        draft_s: The part of ``busy_s`` that was drafting.
        energy: Of the server's machine from open to close; unknown where it has no counter.
        redecided: Tokens that were decided again, by a forward of their own.
    """

    forwards: int
    busy_s: float
    held_s: float
    draft_s: float
    energy: Energy
    redecided: int


class RemoteTarget:
    """A target server that has welcomed this client.

    Attributes:
        welcome: What it said of itself.
        prefill_s: Time of the model for the present prompt, on the server's clock.
    """

    prefill_s = 0.0

    def __init__(self, link: Link, wish: TargetWish) -> None:
        """Shake hands.

        Raises:
            RemoteError: If the server refuses: another name, version or model.
            LinkError: If the link fails.
        """
        self._link = link
        self._round = 0
        self._stream: type[msg.Tokens] | type[msg.Block] | None = None
        hello = msg.Hello(
            msg.PROTOCOL_VERSION,
            wish.server_name,
            wish.model,
            wish.quantization,
            wish.dtype,
            wish.draft,
        )
        self.welcome = link.request(hello, msg.Welcome, LOAD_TIMEOUT_S)

    @property
    def max_depth(self) -> int:
        """Deepest tree that it takes."""
        return self.welcome.max_depth

    @property
    def traffic(self) -> Traffic:
        """Bytes sent and received so far."""
        return Traffic(self._link.uplink_bytes, self._link.downlink_bytes)

    def open(self, rules: StopRules, node_budget: int, label: str, wish: Wish = PLAIN) -> None:
        """Open a session; the answer is awaited together with the prefill's."""
        self._round = 0
        self._link.send(
            msg.Open(
                max_new_tokens=rules.max_new_tokens,
                node_budget=node_budget,
                label=label,
                stop=list(rules.stop) or None,
                sampling=sampling_message(wish.sampling),
                exact=wish.exact,
                top_logprobs=wish.top_logprobs,
                reuse=wish.reuse,
            )
        )

    def send_prompt(self, prompt: Sequence[int]) -> None:
        """Send the prompt; ``first_token`` waits for the answer."""
        self._link.send(msg.Prefill(pack_tokens(prompt)))

    def first_token(self) -> Beginning:
        """Wait for the first token of the answer."""
        opened = self._link.receive(msg.Opened)
        reply = self._link.receive(msg.Prefilled)
        self.prefill_s = reply.forward_us / US_PER_S
        return Beginning(
            [reply.token],
            reply.queue_us / US_PER_S,
            self.prefill_s,
            scores_of(reply.scores),
            opened.exact,
            reply.reused,
        )

    def verify(self, tree: DraftTree, meanwhile: Meanwhile | None = None) -> Verdict:
        """Send one round's tree and wait for the verdict, with something to do meanwhile."""
        self._round += 1
        nodes = pack_nodes(tree.tokens[1:], tree.parents[1:])
        message = msg.Verify(self._round, nodes)
        if meanwhile is None:
            reply = self._link.request(message, msg.Verified)
        else:
            self._link.send(message)
            meanwhile(self._link.waiting)
            reply = self._link.receive(msg.Verified)
        if reply.round != self._round:
            raise ProtocolError(
                f"The server answered round {reply.round} where {self._round} was asked."
            )
        path = unpack_path(reply.path, tree.num_nodes)
        return Verdict(
            path,
            reply.bonus,
            reply.queue_us / US_PER_S,
            reply.forward_us / US_PER_S,
            scores_of(reply.scores),
        )

    def ask_generate(self) -> None:
        """Ask the server to decode to the end of the answer; ``steps`` yields its stream."""
        self._link.send(msg.Generate())
        self._stream = msg.Tokens

    def steps(self) -> Iterator[Step]:
        """Yield the stream that ``ask_generate`` asked for."""
        for piece in self._pieces(msg.Tokens):
            tokens = unpack_tokens(piece.tokens).tolist()
            if tokens:  # else the piece only says that the stream is over
                times = piece.queue_us / US_PER_S, piece.forward_us / US_PER_S
                yield Step(tokens, *times, scores_of(piece.scores))

    def stop_stream(self) -> None:
        """Ask the server to end the running stream at the next token; what it made still comes."""
        self._link.send(msg.Stop())

    def ask_speculate(self, spec: MethodSpec) -> None:
        """Ask the server to draft and verify by itself; ``rounds`` yields its stream."""
        self._link.send(
            msg.Speculate(spec.method, spec.width, spec.max_depth, spec.node_budget, spec.retrieval)
        )
        self._stream = msg.Block

    def rounds(self) -> Iterator[ServerRound]:
        """Yield the stream that ``ask_speculate`` asked for."""
        for piece in self._pieces(msg.Block):
            tokens = unpack_tokens(piece.tokens).tolist()
            if tokens:
                yield ServerRound(
                    tokens=tokens,
                    width=piece.width,
                    depth=piece.depth,
                    drafted_nodes=piece.drafted_nodes,
                    num_nodes=piece.num_nodes,
                    accepted=piece.accepted,
                    queue_s=piece.queue_us / US_PER_S,
                    draft_s=piece.draft_us / US_PER_S,
                    verify_s=piece.verify_us / US_PER_S,
                    scores=scores_of(piece.scores),
                )

    def close_session(self) -> Bill:
        """End the session, and a stream that still runs, and return the bill.

        What the server made of a stream that was not taken is dropped.
        """
        if self._stream is not None:
            self._link.send(msg.Stop())
            while not self._link.receive(self._stream).last:
                pass
            self._stream = None
        closed = self._link.request(msg.Close(), msg.Closed)
        return Bill(
            closed.forwards,
            closed.busy_us / US_PER_S,
            closed.held_us / US_PER_S,
            closed.draft_us / US_PER_S,
            Energy(_joules(closed.gross_mj), _joules(closed.net_mj)),
            closed.redecided,
        )

    def ping(self, up: int = 0, down: int = 0) -> float:
        """Return the seconds of one round trip without the model.

        Args:
            up: Further bytes that it carries to the server.
            down: Further bytes that it carries back.
        """
        message = msg.Ping(os.urandom(up), down)  # random: a tunnel may compress
        started = time.perf_counter()
        self._link.request(message, msg.Pong)
        return time.perf_counter() - started

    def close(self) -> None:
        """Close the link."""
        self._link.close()

    def _pieces(self, kind: type[Piece]) -> Iterator[Piece]:
        """Yield the pieces of the running stream."""
        while self._stream is not None:
            piece = self._link.receive(kind)
            if piece.last:
                self._stream = None
            yield piece


def _joules(millijoules: int | None) -> float | None:
    return None if millijoules is None else millijoules / MJ_PER_J
