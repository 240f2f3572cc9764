"""Benchmark questions: what is read, what is refused with file and line, what is left out.

Files that anybody can work out by hand; the published ones are read in
``test_evaluation_datasets_published.py``.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autodraft.config import BENCHES
from autodraft.errors import ConfigError, DataError
from evaluation.datasets import (
    AVAILABLE_BENCHES,
    Locations,
    Question,
    load_bench,
)

ROW = {"question_id": 81, "category": "writing", "turns": ["First?", "Second?"]}
MT_CATEGORIES = [
    *("writing", "roleplay", "reasoning", "math"),
    *("coding", "extraction", "stem", "humanities"),
]
OTHER_TASKS = ["translation", "summarization", "qa", "math_reasoning", "rag"]
TASKS = ["mt_bench", *OTHER_TASKS]


def at(folder: Path) -> Locations:
    """Look into one folder only."""
    return Locations(folder, None, cache_dir=folder / "cache", download=False)


def write(
    folder: Path, *lines: str | bytes, end: bytes = b"\n", name: str = "mt_bench.jsonl"
) -> Path:
    path = folder / name
    data = [line if isinstance(line, bytes) else line.encode() for line in lines]
    path.write_bytes(b"".join(line + end for line in data))
    return path


def row(**changes: object) -> str:
    return json.dumps(ROW | changes)


def humaneval_row(number: int, **changes: object) -> str:
    task = {
        "task_id": f"HumanEval/{number}",
        "prompt": "\ndef add(a, b):\n",
        "entry_point": "add",
        "canonical_solution": "    return a + b\n",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
    }
    return json.dumps(task | changes)


def write_humaneval(folder: Path, *lines: str | bytes) -> Path:
    return write(folder, *lines, name="humaneval.jsonl")


def write_gsm8k(folder: Path, *lines: str | bytes) -> Path:
    return write(folder, *lines, name="gsm8k.jsonl")


def spec_row(question_id: int, category: str, **changes: object) -> dict[str, Any]:
    turns = ["First?", "Second?"] if category in MT_CATEGORIES else ["Only one?"]
    return {"question_id": question_id, "category": category, "turns": turns} | changes


def write_spec_bench(folder: Path, *rows: dict[str, Any] | str) -> Path:
    lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
    return write(folder, *lines, name="spec_bench.jsonl")


def small_spec_bench(folder: Path, each: int = 2) -> Path:
    """Write ``each`` questions of every category, in the order of the real file."""
    categories = [name for name in [*MT_CATEGORIES, *OTHER_TASKS] for _ in range(each)]
    return write_spec_bench(folder, *(spec_row(81 + i, name) for i, name in enumerate(categories)))


# ------------------------------------------------------------------------------- the FastChat form


def test_a_row_becomes_a_question(tmp_path: Path) -> None:
    write(tmp_path, row())
    assert load_bench("mt_bench", at(tmp_path), None) == (
        Question(81, "writing", ("First?", "Second?"), "mt_bench"),
    )


@pytest.mark.parametrize(
    "reference",
    [
        {},
        {"reference": ["4", ""]},
        {"reference": ["", "an empty first entry"]},
        {"reference": [["Paris", "the city of Paris"]]},
        {"reference": None, "unknown": {"nested": [1, {"deeper": True}]}},
    ],
)
def test_a_reference_may_be_absent_nested_or_empty(
    tmp_path: Path, reference: dict[str, object]
) -> None:
    write(tmp_path, row(**reference))
    assert load_bench("mt_bench", at(tmp_path), None)[0].turns == ("First?", "Second?")


@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_text_is_never_stripped_or_cut(tmp_path: Path, ensure_ascii: bool) -> None:
    turns = [
        "\n  def f():\n\t### not a stop sign\u00a0 ",
        "line\u2028paragraph\u2029next\u0085 \u279e \u2264 \u200b\t\u201cquote\u201d\r\n\U0001f600",
    ]
    write(
        tmp_path, json.dumps(ROW | {"turns": turns}, ensure_ascii=ensure_ascii), row(question_id=2)
    )
    assert [question.turns for question in load_bench("mt_bench", at(tmp_path), None)] == [
        tuple(turns),
        ("First?", "Second?"),
    ]


def test_windows_line_ends_are_read_like_others(tmp_path: Path) -> None:
    write(tmp_path, row(), row(question_id=82), end=b"\r\n")
    assert [question.id for question in load_bench("mt_bench", at(tmp_path), None)] == [81, 82]


def test_the_last_row_needs_no_newline(tmp_path: Path) -> None:
    (tmp_path / "mt_bench.jsonl").write_text(row() + "\n" + row(question_id=82))
    assert len(load_bench("mt_bench", at(tmp_path), None)) == 2


def test_ids_are_taken_from_the_file_and_need_no_order(tmp_path: Path) -> None:
    write(tmp_path, row(question_id=90), row(question_id="7"), row(question_id=7))
    assert [question.id for question in load_bench("mt_bench", at(tmp_path), None)] == [90, "7", 7]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ("", "the row is empty"),
        ("   ", "the row is empty"),
        ("{", "malformed row"),
        ("[1]", "Expected `object`, got `array`"),
        (row(turns="First?"), r"Expected `array`, got `str` - at `\$.turns`"),
        (row(turns=[1, 2]), "Expected `str`, got `int`"),
        (row(turns=["only one"]), "1 turns; a mt_bench question has 2"),
        (row(turns=["First?", " \n"]), "turn 2 is empty"),
        (json.dumps({"question_id": 1, "category": "x"}), "missing required field `turns`"),
        (row(question_id=None), "question_id"),
        (b'{"question_id": 1, "category": "\xff", "turns": []}', "UTF-8"),
        (row(question_id=81), "question_id 81 already stands in line 1"),
    ],
)
def test_a_bad_row_is_refused_with_file_and_line(
    tmp_path: Path, bad: str | bytes, complaint: str
) -> None:
    path = write(tmp_path, row(), bad)
    with pytest.raises(DataError, match=complaint) as caught:
        load_bench("mt_bench", at(tmp_path), None)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_bad_row_beyond_the_limit_is_still_refused(tmp_path: Path) -> None:
    write(tmp_path, row(), "{")
    with pytest.raises(DataError, match=":2: malformed row"):
        load_bench("mt_bench", at(tmp_path), 1)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match="holds no question"):
        load_bench("mt_bench", at(tmp_path), None)


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    write(tmp_path, b"\xef\xbb\xbf" + row().encode())
    with pytest.raises(DataError, match=":1: the file begins with a byte order mark"):
        load_bench("mt_bench", at(tmp_path), None)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mt_bench.jsonl"
    path.mkdir()
    with pytest.raises(DataError, match=f"^{path}: the mt_bench questions cannot be read"):
        load_bench("mt_bench", at(tmp_path), None)


# --------------------------------------------------------------------------------------- HumanEval


def test_a_humaneval_prompt_is_one_turn_with_every_line_end_kept(tmp_path: Path) -> None:
    prompt = '\n\ndef helper():\n    return 1\n\ndef f():\n    """1 \u279e 2 \u2264 3"""\n'
    write_humaneval(tmp_path, humaneval_row(0, prompt=prompt))
    assert load_bench("humaneval", at(tmp_path), None) == (
        Question("HumanEval/0", "humaneval", (prompt,), "humaneval"),
    )


def test_a_humaneval_completion_is_the_raw_prompt_with_the_official_stop_words(
    tmp_path: Path,
) -> None:
    prompt = "\n\ndef f():\n"
    write_humaneval(tmp_path, humaneval_row(0, prompt=prompt))
    (question,) = load_bench("humaneval:completion", at(tmp_path), None)
    assert (question.form, question.turns) == ("completion", (prompt,))
    assert question.stop == ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
    assert (question.id, question.bench) == ("HumanEval/0", "humaneval:completion")


def test_the_chat_form_has_no_stop_words(tmp_path: Path) -> None:
    write_humaneval(tmp_path, humaneval_row(0))
    (question,) = load_bench("humaneval", at(tmp_path), None)
    assert (question.form, question.stop) == ("chat", ())


def test_two_humaneval_tasks_may_share_an_entry_point(tmp_path: Path) -> None:
    write_humaneval(tmp_path, humaneval_row(4), humaneval_row(5))
    ids = [question.id for question in load_bench("humaneval", at(tmp_path), None)]
    assert ids == ["HumanEval/4", "HumanEval/5"]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ("", "the row is empty"),
        ('{"prompt": "x"}', "missing required field `task_id`"),
        ('{"task_id": "HumanEval/1"}', "missing required field `prompt`"),
        (humaneval_row(1, task_id=1), r"Expected `str`, got `int` - at `\$.task_id`"),
        (humaneval_row(1, prompt=["x"]), r"Expected `str`, got `array` - at `\$.prompt`"),
        (humaneval_row(1, prompt="\n"), "turn 1 is empty"),
        (humaneval_row(0), "task_id 'HumanEval/0' already stands in line 1"),
    ],
)
def test_a_bad_humaneval_row_is_refused_with_file_and_line(
    tmp_path: Path, bad: str, complaint: str
) -> None:
    path = write_humaneval(tmp_path, humaneval_row(0), bad)
    with pytest.raises(DataError, match=complaint) as caught:
        load_bench("humaneval", at(tmp_path), None)
    assert str(caught.value).startswith(f"{path}:2: ")


# ------------------------------------------------------------------------------------------- GSM8K


def test_gsm8k_questions_are_numbered_by_their_row_from_0(tmp_path: Path) -> None:
    write_gsm8k(
        tmp_path,
        json.dumps({"question": " Two\u00a0pens?\t", "answer": "It is <<1+1=2>>2.\n#### 1,002"}),
        json.dumps({"question": "The same?"}),
        json.dumps({"question": "The same?"}),
    )
    assert load_bench("gsm8k", at(tmp_path), None) == (
        Question(0, "gsm8k", (" Two\u00a0pens?\t",), "gsm8k"),
        Question(1, "gsm8k", ("The same?",), "gsm8k"),
        Question(2, "gsm8k", ("The same?",), "gsm8k"),
    )


@pytest.mark.parametrize(
    "answer", ["#### 1,002", "#### -4", "#### 1\n#### 2", "no number", 7, None, ["#### 1"]]
)
def test_the_answers_of_gsm8k_are_not_read(tmp_path: Path, answer: object) -> None:
    write_gsm8k(tmp_path, json.dumps({"question": "How many?", "answer": answer}))
    assert load_bench("gsm8k", at(tmp_path), None)[0].turns == ("How many?",)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ("", "the row is empty"),
        ('{"answer": "#### 1"}', "missing required field `question`"),
        ('{"question": null}', "Expected `str`, got `null`"),
        ('{"question": "\u00a0"}', "turn 1 is empty"),
    ],
)
def test_a_bad_gsm8k_row_is_refused_with_file_and_line(
    tmp_path: Path, bad: str, complaint: str
) -> None:
    path = write_gsm8k(tmp_path, '{"question": "How many?"}', bad)
    with pytest.raises(DataError, match=complaint) as caught:
        load_bench("gsm8k", at(tmp_path), None)
    assert str(caught.value).startswith(f"{path}:2: ")


# -------------------------------------------------------------------------------------- Spec-Bench


def test_spec_bench_holds_all_rows_with_the_categories_of_the_file(tmp_path: Path) -> None:
    small_spec_bench(tmp_path)
    questions = load_bench("spec_bench", at(tmp_path), None)
    assert [question.id for question in questions] == list(range(81, 81 + 26))
    assert Counter(question.category for question in questions) == dict.fromkeys(
        [*MT_CATEGORIES, *OTHER_TASKS], 2
    )
    assert {question.bench for question in questions} == {"spec_bench"}


@pytest.mark.parametrize("task", TASKS)
def test_a_sub_task_of_spec_bench_is_a_benchmark_of_its_own(tmp_path: Path, task: str) -> None:
    small_spec_bench(tmp_path)
    questions = load_bench(f"spec_bench:{task}", at(tmp_path), None)
    assert {question.bench for question in questions} == {f"spec_bench:{task}"}
    categories = [question.category for question in questions]
    assert categories == [
        name for name in (MT_CATEGORIES if task == "mt_bench" else [task]) for _ in range(2)
    ]


def test_math_is_of_mt_bench_and_math_reasoning_is_not(tmp_path: Path) -> None:
    write_spec_bench(tmp_path, spec_row(1, "math"), spec_row(2, "math_reasoning"))
    assert [q.id for q in load_bench("spec_bench:mt_bench", at(tmp_path), None)] == [1]
    assert [q.id for q in load_bench("spec_bench:math_reasoning", at(tmp_path), None)] == [2]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (
            spec_row(2, "summarisation"),
            "category 'summarisation' belongs to no sub-task .*writing, ",
        ),
        (spec_row(2, "mt_bench"), "category 'mt_bench' belongs to no sub-task"),
        (spec_row(2, "qa", turns=["a", "b"]), "2 turns; a qa question has 1"),
        (spec_row(2, "stem", turns=["a"]), "1 turns; a mt_bench question has 2"),
        (spec_row(2, "rag", turns=[]), "0 turns; a rag question has 1"),
        (spec_row(1, "rag"), "question_id 1 already stands in line 1"),
        ('{"question_id": 2, "category": "qa"}', "missing required field `turns`"),
    ],
)
@pytest.mark.parametrize("bench", ["spec_bench", "spec_bench:qa", "cnn_dailymail"])
def test_a_bad_spec_bench_row_is_refused_whichever_sub_task_was_asked_for(
    tmp_path: Path, bench: str, bad: dict[str, Any] | str, complaint: str
) -> None:
    path = write_spec_bench(tmp_path, spec_row(1, "qa"), bad)
    with pytest.raises(DataError, match=complaint) as caught:
        load_bench(bench, at(tmp_path), None)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_sub_task_without_a_question_is_refused(tmp_path: Path) -> None:
    path = write_spec_bench(tmp_path, spec_row(1, "qa"))
    with pytest.raises(DataError, match=f"{path}: the file holds no question of the sub-task rag"):
        load_bench("spec_bench:rag", at(tmp_path), None)


# ------------------------------------------------------------------------------------ CNN/DailyMail


def test_cnn_dailymail_is_read_from_its_own_file(tmp_path: Path) -> None:
    small_spec_bench(tmp_path)
    write(
        tmp_path, row(question_id=0, category="news", turns=["Summarize: A."]),
        name="cnn_dailymail.jsonl",
    )  # fmt: skip
    assert load_bench("cnn_dailymail", at(tmp_path), None) == (
        Question(0, "news", ("Summarize: A.",), "cnn_dailymail"),
    )


def test_without_that_file_cnn_dailymail_is_the_summarization_of_spec_bench(tmp_path: Path) -> None:
    small_spec_bench(tmp_path)
    questions = load_bench("cnn_dailymail", at(tmp_path), None)
    assert [question.turns for question in questions] == [
        question.turns for question in load_bench("spec_bench:summarization", at(tmp_path), None)
    ]
    assert {question.bench for question in questions} == {"cnn_dailymail"}
    assert {question.category for question in questions} == {"summarization"}


def test_a_malformed_cnn_dailymail_file_is_not_passed_over(tmp_path: Path) -> None:
    small_spec_bench(tmp_path)
    path = write(tmp_path, row(), name="cnn_dailymail.jsonl")
    with pytest.raises(DataError, match="2 turns; a cnn_dailymail question has 1") as caught:
        load_bench("cnn_dailymail", at(tmp_path), None)
    assert str(caught.value).startswith(f"{path}:1: ")


# ------------------------------------------------------------------------------------------- names


def test_every_benchmark_that_a_configuration_may_name_can_be_read() -> None:
    assert set(AVAILABLE_BENCHES) == set(BENCHES)


def test_an_unknown_benchmark_lists_those_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Available: mt_bench, humaneval, .*, quick"):
        load_bench("alpaca", at(tmp_path), None)


@pytest.mark.parametrize(
    ("name", "bench", "form"),
    [
        ("mt_bench.jsonl", "mt_bench", r'"question_id": int or str, "category": str, "turns"'),
        ("spec_bench.jsonl", "spec_bench", r'"question_id": int or str, "category": str, "turns"'),
        ("humaneval.jsonl", "humaneval", r'{"task_id": str, "prompt": str}'),
        ("gsm8k.jsonl", "gsm8k", r'{"question": str}'),
    ],
)
def test_a_malformed_row_error_says_what_a_row_looks_like(
    tmp_path: Path, name: str, bench: str, form: str
) -> None:
    write(tmp_path, "{", name=name)
    with pytest.raises(DataError, match=f"Expected one JSON object a line: .*{form}"):
        load_bench(bench, at(tmp_path), None)


def test_the_bundled_questions_need_no_folder_and_begin_with_four_kinds(tmp_path: Path) -> None:
    questions = load_bench("quick", at(tmp_path), None)
    assert len(questions) >= 12
    assert [question.category for question in questions[:4]] == [
        "chat",
        "code",
        "maths",
        "summary",
    ]
    assert {len(question.turns) for question in questions} == {1, 2}
    assert {question.category for question in questions if len(question.turns) == 2} == {"two_turn"}
