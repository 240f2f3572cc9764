"""The lines of ``requests.jsonl`` and ``rounds.jsonl``: their fields, written and read back.

A line is flat: which case it belongs to, how it ended, and the fields of the record. This module
knows no files, no engine and no metric.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from autodraft.errors import AutodraftError, StoreError
from autodraft.records import SCHEMA_VERSION, GenerationResult, RequestRecord, RoundRecord

_NEWLINE: Final = b"\n"
_HASH_DIGITS: Final = 16
# 3 knew neither choices nor scores, 4 no drafting ahead; all have defaults
_READABLE: Final = (3, 4, SCHEMA_VERSION)
_GAPS: Final = "output_gaps"


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Which request of the plan a line belongs to.

    Attributes:
        bench: Name of the benchmark.
        question_id: The question's id in the benchmark's file.
        category: The question's category.
        turn: Number of the turn in its conversation, from 1.
        repeat: Number of the repeat, from 1.
        method: The method's label, placement and chain length included.
        seed: Seed of the draws.
        choice: Number of the answer among those with this seed, from 0.
        rtt_ms: Round-trip time that the link was shaped to, in milliseconds.
        jitter_ms: Spread of that delay, in milliseconds.
        uplink_mbps: Bandwidth from user to cloud, in Mbit/s; ``None`` for unlimited.
        downlink_mbps: Bandwidth from cloud to user, in Mbit/s; ``None`` for unlimited.
    """

    bench: str
    question_id: int | str
    category: str
    turn: int
    repeat: int
    method: str
    seed: int = 0
    choice: int = 0
    rtt_ms: float = 0.0
    jitter_ms: float = 0.0
    uplink_mbps: float | None = None
    downlink_mbps: float | None = None


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """One request: finished, or failed with an error.

    Attributes:
        case: Which request it is.
        status: ``ok`` or ``error``.
        error: What went wrong; ``None`` when nothing did.
        text: The answer; ``None`` after an error.
        attempts: Times the request was sent until it ended so; more than 1 after a lost link.
        prompt_hash: What `hash_prompt` makes of the prompt; ``None`` where there was none to send.
        record: What was measured; ``None`` after an error. Its ``method`` is the case's.
    """

    case: Case
    status: Literal["ok", "error"]
    error: str | None = None
    text: str | None = None
    attempts: int = 1
    prompt_hash: str | None = None
    record: RequestRecord | None = None

    @classmethod
    def finished(
        cls,
        case: Case,
        result: GenerationResult,
        *,
        attempts: int = 1,
        prompt_hash: str | None = None,
    ) -> "RequestLine":
        """Make the line of a request that was answered."""
        return cls(
            case=case,
            status="ok",
            text=result.text,
            attempts=attempts,
            prompt_hash=prompt_hash,
            record=msgspec.structs.replace(result.request, method=case.method),
        )

    @classmethod
    def failed(
        cls,
        case: Case,
        error: AutodraftError,
        *,
        attempts: int = 1,
        prompt_hash: str | None = None,
    ) -> "RequestLine":
        """Make the line of a request that ended in an error."""
        return cls(
            case=case,
            status="error",
            error=f"{type(error).__name__}: {error}",
            attempts=attempts,
            prompt_hash=prompt_hash,
        )


class _Ending(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["ok", "error"]
    error: str | None
    text: str | None
    attempts: int = 1
    prompt_hash: str | None = None


def hash_prompt(token_ids: Sequence[int]) -> str:
    """Return 16 hex digits of the SHA-256 of token ids, each written as 4 bytes, low byte first.

    Lines with the same hash answered the same prompt.
    """
    data = b"".join(token.to_bytes(4, "little") for token in token_ids)
    return hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]


def _head(run_id: str, case: Case) -> dict[str, object]:
    return {"schema_version": SCHEMA_VERSION, "run_id": run_id, **msgspec.structs.asdict(case)}


def encode_request(run_id: str, line: RequestLine) -> bytes:
    """Write one line of ``requests.jsonl``, newline included.

    A gap to no other token is infinite, which JSON does not know: it is written as null.
    """
    fields = _head(run_id, line.case)
    fields |= {"status": line.status, "error": line.error, "text": line.text}
    fields |= {"attempts": line.attempts, "prompt_hash": line.prompt_hash}
    if line.record is not None:
        fields |= msgspec.structs.asdict(line.record)
    return msgspec.json.encode(fields) + _NEWLINE


def encode_rounds(run_id: str, case: Case, rounds: Sequence[RoundRecord]) -> bytes:
    """Write the lines of ``rounds.jsonl`` that belong to one request, newlines included."""
    head = _head(run_id, case)
    return b"".join(
        msgspec.json.encode(head | msgspec.structs.asdict(record)) + _NEWLINE for record in rounds
    )


def decode_request(data: bytes, where: str) -> RequestLine:
    """Read one line of ``requests.jsonl``.

    Args:
        data: The line.
        where: File and line number, for the error.

    Raises:
        StoreError: If the line is malformed or of another schema version.
    """
    try:
        fields = msgspec.json.decode(data, type=dict[str, object])
        version = fields.get("schema_version")
        if version not in _READABLE:
            known = " and ".join(map(str, _READABLE))
            raise StoreError(
                f"{where}: schema version {version!r}; this version of AutoDraft reads {known}. "
                "Read the run with the version that wrote it."
            )
        if isinstance(gaps := fields.get(_GAPS), list):
            fields[_GAPS] = [math.inf if gap is None else gap for gap in gaps]
        record = msgspec.convert(fields, RequestRecord) if fields.get("status") == "ok" else None
        case = msgspec.convert(fields, Case)
        ending = msgspec.convert(fields, _Ending)
    except msgspec.DecodeError as error:
        raise StoreError(f"{where}: not a line of requests.jsonl ({error}).") from error
    return RequestLine(case=case, record=record, **msgspec.structs.asdict(ending))


def decode_case(data: bytes, where: str) -> Case:
    """Read which case a line of ``requests.jsonl`` or ``rounds.jsonl`` belongs to.

    Args:
        data: The line.
        where: File and line number, for the error.

    Raises:
        StoreError: If the line is malformed.
    """
    try:
        return msgspec.json.decode(data, type=Case)
    except msgspec.DecodeError as error:
        raise StoreError(f"{where}: not a line of a run ({error}).") from error
