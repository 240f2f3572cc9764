"""``draft_quality``: its figures worked out by hand, and the script from end to end."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from autodraft.models.runner import ModelRunner
from evaluation.datasets import Question
from tests.fakes import save_tiny_model, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def quality(benchmark_folder: None) -> dict[str, ModuleType]:
    """The benchmark's modules, imported as the script imports them."""
    import _draft_models
    import _draft_report

    return {"models": _draft_models, "report": _draft_report}


# ---------------------------------------------------------------------------------------- figures


def test_steps_are_timed_behind_the_contexts_that_both_models_take(
    quality: dict[str, ModuleType],
) -> None:
    models = quality["models"]
    short = ModelRunner(tiny_model(seed=1, max_position_embeddings=50), "draft")
    # Only the runners are asked for.
    pair = models.Pair(
        target=type("Loaded", (), {"runner": ModelRunner(tiny_model(seed=1), "target")}),
        draft=type("Loaded", (), {"runner": short}),
    )
    found = models.step_times(pair, (16, 128, 512), 2, seed=0)
    assert list(found) == [16, 49]
    assert all(times.draft_s > 0 and times.target_s > 0 for times in found.values())
    assert models.StepTimes(2.0, 8.0).ratio == 0.25


def played(report: ModuleType, category: str, tokens: int, top: int, rounds: int) -> Any:
    question = Question(f"{category}{tokens}", category, ("Hello",), "spec_bench")
    return report.Played(question, tokens, top, 2 * top, {"chain1": rounds})


def test_figures_are_totals_over_totals(quality: dict[str, ModuleType]) -> None:
    report = quality["report"]
    ones = [
        played(report, "writing", 11, 2, 10),
        played(report, "math", 31, 12, 15),
        played(report, "rag", 1, 0, 0),
    ]
    found = report.bench_figures("spec_bench", ones)
    assert found["questions"] == 3
    assert found["tokens"] == 43
    assert found["positions"] == 40
    assert found["top1"] == 14 / 40
    assert found["top4"] == 28 / 40
    assert found["mat_chain1"] == 40 / 25
    assert found["categories"]["math"]["mat_chain1"] == 30 / 15
    assert set(found["subtasks"]) == {"mt_bench", "rag"}
    assert found["subtasks"]["mt_bench"]["mat_chain1"] == 40 / 25
    assert found["subtasks"]["rag"]["mat_chain1"] is None  # not measured, never 0
    assert "subtasks" not in report.bench_figures("mt_bench", ones)


def test_the_ratio_of_steps_is_the_median_over_the_contexts(
    quality: dict[str, ModuleType],
) -> None:
    times = quality["models"].StepTimes
    steps = {128: times(0.001, 0.01), 256: times(0.004, 0.02), 512: times(0.009, 0.03)}
    found = quality["report"].step_figures(steps)
    assert found["draft_step_ratio"] == 0.2
    assert found["draft_step_ms"] == 4.0
    assert found["target_step_ms"] == 20.0
    assert found["steps"]["512"] == {"draft_ms": 9.0, "target_ms": 30.0, "ratio": 0.3}


# ------------------------------------------------------------------------------------- the script


def run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "draft_quality.py"), *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def figures_of(*options: str) -> dict[str, Any]:
    done = run(*options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["benchmark"] == "draft_quality"
    return found


def test_help_names_the_options_that_every_benchmark_has() -> None:
    done = run("--help")
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout
    assert "--seed" in done.stdout


def test_a_target_as_its_own_draft_accepts_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"task_id": f"HumanEval/{number}", "prompt": f"def f{number}():"} for number in (0, 1)]
    (tmp_path / "humaneval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("AUTODRAFT_BENCH_DIR", str(tmp_path))
    both = str(save_tiny_model(tmp_path / "model", seed=2))  # its answers go on to the limit
    options = ("--dtype", "float32", "--limit", "1", "--tokens", "28", "--seed", "3")
    pair = ("--target", both, "--draft", both, "--bench", "humaneval,quick")
    found = figures_of("--quick", *options, *pair)
    assert found["bench"] == "humaneval,quick"
    assert found["questions"] == 2
    assert found["seed"] == 3
    assert set(found["benches"]) == {"humaneval", "quick"}
    assert found["tokens"] == sum(bench["tokens"] for bench in found["benches"].values())
    assert found["top1"] == found["top4"] == 1.0
    for bench in found["benches"].values():
        assert (bench["tokens"], bench["positions"]) == (28, 27)
        # 27 tokens: rounds of depth + 1, the last one cut.
        for depth in range(1, 9):
            assert bench[f"mat_chain{depth}"] == round(27 / -(-27 // (depth + 1)), 4)
        assert bench["mat_tree64"] >= bench["mat_tree8"] > 1
        assert bench["mat_tree32_retrieval"] > 1
    assert found["draft_step_ratio"] > 0
    assert set(found["steps"]) == {"128", "256", "512"}


def test_a_completion_goes_on_with_the_raw_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(save_tiny_model(tmp_path / "model", seed=2, max_position_embeddings=40))
    row = {"task_id": "HumanEval/0", "prompt": "d" * 300}
    (tmp_path / "humaneval.jsonl").write_text(json.dumps(row) + "\n")
    monkeypatch.setenv("AUTODRAFT_BENCH_DIR", str(tmp_path))
    tokens = {}
    for bench in ("humaneval", "humaneval:completion"):
        done = run("--bench", bench, "--target", model, "--draft", model)
        assert done.returncode == 1
        found = re.search(rf"{bench}: question HumanEval/0 has (\d+) tokens", done.stderr)
        assert found, done.stderr
        tokens[bench] = int(found[1])
    assert tokens["humaneval:completion"] < tokens["humaneval"]


@pytest.mark.embedded
def test_the_embedded_pair_ends_with_every_figure_of_one_benchmark() -> None:
    found = figures_of("--quick", "--limit", "1", "--tokens", "12")
    assert found["bench"] == "quick"
    assert "benches" not in found
    assert 0 <= found["top1"] <= found["top4"] <= 1
    mats = [value for name, value in found.items() if name.startswith("mat_")]
    assert len(mats) == 8 + 4 + 4
    assert all(1 <= value <= 9 for value in mats)
    assert list(found["categories"]) == ["chat"]
    assert found["positions"] == found["tokens"] - 1
    assert {"draft_step_ratio", "draft_step_ms", "target_step_ms", "threads"} <= set(found)


def test_a_prompt_that_the_target_cannot_take_ends_with_a_reason(tmp_path: Path) -> None:
    model = str(save_tiny_model(tmp_path / "model", seed=2, max_position_embeddings=40))
    done = run("--quick", "--target", model, "--draft", model)
    assert done.returncode == 1
    assert "draft_quality: quick: question 1 has " in done.stderr
    assert "the target takes 40" in done.stderr


def test_answers_without_a_round_end_with_a_reason_and_no_figures(
    tiny_pair: tuple[Path, Path],
) -> None:
    pair = ("--target", str(tiny_pair[0]), "--draft", str(tiny_pair[1]))
    done = run("--quick", "--limit", "1", "--tokens", "1", *pair)
    assert done.returncode == 1
    assert "draft_quality: No answer has a second token" in done.stderr
    assert "{" not in done.stdout


@pytest.mark.parametrize("bench", ["mt_bench", "no_such_bench"])
def test_questions_that_cannot_be_read_end_with_a_reason_and_no_json(
    bench: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AUTODRAFT_BENCH_DIR", raising=False)
    monkeypatch.setenv("AUTODRAFT_CACHE_DIR", str(tmp_path))
    done = run("--bench", bench)
    assert done.returncode == 1
    assert done.stderr.startswith("draft_quality: ")
    assert bench in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
