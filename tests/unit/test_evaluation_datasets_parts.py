"""Parts of a benchmark: sub-tasks, the first questions, those held out, those asked twice."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from autodraft.errors import DataError
from evaluation.datasets import Question, first_questions, hold_out, load_bench, overlaps, subtask
from tests.unit.test_evaluation_datasets import (
    MT_CATEGORIES,
    OTHER_TASKS,
    at,
    row,
    small_spec_bench,
    write,
)

# ------------------------------------------------------------------------------------------- limit


def test_the_limit_keeps_the_first_questions(tmp_path: Path) -> None:
    write(tmp_path, row(), row(question_id=82), row(question_id=83))
    assert [question.id for question in load_bench("mt_bench", at(tmp_path), 2)] == [81, 82]
    assert len(load_bench("mt_bench", at(tmp_path), 9)) == 3


def test_the_limit_counts_each_sub_task_of_spec_bench_for_itself(tmp_path: Path) -> None:
    small_spec_bench(tmp_path)
    questions = load_bench("spec_bench", at(tmp_path), 1)
    assert [question.category for question in questions] == ["writing", *OTHER_TASKS]
    assert [question.id for question in load_bench("spec_bench", at(tmp_path), 3)] == [
        81, 82, 83, *range(97, 107),
    ]  # fmt: skip


def test_the_categories_of_mt_bench_are_no_sub_tasks(tmp_path: Path) -> None:
    small_spec_bench(tmp_path)
    assert [q.category for q in load_bench("spec_bench:mt_bench", at(tmp_path), 3)] == [
        "writing",
        "writing",
        "roleplay",
    ]
    write(tmp_path, *(row(question_id=i, category=name) for i, name in enumerate(MT_CATEGORIES)))
    assert len(load_bench("mt_bench", at(tmp_path), 3)) == 3


@pytest.mark.parametrize(
    ("bench", "category", "part"),
    [
        ("spec_bench", "math", "mt_bench"),
        ("spec_bench", "math_reasoning", "math_reasoning"),
        ("spec_bench:mt_bench", "math", "spec_bench:mt_bench"),
        ("mt_bench", "math", "mt_bench"),
        ("quick", "chat", "quick"),
    ],
)
def test_only_spec_bench_has_parts(bench: str, category: str, part: str) -> None:
    assert subtask(bench, category) == part


# --------------------------------------------------------------------------------------- held out


def questions_of(bench: str, *categories: str) -> tuple[Question, ...]:
    return tuple(Question(i, name, ("?",), bench) for i, name in enumerate(categories))


def ids(questions: Iterable[Question]) -> list[int | str]:
    return [question.id for question in questions]


def test_the_last_questions_are_held_out() -> None:
    measured, validation = hold_out("mt_bench", questions_of("mt_bench", *"abcdefgh"), 3)
    assert (ids(measured), ids(validation)) == ([0, 1, 2, 3, 4], [5, 6, 7])


def test_each_sub_task_of_spec_bench_holds_out_its_own() -> None:
    asked = questions_of("spec_bench", "qa", "math", "qa", "stem", "rag", "rag", "writing")
    measured, validation = hold_out("spec_bench", asked, 1)
    assert (ids(measured), ids(validation)) == ([0, 1, 3, 4], [2, 5, 6])


def test_none_is_held_out_when_none_is_asked_for() -> None:
    asked = questions_of("gsm8k", "gsm8k")
    assert hold_out("gsm8k", asked, 0) == (asked, ())


def test_a_limit_does_not_change_which_are_held_out() -> None:
    measured, validation = hold_out("gsm8k", questions_of("gsm8k", *"abcdef"), 2)
    assert ids(first_questions("gsm8k", measured, 2)) == [0, 1]
    assert ids(validation) == [4, 5]


@pytest.mark.parametrize("count", [2, 3])
def test_a_sub_task_that_would_keep_no_question_is_named(count: int) -> None:
    asked = questions_of("spec_bench", "qa", "qa", "qa", "qa", "rag", "rag")
    with pytest.raises(
        DataError,
        match=f"spec_bench: rag has 2 questions, .*VALIDATION_QUESTIONS={count} would leave none "
        ".*from 0 to 1",
    ):
        hold_out("spec_bench", asked, count)


# ------------------------------------------------------------------------------------ asked twice


@pytest.mark.parametrize(
    ("benches", "shared"),
    [
        (["mt_bench", "spec_bench"], ["the 80 questions of MT-bench (ids 81 to 160)"]),
        (["spec_bench:mt_bench", "mt_bench"], ["the 80 questions of MT-bench (ids 81 to 160)"]),
        (["gsm8k", "spec_bench"], ["80 questions of the GSM8K test split"]),
        (["spec_bench:math_reasoning", "gsm8k"], ["80 questions of the GSM8K test split"]),
        (["cnn_dailymail", "spec_bench:summarization"], ["articles of CNN/DailyMail"]),
        (["humaneval", "humaneval:completion"], ["the problems of HumanEval"]),
        (["spec_bench:rag", "spec_bench"], ["Spec-Bench's sub-task rag"]),
        (["spec_bench:rag", "spec_bench:qa"], []),
        (["mt_bench", "humaneval", "gsm8k", "cnn_dailymail", "quick"], []),
        (["spec_bench:mt_bench", "gsm8k"], []),
        (["mt_bench", "mt_bench"], []),
    ],
)
def test_benchmarks_that_hold_the_same_questions_are_told(
    benches: list[str], shared: list[str]
) -> None:
    assert overlaps(benches) == [
        f"{benches[0]} and {benches[1]} both hold {what}: do not count them as independent data."
        for what in shared
    ]


def test_every_pair_is_told() -> None:
    assert len(overlaps(["mt_bench", "gsm8k", "spec_bench"])) == 2
