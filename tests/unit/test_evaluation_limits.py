"""Limits in the harness: what is said before a run, and who met them after it."""

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console

from autodraft.config import ExperimentConfig, ObjectiveConfig, SloConfig
from evaluation.limits import LimitRow, expectations, limit_rows, print_limits
from evaluation.metrics import SummaryRow, prices_of, summarise
from tests.unit.evaluation_fakes import FakeEngine, make_config, make_line
from tests.unit.evaluation_harness import Harness


def rows() -> list[SummaryRow]:
    """Two methods, each with one answer of 10 tokens in 2 s, its first after 0.2 s."""
    objective = ObjectiveConfig()
    lines = [make_line("server_only"), make_line("chain")]
    return summarise(lines, prices_of(objective), objective.billing)


def judged(**limits: float) -> dict[str, LimitRow]:
    return {row.method: row for row in limit_rows(rows(), SloConfig(**limits))}


def test_every_method_is_judged_by_its_own_figure() -> None:
    found = judged(min_tokens_per_s=5.0)
    assert set(found) == {"server_only", "chain"}
    assert found["chain"].attained == pytest.approx(5.0)
    assert found["chain"].met
    later = judged(max_tpot_ms=200.0)["chain"]
    assert later.attained == pytest.approx(200.0)
    first = judged(max_ttft_ms=100.0)["chain"]
    assert (first.attained, first.met) == (pytest.approx(200.0), False)
    money = judged(max_cost_per_1m_tokens=1.0)["chain"]
    assert money.attained == pytest.approx(rows()[1].total_cost_usd_per_1m)


@pytest.mark.parametrize(("limit", "met"), [(5.2, True), (5.3, False)])
def test_a_miss_of_five_percent_counts_as_met(limit: float, met: bool) -> None:
    assert judged(min_tokens_per_s=limit)["chain"].met is met


@pytest.mark.parametrize(("limit", "met"), [(191.0, True), (190.0, False)])
def test_so_it_does_where_less_is_better(limit: float, met: bool) -> None:
    assert judged(max_ttft_ms=limit)["chain"].met is met


def test_without_limits_nothing_is_judged() -> None:
    assert limit_rows(rows(), SloConfig()) == []
    assert expectations(FakeEngine(), make_config().methods()) == []


def adaptive(limit: float) -> ExperimentConfig:
    return make_config(
        algorithms={"method_names": ("server_only", "autodraft")},
        slo={"min_tokens_per_s": limit},
    )


def test_what_cannot_be_met_is_said_before_the_run_with_the_best_attainable() -> None:
    (line,) = expectations(FakeEngine(), adaptive(40.0).methods())
    assert "MIN_TOKENS_PER_S=40: the best attainable is about 30" in line
    assert "cannot be met" in line
    (line,) = expectations(FakeEngine(), adaptive(20.0).methods())
    assert "about 30" in line
    assert "cannot be met" not in line


def test_the_table_says_what_was_attained_and_whether_that_is_enough() -> None:
    found = [*judged(min_tokens_per_s=5.0).values(), *judged(max_ttft_ms=100.0).values()]
    out = io.StringIO()
    print_limits(Console(file=out, width=100), found)
    text = out.getvalue()
    assert "met within 5%" in text
    assert "MIN_TOKENS_PER_S" in text
    assert "5 met" in text
    assert "200 missed" in text


def test_a_run_with_limits_writes_them_down(
    harness: Harness, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--set",
        "algorithms.METHODS_CSV=server_only,autodraft",
        "--set",
        "slo.MIN_TOKENS_PER_S=40",
    ]
    assert harness(*options) == 0
    shown = capsys.readouterr()
    assert "unshaped: MIN_TOKENS_PER_S=40: the best attainable is about 30" in shown.err
    assert "missed" in shown.out
    with (Path(harness.folder) / "limits.csv").open() as file:
        written = list(csv.DictReader(file))
    assert {row["method"] for row in written} >= {"server_only"}
    assert {row["tag"] for row in written} == {"MIN_TOKENS_PER_S"}
    assert {row["met"] for row in written} == {"False"}
    assert harness.engine.forecasts


def test_a_run_without_limits_has_no_such_file(harness: Harness) -> None:
    assert harness() == 0
    assert not (Path(harness.folder) / "limits.csv").exists()
    assert harness.engine.forecasts == []
