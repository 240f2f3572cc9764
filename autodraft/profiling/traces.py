"""Traces: answers of a target, and what a draft would have said at each place of them.

One line of JSON per answer. A trace knows no latency, no price and no method: it is what the two
models say, whatever machines they run on.
"""

from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from autodraft.errors import StoreError
from autodraft.tree.draft_tree import FloatArray, IntArray

TRACE_SCHEMA: Final = 1
MOST_CANDIDATES: Final = 16
"""Candidates that are kept at each place."""
_DIGITS: Final = 4


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the target, and the draft's best candidates at each of its places.

    Attributes:
        prompt_ids: Token ids of the prompt, [P].
        output_ids: Token ids of the answer, an ending EOS included, [T].
        tokens: The draft's candidates for each token of the answer, given all before it, best
            first, [T, K].
        log_probs: Natural logs of their probabilities, [T, K].
        target: The model that answered.
        draft: The model that was traced.
        bench: Where the prompt is from.
        question_id: Which question of it.
        category: The question's category.
        turn: Number of the turn in its conversation, from 1.
        schema: Version of this format.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    tokens: list[list[int]]
    log_probs: list[list[float]]
    target: str = ""
    draft: str = ""
    bench: str = ""
    question_id: int | str = 0
    category: str = ""
    turn: int = 1
    schema: int = TRACE_SCHEMA

    @property
    def name(self) -> str:
        """The answer in words, for messages."""
        return f"{self.bench} {self.question_id} turn {self.turn}".strip()


class Places(msgspec.Struct, frozen=True):
    """The candidates of a trace as arrays, best first.

    Attributes:
        tokens: [T, K].
        log_probs: [T, K].
    """

    tokens: IntArray
    log_probs: FloatArray

    @classmethod
    def of(cls, trace: Trace) -> "Places":
        """Return those of a trace."""
        return cls(np.array(trace.tokens, dtype=np.int64), np.array(trace.log_probs))


def rounded(log_probs: FloatArray) -> list[list[float]]:
    """Return log-probabilities as they are kept: to four digits, which no decision can tell."""
    found: list[list[float]] = log_probs.round(_DIGITS).tolist()
    return found


def encode_trace(trace: Trace) -> bytes:
    """Return a trace as a line, newline included."""
    return msgspec.json.encode(trace) + b"\n"


def read_traces(path: Path) -> list[Trace]:
    """Read a file of traces.

    Raises:
        StoreError: If it cannot be read, holds no trace, or a line is no trace of this version.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise StoreError(
            f"The trace {path} cannot be read ({error.strerror}). A run writes trace.jsonl into "
            "its folder with --set run.SAVE_TRACE=1."
        ) from error
    found = [_decoded(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line]
    if not found:
        raise StoreError(f"The trace {path} is empty. Run again with --set run.SAVE_TRACE=1.")
    return found


def _decoded(line: bytes, where: str) -> Trace:
    try:
        trace = msgspec.json.decode(line, type=Trace)
    except msgspec.DecodeError as error:
        raise StoreError(f"{where}: not a line of a trace ({error}).") from error
    if trace.schema != TRACE_SCHEMA:
        raise StoreError(
            f"{where}: trace of schema {trace.schema}; this version of AutoDraft reads "
            f"{TRACE_SCHEMA}. Record it again with --set run.SAVE_TRACE=1."
        )
    if problem := _problem(trace):
        raise StoreError(f"{where}: {problem}. Record the trace again.")
    return trace


def _problem(trace: Trace) -> str | None:
    places = len(trace.output_ids)
    if not trace.prompt_ids or not places:
        return "a trace needs a prompt and an answer"
    if len(trace.tokens) != places or len(trace.log_probs) != places:
        return f"{places} tokens, but candidates at {len(trace.tokens)} places"
    sizes = {*map(len, trace.tokens), *map(len, trace.log_probs)}
    if len(sizes) != 1 or 0 in sizes:
        return "the places do not all have the same number of candidates"
    return None
