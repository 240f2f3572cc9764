"""The command line from end to end, with a fake engine: files, exit codes, messages."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autodraft.config_io import load_config
from autodraft.errors import ConnectError, ContextLengthError, LinkClosed
from evaluation.datasets import Locations, Question, load_bench
from tests.unit.evaluation_fakes import FakeEngine
from tests.unit.evaluation_harness import METHODS, Harness, fail_at

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "evaluation" / "run_main_experiment_overall_performance.sh"


def test_a_run_writes_every_file_and_exits_with_0(harness: Harness) -> None:
    assert harness("--limit", "2") == 0
    assert sorted(path.name for path in harness.folder.glob("[!.]*")) == [
        "categories.csv",
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
    (session,) = manifest["sessions"]
    assert session["argv"][:4] == ["python", "-m", "evaluation", "run"]
    assert session["argv"][-2:] == ["--limit", "1"]
    assert session["status"] == "finished"
    assert session["started_at"] <= session["ended_at"]
    assert {"commit", "dirty", "host"} <= session.keys()
    assert manifest["networks"] == ["unshaped"]
    assert manifest["seeds"] == [4]
    assert session["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert session["engine"] == harness.engine.described
    assert session["rtt_s"] == {"unshaped": 0.012}
    assert manifest["energy_methods"] == ["modelled"]
    assert manifest["prices"]["TARGET_PER_HOUR_COST"] == 1.208
    assert manifest["questions"]["quick"]["count"] == 1
    assert [method["label"] for method in manifest["methods"]] == METHODS.split(",")


def test_the_engine_is_closed_after_the_run(harness: Harness) -> None:
    harness("--limit", "1")
    assert harness.engine.events == ["connect", "unshaped", "close"]


def test_a_fresh_run_does_not_touch_the_first(harness: Harness) -> None:
    assert harness("--limit", "1") == 0
    before = {path: path.read_bytes() for path in harness.folder.glob("*.*")}
    assert harness("--limit", "1", "--fresh") == 0
    assert len(harness.folders) == 2
    assert harness.folders[1].name == harness.folders[0].name + "-2"
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
    options = ("--set", "run.WARMUP_QUESTIONS=0", "--set", "run.RETRIES=0")
    assert harness("--limit", "2", *options) == 1
    assert [line["status"] for line in harness.lines()] == ["ok"] * 5 + ["error"]
    assert harness.manifest()["status"] == "stopped"
    assert (harness.folder / "summary.csv").read_text().count("\n") == 5
    captured = capsys.readouterr()
    assert "server_only" in captured.out
    assert (
        "error: The server went away. Start it again. The run stopped after 5 of 8 requests; these "
        "are in the files above. Go on later with --resume." in captured.err
    )
    assert "Traceback" not in captured.err


def test_ctrl_c_keeps_the_files_and_exits_with_130(harness: Harness) -> None:
    harness.engine = fail_at(3, KeyboardInterrupt())
    assert harness("--limit", "1", "--set", "run.WARMUP_QUESTIONS=0") == 130
    assert len(harness.lines()) == 2
    assert harness.manifest()["status"] == harness.session["status"] == "interrupted"
    assert (harness.folder / "summary.csv").exists()
    assert harness.engine.events[-1] == "close"


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
        (["--set", "algorithms.METHODS_CSV=opttree"], 2, "opt_tree"),
        (["--set", "dataset.BENCHES_CSV=alpaca"], 2, "BENCHES_CSV does not take 'alpaca'"),
        (["--set", "dataset.BENCHES_CSV=mt_bench"], 1, "AUTODRAFT_BENCH_DIR"),
        (["--resume"], 2, "There is no run to go on with"),
        (["--resume", "20260102-0123abcd"], 2, "There is no run 20260102-0123abcd"),
        (["--set", "nonsense"], 2, "block.TAG=value"),
    ],
)
def test_what_cannot_run_is_refused_before_any_engine_is_made(
    harness: Harness,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
    message: str,
) -> None:
    assert harness(*options) == code
    assert harness.made == []
    assert not harness.output.exists()
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ["--limit", "0"],
        ["--limit", "many"],
        ["--unknown"],
        ["--lim", "2"],
        ["--resume", "--fresh"],
        ["--assume-tokens-per-s", "0"],
        ["--assume-tokens-per-s", "fast"],
    ],
)
def test_a_wrong_option_is_a_usage_error(
    harness: Harness, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        harness(*options)
    assert stop.value.code == 2
    assert "usage: python -m evaluation" in capsys.readouterr().err


def table_rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_a_dry_run_prints_every_cell_and_touches_nothing(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--set", "run.REPEATS=2", "--set", "network.RTT_MS=0 20", "--limit", "5")
    assert harness(*options, "--dry-run") == 0
    rows = table_rows(capsys.readouterr().out)
    for method in METHODS.split(","):
        for network in ("unshaped", "rtt20"):
            # question 5 has two turns; 12 requests of 256 tokens at 20 tokens/s
            head = ["quick", network, method, "4", "5", "2", "1", "12"]
            (row,) = (row for row in rows if row[:8] == head)
            assert row[-1] == "ready"
            if network == "unshaped":
                assert row[8] == "2:34"
    assert harness.made == []
    assert not harness.output.exists()


def test_a_dry_run_counts_every_seed_and_choice(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    sampled = ("TEMPERATURE=0.7", "SEED=4 7", "NUM_CHOICES=3")
    options = [text for each in sampled for text in ("--set", f"sampling.{each}")]
    assert harness("--limit", "5", *options, "--dry-run") == 0
    out = capsys.readouterr().out
    for seed in ("4", "7"):
        # six turns, three choices of each
        head = ["quick", "unshaped", "chain", seed, "5", "1", "3", "18"]
        assert head in [row[:8] for row in table_rows(out)]
    assert "24 cells, 144 requests, at most 36864 output tokens\n" in out


def test_a_dry_run_estimates_time_and_cost_at_most(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--limit", "1", "--set", "run.MAX_NEW_TOKENS=100", "--set", "run.REPEATS=9")
    price = ("--set", "objective.TARGET_PER_HOUR_COST=36")
    assert harness(*options, *price, "--assume-tokens-per-s", "10", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "36 cells, 36 requests, at most 3600 output tokens\n" in out
    # 36 + 4 requests of 100 tokens at 10 tokens/s are 400 s, 0.01 $ each
    assert "at most 6:40 (h:mm:ss or m:ss), of which 0:40 warm-up; target at most 4 $" in out
    assert "an assumption: 10 tokens/s (--assume-tokens-per-s)" in out


def test_a_dry_run_takes_the_rates_of_an_earlier_run(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness("--limit", "1") == 0  # 5 tokens/s, every method
    options = ("--limit", "2", "--set", "run.MAX_NEW_TOKENS=100", "--set", "run.WARMUP_QUESTIONS=0")
    assert harness(*options, "--dry-run") == 0
    out = capsys.readouterr().out
    assert f"By rates of the run example/{harness.folder.name}." in out
    assert "at most 2:40" in out  # 8 requests of 100 tokens
    assert harness(*options, "--dry-run", "--set", "models.DTYPE=float32") == 0
    assert "an assumption" in capsys.readouterr().out


def test_a_dry_run_marks_what_could_not_run(
    harness: Harness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autodraft.config.spec.AVAILABLE_METHODS", {"chain"})
    options = [
        "--set=algorithms.METHODS_CSV=chain,opt_tree",
        "--set=dataset.BENCHES_CSV=quick,gsm8k",
        "--set=run.DRY_RUN=1",
    ]
    assert harness(*options) == 0
    out = capsys.readouterr().out
    assert "not available yet, questions missing" in out
    assert "would stop the run: The method opt_tree does not exist yet" in out
    assert "would stop the run: Benchmark gsm8k" in out
    assert "without the benchmarks whose questions are missing" in out


def test_what_is_not_tuned_and_what_overlaps_is_told(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    assert harness("--dry-run", "--set", "dataset.BENCHES_CSV=quick,mt_bench,spec_bench") == 0
    err = capsys.readouterr().err
    assert "warning: quick, unshaped, chain: not tuned, so it takes d=4" in err
    assert "warning: mt_bench and spec_bench both hold" in err


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_means_that_nothing_is_downloaded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    seen: list[bool] = []

    def watch(bench: str, locations: Locations) -> tuple[Question, ...]:
        seen.append(locations.download)
        return load_bench(bench, locations)

    monkeypatch.setattr("evaluation.plan.load_bench", watch)
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    harness("--limit", "1", "--set", "algorithms.METHODS_CSV=server_only")
    monkeypatch.setenv(variable, "True")
    harness("--limit", "2", "--set", "algorithms.METHODS_CSV=server_only")
    monkeypatch.delenv(variable)
    off = ("--set", "dataset.DOWNLOAD=0")
    harness("--limit", "3", "--set", "algorithms.METHODS_CSV=server_only", *off)
    harness("--limit", "4", "--set", "algorithms.METHODS_CSV=server_only", "--dry-run")
    assert seen == [True, False, False, False]


def test_warnings_of_the_configuration_are_shown(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    harness("--dry-run", "--set", "network.JITTER_MS=5")
    err = capsys.readouterr().err
    assert "warning: " in err
    assert "JITTER_MS=5 is above RTT_MS=0" in err


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
    experiment_file: Path, tmp_path: Path
) -> None:
    decoy = tmp_path / "evaluation"  # must not be taken for ours
    decoy.mkdir()
    (decoy / "__init__.py").write_text("raise RuntimeError('the wrong evaluation package')\n")
    done = run_script("--config-xml", "example.xml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ready" in done.stdout


def test_the_script_reads_yaml_and_passes_the_options_on(
    experiment_file: Path, tmp_path: Path
) -> None:
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
    head = ["quick", "unshaped", "chain", "4", "3", "1", "1", "3"]
    assert head in [row[:8] for row in table_rows(done.stdout)]


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
    experiment_file: Path, tmp_path: Path, options: list[str], complaint: str
) -> None:
    done = run_script(*options, cwd=tmp_path)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "usage: " in done.stderr
