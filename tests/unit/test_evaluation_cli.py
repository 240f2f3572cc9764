"""The command line from end to end, with a fake engine: files, exit codes, messages."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autodraft.config import ExperimentConfig
from autodraft.config_io import load_config
from autodraft.errors import AutodraftError, ConnectError, ContextLengthError, LinkClosed
from evaluation.cli import main
from evaluation.runner import Engine
from tests.unit.evaluation_fakes import FakeEngine, Messages

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "evaluation" / "run_main_experiment_overall_performance.sh"
METHODS = "server_only,chain,fixed_tree,opt_tree"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "example.xml"
    path.write_text(
        f"""<experiment_config>
  <models>
    <BASE_MODEL_PATH>embedded:smollm2-135m-instruct</BASE_MODEL_PATH>
    <DRAFT_MODEL_PATH>embedded:smollm2-draft</DRAFT_MODEL_PATH>
  </models>
  <dataset><BENCHES_CSV>quick</BENCHES_CSV></dataset>
  <algorithms><METHODS_CSV>{METHODS}</METHODS_CSV></algorithms>
</experiment_config>
"""
    )
    return path


class Harness:
    """Calls the command line with one fake engine and looks at what it left."""

    def __init__(self, config: Path, output: Path, engine: FakeEngine) -> None:
        self.config = config
        self.output = output
        self.engine = engine
        self.made: list[ExperimentConfig] = []

    def __call__(self, *options: str) -> int:
        def make_engine(config: ExperimentConfig) -> Engine:
            self.made.append(config)
            return self.engine

        given = ["run", str(self.config), "--output", str(self.output), *options]
        return main(given, make_engine)

    @property
    def folder(self) -> Path:
        (folder,) = (self.output / "example").iterdir()
        return folder

    def lines(self, name: str = "requests.jsonl") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        return manifest


@pytest.fixture
def harness(config: Path, tmp_path: Path) -> Harness:
    return Harness(config, tmp_path / "out", FakeEngine())


def fail_at(number: int, error: BaseException) -> FakeEngine:
    """Return an engine that fails on its so-manyth request."""
    count = 0

    def failure(label: str, messages: Messages) -> AutodraftError | None:
        nonlocal count
        count += 1
        if count == number:
            raise error
        return None

    return FakeEngine(failure)


def test_a_run_writes_every_file_and_exits_with_0(harness: Harness) -> None:
    assert harness("--limit", "2") == 0
    assert sorted(path.name for path in harness.folder.iterdir()) == [
        "config.resolved.yaml",
        "config.xml",
        "manifest.json",
        "plots",
        "requests.jsonl",
        "rounds.jsonl",
        "summary.csv",
        "tradeoff.csv",
    ]
    assert len(list((harness.folder / "plots").iterdir())) == 2
    with (harness.folder / "summary.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == METHODS.split(",")
    assert {row["identical_share"] for row in rows} == {"1.0"}


def test_the_configuration_is_kept_as_given_and_resolved(harness: Harness) -> None:
    harness("--limit", "2", "--set", "run.MAX_NEW_TOKENS=48")
    assert (harness.folder / "config.xml").read_bytes() == harness.config.read_bytes()
    resolved = load_config(harness.folder / "config.resolved.yaml").config
    assert resolved == harness.made[0]
    assert resolved.dataset.question_limit == 2
    assert resolved.run.max_new_tokens == 48
    assert harness.engine.max_new_tokens == {48}


def test_the_warm_up_is_asked_but_not_recorded(harness: Harness) -> None:
    harness("--limit", "2")
    assert len(harness.engine.asked) == 4 + 8
    assert len(harness.lines()) == 8


def test_the_manifest_tells_where_the_run_comes_from(harness: Harness) -> None:
    harness("--limit", "1")
    manifest = harness.manifest()
    assert manifest["status"] == "finished"
    assert manifest["run_id"] == harness.folder.name
    assert manifest["argv"][:4] == ["python", "-m", "evaluation", "run"]
    assert manifest["argv"][-2:] == ["--limit", "1"]
    assert {"commit", "dirty", "host"} <= manifest.keys()
    assert manifest["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert manifest["engine"] == {"target": "fake"}
    assert manifest["rtt_s"] == 0.012
    assert manifest["energy_methods"] == ["modelled"]
    assert manifest["prices"]["TARGET_PER_HOUR_COST"] == 1.208
    assert manifest["questions"] == {"quick": 1}
    assert [method["label"] for method in manifest["methods"]] == METHODS.split(",")


def test_the_engine_is_closed_after_the_run(harness: Harness) -> None:
    harness("--limit", "1")
    assert harness.engine.events == ["connect", "close"]


def test_a_second_run_does_not_touch_the_first(harness: Harness) -> None:
    assert harness("--limit", "1") == 0
    before = {path: path.read_bytes() for path in harness.folder.glob("*.*")}
    assert harness("--limit", "1") == 0
    assert len(list((harness.output / "example").iterdir())) == 2
    assert all(path.read_bytes() == data for path, data in before.items())


def test_a_failed_request_makes_the_exit_code_1_and_keeps_the_rest(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.engine = fail_at(6, ContextLengthError("The prompt has too many tokens."))
    assert harness("--limit", "2", "--set", "run.WARMUP_QUESTIONS=0") == 1
    assert [line["status"] for line in harness.lines()].count("ok") == 7
    assert harness.manifest()["status"] == "finished"
    assert "error: 1 of 8 requests failed" in capsys.readouterr().err


def test_a_lost_server_stops_the_run_with_a_summary_of_what_was_finished(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.engine = fail_at(6, LinkClosed("The server went away. Start it again."))
    assert harness("--limit", "2", "--set", "run.WARMUP_QUESTIONS=0") == 1
    assert [line["status"] for line in harness.lines()] == ["ok"] * 5 + ["error"]
    assert harness.manifest()["status"] == "stopped"
    assert (harness.folder / "summary.csv").read_text().count("\n") == 5
    captured = capsys.readouterr()
    assert "server_only" in captured.out
    assert (
        "error: The server went away. Start it again. The run stopped after 5 of 8" in captured.err
    )
    assert "Traceback" not in captured.err


def test_ctrl_c_keeps_the_files_and_exits_with_130(harness: Harness) -> None:
    harness.engine = fail_at(3, KeyboardInterrupt())
    assert harness("--limit", "1", "--set", "run.WARMUP_QUESTIONS=0") == 130
    assert len(harness.lines()) == 2
    assert harness.manifest()["status"] == "interrupted"
    assert (harness.folder / "summary.csv").exists()
    assert harness.engine.events == ["connect", "close"]


def test_a_server_that_was_never_there_leaves_no_folder(
    harness: Harness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FakeEngine) -> None:
        raise ConnectError("Nothing listens on 127.0.0.1:26001. Start run_target.sh.")

    monkeypatch.setattr(FakeEngine, "connect", refuse)
    assert harness() == 1
    assert list(harness.output.iterdir()) == []
    assert capsys.readouterr().err.endswith(
        "error: Nothing listens on 127.0.0.1:26001. Start run_target.sh.\n"
    )


def test_an_unwritable_folder_is_found_before_any_engine_is_made(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    harness.output.write_text("a file is in the way")
    assert harness() == 1
    assert harness.made == []
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--set", "algorithms.METHODS_CSV=autodraft"], 2, "does not exist yet"),
        (["--set", "algorithms.METHODS_CSV=opttree"], 2, "opt_tree"),
        (["--set", "dataset.BENCHES_CSV=alpaca"], 2, "BENCHES_CSV does not take 'alpaca'"),
        (["--set", "dataset.BENCHES_CSV=mt_bench"], 1, "AUTODRAFT_BENCH_DIR is not set"),
        (["--set", "nonsense"], 2, "block.TAG=value"),
    ],
)
def test_what_cannot_run_is_refused_before_any_engine_is_made(
    harness: Harness,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.delenv("AUTODRAFT_BENCH_DIR", raising=False)
    assert harness(*options) == code
    assert harness.made == []
    assert not harness.output.exists()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--limit", "0"], ["--limit", "many"], ["--unknown"], ["--lim", "2"]]
)
def test_a_wrong_option_is_a_usage_error(
    harness: Harness, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        harness(*options)
    assert stop.value.code == 2
    assert "usage: python -m evaluation" in capsys.readouterr().err


def test_a_dry_run_prints_every_cell_and_touches_nothing(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--set", "run.REPEATS=2", "--limit", "5", "--dry-run")
    assert harness(*options) == 0
    out = capsys.readouterr().out
    for method in METHODS.split(","):
        for repeat in (1, 2):
            cells = ["quick", method, str(repeat), "6", "ready"]  # question 5 has two turns
            assert cells in [line.strip("│").replace("│", " ").split() for line in out.splitlines()]
    assert harness.made == []
    assert not harness.output.exists()


def test_a_dry_run_marks_what_could_not_run(
    harness: Harness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTODRAFT_BENCH_DIR", raising=False)
    options = [
        "--set=algorithms.METHODS_CSV=chain,autodraft",
        "--set=dataset.BENCHES_CSV=quick,gsm8k",
        "--set=run.DRY_RUN=1",
    ]
    assert harness(*options) == 0
    out = capsys.readouterr().out
    assert "method not available yet" in out
    assert "questions missing or malformed" in out
    assert "would stop the run: The method autodraft does not exist yet" in out
    assert "would stop the run: Benchmark gsm8k: AUTODRAFT_BENCH_DIR is not set" in out


def test_warnings_of_the_configuration_are_shown(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    harness("--dry-run", "--set", "tree.FORCE_PROFILE_REFRESH=1")
    err = capsys.readouterr().err
    assert "warning: " in err
    assert "FORCE_PROFILE_REFRESH" in err


def run_script(*options: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable} | variables
    return subprocess.run(
        ["bash", str(RUNNER), *options],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_script_runs_from_any_folder_with_paths_relative_to_it(
    config: Path, tmp_path: Path
) -> None:
    decoy = tmp_path / "evaluation"  # must not be taken for ours
    decoy.mkdir()
    (decoy / "__init__.py").write_text("raise RuntimeError('the wrong evaluation package')\n")
    done = run_script("--config-xml", "example.xml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ready" in done.stdout


def test_the_script_reads_yaml_and_passes_the_options_on(config: Path, tmp_path: Path) -> None:
    blocks = {
        "models": {
            "BASE_MODEL_PATH": "embedded:smollm2-135m-instruct",
            "DRAFT_MODEL_PATH": "embedded:smollm2-draft",
        },
        "dataset": {"BENCHES_CSV": "quick"},
    }
    (tmp_path / "example.yaml").write_text(yaml.safe_dump(blocks))
    done = run_script(
        "--set=algorithms.METHODS_CSV=chain", "--limit", "3", "--dry-run",
        "--config-yaml=example.yaml", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ["quick", "chain", "1", "3", "ready"] in [
        line.strip("│").replace("│", " ").split() for line in done.stdout.splitlines()
    ]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "A configuration is missing"),
        (["--config-xml"], "--config-xml needs a file"),
        (["--config-xml", "missing.xml"], "There is no file missing.xml"),
        (["--config-xml", "example.xml", "--config-yaml", "example.xml"], "not two"),
        (["--config-xml", "example.xml", "--limits", "3"], "unrecognized arguments"),
    ],
)
def test_the_script_explains_a_usage_error_and_exits_with_2(
    config: Path, tmp_path: Path, options: list[str], complaint: str
) -> None:
    done = run_script(*options, cwd=tmp_path)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "usage: " in done.stderr
