"""How well probabilities foretold acceptance: table, error, diagram. Figures are easy."""

import csv
from pathlib import Path

import pytest

from autodraft.config import ObjectiveConfig
from autodraft.errors import StoreError
from autodraft.records import RELIABILITY_BINS
from evaluation.lines import RequestLine, encode_request
from evaluation.metrics import (
    RELIABILITY_COLUMNS,
    ReliabilityRow,
    expected_calibration_error,
    reliability,
)
from evaluation.reliability_plot import _draw, draw_reliability
from evaluation.report import write_results
from evaluation.store import RunStore
from tests.unit.evaluation_fakes import make_line

Counts = dict[int, tuple[int, float, int]]


def bins(counts: Counts) -> list[tuple[int, float, int]]:
    """Return counts by number of the bin, the first bin being 0, with zeros between."""
    return [counts.get(number, (0, 0.0, 0)) for number in range(RELIABILITY_BINS)]


def line(method: str, draft: Counts, calibrated: Counts, question_id: int = 1) -> RequestLine:
    both = {"draft_reliability": bins(draft), "reliability": bins(calibrated)}
    return make_line(method, question_id, **both)


def row(candidates: int, predicted: float | None, observed: float | None) -> ReliabilityRow:
    return ReliabilityRow(
        bench="quick",
        method="autodraft",
        kind="draft",
        bin=1,
        candidates=candidates,
        mean_predicted=predicted,
        observed=observed,
    )


def test_bins_are_added_up_over_the_requests_of_a_benchmark_and_method() -> None:
    lines = [
        line("autodraft", {9: (10, 9.5, 6)}, {5: (4, 2.2, 2)}),
        line("autodraft", {9: (30, 28.5, 18), 0: (5, 0.25, 0)}, {5: (6, 3.3, 3)}, question_id=2),
        make_line("chain"),  # predicts nothing
    ]
    rows = reliability(lines)
    assert len(rows) == 2 * RELIABILITY_BINS
    assert {found.method for found in rows} == {"autodraft"}
    filled = [found for found in rows if found.candidates]
    assert [
        (found.kind, found.bin, found.candidates, found.mean_predicted, found.observed)
        for found in filled
    ] == [
        ("draft", 1, 5, pytest.approx(0.05), 0.0),
        ("draft", 10, 40, pytest.approx(0.95), pytest.approx(0.6)),
        ("calibrated", 6, 10, pytest.approx(0.55), pytest.approx(0.5)),
    ]
    empty = next(found for found in rows if not found.candidates)
    assert (empty.mean_predicted, empty.observed) == (None, None)


def test_the_latest_line_of_a_request_counts_and_the_plan_says_the_order() -> None:
    again = line("a", {0: (2, 0.1, 1)}, {})
    lines = [line("a", {0: (100, 5.0, 50)}, {}), line("b", {0: (1, 0.05, 0)}, {}), again]
    order = [("quick", "unshaped", "b"), ("quick", "unshaped", "a")]
    found = [(r.method, r.candidates) for r in reliability(lines, order) if r.candidates]
    assert found == [("b", 1), ("a", 2)]


def test_the_calibration_error_weighs_each_bin_by_its_candidates() -> None:
    rows = [row(30, 0.9, 0.6), row(10, 0.2, 0.3), row(0, None, None)]
    # (30 · 0.3 + 10 · 0.1) / 40
    assert expected_calibration_error(rows) == pytest.approx(0.25)
    assert expected_calibration_error([row(7, 0.5, 0.5)]) == 0
    assert expected_calibration_error([row(0, None, None)]) is None
    assert expected_calibration_error([]) is None


def test_a_panel_shows_both_curves_the_diagonal_the_errors_and_the_counts() -> None:
    rows = reliability([line("autodraft", {0: (5, 0.25, 0), 9: (40, 38.0, 24)}, {5: (4, 2.2, 2)})])
    filled = [found for found in rows if found.candidates]
    curves, counts = _draw({("quick", "autodraft"): filled}).axes
    lines = {text.get_label(): text.get_xydata().tolist() for text in curves.lines}
    assert lines == {
        "perfect": [[0, 0], [1, 1]],
        # (5 · 0.05 + 40 · 0.35) / 45
        "draft's own, error 0.317": [[pytest.approx(0.05), 0], [pytest.approx(0.95), 0.6]],
        "calibrated, error 0.050": [[pytest.approx(0.55), 0.5]],
    }
    assert curves.get_title() == "quick: autodraft"
    assert [bar.get_height() for bar in counts.patches] == [5, 40, 4]


def test_what_is_too_much_for_a_picture_is_said_to_be_in_the_table() -> None:
    panels = {("quick", f"a{number}"): [row(1, 0.5, 1.0)] for number in range(30)}
    figure = _draw(panels)
    assert len(figure.axes) == 2 * 24
    assert figure.get_suptitle() == "The first 24 of 30; all are in reliability.csv"


def stored(tmp_path: Path, *lines: RequestLine) -> RunStore:
    store = RunStore(tmp_path / "run")
    store.folder.mkdir()
    encoded = b"".join(encode_request("run", each) for each in lines)
    (store.folder / "requests.jsonl").write_bytes(encoded)
    return store


def test_a_run_has_the_table_and_the_picture_only_where_a_method_predicts(tmp_path: Path) -> None:
    (tmp_path / "without").mkdir()
    without = stored(tmp_path / "without", make_line("chain"))
    write_results(without, ObjectiveConfig())
    assert not list(without.folder.rglob("reliability*"))
    store = stored(tmp_path, line("autodraft", {9: (10, 9.5, 6)}, {5: (4, 2.2, 2)}))
    results = write_results(store, ObjectiveConfig())
    assert [path.name for path in results.plots][-2:] == ["reliability.png", "reliability.svg"]
    assert results.plots[-2].read_bytes().startswith(b"\x89PNG")
    with (store.folder / "reliability.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(RELIABILITY_COLUMNS)
    assert list(rows[9].values()) == ["quick", "autodraft", "draft", "10", "10", "0.95", "0.6"]
    assert list(rows[0].values()) == ["quick", "autodraft", "draft", "1", "0", "", ""]


def test_counts_of_nothing_are_not_drawn_and_a_folder_in_the_way_is_a_store_error(
    tmp_path: Path,
) -> None:
    assert draw_reliability([row(0, None, None)], tmp_path / "plots") == []
    (tmp_path / "plots").write_text("in the way")
    with pytest.raises(StoreError, match="a plot cannot be written"):
        draw_reliability([row(1, 0.5, 1.0)], tmp_path / "plots")
