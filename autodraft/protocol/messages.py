"""Every message that crosses the link, with its meaning.

A message is a MessagePack array whose first element is its type. ``docs/protocol.md`` draws who
sends what when. Changing a field means raising ``PROTOCOL_VERSION``. Nothing here encodes or sends.

Times are whole microseconds on the server's own clock; the two hosts' clocks are never compared.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import msgspec

PROTOCOL_VERSION: Final = 4
MAX_STOP_STRINGS: Final = 16
MAX_STOP_LENGTH: Final = 256
"""Most stop strings of a session, and most characters of each."""

MAX_PING_BYTES: Final = 262_144
"""Most bytes that a ping carries, and most that it asks for."""


def stop_strings_fit(stop: Sequence[str]) -> bool:
    """Tell whether a session takes these stop strings: few enough, none empty or too long."""
    return len(stop) <= MAX_STOP_STRINGS and all(0 < len(text) <= MAX_STOP_LENGTH for text in stop)


class ErrorCode(IntEnum):
    """Why the server refused or failed."""

    BAD_MESSAGE = 1
    OUT_OF_ORDER = 2
    VERSION = 3
    SERVER_NAME = 4
    MODEL_REFUSED = 5
    MODEL_FAILED = 6
    CONTEXT_LENGTH = 7
    LIMIT = 8
    BUSY = 9
    INTERNAL = 10


class Finish(IntEnum):
    """Whether, and why, an answer has ended."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base: an array on the wire, unknown trailing fields refused."""


class DraftWish(_Message, frozen=True):
    """The draft model that a client wants on the server; None takes the server's.

    Attributes:
        model: Draft model.
        quantization: Its quantisation.
        dtype: Its dtype.
    """

    model: str | None = None
    quantization: str | None = None
    dtype: str | None = None


class DraftInfo(_Message, frozen=True):
    """The draft model that the server drafts with.

    Attributes:
        model: Draft model.
        revision: Its revision or content hash; empty when unknown.
        quantization: ``none``, ``8bit`` or ``4bit``.
        dtype: Floating-point type of its weights.
        device: Device it runs on, in words.
        profile: Key of its latency profile: hardware, threads, model, revision, dtype,
            quantisation, library versions.
    """

    model: str
    revision: str
    quantization: str
    dtype: str
    device: str
    profile: str


class Latencies(_Message, frozen=True):
    """What the server measured of its target.

    Attributes:
        rows: Rows of the forwards that were timed, the root's included, rising.
        contexts: Tokens of context behind which they were timed, rising.
        seconds: The times, for each context one for each number of rows.
        padding: Numbers of rows that other numbers are padded to, rising; empty without padding.
    """

    rows: list[int]
    contexts: list[int]
    seconds: list[list[float]]
    padding: list[int]


class Hello(_Message, frozen=True, tag=1):
    """Client's first message.

    Attributes:
        version: The client's protocol version; both sides must be equal.
        server_name: The server name that the client expects.
        model: Target model wanted; None takes the server's.
        quantization: Quantisation wanted; None takes the server's.
        dtype: dtype wanted; None takes the server's.
        draft: Draft model wanted on the server, for co-located methods; None wants none.
    """

    version: int
    server_name: str
    model: str | None = None
    quantization: str | None = None
    dtype: str | None = None
    draft: DraftWish | None = None


class Sampling(_Message, frozen=True):
    """How the tokens of an answer are chosen; ``docs/losslessness.md`` says what each means.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 is all.
        top_p: 1 is all.
        min_p: 0 is all.
        seed: Of the noise.
        choice: Number of the answer among several.
        repetition_penalty: 1 is none.
        presence_penalty: 0 is none.
        frequency_penalty: 0 is none.
        logit_bias: Added to the logits of token ids.
        bad_words: Sequences of token ids that never occur.
        min_new_tokens: Tokens before which no EOS is chosen.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    bad_words: list[list[int]] = []
    min_new_tokens: int = 0


class Open(_Message, frozen=True, tag=2):
    """Open a session: one request.

    Attributes:
        max_new_tokens: Most tokens of the answer.
        node_budget: Most nodes that this session will send in a round.
        label: Method label, for the server's log and bill.
        stop: Strings that end the answer.
        sampling: How its tokens are chosen; None is greedy.
        exact: Narrow the gap that rounding leaves between rounds and plain decoding; None leaves
            it to the server.
        top_logprobs: How many log-probabilities come with every token besides its own; None for
            none at all.
        reuse: Go on with what the connection's last session left in the cache, and leave the same.
    """

    max_new_tokens: int
    node_budget: int
    label: str
    stop: list[str] | None = None
    sampling: Sampling | None = None
    exact: bool | None = None
    top_logprobs: int | None = None
    reuse: bool = False


class Scores(_Message, frozen=True):
    """How surely each of some tokens was chosen, as little-endian float32 and packed token ids.

    Attributes:
        gaps: Distance of the second best token, in logits, for each token.
        logprobs: Natural log-probability of each token.
        top_ids: The likeliest tokens in its place, equally many for each token, likeliest first.
        top_logprobs: Theirs.
    """

    gaps: bytes
    logprobs: bytes
    top_ids: bytes
    top_logprobs: bytes


class Prefill(_Message, frozen=True, tag=3):
    """The prompt; answered by ``Prefilled`` with the first token of the answer.

    Attributes:
        tokens: Packed token ids.
    """

    tokens: bytes


class Verify(_Message, frozen=True, tag=4):
    """One round's tree; answered by ``Verified``.

    Attributes:
        round: Number of the round, from 1, without gaps.
        nodes: Packed nodes, root excluded.
    """

    round: int
    nodes: bytes


class Generate(_Message, frozen=True, tag=5):
    """Decode on the server from here on; answered by a stream of ``Tokens``.

    May be sent behind ``Prefill`` without waiting. Where the answer has ended already, the stream
    is one piece without tokens.
    """


class Stop(_Message, frozen=True, tag=6):
    """End server-side decoding at the next token."""


class Close(_Message, frozen=True, tag=7):
    """End the session; answered by ``Closed``."""


class Ping(_Message, frozen=True, tag=8):
    """Ask for a ``Pong``: measures the link without the model.

    Attributes:
        payload: Bytes that only take up the uplink.
        reply_bytes: Bytes that the answer is to carry.
    """

    payload: bytes = b""
    reply_bytes: int = 0


class Speculate(_Message, frozen=True, tag=9):
    """Draft and verify on the server from here on; answered by a stream of ``Block``.

    May be sent behind ``Prefill`` without waiting, like ``Generate``.

    Attributes:
        method: Method id, without placement.
        width: Most frontier nodes expanded in one level.
        max_depth: Greatest depth of a tree.
        node_budget: Most drafted nodes verified in a round.
        retrieval: Graft retrieved continuations into the draft model's tree.
    """

    method: str
    width: int
    max_depth: int
    node_budget: int
    retrieval: bool


class Welcome(_Message, frozen=True, tag=20):
    """Answer to ``Hello``: who the server is and what it allows.

    Attributes:
        version: The server's protocol version.
        software: The server's AutoDraft version.
        server_name: Its name.
        model: Target model.
        revision: Its revision or content hash; empty when unknown.
        quantization: ``none``, ``8bit`` or ``4bit``.
        dtype: Floating-point type of its weights.
        device: Device it runs on, in words.
        tokenizer_hash: Fingerprint of its base vocabulary.
        added_tokens: Its added tokens, by id.
        eos_ids: Token ids that end an answer.
        vocab_size: Rows of its output head; no token id reaches it.
        max_context: Most tokens of prompt and answer together.
        max_nodes: Most nodes a round may send.
        max_depth: Deepest tree a round may send.
        max_frame_bytes: Largest message the server takes.
        energy_method: How the server finds its joules; ``modelled`` where it has no counter, and
            then ``Closed`` has none.
        draft: The draft model it drafts with for this client; None without one.
        profile: Key of the target's latency profile, as in ``DraftInfo``.
        latencies: What it measured of the target; None where it did not.
        row_padding: Numbers of rows that the target's forwards are padded to, rising; empty without
            padding.
    """

    version: int
    software: str
    server_name: str
    model: str
    revision: str
    quantization: str
    dtype: str
    device: str
    tokenizer_hash: str
    added_tokens: dict[int, str]
    eos_ids: list[int]
    vocab_size: int
    max_context: int
    max_nodes: int
    max_depth: int
    max_frame_bytes: int
    energy_method: str
    draft: DraftInfo | None = None
    profile: str = ""
    latencies: Latencies | None = None
    row_padding: tuple[int, ...] = ()


class Opened(_Message, frozen=True, tag=21):
    """Answer to ``Open``.

    Attributes:
        session_id: Name of the session in the server's log.
        exact: Whether the gap that rounding leaves is narrowed.
    """

    session_id: str
    exact: bool = False


class Prefilled(_Message, frozen=True, tag=22):
    """Answer to ``Prefill``.

    Attributes:
        token: First token of the answer.
        queue_us: Time the request waited for the model.
        forward_us: Time of the forward.
        reused: Tokens of the prompt that the cache held already.
        scores: Of the token, where they were asked for; so in all answers.
    """

    token: int
    queue_us: int
    forward_us: int
    reused: int = 0
    scores: Scores | None = None


class Verified(_Message, frozen=True, tag=23):
    """Answer to ``Verify``.

    Attributes:
        round: The round answered.
        path: Packed indices of the accepted nodes, from the root (excluded) down.
        bonus: The target's own token after them.
        queue_us: Time the request waited for the model.
        forward_us: Time of forward and walk.
        scores: Of the accepted tokens and the bonus token.
    """

    round: int
    path: bytes
    bonus: int
    queue_us: int
    forward_us: int
    scores: Scores | None = None


class Tokens(_Message, frozen=True, tag=24):
    """A piece of a server-side decoding stream.

    Attributes:
        tokens: Packed token ids, one or more; none only if stopped before the first.
        finish: Whether the answer ends here.
        last: Whether the stream ends here (also when stopped on request).
        queue_us: Time the step waited for the model.
        forward_us: Time of the step.
        scores: Of the tokens.
    """

    tokens: bytes
    finish: Finish
    last: bool
    queue_us: int
    forward_us: int
    scores: Scores | None = None


class Closed(_Message, frozen=True, tag=25):
    """Answer to ``Close``: what the session is billed for.

    Attributes:
        forwards: Forwards of the target model.
        busy_us: Model compute, drafting on the server included.
        held_us: Wall time from open to close.
        draft_us: The part of ``busy_us`` that was drafting.
        gross_mj: Energy of the machine from open to close, in millijoules; None without a counter.
        net_mj: The same less what the machine would have drawn idle; None where idle is unknown.
        redecided: Tokens that were decided again, by a forward of their own.
    """

    forwards: int
    busy_us: int
    held_us: int
    draft_us: int
    gross_mj: int | None = None
    net_mj: int | None = None
    redecided: int = 0


class Pong(_Message, frozen=True, tag=26):
    """Answer to ``Ping``.

    Attributes:
        payload: Bytes that only take up the downlink, as many as were asked for.
    """

    payload: bytes = b""


class Error(_Message, frozen=True, tag=27):
    """The server refuses or failed; the session, if any, is over.

    Attributes:
        code: Kind of error.
        message: What, where, what is allowed, next step.
    """

    code: ErrorCode
    message: str


class Block(_Message, frozen=True, tag=28):
    """One round of a stream that ``Speculate`` began.

    Attributes:
        tokens: Packed token ids, one or more; none only where the stream ends without a round.
        finish: Whether the answer ends here.
        last: Whether the stream ends here (also when stopped on request).
        width: Most frontier nodes expanded in one level.
        depth: Depth of the deepest node verified.
        drafted_nodes: Nodes proposed, verified or not.
        num_nodes: Nodes verified, root excluded.
        accepted: Drafted tokens kept.
        queue_us: Time the round waited for the model.
        draft_us: Time of drafting.
        verify_us: Time of the target's forward and walk.
        scores: Of the tokens.
    """

    tokens: bytes
    finish: Finish
    last: bool
    width: int = 0
    depth: int = 0
    drafted_nodes: int = 0
    num_nodes: int = 0
    accepted: int = 0
    queue_us: int = 0
    draft_us: int = 0
    verify_us: int = 0
    scores: Scores | None = None


ClientMessage = Hello | Open | Prefill | Verify | Generate | Stop | Close | Ping | Speculate
ServerMessage = Welcome | Opened | Prefilled | Verified | Tokens | Closed | Pong | Error | Block
