"""Plots and the table at the end of a run, and how progress is shown."""

import csv
import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from autodraft.config import ObjectiveConfig
from autodraft.errors import ContextLengthError, StoreError
from evaluation.labels import Box, place_names
from evaluation.lines import RequestLine, encode_request
from evaluation.metrics import CATEGORY_COLUMNS, SUMMARY_COLUMNS, TRADEOFF_COLUMNS, TradeoffRow
from evaluation.plots import _draw, _pictures, _style, draw_tradeoffs
from evaluation.progress import LineProgress, format_duration, show_progress
from evaluation.report import Results, energy_methods, print_results, write_results
from evaluation.store import RunStore
from tests.unit.evaluation_fakes import make_case, make_line


def point(
    method: str, tokens_per_s: float | None, value: float | None, **changes: Any
) -> TradeoffRow:
    fields: dict[str, Any] = {
        "bench": "spec_bench:qa",
        "rtt_ms": 0.0,
        "jitter_ms": 0.0,
        "uplink_mbps": None,
        "downlink_mbps": None,
        "objective": "total_cost",
        "tokens_per_s_ci_low": None,
        "tokens_per_s_ci_high": None,
        "value_ci_low": None,
        "value_ci_high": None,
        "unit": "usd_per_1m_tokens",
        "billing": "busy",
        "energy_method": None,
        "curve": None,
        "cs": 0.5,
        "score": None,
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
    files = draw_tradeoffs(rows, tmp_path / "plots")
    assert [file.name for file in files] == [
        "tradeoff_spec_bench_qa_total_cost.png",
        "tradeoff_spec_bench_qa_total_cost.svg",
        "tradeoff_spec_bench_qa_draft_energy.png",
        "tradeoff_spec_bench_qa_draft_energy.svg",
    ]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in files[1].read_bytes()[:1000]


def test_a_shaped_link_is_in_the_name_of_the_file(tmp_path: Path) -> None:
    shaped = {"rtt_ms": 20.0, "uplink_mbps": 10.0}
    files = draw_tradeoffs([point("x", 5.0, 1.0), point("x", 4.0, 1.0, **shaped)], tmp_path)
    assert [file.stem for file in files[::2]] == [
        "tradeoff_spec_bench_qa_total_cost",
        "tradeoff_spec_bench_qa_rtt20_up10_total_cost",
    ]


def test_a_plot_shows_intervals_and_how_joules_were_found() -> None:
    interval = {"tokens_per_s_ci_low": 4.0, "tokens_per_s_ci_high": 7.0}
    energy = {"objective": "draft_energy", "unit": "j_per_token", "energy_method": "rapl"}
    rows = [point("chain", 5.0, 3.6, **interval, **energy), point("opt_tree", 6.0, 2.0, **energy)]
    ((picture, group),) = _pictures(rows).items()
    (axes,) = _draw(picture, group).axes
    bars = [bar.get_segments() for bar in axes.collections]
    assert [[segment.tolist() for segment in bar] for bar in bars] == [[[[4.0, 3.6], [7.0, 3.6]]]]
    assert axes.get_ylabel().endswith("rapl, lower is better")
    assert {text.get_text() for text in axes.texts} == {"chain", "opt_tree"}


def test_points_that_differ_in_cs_alone_are_one_line_in_its_order() -> None:
    rows = [
        point("chain", 4.0, 90.0),
        point("autodraft_cs1", 5.0, 60.0, curve="autodraft", cs=1.0),
        point("autodraft_cs0_no_depth", 6.0, 95.0, curve="autodraft_no_depth", cs=0.0),
        point("autodraft_cs0", 7.0, 80.0, curve="autodraft", cs=0.0),
        point("autodraft_cs1_no_depth", 4.5, 70.0, curve="autodraft_no_depth", cs=1.0),
        point("autodraft_cs0.5", 6.0, 65.0, curve="autodraft", cs=0.5),
        point("autodraft@server", 3.0, 50.0, curve="autodraft@server", cs=0.5),
    ]
    ((picture, group),) = _pictures(rows).items()
    figure = _draw(picture, group)
    (axes,) = figure.axes
    handles, labels = axes.get_legend_handles_labels()
    assert labels == ["autodraft", "autodraft_no_depth"]
    assert [[list(line.get_xdata()), list(line.get_ydata())] for line in handles] == [
        [[7.0, 6.0, 5.0], [80.0, 65.0, 60.0]],
        [[6.0, 4.5], [95.0, 70.0]],
    ]
    assert sorted(text.get_text() for text in axes.texts) == [
        "autodraft@server",  # alone on its curve
        "chain",
        "cs 0",
        "cs 0",
        "cs 0.5",
        "cs 1",
        "cs 1",
    ]
    looks = {(line.get_color(), line.get_marker()) for line in axes.lines if len(line.get_xdata())}
    assert len(looks) == 4


def test_many_methods_share_no_look() -> None:
    assert len({_style(number) for number in range(49)}) == 49


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


def test_a_name_keeps_off_what_is_in_its_way() -> None:
    bounds = Box(0.0, 0.0, 200.0, 200.0)
    bars = [Box(40.0, 98.0, 160.0, 102.0), Box(98.0, 40.0, 102.0, 160.0)]
    (box,) = place_names([(100.0, 100.0)], [50.0], 10.0, 8.0, bounds, bars)
    assert box == Box(108.0, 108.0, 158.0, 118.0)


def test_the_name_of_a_point_at_the_border_stays_inside() -> None:
    bounds = Box(0.0, 0.0, 100.0, 100.0)
    (box,) = place_names([(95.0, 50.0)], [20.0], 10.0, 8.0, bounds)
    assert box == Box(67.0, 45.0, 87.0, 55.0)


def stored(tmp_path: Path, *lines: RequestLine) -> RunStore:
    store = RunStore.create(tmp_path, "example", "run")
    for line in lines:
        store.append(line, [])
    return store


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def two_questions(**changes: Any) -> list[RequestLine]:
    return [
        make_line(method, question, total_s=seconds * question, **changes)
        for question in (1, 2)
        for method, seconds in (("server_only", 2.0), ("chain", 1.0))
    ]


def test_the_tables_are_computed_from_what_is_on_disk(tmp_path: Path) -> None:
    store = stored(tmp_path, *two_questions())
    results = write_results(store, ObjectiveConfig(objective_metrics=("total_cost", "api_cost")))
    assert [row.method for row in results.rows] == ["server_only", "chain"]
    assert len(results.plots) == 4
    summary = read(store.folder / "summary.csv")
    assert list(summary[0]) == list(SUMMARY_COLUMNS)
    assert [(row["method"], row["speedup"], row["speedup_ci_low"]) for row in summary] == [
        ("server_only", "1.0", ""),
        ("chain", "2.0", "2.0"),
    ]
    categories = read(store.folder / "categories.csv")
    assert list(categories[0]) == list(CATEGORY_COLUMNS)
    assert [(row["part"], row["category"], row["method"]) for row in categories] == [
        ("category", "chat", "server_only"),
        ("category", "chat", "chain"),
    ]
    points = read(store.folder / "tradeoff.csv")
    assert list(points[0]) == list(TRADEOFF_COLUMNS)
    assert [(row["objective"], row["method"], row["cs"]) for row in points] == [
        (objective, method, "0.5")
        for objective in ("total_cost", "api_cost")
        for method in ("server_only", "chain")
    ]


def test_the_rows_come_in_the_order_of_the_plan(tmp_path: Path) -> None:
    store = stored(tmp_path, *two_questions())
    order = [("quick", "unshaped", "chain"), ("quick", "unshaped", "server_only")]
    results = write_results(store, ObjectiveConfig(), order)
    assert [row.method for row in results.rows] == ["chain", "server_only"]
    for name in ("summary.csv", "categories.csv", "tradeoff.csv"):
        assert [row["method"] for row in read(store.folder / name)] == ["chain", "server_only"]


def test_the_energy_methods_of_a_run_are_those_of_both_sides(tmp_path: Path) -> None:
    lines = [
        make_line(draft_energy_method="rapl", target_energy_method="nvml"),
        make_line(question_id=2, draft_energy_method="modelled", target_energy_method=None),
    ]
    results = write_results(stored(tmp_path, *lines), ObjectiveConfig())
    assert energy_methods(results.rows) == ["modelled", "nvml", "rapl"]


def table_of(results: Results, width: int = 110) -> str:
    out = console(width)
    print_results(out, results, Path("folder"))
    return printed(out)


def row_of(text: str, method: str) -> list[str]:
    (row,) = (line.split() for line in text.splitlines() if line.split()[:1] == [method])
    return row


def test_the_console_table_has_one_row_per_method_and_names_the_folder(tmp_path: Path) -> None:
    store = stored(
        tmp_path, make_line("server_only"), make_line("chain", total_s=1.0, draft_j=None)
    )
    out = console(width=60)  # too narrow: the lines break, no figure is cut
    print_results(out, write_results(store, ObjectiveConfig()), store.folder)
    text = printed(out)
    assert "quick: 2 requests finished, 0 failed" in text
    assert "…" not in text
    assert row_of(text, "chain") == [
        *("chain", "10.00", "2.00×", "3.00", "60.0%", "–", "–", "100.0%")
    ]
    assert f"Files in {store.folder}, plots in {store.folder / 'plots'}" in text


def test_intervals_are_printed_where_there_are_some(tmp_path: Path) -> None:
    text = table_of(write_results(stored(tmp_path, *two_questions()), ObjectiveConfig()))
    # chain: 10 tokens in 1 s and in 2 s, so 20 / 3 tokens/s within [5, 10].
    row = row_of(text, "chain")
    assert row[:6] == ["chain", "6.67", "±2.50", "2.00×", "±0.00", "3.00"]
    assert row_of(text, "server_only")[:5] == ["server_only", "3.33", "±1.25", "1.00×", "3.00"]


def test_every_objective_of_the_configuration_has_a_column(tmp_path: Path) -> None:
    store = stored(tmp_path, make_line("chain"))
    every = ("draft_energy", "api_cost", "total_cost", "target_energy")
    text = table_of(write_results(store, ObjectiveConfig(objective_metrics=every)))
    row = row_of(text, "chain")
    assert row[-4:-1] == ["3.60", "33.56", "9.00"]  # 1.208 $/h · 1 s / 10 tokens
    plain = row_of(table_of(write_results(store, ObjectiveConfig())), "chain")
    assert len(plain) == len(row) - 3


def test_benchmarks_and_networks_have_a_table_each(tmp_path: Path) -> None:
    def line(**case: Any) -> RequestLine:
        plain = make_line("chain")
        replaced = msgspec.structs.replace(plain.case, **case)
        return msgspec.structs.replace(plain, case=replaced)

    store = stored(tmp_path, line(), line(rtt_ms=20.0, jitter_ms=5.0), line(bench="gsm8k"))
    text = table_of(write_results(store, ObjectiveConfig()))
    titles = [row.split(":")[0] for row in text.splitlines() if "finished" in row]
    assert titles == ["quick", "quick, rtt20_jitter5", "gsm8k"]
    text = table_of(write_results(stored(tmp_path, line(seed=7), line(seed=4)), ObjectiveConfig()))
    titles = [row.strip() for row in text.splitlines() if "finished" in row]
    assert titles == ["quick: 2 requests finished, 0 failed"]


def test_tokens_that_were_decided_again_have_a_column_where_an_answer_was_exact(
    tmp_path: Path,
) -> None:
    exact = make_line("chain", exact=True, redecided_tokens=3)
    text = table_of(write_results(stored(tmp_path, make_line(), exact), ObjectiveConfig()))
    assert "redecided" in text
    assert row_of(text, "chain")[-2] == "3.00"
    plain = table_of(write_results(stored(tmp_path, make_line()), ObjectiveConfig()))
    assert "redecided" not in plain


@pytest.mark.parametrize(
    ("objectives", "most"),
    [
        (("total_cost",), 86),
        (("total_cost", "draft_energy"), 95),
        (("total_cost", "api_cost", "draft_energy", "target_energy"), 100),
    ],
)
def test_the_table_of_a_long_run_fits_into_100_columns(
    tmp_path: Path, objectives: tuple[str, ...], most: int
) -> None:
    methods = ("server_only", "chain_d4@server", "opt_tree+lookup")
    lines = [
        make_line(method, question, total_s=0.1 * pace * question)
        for question in (1, 2, 3)
        for pace, method in enumerate(methods, 1)
    ]
    results = write_results(stored(tmp_path, *lines), ObjectiveConfig(objective_metrics=objectives))
    text = table_of(results, width=100)
    table = [line.rstrip() for line in text.splitlines() if not line.startswith("Files in")]
    assert max(map(len, table)) <= most
    for method in methods:
        assert row_of(text, method)[-1] == "100.0%"  # the whole row is on one line


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
    progress.advance(make_line(question_id=81, turn=2))
    progress.skip(1)
    progress.advance(RequestLine.failed(make_case(), ContextLengthError("too long")))
    assert printed(out).splitlines() == [
        "[1/4] quick 81 turn 2 chain: 10 tokens, 5.0 tokens/s (about 0:30 left)",
        "[3/4] quick 1 turn 1 chain: ContextLengthError: too long (about 0:10 left)",
    ]


def test_progress_on_a_terminal_is_a_bar() -> None:
    out = Console(file=io.StringIO(), width=110, force_terminal=True, markup=False)
    with show_progress(out, total=2) as progress:
        progress.advance(make_line())
        progress.advance(RequestLine.failed(make_case("opt_tree"), ContextLengthError("long")))
    assert "2/2" in printed(out)
    assert "ContextLengthError: long" in printed(out)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (65, "1:05"), (3599.6, "1:00:00"), (3723, "1:02:03")]
)
def test_durations_are_read_at_a_glance(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
