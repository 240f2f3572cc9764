"""Benchmark questions: one JSON object a line in, ``Question`` objects out.

Text is passed on exactly as it stands in the file: nothing is stripped, cut or joined. This module
knows no prompts' templates, no models and no environment: the folder is handed to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from autodraft.errors import ConfigError, DataError

BENCH_DIR_VARIABLE: Final = "AUTODRAFT_BENCH_DIR"
_QUICK_FILE: Final = Path(__file__).with_name("quick.jsonl")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_ROW_FORM: Final = (
    'one JSON object a line: {"question_id": int or str, "category": str, "turns": [str, …]}'
)


@dataclass(frozen=True)
class Question:
    """One question of a benchmark.

    Attributes:
        id: The id in the benchmark's file, unique in it.
        category: The benchmark's own category.
        turns: The user's messages, in order.
        bench: Name of the benchmark.
    """

    id: int | str
    category: str
    turns: tuple[str, ...]
    bench: str


class _Row(msgspec.Struct, frozen=True):
    question_id: int | str
    category: str
    turns: list[str]


def _parse_row(line: bytes, where: str, bench: str, turn_counts: Sequence[int]) -> Question:
    if not line.strip():
        raise DataError(f"{where}: the row is empty. Expected {_ROW_FORM}. Remove the row.")
    try:
        row = msgspec.json.decode(line, type=_Row)
    except msgspec.DecodeError as error:
        raise DataError(f"{where}: malformed row: {error}. Expected {_ROW_FORM}.") from error
    if len(row.turns) not in turn_counts:
        allowed = " or ".join(str(count) for count in turn_counts)
        raise DataError(f"{where}: {len(row.turns)} turns; a {bench} question has {allowed}.")
    for number, turn in enumerate(row.turns, start=1):
        if not turn.strip():
            raise DataError(f"{where}: turn {number} is empty. Expected the user's message.")
    return Question(row.question_id, row.category, tuple(row.turns), bench)


def read_questions(path: Path, bench: str, turn_counts: Sequence[int]) -> tuple[Question, ...]:
    """Read a question file of the FastChat form.

    Args:
        path: The file: UTF-8, one JSON object a line.
        bench: Name the questions carry.
        turn_counts: Numbers of turns a question of this benchmark may have.

    Returns:
        All questions, in the order of the file.

    Raises:
        DataError: If the file cannot be read, holds no question, or a row is empty, malformed or
            has the id of an earlier one; the message carries file and line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: the {bench} questions cannot be read ({error}).") from error
    if data.startswith(_BYTE_ORDER_MARK):
        raise DataError(
            f"{path}:1: the file begins with a byte order mark. Save it as plain UTF-8."
        )
    # Not str.splitlines(): that also cuts at U+2028 and its kin, which may stand inside a string.
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    questions: list[Question] = []
    first_line: dict[int | str, int] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        question = _parse_row(line, where, bench, turn_counts)
        if question.id in first_line:
            raise DataError(
                f"{where}: question_id {question.id!r} already stands in line "
                f"{first_line[question.id]}. Give every question its own id."
            )
        first_line[question.id] = number
        questions.append(question)
    if not questions:
        raise DataError(f"{path}: the file holds no question. Expected {_ROW_FORM}.")
    return tuple(questions)


def _read_from_bench_dir(
    bench: str, turn_counts: Sequence[int], bench_dir: Path | None
) -> tuple[Question, ...]:
    file_name = f"{bench}.jsonl"
    way_out = (
        f"Set {BENCH_DIR_VARIABLE} to the folder that holds {file_name}, "
        "or choose the bundled questions with --set dataset.BENCHES_CSV=quick."
    )
    if bench_dir is None:
        raise DataError(f"Benchmark {bench}: {BENCH_DIR_VARIABLE} is not set. {way_out}")
    path = bench_dir / file_name
    if not path.is_file():
        raise DataError(
            f"Benchmark {bench}: there is no file {path} ({BENCH_DIR_VARIABLE}={bench_dir}). "
            f"{way_out}"
        )
    return read_questions(path, bench, turn_counts)


def _read_quick(bench_dir: Path | None) -> tuple[Question, ...]:
    return read_questions(_QUICK_FILE, "quick", (1, 2))


# The one table of benchmarks: name → loader.
_LOADERS: Final[dict[str, Callable[[Path | None], tuple[Question, ...]]]] = {
    "mt_bench": partial(_read_from_bench_dir, "mt_bench", (2,)),
    "quick": _read_quick,
}
AVAILABLE_BENCHES: Final = tuple(_LOADERS)


def require_loader(bench: str) -> None:
    """Raise unless this version can read the benchmark.

    Raises:
        ConfigError: If it cannot; the message lists those that it can.
    """
    if bench not in _LOADERS:
        raise ConfigError(
            f"Benchmark {bench!r} cannot be read by this version. Available: "
            f"{', '.join(AVAILABLE_BENCHES)}. Choose with "
            f"--set dataset.BENCHES_CSV={','.join(AVAILABLE_BENCHES)}."
        )


def load_bench(bench: str, bench_dir: Path | None, limit: int | None) -> tuple[Question, ...]:
    """Load the questions of one benchmark.

    Args:
        bench: Name of the benchmark.
        bench_dir: Folder of the question files; bundled benchmarks do not need it.
        limit: Keep the first so many questions; ``None`` keeps all. The whole file is checked
            either way.

    Returns:
        The questions, in the order of the file.

    Raises:
        ConfigError: If this version has no loader for the benchmark.
        DataError: If its file is missing or malformed.
    """
    require_loader(bench)
    return _LOADERS[bench](bench_dir)[:limit]
