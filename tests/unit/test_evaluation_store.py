"""A run's folder: appended lines, whole tables, names that never collide."""

import csv
import json
import math
import os
from datetime import date
from pathlib import Path

import msgspec
import pytest

from autodraft.errors import ContextLengthError, StoreError
from autodraft.records import SCHEMA_VERSION, RequestRecord, RoundRecord
from evaluation.lines import RequestLine, encode_rounds
from evaluation.store import RunStore, make_run_id, write_atomic
from tests.unit.evaluation_fakes import ROUND, make_case, make_line


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "results", "example", "20260102-0123abcd")


def read_lines(store: RunStore, name: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (store.folder / name).read_text().splitlines()]


def test_a_run_id_is_the_date_and_a_hash_of_the_configuration() -> None:
    day = date(2026, 1, 2)
    run_id = make_run_id("run:\n  SEED: 4\n", day)
    assert run_id.startswith("20260102-")
    assert len(run_id) == len("20260102-") + 8
    assert run_id == make_run_id("run:\n  SEED: 4\n", day)
    assert run_id != make_run_id("run:\n  SEED: 5\n", day)


def test_a_second_run_of_the_same_day_and_configuration_gets_a_number(tmp_path: Path) -> None:
    stores = [RunStore.create(tmp_path, "example", "20260102-0123abcd") for _ in range(3)]
    assert [store.run_id for store in stores] == [
        "20260102-0123abcd",
        "20260102-0123abcd-2",
        "20260102-0123abcd-3",
    ]
    stores[0].append(make_line(), [])
    assert stores[1].read_requests() == []


def test_a_request_line_carries_its_case_and_every_field_of_the_record(store: RunStore) -> None:
    store.append(make_line(question_id=7, turn=2), [])
    (line,) = read_lines(store, "requests.jsonl")
    for name in RequestRecord.__struct_fields__:
        assert name in line
    assert line["schema_version"] == SCHEMA_VERSION == 5
    assert line["run_id"] == store.run_id
    assert (line["bench"], line["question_id"], line["category"]) == ("quick", 7, "chat")
    assert (line["turn"], line["repeat"], line["method"]) == (2, 1, "chain")
    assert (line["status"], line["error"], line["text"]) == ("ok", None, "An answer.")
    assert (line["attempts"], line["prompt_hash"]) == (1, None)
    assert (line["seed"], line["rtt_ms"], line["uplink_mbps"]) == (0, 0.0, None)
    assert line["choice"] == 0


def test_a_round_line_carries_its_case_and_every_field_of_the_record(store: RunStore) -> None:
    store.append(make_line(), [ROUND, msgspec.structs.replace(ROUND, round=2)])
    lines = read_lines(store, "rounds.jsonl")
    assert [line["round"] for line in lines] == [1, 2]
    for name in RoundRecord.__struct_fields__:
        assert name in lines[0]
    assert lines[0]["method"] == "chain"
    assert lines[0]["draft_j"] is None


def test_lines_are_read_back_as_they_were_written(store: RunStore) -> None:
    failed = RequestLine.failed(
        make_case(question_id=2), ContextLengthError("too long"), attempts=3, prompt_hash="0a"
    )
    for line in (make_line(draft_j=None), failed):
        store.append(line, [])
    assert store.read_requests() == [make_line(draft_j=None), failed]


def test_a_line_of_the_schema_before_choices_and_scores_is_read(store: RunStore) -> None:
    store.append(make_line(), [])
    (fields,) = read_lines(store, "requests.jsonl")
    for name in ("choice", "output_gaps", "exact", "redecided_tokens", "reused_prompt_tokens"):
        del fields[name]
    fields["schema_version"] = 3
    (store.folder / "requests.jsonl").write_text(json.dumps(fields) + "\n")
    assert store.read_requests() == [make_line()]


def test_a_gap_to_no_other_token_is_null_on_disk_and_infinite_when_read(store: RunStore) -> None:
    line = make_line(output_gaps=[0.5, math.inf])
    store.append(line, [])
    assert read_lines(store, "requests.jsonl")[0]["output_gaps"] == [0.5, None]
    assert store.read_requests() == [line]


def test_another_choice_or_seed_is_another_case(store: RunStore) -> None:
    first = make_line()
    cases = [msgspec.structs.replace(first.case, **own) for own in ({"choice": 1}, {"seed": 7})]
    lines = [first, *(msgspec.structs.replace(first, case=case) for case in cases)]
    for line in lines:
        store.append(line, [ROUND])
    store.mend()
    assert [line.case for line in store.read_requests()] == [first.case, *cases]
    assert len({line.case for line in store.read_requests()}) == 3
    assert [line["choice"] for line in read_lines(store, "rounds.jsonl")] == [0, 1, 0]


def test_rounds_are_on_disk_before_the_request_that_vouches_for_them(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    sync = os.fsync

    def watch(descriptor: int) -> None:
        sync(descriptor)
        sizes = {name: (store.folder / name).stat().st_size for name in files}
        written.append(" ".join(name for name, size in sizes.items() if size))

    files = ("rounds.jsonl", "requests.jsonl")
    monkeypatch.setattr(os, "fsync", watch)
    store.append(make_line(), [ROUND])
    assert written == ["rounds.jsonl", "rounds.jsonl requests.jsonl"]


def test_a_line_cut_off_by_a_crash_is_left_out(store: RunStore) -> None:
    store.append(make_line(), [])
    with (store.folder / "requests.jsonl").open("ab") as file:
        file.write(b'{"schema_version": 3, "run')
    assert store.read_requests() == [make_line()]


def test_a_malformed_line_is_refused_with_file_and_line(store: RunStore) -> None:
    store.append(make_line(), [])
    with (store.folder / "requests.jsonl").open("ab") as file:
        file.write(b'{"schema_version": 3}\n')
    with pytest.raises(StoreError, match=r"requests\.jsonl:2: not a line"):
        store.read_requests()


def test_a_line_of_another_schema_is_refused(store: RunStore) -> None:
    (store.folder / "requests.jsonl").write_text('{"schema_version": 99}\n')
    with pytest.raises(StoreError, match="version 99; this version of AutoDraft reads 3 and 4"):
        store.read_requests()


def test_a_table_leaves_unknown_figures_empty(store: RunStore) -> None:
    store.write_table("t.csv", ["a", "b"], [{"a": 1.5, "b": None}, {"a": 0, "b": "x,y"}])
    with (store.folder / "t.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["a", "b"], ["1.5", ""], ["0", "x,y"]]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.csv"
    write_atomic(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"No space left on device.*--output DIR"):
        write_atomic(path, b"new, but")
    assert path.read_bytes() == b"old"


def test_a_folder_that_cannot_be_made_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file is in the way")
    with pytest.raises(StoreError, match=r"results.*cannot be written.*--output DIR"):
        RunStore.create(tmp_path / "results", "example", "20260102-0123abcd")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_write_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="Permission denied"):
        RunStore.create(tmp_path, "example", "20260102-0123abcd")


def test_a_run_without_a_request_leaves_no_folder(tmp_path: Path) -> None:
    empty = RunStore.create(tmp_path, "example", "20260102-0123abcd")
    empty.write_manifest({"status": "running"})
    empty.discard_if_empty()
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_a_request_is_never_discarded(store: RunStore) -> None:
    empty = RunStore.create(store.folder.parent.parent, "example", store.run_id)
    store.append(RequestLine.failed(make_case(), ContextLengthError("too long")), [])
    for each in (store, empty):
        each.discard_if_empty()
    assert len(store.read_requests()) == 1
    assert not empty.folder.exists()


# ----------------------------------------------------------------------- after a process was killed


def append_bytes(store: RunStore, name: str, data: bytes) -> None:
    with (store.folder / name).open("ab") as file:
        file.write(data)


def test_mending_removes_cut_off_lines_and_rounds_without_their_request(store: RunStore) -> None:
    store.append(make_line(question_id=1), [ROUND])
    store.append(RequestLine.failed(make_case(question_id=2), ContextLengthError("long")), [])
    requests = (store.folder / "requests.jsonl").read_bytes()
    rounds = (store.folder / "rounds.jsonl").read_bytes()
    append_bytes(store, "requests.jsonl", b'{"schema_version": 3, "run')
    for question_id in (2, 3):  # killed between the rounds and the request
        append_bytes(
            store, "rounds.jsonl", encode_rounds("x", make_case(question_id=question_id), [ROUND])
        )
    append_bytes(store, "rounds.jsonl", b'{"sche')
    store.mend()
    assert (store.folder / "requests.jsonl").read_bytes() == requests
    assert (store.folder / "rounds.jsonl").read_bytes() == rounds


def test_mending_does_not_touch_whole_files(store: RunStore) -> None:
    store.append(make_line(), [ROUND])
    before = {path: path.stat().st_ino for path in store.folder.glob("*.jsonl")}
    store.mend()
    assert {path: path.stat().st_ino for path in store.folder.glob("*.jsonl")} == before


def test_mending_makes_the_files_of_a_run_that_was_killed_at_once(store: RunStore) -> None:
    for name in ("requests.jsonl", "rounds.jsonl"):
        (store.folder / name).unlink()
    store.mend()
    assert store.read_requests() == []


def test_mending_refuses_a_line_in_the_middle_that_is_none(store: RunStore) -> None:
    append_bytes(store, "rounds.jsonl", b'{"bench": 3}\n')
    with pytest.raises(StoreError, match=r"rounds\.jsonl:1: not a line of a run"):
        store.mend()


def test_two_processes_cannot_write_one_run(store: RunStore) -> None:
    second = RunStore(store.folder).locked()
    with store.locked(), pytest.raises(StoreError, match=r"Another process .*--fresh"):
        second.__enter__()
    with store.locked():  # free again
        pass


def test_a_manifest_is_read_back_and_a_missing_one_is_none(store: RunStore) -> None:
    assert store.read_manifest() is None
    store.write_manifest({"status": "running"})
    assert store.read_manifest() == {"status": "running"}


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_damaged_manifest_is_refused(store: RunStore, text: str) -> None:
    store.write_text("manifest.json", text)
    with pytest.raises(StoreError, match=r"manifest\.json"):
        store.read_manifest()
