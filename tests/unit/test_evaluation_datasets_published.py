"""The published question files: every trap that they are known for, read out of the real files.

Skipped where ``AUTODRAFT_BENCH_DIR`` names no folder of them. The traps that need no real file
(rows cut at U+2028, absent and nested references, texts stripped or cut, ids that occur twice, byte
order marks) are tried on hand-made files in ``test_evaluation_datasets.py``.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evaluation.datasets import Question, hold_out, load_bench, subtask
from evaluation.datasets.download import PUBLISHED, sha256_of
from tests.unit.test_evaluation_datasets import MT_CATEGORIES, TASKS, at

ROWS = {"mt_bench": 80, "humaneval": 164, "spec_bench": 480, "gsm8k": 1319}
BYTES = {"mt_bench": 48_929, "humaneval": 214_438, "spec_bench": 698_768, "gsm8k": 749_738}


@pytest.fixture
def real() -> Path:
    """Return the folder of the published files; a test without it is skipped."""
    folder = os.environ.get("AUTODRAFT_BENCH_DIR")
    if folder is None:
        pytest.skip("AUTODRAFT_BENCH_DIR does not name a folder of benchmark files")
    return Path(folder)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def longest(questions: tuple[Question, ...], turn: int = 0) -> tuple[int, int | str]:
    """Return the characters and the id of the longest message."""
    return max((len(question.turns[turn]), question.id) for question in questions)


def count(questions: tuple[Question, ...], text: str) -> int:
    return sum(turn.count(text) for question in questions for turn in question.turns)


@pytest.mark.parametrize("bench", ROWS)
def test_a_real_file_is_the_one_whose_checksum_is_pinned(real: Path, bench: str) -> None:
    data = (real / f"{bench}.jsonl").read_bytes()
    assert len(data) == BYTES[bench]
    assert sha256_of(data) == PUBLISHED[f"{bench}.jsonl"].sha256


@pytest.mark.parametrize("bench", ROWS)
def test_a_real_file_is_ascii_with_one_row_a_line(real: Path, bench: str) -> None:
    data = (real / f"{bench}.jsonl").read_bytes()
    assert data.isascii()
    assert b"\r" not in data
    assert data.endswith(b"}\n")
    assert len(data.decode().splitlines()) == data.count(b"\n") == ROWS[bench]
    assert len(load_bench(bench, at(real), None)) == ROWS[bench]


@pytest.mark.parametrize(("bench", "field"), [("humaneval", "prompt"), ("gsm8k", "question")])
def test_a_real_text_is_passed_on_as_it_stands(real: Path, bench: str, field: str) -> None:
    rows = rows_of(real / f"{bench}.jsonl")
    assert [q.turns for q in load_bench(bench, at(real), None)] == [(row[field],) for row in rows]


def test_the_real_turns_of_spec_bench_are_passed_on_as_they_stand(real: Path) -> None:
    rows = rows_of(real / "spec_bench.jsonl")
    assert [list(q.turns) for q in load_bench("spec_bench", at(real), None)] == [
        row["turns"] for row in rows
    ]


def test_real_references_are_absent_empty_or_nested_and_every_question_is_read(real: Path) -> None:
    rows = rows_of(real / "spec_bench.jsonl")
    assert sum("reference" not in row for row in rows) == 121
    assert sum("" in row.get("reference", []) for row in rows) == 8
    assert sum(isinstance(row.get("reference", [""])[0], list) for row in rows) == 80
    assert len(load_bench("spec_bench", at(real), None)) == len(rows)


def test_real_humaneval_entry_points_occur_twice_and_every_task_is_asked(real: Path) -> None:
    rows = rows_of(real / "humaneval.jsonl")
    twice = {name for name, n in Counter(row["entry_point"] for row in rows).items() if n == 2}
    assert twice == {
        *("triangle_area", "add", "correct_bracketing"),
        *("solve", "sort_array", "sum_squares"),
    }
    assert len({q.id for q in load_bench("humaneval", at(real), None)}) == 164


@pytest.mark.parametrize("bench", ["humaneval", "humaneval:completion"])
def test_real_humaneval_prompts_keep_the_helpers_before_the_target(real: Path, bench: str) -> None:
    prompts = [f"\n{q.turns[0]}" for q in load_bench(bench, at(real), None)]
    several = [i for i, prompt in enumerate(prompts) if prompt.count("\ndef ") > 1]
    assert several == [10, 32, 38, 50]


def test_the_two_forms_of_the_real_humaneval_hold_the_same_prompts(real: Path) -> None:
    chat, completion = (
        load_bench(bench, at(real), None) for bench in ("humaneval", "humaneval:completion")
    )
    assert [(q.id, q.turns) for q in chat] == [(q.id, q.turns) for q in completion]


def test_the_real_answers_of_gsm8k_hold_what_no_question_does(real: Path) -> None:
    rows = rows_of(real / "gsm8k.jsonl")
    questions = load_bench("gsm8k", at(real), None)
    for text, where in [("\u200b", [393]), ("\t", [1154])]:
        assert [i for i, row in enumerate(rows) if text in row["answer"]] == where
        assert count(questions, text) == 0
    assert all("#### " in row["answer"] for row in rows)
    assert not any("####" in question.turns[0] for question in questions)


@pytest.mark.parametrize("bench", ["mt_bench", "humaneval", "gsm8k", "spec_bench"])
def test_no_real_question_stands_twice_so_none_that_is_held_out_is_measured(
    real: Path, bench: str
) -> None:
    questions = load_bench(bench, at(real), None)
    assert len({question.turns for question in questions}) == len(questions)
    measured, validation = hold_out(bench, questions, 8)
    assert len(validation) == (48 if bench == "spec_bench" else 8)
    assert len(measured) + len(validation) == len(questions)


def test_the_real_mt_bench_has_80_two_turn_questions_81_to_160(real: Path) -> None:
    questions = load_bench("mt_bench", at(real), None)
    assert [question.id for question in questions] == list(range(81, 161))
    assert {len(question.turns) for question in questions} == {2}
    assert [question.category for question in questions] == [
        name for name in MT_CATEGORIES for _ in range(10)
    ]
    assert longest(questions) == (1642, 138)
    assert longest(questions, turn=1) == (1117, 157)


def test_the_real_humaneval_has_164_prompts_with_their_line_ends(real: Path) -> None:
    questions = load_bench("humaneval", at(real), None)
    assert [question.id for question in questions] == [f"HumanEval/{i}" for i in range(164)]
    prompts = [question.turns[0] for question in questions]
    assert {len(question.turns) for question in questions} == {1}
    assert sum(prompt.startswith("\n") for prompt in prompts) == 142
    assert all(prompt.endswith("\n") for prompt in prompts)
    not_ascii = [prompt for prompt in prompts if not prompt.isascii()]
    assert len(not_ascii) == 10
    assert all("\u279e" in prompt or "\u2264" in prompt for prompt in not_ascii)
    assert longest(questions) == (1360, "HumanEval/129")


def test_the_real_spec_bench_has_480_questions_in_six_sub_tasks_of_80(real: Path) -> None:
    questions = load_bench("spec_bench", at(real), None)
    assert [question.id for question in questions] == list(range(81, 561))
    assert [subtask(question.bench, question.category) for question in questions] == [
        task for task in TASKS for _ in range(80)
    ]
    assert [len(question.turns) for question in questions] == [2] * 80 + [1] * 400
    assert longest(questions) == (6847, 288)
    assert count(questions, "\u00a0") == 113


@pytest.mark.parametrize("number", range(6))
def test_a_real_sub_task_has_80_questions(real: Path, number: int) -> None:
    questions = load_bench(f"spec_bench:{TASKS[number]}", at(real), None)
    first = 81 + 80 * number
    assert [question.id for question in questions] == list(range(first, first + 80))


def test_the_limit_of_10_keeps_60_questions_of_the_real_spec_bench(real: Path) -> None:
    questions = load_bench("spec_bench", at(real), 10)
    parts = Counter(subtask(question.bench, question.category) for question in questions)
    assert parts == dict.fromkeys(TASKS, 10)
    assert [q.id for q in questions[:20]] == [*range(81, 91), *range(161, 171)]


def test_the_real_translation_and_summarization_keep_their_instruction(real: Path) -> None:
    for task, start in [
        ("translation", "Translate German to English: "),
        ("summarization", "Summarize: "),
    ]:
        questions = load_bench(f"spec_bench:{task}", at(real), None)
        assert all(question.turns[0].startswith(start) for question in questions)


def test_the_first_sub_task_of_the_real_spec_bench_is_mt_bench(real: Path) -> None:
    assert [(q.id, q.turns) for q in load_bench("spec_bench:mt_bench", at(real), None)] == [
        (q.id, q.turns) for q in load_bench("mt_bench", at(real), None)
    ]


def test_the_real_gsm8k_has_1319_questions_numbered_from_0(real: Path) -> None:
    questions = load_bench("gsm8k", at(real), None)
    assert [question.id for question in questions] == list(range(1319))
    assert longest(questions) == (848, 1077)
    assert longest(load_bench("gsm8k", at(real), 200)) == (615, 144)
    assert [q.id for q in questions if "\u00a0" in q.turns[0]] == [105, 223, 576]


def test_the_real_math_reasoning_is_part_of_gsm8k(real: Path) -> None:
    rows = {q.turns[0]: int(q.id) for q in load_bench("gsm8k", at(real), None)}
    found = {
        q.id: rows[q.turns[0]] for q in load_bench("spec_bench:math_reasoning", at(real), None)
    }
    assert len(found) == 80
    first = [found.pop(i) for i in (421, 428, 449, 451)]
    assert first == [152, 119, 82, 39]
    assert min(found.values()) > 199


def test_the_real_cnn_dailymail_has_80_articles(real: Path) -> None:
    if (real / "cnn_dailymail.jsonl").exists():
        pytest.skip("the folder has a file of its own for CNN/DailyMail")
    questions = load_bench("cnn_dailymail", at(real), None)
    assert [question.id for question in questions] == list(range(241, 321))
    assert len(load_bench("cnn_dailymail", at(real), 7)) == 7
