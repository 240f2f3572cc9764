"""Rows of question files: bytes in, ``Question`` objects out, strict, with file and line.

Text is passed on exactly as it stands in the file: nothing is stripped, cut, joined or put around
it. This module knows no places and no reference answers: fields that are not declared here
(``reference``, ``answer``, ``entry_point``, tests) may be there, of any shape, and are not read.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Final, Protocol

import msgspec

from autodraft.errors import DataError
from evaluation.datasets.questions import SPEC_BENCH_TASKS, Question

HUMANEVAL_STOP: Final = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Where a completion of HumanEval ends (Chen et al. 2021, arXiv 2107.03374, section 3.2)."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class Row(Protocol):
    """One row as its file spells it. Fields that are not declared may be there and are ignored."""

    FORM: ClassVar[str]
    ID_FIELD: ClassVar[str]

    def to_question(self, index: int, bench: str) -> Question:
        """Return the question of row ``index``, counted from 0."""
        ...


class FastChatRow(msgspec.Struct, frozen=True):
    """A row of MT-bench, Spec-Bench and the bundled questions."""

    FORM: ClassVar[str] = '{"question_id": int or str, "category": str, "turns": [str, …]}'
    ID_FIELD: ClassVar[str] = "question_id"

    question_id: int | str
    category: str
    turns: list[str]

    def to_question(self, index: int, bench: str) -> Question:
        """Return the question; the file's own id is its id."""
        return Question(self.question_id, self.category, tuple(self.turns), bench)


class HumanEvalRow(msgspec.Struct, frozen=True):
    """A row of HumanEval, asked as a chat."""

    FORM: ClassVar[str] = '{"task_id": str, "prompt": str}'
    # Never entry_point: six names occur twice.
    ID_FIELD: ClassVar[str] = "task_id"

    task_id: str
    prompt: str

    def to_question(self, index: int, bench: str) -> Question:
        """Return the chat form: the prompt is the whole message, no instruction before it.

        The official stop words do not apply: they end a text that goes on with the function's
        body, and an answer in a chat begins the function anew.
        """
        return Question(self.task_id, bench, (self.prompt,), bench)


class HumanEvalCompletionRow(HumanEvalRow, frozen=True):
    """A row of HumanEval, to be gone on with."""

    def to_question(self, index: int, bench: str) -> Question:
        """Return the completion form: the raw prompt, and the stop words of its authors."""
        return Question(
            self.task_id, bench, (self.prompt,), bench, form="completion", stop=HUMANEVAL_STOP
        )


class Gsm8kRow(msgspec.Struct, frozen=True):
    """A row of GSM8K, which has neither id nor category."""

    FORM: ClassVar[str] = '{"question": str}'
    ID_FIELD: ClassVar[str] = "row number"

    question: str

    def to_question(self, index: int, bench: str) -> Question:
        """Return the question; the number of the row is its id."""
        return Question(index, bench, (self.question,), bench)


Check = Callable[[Question, str], None]
"""Takes a question and the place it stands in; raises DataError if there is no such one."""


def _nothing_more(question: Question, where: str) -> None:
    """Accept every question: the form of the row says all."""


def check_turns(question: Question, where: str, name: str, allowed: Sequence[int]) -> None:
    """Refuse a question with a number of turns that ``name`` does not have."""
    if len(question.turns) not in allowed:
        counts = " or ".join(str(count) for count in allowed)
        raise DataError(f"{where}: {len(question.turns)} turns; a {name} question has {counts}.")


def check_spec_bench(question: Question, where: str) -> None:
    """Refuse a row of no sub-task of Spec-Bench, or with another number of turns than it has."""
    task = SPEC_BENCH_TASKS.get(question.category)
    if task is None:
        raise DataError(
            f"{where}: category {question.category!r} belongs to no sub-task of Spec-Bench. "
            f"Allowed: {', '.join(SPEC_BENCH_TASKS)}."
        )
    check_turns(question, where, task, (2 if task == "mt_bench" else 1,))


def _parse_row(
    line: bytes, where: str, index: int, bench: str, form: type[Row], check: Check
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


def _lines(data: bytes, path: Path) -> list[bytes]:
    if data.startswith(_BYTE_ORDER_MARK):
        raise DataError(
            f"{path}:1: the file begins with a byte order mark. Save it as plain UTF-8."
        )
    # Not str.splitlines(): that also cuts at U+2028 and its kin, which may stand inside a string.
    return data.removesuffix(b"\n").split(b"\n") if data else []


def parse_questions(
    data: bytes, path: Path, bench: str, form: type[Row], check: Check = _nothing_more
) -> tuple[Question, ...]:
    """Read the rows of a question file.

    Args:
        data: What the file holds (unpacked): UTF-8, one JSON object a line.
        path: The file, for messages.
        bench: Name the questions carry.
        form: How the file spells a row.
        check: What a row must hold beyond its form.

    Returns:
        All questions, in the order of the file.

    Raises:
        DataError: If there is no question, or a row is empty, malformed, refused by the check or
            has the id of an earlier one; the message carries file and line.
    """
    questions: list[Question] = []
    first_line: dict[int | str, int] = {}
    for index, line in enumerate(_lines(data, path)):
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


def parse_turns(
    data: bytes, path: Path, bench: str, turn_counts: Sequence[int]
) -> tuple[Question, ...]:
    """Read the rows of a file of the FastChat form.

    Args:
        data: What the file holds.
        path: The file, for messages.
        bench: Name the questions carry.
        turn_counts: Numbers of turns that a question of this benchmark may have.

    Raises:
        DataError: As ``parse_questions``.
    """
    check = partial(check_turns, name=bench, allowed=turn_counts)
    return parse_questions(data, path, bench, FastChatRow, check)
