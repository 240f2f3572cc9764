"""``python -m evaluation simulate``, and the traces that a run writes for it."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autodraft.config import ExperimentConfig
from autodraft.simulate import Trace, encode_trace, read_traces
from evaluation.cli import EXIT_USAGE, main
from evaluation.roles import Engine
from tests.unit.evaluation_fakes import FakeEngine
from tests.unit.evaluation_harness import Harness

TABLES = {
    "kind": "autodraft tables",
    "source": "a stop-watch",
    "assumptions": ["a cold room"],
    "draft": {"rows": [1, 64], "contexts": [10], "ms": [[1, 2]]},
    "target": {"rows": [1, 64], "contexts": [10], "ms": [[100, 100]]},
}
CONFIG = """\
experiment_config:
  models: {BASE_MODEL_PATH: large, DRAFT_MODEL_PATH: small}
  dataset: {BENCHES_CSV: quick}
  objective: {AUTODRAFT_CS_LIST: 0 1}
  network: {RTT_MS: "0,50"}
  algorithms: {METHODS_CSV: "server_only,chain,autodraft,lookup", CHAIN_D: 2}
"""


def no_engine(config: ExperimentConfig) -> Engine:
    raise AssertionError("a simulation needs no engine")


def trace(number: int, bench: str = "quick") -> Trace:
    output = list(range(100, 130))
    return Trace(
        prompt_ids=[1, 2, 3, number],
        output_ids=output,
        tokens=[[token, 7] for token in output],
        log_probs=[[-0.1, -3.0]] * len(output),
        target="large",
        draft="small",
        bench=bench,
        question_id=number,
        category="chat",
    )


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., int]:
    (tmp_path / "example.yaml").write_text(CONFIG)
    (tmp_path / "tables.json").write_text(json.dumps(TABLES))
    (tmp_path / "trace.jsonl").write_bytes(b"".join(encode_trace(trace(n)) for n in range(3)))

    def call(*options: str) -> int:
        given = ["simulate", str(tmp_path / "example.yaml"), "--jobs", "1"]
        given += ["--trace", str(tmp_path / "trace.jsonl")]
        given += ["--tables", str(tmp_path / "tables.json"), "--output", str(tmp_path / "results")]
        return main([*given, *options], no_engine)

    return call


def folder_of(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "results" / "example-simulated").iterdir()
    return folder


def rows_of(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    with (folder / "summary.csv").open() as file:
        return {(row["rtt_ms"], row["method"]): row for row in csv.DictReader(file)}


def test_it_writes_what_a_run_writes(
    simulate: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate() == 0
    folder, shown = folder_of(tmp_path), capsys.readouterr()
    rows = rows_of(folder)
    assert len(rows) == 2 * 5  # two links, server_only, chain, autodraft twice, lookup
    # 1.3 s of prefill and 29 tokens of 0.1 s; a link of 50 ms once.
    plain = rows["0.0", "server_only"]
    assert float(plain["tokens_per_s"]) == pytest.approx(30 / 3.0, rel=1e-3)
    assert float(rows["50.0", "server_only"]["tokens_per_s"]) == pytest.approx(30 / 3.05, rel=1e-3)
    assert float(rows["0.0", "chain"]["mat"]) == pytest.approx(29 / 10)
    assert all(row["identical_share"] == "1.0" for row in rows.values())
    assert float(rows["0.0", "autodraft_cs0"]["speedup"]) > 2
    assert {path.name for path in folder.iterdir()} >= {
        "requests.jsonl",
        "rounds.jsonl",
        "tradeoff.csv",
        "config.resolved.yaml",
        "manifest.json",
        "plots",
    }
    assert "rounds in" in shown.err


def test_what_it_rests_on_stands_above_the_tables(
    simulate: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("--target-factor", "2") == 0
    shown = capsys.readouterr().out
    head, tables = shown.split("quick: ", 1)
    for words in (
        "a stop-watch",
        "a cold room",
        "target forwards 2 times",
        "3 answers to 3 questions",
        "large answered, small drafted",
        "Off the target's own text",
    ):
        assert words in head
        assert words not in tables
    manifest = json.loads((folder_of(tmp_path) / "manifest.json").read_text())
    assert manifest["simulated"] is True
    assert any("a cold room" in each for each in manifest["assumptions"])


def test_processes_change_nothing(simulate: Callable[..., int], tmp_path: Path) -> None:
    assert simulate() == 0
    assert simulate("--jobs", "2") == 0
    first, second = sorted((tmp_path / "results" / "example-simulated").iterdir())
    assert (first / "summary.csv").read_text() == (second / "summary.csv").read_text()


def test_slower_machines_are_slower(simulate: Callable[..., int], tmp_path: Path) -> None:
    assert simulate("--draft-factor", "10", "--target-factor", "3") == 0
    plain = rows_of(folder_of(tmp_path))["0.0", "server_only"]
    assert float(plain["tokens_per_s"]) == pytest.approx(30 / 9.0, rel=1e-3)


def test_the_limits_of_questions_and_tokens_hold(
    simulate: Callable[..., int], tmp_path: Path
) -> None:
    assert simulate("--limit", "2", "--set", "run.MAX_NEW_TOKENS=10") == 0
    rows = rows_of(folder_of(tmp_path))
    assert {row["questions"] for row in rows.values()} == {"2"}
    assert {row["output_tokens"] for row in rows.values()} == {"20"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "sampling.TEMPERATURE=0.7"], "TEMPERATURE=0.7: traces are of greedy answers"),
        (["--set", "dataset.BENCHES_CSV=gsm8k"], "the trace has answers to quick alone"),
        (["--set", "algorithms.METHODS_CSV=autodraft@server"], "does not exist yet"),
        (["--tables", "nowhere.json"], "cannot be read"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    simulate: Callable[..., int],
    options: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert simulate(*options) == EXIT_USAGE
    assert said in capsys.readouterr().err


# ---------------------------------------------------------------------- traces that a run writes


def test_a_run_traces_each_answer_of_the_reference_once(harness: Harness) -> None:
    assert harness("--set", "run.SAVE_TRACE=1", "--set", "network.RTT_MS=0,10") == 0
    traces = read_traces(harness.folder / "trace.jsonl")
    names = [(trace.bench, trace.question_id, trace.turn) for trace in traces]
    lines = harness.lines()
    asked = {
        (line["bench"], line["question_id"], line["turn"])
        for line in lines
        if line["method"] == "server_only"
    }
    assert len(names) == len(set(names)) == len(harness.engine.traced)
    assert set(names) == asked
    assert all(trace.output_ids == list(range(10)) for trace in traces)


def test_without_the_tag_nothing_is_traced(harness: Harness) -> None:
    assert harness() == 0
    assert harness.engine.traced == []
    assert not (harness.folder / "trace.jsonl").exists()


def test_a_run_that_goes_on_traces_what_is_missing(harness: Harness) -> None:
    assert harness("--set", "run.SAVE_TRACE=1") == 0
    path = harness.folder / "trace.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    requests = harness.folder / "requests.jsonl"
    kept = requests.read_bytes().splitlines(keepends=True)
    requests.write_bytes(b"".join(kept[:-1]))
    path.write_bytes(b"".join(whole[:-1]) + whole[-1][:20])  # killed while it wrote
    harness.engine.traced.clear()
    assert harness("--set", "run.SAVE_TRACE=1") == 0
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(whole)
    assert len(harness.engine.traced) == 1


def test_a_trace_keeps_the_name_of_its_question(harness: Harness) -> None:
    assert harness("--set", "run.SAVE_TRACE=1") == 0
    first = read_traces(harness.folder / "trace.jsonl")[0]
    line: dict[str, Any] = next(
        line
        for line in harness.lines()
        if (line["question_id"], line["turn"]) == (first.question_id, first.turn)
    )
    assert (first.bench, first.category) == (line["bench"], line["category"])
    assert msgspec.structs.asdict(first)["schema"] == 1


def test_the_fake_engine_traces_as_the_real_one() -> None:
    trace_ = FakeEngine().trace([1], [2, 3])
    assert len(trace_.tokens) == len(trace_.output_ids)
