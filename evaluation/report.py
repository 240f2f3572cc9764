"""The end of a run: tables and plots from its request lines, and the table on the console.

This module computes no figure itself and never touches the engine.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from autodraft.config import ObjectiveConfig
from evaluation.metrics import (
    SUMMARY_COLUMNS,
    TRADEOFF_COLUMNS,
    SummaryRow,
    prices_of,
    summarise,
    tradeoff,
)
from evaluation.plots import draw_tradeoffs
from evaluation.store import RunStore

PLOTS_FOLDER: Final = "plots"
_UNKNOWN: Final = "–"
_LEAST_WIDTH: Final = 80  # columns; on a narrower terminal lines break, figures are never cut


class Results(NamedTuple):
    """What a run came to.

    Attributes:
        rows: One per benchmark and method.
        plots: The pictures written.
    """

    rows: list[SummaryRow]
    plots: list[Path]


def write_results(store: RunStore, objective: ObjectiveConfig) -> Results:
    """Compute everything from ``requests.jsonl`` and write tables and plots beside it.

    Raises:
        StoreError: If a file cannot be read or written.
    """
    rows = summarise(store.read_requests(), prices_of(objective), objective.billing)
    points = tradeoff(rows, objective.objective_metrics)
    store.write_table("summary.csv", SUMMARY_COLUMNS, (asdict(row) for row in rows))
    store.write_table("tradeoff.csv", TRADEOFF_COLUMNS, (asdict(point) for point in points))
    methods = energy_methods(rows)
    return Results(
        rows, draw_tradeoffs(points, store.folder / PLOTS_FOLDER, " ".join(methods) or None)
    )


def energy_methods(rows: Sequence[SummaryRow]) -> list[str]:
    """Return how the joules of a run were found, each way once."""
    return sorted({row.energy_method for row in rows if row.energy_method is not None})


def _number(pattern: str) -> Callable[[float | None], str]:
    return lambda value: _UNKNOWN if value is None else pattern.format(value)


def _share(value: float | None) -> str:
    # Rounded down: only a share of all outputs may read 100.0%.
    return _UNKNOWN if value is None else f"{math.floor(value * 1000) / 10:.1f}%"


# heading, how the cell is made
_TABLE: Final[tuple[tuple[str, Callable[[SummaryRow], str]], ...]] = (
    ("tokens/s", lambda row: _number("{:.2f}")(row.tokens_per_s)),
    ("speed-up", lambda row: _number("{:.2f}×")(row.speedup)),
    ("MAT", lambda row: _number("{:.2f}")(row.mat)),
    ("target calls saved", lambda row: _number("{:.1%}")(row.calls_saved)),
    ("$/1M tokens busy", lambda row: _number("{:.2f}")(row.total_busy_usd_per_1m)),
    ("$/1M tokens held", lambda row: _number("{:.2f}")(row.total_held_usd_per_1m)),
    ("identical outputs", lambda row: _share(row.identical_share)),
)


def _table(bench: str, rows: Sequence[SummaryRow]) -> Table:
    finished, failed = sum(row.requests for row in rows), sum(row.errors for row in rows)
    title = f"{bench}: {finished} requests finished, {failed} failed"
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("method", no_wrap=True)
    for heading, _ in _TABLE:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row.method, *(cell(row) for _, cell in _TABLE))
    return table


def print_results(console: Console, results: Results, folder: Path) -> None:
    """Print one table per benchmark, and where the files are."""
    console.width = max(console.width, _LEAST_WIDTH)
    benches = dict.fromkeys(row.bench for row in results.rows)
    for bench in benches:
        console.print(_table(bench, [row for row in results.rows if row.bench == bench]))
    if not results.rows:
        console.print("No request was finished.")
    plots = f", plots in {folder / PLOTS_FOLDER}" if results.plots else ""
    console.print(f"Files in {folder}{plots}", soft_wrap=True)
