"""The harness as a user runs it: a target server, the Bash runner, files and exit codes.

Tiny random models in float32 on both sides, so that the share of identical outputs must be 100 %.
"""

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import save_tiny_model
from tests.servers import TOKEN, TargetProcess, target_process

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "evaluation" / "run_main_experiment_overall_performance.sh"
EXAMPLE = ROOT / "evaluation" / "overall_performance_total_cost_mt_bench_example.xml"
METHODS = ["server_only", "chain", "fixed_tree", "opt_tree", "lookup"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("models")
    context = {"max_position_embeddings": 8192}
    target = save_tiny_model(folder / "target", num_hidden_layers=3, **context)
    return target, save_tiny_model(folder / "draft", **context)


@pytest.fixture
def server(models: tuple[Path, Path], tmp_path: Path) -> Iterator[TargetProcess]:
    with target_process(tmp_path, *target_options(models)) as process:
        yield process


def target_options(models: tuple[Path, Path]) -> list[str]:
    return ["--base-model-path", str(models[0]), "--dtype", "float32"]


def command(models: tuple[Path, Path], port: int, output: Path, *further: str) -> list[str]:
    settings = {
        "models.BASE_MODEL_PATH": models[0],
        "models.DRAFT_MODEL_PATH": models[1],
        "models.DTYPE": "float32",
        "models.TARGET_DTYPE": "float32",
        "runtime.TARGET_PORT": port,
        "runtime.DEVICE_MAP": "cpu",
        "algorithms.METHODS_CSV": ",".join(METHODS),
        "dataset.BENCHES_CSV": "quick",
        "run.MAX_NEW_TOKENS": 12,
    }
    options = [text for tag, value in settings.items() for text in ("--set", f"{tag}={value}")]
    return [
        "bash", str(RUNNER), "--config-xml", str(EXAMPLE), *options, "--output", str(output),
        *further,
    ]  # fmt: skip


def environment() -> dict[str, str]:
    return os.environ | {"AUTODRAFT_TOKEN": TOKEN, "PYTHON": sys.executable}


def run(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        arguments, capture_output=True, text=True, env=environment(), timeout=240, check=False
    )


def only_run_folder(output: Path) -> Path:
    (folder,) = output.glob("*/*")
    return folder


def test_one_command_gives_table_files_and_plots(
    server: TargetProcess, models: tuple[Path, Path], tmp_path: Path
) -> None:
    process = run(command(models, server.port, tmp_path / "out", "--limit", "5"))
    assert process.returncode == 0, process.stderr
    folder = only_run_folder(tmp_path / "out")
    with (folder / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == METHODS
    for row in rows:
        assert row["method"] in process.stdout
        assert float(row["identical_share"]) == 1.0
        assert int(row["requests"]) == 6  # five questions, the last one has two turns
        assert int(row["errors"]) == 0
        assert float(row["tokens_per_s"]) > 0
        assert float(row["total_held_usd_per_1m"]) >= float(row["total_busy_usd_per_1m"]) > 0
    assert float(rows[0]["mat"]) == 1.0
    assert float(rows[0]["calls_saved"]) == 0.0
    lines = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    rounds = (folder / "rounds.jsonl").read_text().splitlines()
    speculative = [line for line in lines if line["method"] != "server_only"]
    assert len(rounds) == sum(line["rounds"] for line in speculative)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    (session,) = manifest["sessions"]
    assert session["rtt_s"]["unshaped"] > 0
    assert {"config.xml", "config.resolved.yaml", "tradeoff.csv", "categories.csv"} <= {
        path.name for path in folder.iterdir()
    }
    assert {path.suffix for path in (folder / "plots").iterdir()} == {".png", ".svg"}
    assert TOKEN not in "".join(
        path.read_text() for path in folder.rglob("*") if path.suffix in {".json", ".jsonl", ".xml"}
    )


def equality(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return run([sys.executable, "-m", "evaluation", "equality", *arguments])


def test_sampled_answers_are_those_of_server_only_of_the_same_seed_and_choice(
    server: TargetProcess, models: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = {
        "sampling.TEMPERATURE": 0.8,
        "sampling.TOP_P": 0.95,
        "sampling.SEED": "4 7",
        "sampling.NUM_CHOICES": 2,
        "algorithms.EXACT": 1,
        "algorithms.METHODS_CSV": "server_only,chain,opt_tree",
        "run.WARMUP_QUESTIONS": 0,
    }
    options = [text for tag, value in settings.items() for text in ("--set", f"{tag}={value}")]
    process = run(command(models, server.port, tmp_path / "out", "--limit", "1", *options))
    assert process.returncode == 0, process.stderr
    folder = only_run_folder(tmp_path / "out")
    lines = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    asked = {(line["seed"], line["choice"], line["method"]) for line in lines}
    assert len(lines) == len(asked) == 2 * 2 * 3
    answers = {(line["seed"], line["choice"]): line["output_ids"] for line in lines}
    assert len(set(map(tuple, answers.values()))) == 4  # another draw is another answer
    for line in lines:
        assert line["output_ids"] == answers[line["seed"], line["choice"]]
        assert len(line["output_gaps"]) == line["output_tokens"]
        assert line["reused_prompt_tokens"] == 0
        assert line["exact"] is False  # in float32 there is no gap to narrow
    judged = equality(str(folder), str(folder))
    assert judged.returncode == 0, judged.stderr
    assert "target in float32" in judged.stdout

    requests = folder / "requests.jsonl"
    requests.write_text("".join(f"{json.dumps(line)}\n" for line in lines[:-1]))
    judged = equality(str(folder), str(folder))
    assert judged.returncode == 1
    assert "is missing in" in judged.stderr
    lines[-1]["output_ids"][0] += 1
    requests.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    judged = equality(str(folder), str(folder))
    assert judged.returncode == 1
    assert "differs at token 0" in judged.stderr


def test_a_run_whose_server_was_killed_goes_on_with_another_one(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    server = TargetProcess(tmp_path, *target_options(models))
    options = (
        "--limit", "3", "--set", "run.MAX_NEW_TOKENS=150", "--set", "run.WARMUP_QUESTIONS=0"
    )  # fmt: skip
    arguments = command(models, server.port, tmp_path / "out", *options, "--set", "run.RETRIES=1")
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    deadline = time.monotonic() + 200
    finished: list[Path] = []
    while not finished and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
        finished = [path for path in tmp_path.glob("out/*/*/requests.jsonl") if path.stat().st_size]
    server.kill()
    killed = time.monotonic()
    output, errors = process.communicate(timeout=60)
    assert time.monotonic() - killed < 20
    assert process.returncode == 1, errors
    assert "Traceback" not in errors
    assert "link lost, trying again in 0.5 s (attempt 2 of 2)" in errors
    assert "Go on later with --resume" in errors
    lines = [json.loads(line) for line in finished[0].read_text().splitlines()]
    assert lines[0]["status"] == "ok"
    assert lines[-1]["status"] == "error"
    assert lines[-1]["attempts"] == 2
    assert (finished[0].parent / "summary.csv").exists()

    again = tmp_path / "again"
    again.mkdir()
    with target_process(again, *target_options(models)) as other:
        process_again = run(
            command(models, other.port, tmp_path / "out", *options, "--resume")
        )  # another port, and more patience: still the same run
    assert process_again.returncode == 0, process_again.stderr
    assert "requests are answered already" in process_again.stderr
    with (only_run_folder(tmp_path / "out") / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["requests"], row["errors"]) for row in rows] == [("3", "0")] * len(METHODS)
    assert {float(row["identical_share"]) for row in rows} == {1.0}


def test_a_method_is_refused_until_it_exists(models: tuple[Path, Path], tmp_path: Path) -> None:
    chosen = "algorithms.METHODS_CSV=autodraft@server"
    arguments = command(models, 1, tmp_path / "out", "--set", chosen)
    process = run(arguments)
    assert process.returncode == 2
    assert "autodraft@server does not exist yet" in process.stderr
    assert "METHODS_CSV=server_only,chain," in process.stderr
    assert not list((tmp_path / "out").glob("*/*"))


def test_no_server_means_an_error_before_anything_is_recorded(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    process = run(command(models, 1, tmp_path / "out"))
    assert process.returncode == 1
    assert "No target server can be reached at 127.0.0.1:1" in process.stderr
    assert "Traceback" not in process.stderr
    assert not list((tmp_path / "out").glob("*/*"))
