"""Benchmark questions: one JSON object a line in, ``Question`` objects out.

Text is passed on exactly as it stands in the file: nothing is stripped, cut, joined or put around
it. This module knows no prompts' templates, no models, no reference answers and no environment:
the folder is handed to it.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Protocol

import msgspec

from autodraft.errors import ConfigError, DataError

BENCH_DIR_VARIABLE: Final = "AUTODRAFT_BENCH_DIR"
_QUICK_FILE: Final = Path(__file__).with_name("quick.jsonl")
_SPEC_BENCH_FILE: Final = "spec_bench.jsonl"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_MT_BENCH_CATEGORIES: Final = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
# Category of a Spec-Bench row → its sub-task. The first sub-task is MT-bench, whose rows keep its
# own categories; `math` is one of those, `math_reasoning` is GSM8K.
_SPEC_BENCH_TASKS: Final = dict.fromkeys(_MT_BENCH_CATEGORIES, "mt_bench") | {
    task: task for task in ("translation", "summarization", "qa", "math_reasoning", "rag")
}


@dataclass(frozen=True)
class Question:
    """One question of a benchmark.

    Attributes:
        id: The id in the benchmark's file, unique in it; where the file has none (GSM8K), the
            number of the row, from 0.
        category: The benchmark's own category; the benchmark's name where it has none.
        turns: The user's messages, in order.
        bench: Name of the benchmark.
    """

    id: int | str
    category: str
    turns: tuple[str, ...]
    bench: str


# ------------------------------------------------------------------------------------ forms of rows


class _Row(Protocol):
    """One row as its file spells it. Fields that are not declared may be there and are ignored."""

    FORM: ClassVar[str]
    ID_FIELD: ClassVar[str]

    def to_question(self, index: int, bench: str) -> Question:
        """Return the question of row ``index``, counted from 0."""
        ...


class _FastChatRow(msgspec.Struct, frozen=True):
    FORM: ClassVar[str] = '{"question_id": int or str, "category": str, "turns": [str, …]}'
    ID_FIELD: ClassVar[str] = "question_id"

    question_id: int | str
    category: str
    turns: list[str]

    def to_question(self, index: int, bench: str) -> Question:
        return Question(self.question_id, self.category, tuple(self.turns), bench)


class _HumanEvalRow(msgspec.Struct, frozen=True):
    FORM: ClassVar[str] = '{"task_id": str, "prompt": str}'
    # Never entry_point: six names occur twice.
    ID_FIELD: ClassVar[str] = "task_id"

    task_id: str
    prompt: str

    def to_question(self, index: int, bench: str) -> Question:
        # The chat form: the prompt is the whole message, without an instruction of ours before it.
        return Question(self.task_id, bench, (self.prompt,), bench)


class _Gsm8kRow(msgspec.Struct, frozen=True):
    FORM: ClassVar[str] = '{"question": str}'
    ID_FIELD: ClassVar[str] = "row number"

    question: str

    def to_question(self, index: int, bench: str) -> Question:
        return Question(index, bench, (self.question,), bench)


# ---------------------------------------------------------------------------------- reading a file

# Takes a question and the place it stands in; raises DataError if the benchmark has no such one.
_Check = Callable[[Question, str], None]


def _nothing_more(question: Question, where: str) -> None:
    """Accept every question: the form of the row says all."""


def _parse_row(
    line: bytes, where: str, index: int, bench: str, form: type[_Row], check: _Check
) -> Question:
    expected = f"Expected one JSON object a line: {form.FORM}."
    if not line.strip():
        raise DataError(f"{where}: the row is empty. {expected} Remove the row.")
    try:
        question = msgspec.json.decode(line, type=form).to_question(index, bench)
    except msgspec.DecodeError as error:
        raise DataError(f"{where}: malformed row: {error}. {expected}") from error
    check(question, where)
    for number, turn in enumerate(question.turns, start=1):
        if not turn.strip():
            raise DataError(f"{where}: turn {number} is empty. Expected the user's message.")
    return question


def _read_lines(path: Path, bench: str) -> list[bytes]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: the {bench} questions cannot be read ({error}).") from error
    if data.startswith(_BYTE_ORDER_MARK):
        raise DataError(
            f"{path}:1: the file begins with a byte order mark. Save it as plain UTF-8."
        )
    # Not str.splitlines(): that also cuts at U+2028 and its kin, which may stand inside a string.
    return data.removesuffix(b"\n").split(b"\n") if data else []


def _read_file(
    path: Path, bench: str, form: type[_Row], check: _Check = _nothing_more
) -> tuple[Question, ...]:
    questions: list[Question] = []
    first_line: dict[int | str, int] = {}
    for index, line in enumerate(_read_lines(path, bench)):
        where = f"{path}:{index + 1}"
        question = _parse_row(line, where, index, bench, form, check)
        if question.id in first_line:
            raise DataError(
                f"{where}: {form.ID_FIELD} {question.id!r} already stands in line "
                f"{first_line[question.id]}. Give every question its own id."
            )
        first_line[question.id] = index + 1
        questions.append(question)
    if not questions:
        raise DataError(
            f"{path}: the file holds no question. Expected one JSON object a line: {form.FORM}."
        )
    return tuple(questions)


def _check_turns(question: Question, where: str, name: str, allowed: Sequence[int]) -> None:
    if len(question.turns) not in allowed:
        counts = " or ".join(str(count) for count in allowed)
        raise DataError(f"{where}: {len(question.turns)} turns; a {name} question has {counts}.")


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
    check = partial(_check_turns, name=bench, allowed=turn_counts)
    return _read_file(path, bench, _FastChatRow, check)


# ------------------------------------------------------------------------------------- benchmarks


def _in_bench_dir(bench: str, bench_dir: Path | None, *file_names: str) -> Path:
    """Return the first of the files that is there."""
    way_out = (
        f"Set {BENCH_DIR_VARIABLE} to the folder that holds {' or '.join(file_names)}, "
        "or choose the bundled questions with --set dataset.BENCHES_CSV=quick."
    )
    if bench_dir is None:
        raise DataError(f"Benchmark {bench}: {BENCH_DIR_VARIABLE} is not set. {way_out}")
    paths = [bench_dir / name for name in file_names]
    for path in paths:
        if path.is_file():
            return path
    missing = " and no file ".join(map(str, paths))
    raise DataError(
        f"Benchmark {bench}: there is no file {missing} ({BENCH_DIR_VARIABLE}={bench_dir}). "
        f"{way_out}"
    )


def _read_quick(bench_dir: Path | None) -> tuple[Question, ...]:
    return read_questions(_QUICK_FILE, "quick", (1, 2))


def _read_mt_bench(bench_dir: Path | None) -> tuple[Question, ...]:
    return read_questions(_in_bench_dir("mt_bench", bench_dir, "mt_bench.jsonl"), "mt_bench", (2,))


def _read_single_prompts(
    bench: str, form: type[_Row], bench_dir: Path | None
) -> tuple[Question, ...]:
    return _read_file(_in_bench_dir(bench, bench_dir, f"{bench}.jsonl"), bench, form)


def _check_spec_bench(question: Question, where: str) -> None:
    task = _SPEC_BENCH_TASKS.get(question.category)
    if task is None:
        raise DataError(
            f"{where}: category {question.category!r} belongs to no sub-task of Spec-Bench. "
            f"Allowed: {', '.join(_SPEC_BENCH_TASKS)}."
        )
    _check_turns(question, where, task, (2 if task == "mt_bench" else 1,))


def _read_spec_bench_file(path: Path, bench: str, task: str | None) -> tuple[Question, ...]:
    """Read the questions of one sub-task; ``None`` means all. The whole file is checked."""
    questions = _read_file(path, bench, _FastChatRow, _check_spec_bench)
    if task is None:
        return questions
    chosen = tuple(q for q in questions if _SPEC_BENCH_TASKS[q.category] == task)
    if not chosen:
        raise DataError(
            f"{path}: the file holds no question of the sub-task {task}. Use the whole file of "
            "Spec-Bench, or choose another benchmark with --set dataset.BENCHES_CSV=NAME."
        )
    return chosen


def _read_spec_bench(task: str | None, bench_dir: Path | None) -> tuple[Question, ...]:
    bench = "spec_bench" if task is None else f"spec_bench:{task}"
    return _read_spec_bench_file(_in_bench_dir(bench, bench_dir, _SPEC_BENCH_FILE), bench, task)


def _read_cnn_dailymail(bench_dir: Path | None) -> tuple[Question, ...]:
    bench = "cnn_dailymail"
    path = _in_bench_dir(bench, bench_dir, "cnn_dailymail.jsonl", _SPEC_BENCH_FILE)
    if path.name == _SPEC_BENCH_FILE:
        return _read_spec_bench_file(path, bench, "summarization")
    return read_questions(path, bench, (1,))


# The one table of benchmarks: name → loader.
_LOADERS: Final[dict[str, Callable[[Path | None], tuple[Question, ...]]]] = {
    "mt_bench": _read_mt_bench,
    "humaneval": partial(_read_single_prompts, "humaneval", _HumanEvalRow),
    "spec_bench": partial(_read_spec_bench, None),
    **{
        f"spec_bench:{task}": partial(_read_spec_bench, task)
        for task in dict.fromkeys(_SPEC_BENCH_TASKS.values())
    },
    "gsm8k": partial(_read_single_prompts, "gsm8k", _Gsm8kRow),
    "cnn_dailymail": _read_cnn_dailymail,
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
            f"{', '.join(AVAILABLE_BENCHES)}. Choose with --set dataset.BENCHES_CSV=NAME,NAME."
        )


def subtask(bench: str, category: str) -> str:
    """Return the part of a benchmark that a question belongs to.

    Args:
        bench: Name of the benchmark.
        category: The category of one of its questions.

    Returns:
        For ``spec_bench`` one of its six sub-tasks, as its authors report them; every other
        benchmark is one part, named like itself.
    """
    return _SPEC_BENCH_TASKS[category] if bench == "spec_bench" else bench


def load_bench(bench: str, bench_dir: Path | None, limit: int | None) -> tuple[Question, ...]:
    """Load the questions of one benchmark.

    Args:
        bench: Name of the benchmark.
        bench_dir: Folder of the question files; bundled benchmarks do not need it.
        limit: Keep the first so many questions of each sub-task (of the benchmark, where it has
            none); ``None`` keeps all. The whole file is checked either way.

    Returns:
        The questions, in the order of the file.

    Raises:
        ConfigError: If this version has no loader for the benchmark.
        DataError: If its file is missing or malformed.
    """
    require_loader(bench)
    questions = _LOADERS[bench](bench_dir)
    if limit is None:
        return questions
    taken: Counter[str] = Counter()
    kept: list[Question] = []
    for question in questions:
        part = subtask(bench, question.category)
        taken[part] += 1
        if taken[part] <= limit:
            kept.append(question)
    return tuple(kept)
