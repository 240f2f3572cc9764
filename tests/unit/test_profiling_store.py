"""Profiles on disk: what comes back, what counts as missing, what is an error."""

import json
from pathlib import Path

import pytest

from autodraft.errors import ProfileError
from autodraft.profiling.store import (
    SCHEMA,
    StoredTable,
    profile_path,
    read_profile,
    read_table,
    write_profile,
    write_table,
)
from autodraft.profiling.tables import LatencyTable

KEY = "A CPU, 2 threads: some/model 1234, float32"
TABLE = LatencyTable((1, 8), (128, 768), [[0.125, 0.25], [0.5, 1.0]], (1, 8))


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    write_table(folder, "draft", KEY, StoredTable(TABLE, 10, extra={"note": [1]}))
    stored = read_table(folder, "draft", KEY)
    assert stored is not None
    assert stored.table.rows.tolist() == [1, 8]
    assert stored.table.contexts.tolist() == [128, 768]
    assert stored.table.seconds.tolist() == [[0.125, 0.25], [0.5, 1.0]]
    assert stored.table.padding.tolist() == [1, 8]
    assert (stored.calls, stored.extra) == (10, {"note": [1]})
    assert stored.measured_at.endswith("+00:00")
    assert [path.name for path in folder.iterdir()] == [profile_path(folder, "draft", KEY).name]


def test_a_file_says_what_it_is_and_what_it_holds_for(tmp_path: Path) -> None:
    path = write_profile(tmp_path, "pair", KEY, {"anything": {"at": 1}})
    assert path.name.startswith("pair-a-cpu-2-threads-some-model-1234-float32-")
    content = json.loads(path.read_text())
    assert (content["schema"], content["kind"], content["key"]) == (SCHEMA, "pair", KEY)
    assert read_profile(tmp_path, "pair", KEY) == content
    assert content["anything"] == {"at": 1}


def test_what_was_never_written_is_missing(tmp_path: Path) -> None:
    write_table(tmp_path, "draft", KEY, StoredTable(TABLE, 10))
    assert read_table(tmp_path, "target", KEY) is None
    assert read_table(tmp_path, "draft", KEY + ".") is None
    assert read_table(tmp_path / "nowhere", "draft", KEY) is None


@pytest.mark.parametrize(("name", "value"), [("key", "another"), ("schema", 0), ("kind", "pair")])
def test_what_was_written_under_another_key_or_schema_is_missing(
    name: str, value: object, tmp_path: Path
) -> None:
    path = write_table(tmp_path, "draft", KEY, StoredTable(TABLE, 10))
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    assert read_table(tmp_path, "draft", KEY) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_a_damaged_file_is_an_error_with_the_way_out(text: str, tmp_path: Path) -> None:
    path = write_table(tmp_path, "draft", KEY, StoredTable(TABLE, 10))
    path.write_text(text)
    with pytest.raises(ProfileError, match=r"Delete the file.*--refresh") as error:
        read_table(tmp_path, "draft", KEY)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rows", None), ("rows", [8, 1]), ("seconds", [[1.0]]), ("seconds", "x"), ("calls", "many")],
)
def test_a_damaged_table_is_an_error(name: str, value: object, tmp_path: Path) -> None:
    path = write_table(tmp_path, "draft", KEY, StoredTable(TABLE, 10))
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(ProfileError, match="cannot be used"):
        read_table(tmp_path, "draft", KEY)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ProfileError, match="AUTODRAFT_DATA_DIR"):
        write_table(tmp_path / "file", "draft", KEY, StoredTable(TABLE, 10))


def test_a_second_profile_takes_the_place_of_the_first(tmp_path: Path) -> None:
    write_table(tmp_path, "draft", KEY, StoredTable(TABLE, 10))
    write_table(tmp_path, "draft", KEY, StoredTable(TABLE, 20))
    stored = read_table(tmp_path, "draft", KEY)
    assert stored is not None
    assert stored.calls == 20
    assert len(list(tmp_path.iterdir())) == 1
