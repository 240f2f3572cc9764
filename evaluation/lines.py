"""The lines of ``requests.jsonl`` and ``rounds.jsonl``: their fields, written and read back.

A line is flat: which case it belongs to, how it ended, and the fields of the record. This module
knows no files, no engine and no metric.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from autodraft.errors import AutodraftError, StoreError
from autodraft.records import SCHEMA_VERSION, GenerationResult, RequestRecord, RoundRecord

_NEWLINE: Final = b"\n"


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
        record: What was measured; ``None`` after an error. Its ``method`` is the case's.
    """

    case: Case
    status: Literal["ok", "error"]
    error: str | None = None
    text: str | None = None
    record: RequestRecord | None = None

    @classmethod
    def finished(cls, case: Case, result: GenerationResult) -> "RequestLine":
        """Make the line of a request that was answered."""
        record = msgspec.structs.replace(result.request, method=case.method)
        return cls(case=case, status="ok", text=result.text, record=record)

    @classmethod
    def failed(cls, case: Case, error: AutodraftError) -> "RequestLine":
        """Make the line of a request that ended in an error."""
        return cls(case=case, status="error", error=f"{type(error).__name__}: {error}")


class _Ending(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["ok", "error"]
    error: str | None
    text: str | None


def _head(run_id: str, case: Case) -> dict[str, object]:
    return {"schema_version": SCHEMA_VERSION, "run_id": run_id, **msgspec.structs.asdict(case)}


def encode_request(run_id: str, line: RequestLine) -> bytes:
    """Write one line of ``requests.jsonl``, newline included."""
    fields = _head(run_id, line.case)
    fields |= {"status": line.status, "error": line.error, "text": line.text}
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
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{where}: schema version {version!r}; this version of AutoDraft reads "
                f"{SCHEMA_VERSION}. Read the run with the version that wrote it."
            )
        record = msgspec.convert(fields, RequestRecord) if fields.get("status") == "ok" else None
        case = msgspec.convert(fields, Case)
        ending = msgspec.convert(fields, _Ending)
    except msgspec.DecodeError as error:
        raise StoreError(f"{where}: not a line of requests.jsonl ({error}).") from error
    return RequestLine(
        case=case, status=ending.status, error=ending.error, text=ending.text, record=record
    )
