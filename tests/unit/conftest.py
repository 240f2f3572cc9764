"""Fixtures of the harness's and the benchmarks' tests: experiments, tunings, where to import."""

import sys
from pathlib import Path

import pytest

from tests.unit.evaluation_harness import METHODS, FakeEngine, Harness
from tests.unit.tuning_fakes import Bench, tuned_bench


@pytest.fixture
def benchmark_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the benchmarks' modules be imported as their scripts import them."""
    folder = Path(__file__).parents[2] / "benchmarks"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


@pytest.fixture
def experiment_file(tmp_path: Path) -> Path:
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


@pytest.fixture
def harness(experiment_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setenv("AUTODRAFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("AUTODRAFT_BENCH_DIR", raising=False)
    return Harness(experiment_file, tmp_path / "out", FakeEngine())


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a folder for tunings in which nothing was tuned."""
    return Bench(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Return what one finished tuning left; for tests that only look at it."""
    return tuned_bench(tmp_path_factory.mktemp("tuned"))
