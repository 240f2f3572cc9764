"""Benchmark questions: what is read, and what is refused with file and line."""

import json
import os
from pathlib import Path

import pytest

from autodraft.errors import ConfigError, DataError
from evaluation.datasets import Question, load_bench, read_questions

ROW = {"question_id": 81, "category": "writing", "turns": ["First?", "Second?"]}


def write(folder: Path, *lines: str | bytes, end: bytes = b"\n") -> Path:
    path = folder / "mt_bench.jsonl"
    data = [line if isinstance(line, bytes) else line.encode() for line in lines]
    path.write_bytes(b"".join(line + end for line in data))
    return path


def row(**changes: object) -> str:
    return json.dumps(ROW | changes)


def test_a_row_becomes_a_question(tmp_path: Path) -> None:
    write(tmp_path, row(reference=["extra fields are fine"]))
    assert load_bench("mt_bench", tmp_path, None) == (
        Question(81, "writing", ("First?", "Second?"), "mt_bench"),
    )


def test_text_is_never_stripped_or_cut(tmp_path: Path) -> None:
    turns = ["\n  def f():\n\t### not a stop sign\u00a0 ", "line\u2028separator \u279e\r\n"]
    write(tmp_path, json.dumps(ROW | {"turns": turns}, ensure_ascii=False))
    assert load_bench("mt_bench", tmp_path, None)[0].turns == tuple(turns)


def test_windows_line_ends_are_read_like_others(tmp_path: Path) -> None:
    write(tmp_path, row(), row(question_id=82), end=b"\r\n")
    assert [question.id for question in load_bench("mt_bench", tmp_path, None)] == [81, 82]


def test_the_last_row_needs_no_newline(tmp_path: Path) -> None:
    (tmp_path / "mt_bench.jsonl").write_text(row() + "\n" + row(question_id=82))
    assert len(load_bench("mt_bench", tmp_path, None)) == 2


def test_the_limit_keeps_the_first_questions(tmp_path: Path) -> None:
    write(tmp_path, row(), row(question_id=82), row(question_id=83))
    assert [question.id for question in load_bench("mt_bench", tmp_path, 2)] == [81, 82]


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
        (row(question_id=81), "already stands in line 1"),
    ],
)
def test_a_bad_row_is_refused_with_file_and_line(
    tmp_path: Path, bad: str | bytes, complaint: str
) -> None:
    path = write(tmp_path, row(), bad)
    with pytest.raises(DataError, match=complaint) as caught:
        load_bench("mt_bench", tmp_path, None)
    assert str(caught.value).startswith(f"{path}:2: ")


def test_a_bad_row_beyond_the_limit_is_still_refused(tmp_path: Path) -> None:
    write(tmp_path, row(), "{")
    with pytest.raises(DataError, match=":2: malformed row"):
        load_bench("mt_bench", tmp_path, 1)


def test_a_malformed_row_error_says_what_a_row_looks_like(tmp_path: Path) -> None:
    write(tmp_path, "{")
    with pytest.raises(DataError, match=r'"question_id": int or str, "category": str, "turns"'):
        load_bench("mt_bench", tmp_path, None)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match="holds no question"):
        load_bench("mt_bench", tmp_path, None)


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    write(tmp_path, b"\xef\xbb\xbf" + row().encode())
    with pytest.raises(DataError, match=":1: the file begins with a byte order mark"):
        load_bench("mt_bench", tmp_path, None)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_questions(tmp_path, "mt_bench", (2,))


def test_a_missing_folder_says_how_to_name_it() -> None:
    with pytest.raises(DataError, match=r"AUTODRAFT_BENCH_DIR is not set. Set AUTODRAFT_BENCH_DIR"):
        load_bench("mt_bench", None, None)


def test_a_missing_file_names_folder_and_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file .*mt_bench.jsonl.*Set AUTODRAFT_BENCH"):
        load_bench("mt_bench", tmp_path, None)


def test_a_benchmark_without_a_loader_lists_those_with_one() -> None:
    with pytest.raises(ConfigError, match="Available: mt_bench, quick"):
        load_bench("humaneval", None, None)


def test_the_bundled_questions_need_no_folder_and_begin_with_four_kinds() -> None:
    questions = load_bench("quick", None, None)
    assert len(questions) >= 12
    assert [question.category for question in questions[:4]] == [
        "chat",
        "code",
        "maths",
        "summary",
    ]
    assert {len(question.turns) for question in questions} == {1, 2}
    assert {question.category for question in questions if len(question.turns) == 2} == {"two_turn"}


@pytest.mark.skipif(
    "AUTODRAFT_BENCH_DIR" not in os.environ,
    reason="AUTODRAFT_BENCH_DIR does not name a folder of benchmark files",
)
def test_the_real_mt_bench_has_80_two_turn_questions_81_to_160() -> None:
    questions = load_bench("mt_bench", Path(os.environ["AUTODRAFT_BENCH_DIR"]), None)
    assert [question.id for question in questions] == list(range(81, 161))
    assert {len(question.turns) for question in questions} == {2}
    assert len({question.category for question in questions}) == 8
