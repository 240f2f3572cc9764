"""The end of a run: tables and plots from its request lines, and the table on the console.

This module computes no figure itself and never touches the engine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table

from autodraft.config import ObjectiveConfig, SloConfig
from evaluation.limits import LIMIT_COLUMNS, LimitRow, limit_rows, print_limits
from evaluation.metrics import (
    CATEGORY_COLUMNS,
    RELIABILITY_COLUMNS,
    SUMMARY_COLUMNS,
    TRADEOFF_COLUMNS,
    Conditions,
    CurvePoint,
    Order,
    SummaryRow,
    prices_of,
    reliability,
    summarise,
    summarise_categories,
    tradeoff,
)
from evaluation.plots import draw_tradeoffs
from evaluation.reliability_plot import draw_reliability
from evaluation.store import RunStore
from evaluation.whole_tables import UNKNOWN, print_whole, share, width_of

PLOTS_FOLDER: Final = "plots"


class Results(NamedTuple):
    """What a run came to.

    Attributes:
        rows: One per benchmark, network setting and method.
        plots: The pictures written.
        objectives: What the run was for, in the order of the configuration.
        limits: What became of the limits, if there are any.
    """

    rows: list[SummaryRow]
    plots: list[Path]
    objectives: tuple[str, ...]
    limits: list[LimitRow]


def write_results(
    store: RunStore,
    objective: ObjectiveConfig,
    order: Order = (),
    curves: Mapping[str, CurvePoint] = MappingProxyType({}),
    slo: SloConfig | None = None,
) -> Results:
    """Compute everything from ``requests.jsonl`` and write tables and plots beside it.

    Args:
        store: The run's folder.
        objective: Objectives, prices, billing and the cost sensitivity of fixed methods.
        order: Benchmark, label of the network setting and label of the method of the rows, in the
            order of the plan; what it does not name follows by first appearance.
        curves: Trade-off curve and cost sensitivity of the methods that adapt, by label.
        slo: Limits that every method is judged by.

    Raises:
        StoreError: If a file cannot be read or written.
    """
    lines, prices, billing = store.read_requests(), prices_of(objective), objective.billing
    rows = summarise(lines, prices, billing, order)
    parts = summarise_categories(lines, prices, billing, order)
    base_cs = objective.base_cost_sensitivity
    points = tradeoff(rows, objective.objective_metrics, base_cs, curves)
    bins = reliability(lines, order)
    store.write_table("summary.csv", SUMMARY_COLUMNS, (asdict(row) for row in rows))
    store.write_table("categories.csv", CATEGORY_COLUMNS, (asdict(part) for part in parts))
    store.write_table("tradeoff.csv", TRADEOFF_COLUMNS, (asdict(point) for point in points))
    plots = draw_tradeoffs(points, store.folder / PLOTS_FOLDER)
    if bins:
        store.write_table("reliability.csv", RELIABILITY_COLUMNS, (asdict(each) for each in bins))
        plots += draw_reliability(bins, store.folder / PLOTS_FOLDER)
    limits = [] if slo is None else limit_rows(rows, slo)
    if limits:
        store.write_table("limits.csv", LIMIT_COLUMNS, (asdict(each) for each in limits))
    return Results(rows, plots, objective.objective_metrics, limits)


def energy_methods(rows: Sequence[SummaryRow]) -> list[str]:
    """Return how the joules of a run were found, at the user and at the target, each way once."""
    found = [row.draft_energy_method for row in rows] + [row.target_energy_method for row in rows]
    return sorted({name for names in found if names is not None for name in names.split()})


# --------------------------------------------------------------------------------- on the console

_Cell: TypeAlias = Callable[[SummaryRow], str]


def _number(value: float | None, pattern: str = "{:.2f}") -> str:
    return UNKNOWN if value is None else pattern.format(value)


def _spread(low: float | None, high: float | None) -> str:
    """Return half the width of an interval."""
    return "" if low is None or high is None else f" ±{(high - low) / 2:.2f}"


def _throughput(row: SummaryRow) -> str:
    spread = _spread(row.tokens_per_s_ci_low, row.tokens_per_s_ci_high)
    return _number(row.tokens_per_s) + spread


def _speedup(row: SummaryRow) -> str:
    spread = _spread(row.speedup_ci_low, row.speedup_ci_high)
    return _number(row.speedup, "{:.2f}×") + spread


# heading, how the cell is made
_COLUMNS: Final[tuple[tuple[str, _Cell], ...]] = (
    ("tokens/s", _throughput),
    ("speed-up", _speedup),
    ("MAT", lambda row: _number(row.mat)),
    ("target\ncalls\nsaved", lambda row: _number(row.calls_saved, "{:.1%}")),
    ("$/1M\ntokens\nbusy", lambda row: _number(row.total_busy_usd_per_1m)),
    ("$/1M\ntokens\nheld", lambda row: _number(row.total_held_usd_per_1m)),
)
_OBJECTIVE_COLUMN: Final[dict[str, tuple[str, _Cell] | None]] = {
    "total_cost": None,  # there by both billings
    "api_cost": ("$/1M\ntokens\nAPI", lambda row: _number(row.api_cost_usd_per_1m)),
    "draft_energy": ("draft\nJ/token", lambda row: _number(row.draft_energy_j_per_token)),
    "target_energy": ("target\nJ/token", lambda row: _number(row.target_energy_j_per_token)),
}
_LAST_COLUMN: Final[tuple[str, _Cell]] = (
    "identical\noutputs",
    lambda row: share(row.identical_share),
)
_EXACT_COLUMN: Final[tuple[str, _Cell]] = (
    "tokens\nredecided\nper answer",
    lambda row: _number(row.redecided_per_answer),
)


def _title(names: Sequence[str], rows: Sequence[SummaryRow]) -> str:
    finished, failed = sum(row.requests for row in rows), sum(row.errors for row in rows)
    return f"{', '.join(names)}: {finished} requests finished, {failed} failed"


def _table(
    title: str, rows: Sequence[SummaryRow], objectives: Sequence[str], padding: int
) -> Table:
    wanted = [found for name in objectives if (found := _OBJECTIVE_COLUMN[name]) is not None]
    exact = [_EXACT_COLUMN] if any(row.exact_share for row in rows) else []
    columns = [*_COLUMNS, *wanted, *exact, _LAST_COLUMN]
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, padding),
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("method", no_wrap=True)
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.method, *(cell(row) for _, cell in columns))
    return table


def _print_table(
    console: Console, title: str, rows: Sequence[SummaryRow], objectives: Sequence[str]
) -> None:
    """Print a table with a line for each row, more narrow where the console needs it."""
    for padding in (1, 0):
        table = _table(title, rows, objectives, padding)
        if width_of(console, table) <= console.width:
            break
    print_whole(console, table)


def print_results(console: Console, results: Results, folder: Path) -> None:
    """Print one table per benchmark and network setting, and where the files are."""
    tables: dict[Conditions, list[SummaryRow]] = {}
    for row in results.rows:
        tables.setdefault(row.conditions, []).append(row)
    for conditions, rows in tables.items():
        title = _title(conditions.names(), rows)
        _print_table(console, title, rows, results.objectives)
    print_limits(console, results.limits)
    if not results.rows:
        console.print("No request was finished.")
    plots = f", plots in {folder / PLOTS_FOLDER}" if results.plots else ""
    console.print(f"Files in {folder}{plots}", soft_wrap=True)
