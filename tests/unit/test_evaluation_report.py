"""Plots and the table at the end of a run, and how progress is shown."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from autodraft.config import ObjectiveConfig
from autodraft.errors import ContextLengthError, StoreError
from evaluation.labels import Box, place_names
from evaluation.lines import RequestLine, encode_request
from evaluation.metrics import TradeoffRow
from evaluation.plots import draw_tradeoffs
from evaluation.progress import LineProgress, format_duration, show_progress
from evaluation.report import print_results, write_results
from evaluation.store import RunStore
from tests.unit.evaluation_fakes import make_case, make_line


def point(
    method: str, tokens_per_s: float | None, value: float | None, **changes: str
) -> TradeoffRow:
    fields = {
        "bench": "spec_bench:qa",
        "objective": "total_cost",
        "unit": "usd_per_1m_tokens",
        "billing": "busy",
    }
    return TradeoffRow(method=method, tokens_per_s=tokens_per_s, value=value, **(fields | changes))


def console(width: int = 110) -> Console:
    return Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)


def printed(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_a_plot_is_drawn_for_every_objective_as_png_and_svg(tmp_path: Path) -> None:
    rows = [
        point("chain", 5.0, 100.0),
        point("opt_tree", 7.0, 80.0),
        point("chain", 5.0, 3.6, objective="draft_energy", unit="j_per_token"),
    ]
    files = draw_tradeoffs(rows, tmp_path / "plots", "modelled")
    assert [file.name for file in files] == [
        "tradeoff_spec_bench_qa_total_cost.png",
        "tradeoff_spec_bench_qa_total_cost.svg",
        "tradeoff_spec_bench_qa_draft_energy.png",
        "tradeoff_spec_bench_qa_draft_energy.svg",
    ]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in files[1].read_bytes()[:1000]


def test_a_method_without_figures_has_no_point_and_an_empty_plot_is_not_drawn(
    tmp_path: Path,
) -> None:
    assert draw_tradeoffs([point("chain", None, None), point("x", 5.0, None)], tmp_path) == []


def test_a_plot_that_cannot_be_written_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "plots").write_text("in the way")
    with pytest.raises(StoreError, match="a plot cannot be written"):
        draw_tradeoffs([point("chain", 5.0, 1.0)], tmp_path / "plots")


def test_names_of_close_points_overlap_neither_each_other_nor_a_marker() -> None:
    points = [(100.0, 100.0), (104.0, 101.0), (110.0, 97.0), (300.0, 200.0)]
    bounds = Box(0.0, 0.0, 400.0, 300.0)
    boxes = place_names(points, [40.0] * 4, height=12.0, marker=8.0, bounds=bounds)
    markers = [Box(x - 4, y - 4, x + 4, y + 4) for x, y in points]
    for number, box in enumerate(boxes):
        others = boxes[:number] + boxes[number + 1 :]
        assert all(box.overlap(other) == 0 for other in others + markers)
        assert box.overlap(bounds) == box.area


def test_the_name_of_a_lone_point_is_beside_it() -> None:
    (box,) = place_names([(50.0, 50.0)], [20.0], 10.0, 8.0, Box(0.0, 0.0, 100.0, 100.0))
    assert box == Box(58.0, 45.0, 78.0, 55.0)


def test_the_name_of_a_point_at_the_border_stays_inside() -> None:
    bounds = Box(0.0, 0.0, 100.0, 100.0)
    (box,) = place_names([(95.0, 50.0)], [20.0], 10.0, 8.0, bounds)
    assert box == Box(67.0, 45.0, 87.0, 55.0)


def test_the_tables_are_computed_from_what_is_on_disk(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "example", "run")
    for line in (make_line("server_only"), make_line("chain", total_s=1.0)):
        store.append(line, [])
    results = write_results(store, ObjectiveConfig(objective_metrics=("total_cost", "api_cost")))
    assert [row.method for row in results.rows] == ["server_only", "chain"]
    assert len(results.plots) == 4
    summary = (store.folder / "summary.csv").read_text().splitlines()
    assert len(summary) == 3
    assert summary[0].startswith(
        "bench,method,questions,requests,errors,output_tokens,tokens_per_s"
    )
    assert len((store.folder / "tradeoff.csv").read_text().splitlines()) == 5


def test_the_console_table_has_one_row_per_method_and_names_the_folder(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "example", "run")
    for line in (make_line("server_only"), make_line("chain", total_s=1.0, draft_j=None)):
        store.append(line, [])
    out = console(width=60)  # too narrow: the lines break, no figure is cut
    print_results(out, write_results(store, ObjectiveConfig()), store.folder)
    text = printed(out)
    assert "2 requests finished, 0 failed" in text
    assert "…" not in text
    (row,) = (line for line in text.splitlines() if "chain" in line)
    assert row.split() == ["chain", "10.00", "2.00×", "3.00", "60.0%", "–", "–", "100.0%"]
    assert f"Files in {store.folder}, plots in {store.folder / 'plots'}" in text


def test_a_share_just_below_one_never_reads_100_percent(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "example", "run")
    for number in range(2001):
        ids = [0] if number == 0 else [1]
        for line in (
            make_line("server_only", number, output_ids=[1]),
            make_line("chain", number, output_ids=ids),
        ):
            with (store.folder / "requests.jsonl").open("ab") as file:
                file.write(encode_request("run", line))
    out = console()
    print_results(out, write_results(store, ObjectiveConfig()), store.folder)
    assert "99.9%" in printed(out)


def test_progress_on_no_terminal_is_one_line_a_request_with_the_time_left() -> None:
    out = console()
    ticks = iter([100.0, 110.0, 130.0])
    progress = LineProgress(out, total=4, clock=lambda: next(ticks))
    progress.advance(make_line(question_id=81, turn=2), 1)
    progress.advance(RequestLine.failed(make_case(), ContextLengthError("too long")), 2)
    assert printed(out).splitlines() == [
        "[1/4] quick 81 turn 2 chain: 10 tokens, 5.0 tokens/s (about 0:30 left)",
        "[3/4] quick 1 turn 1 chain: ContextLengthError: too long (about 0:10 left)",
    ]


def test_progress_on_a_terminal_is_a_bar() -> None:
    out = Console(file=io.StringIO(), width=110, force_terminal=True, markup=False)
    with show_progress(out, total=2) as progress:
        progress.advance(make_line(), 1)
        progress.advance(RequestLine.failed(make_case("opt_tree"), ContextLengthError("long")), 1)
    assert "2/2" in printed(out)
    assert "ContextLengthError: long" in printed(out)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (65, "1:05"), (3599.6, "1:00:00"), (3723, "1:02:03")]
)
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
