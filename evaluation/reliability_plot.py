"""Draw how well probabilities foretold acceptance: a panel for each benchmark and method.

A panel shows observed against predicted, by the draft model's own probabilities and by calibrated
ones, and the diagonal that perfect ones lie on; below it the candidates of each bin. This module
computes no figure but what it prints in the legend: it draws the rows it is given.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from autodraft.errors import StoreError
from autodraft.records import RELIABILITY_BINS
from evaluation.metrics import KINDS, ReliabilityRow, expected_calibration_error

_PANEL_INCHES: Final = (4.2, 4.6)
_DPI: Final = 150
_COLUMNS: Final = 3
_MOST_PANELS: Final = 24  # more make a picture that nobody reads; the table has all of them
_HEIGHTS: Final = (3, 1)  # of the curves and of the counts
_FORMATS: Final = ("png", "svg")
_STYLES: Final = {"draft": ("#D55E00", "s"), "calibrated": ("#0072B2", "o")}  # colour and marker
_NAMES: Final = {"draft": "draft's own", "calibrated": "calibrated"}


def draw_reliability(rows: Sequence[ReliabilityRow], folder: Path) -> list[Path]:
    """Draw ``reliability.png`` and ``.svg``, where there is a candidate at all.

    Args:
        rows: The bins of all benchmarks and methods.
        folder: Where the pictures go; made if it does not exist.

    Returns:
        The files written.

    Raises:
        StoreError: If the folder or a file cannot be written.
    """
    panels: dict[tuple[str, str], list[ReliabilityRow]] = {}
    for row in rows:
        if row.candidates:
            panels.setdefault((row.bench, row.method), []).append(row)
    if not panels:
        return []
    figure = _draw(panels)
    written = [folder / f"reliability.{suffix}" for suffix in _FORMATS]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in written:
            figure.savefig(path)
    except OSError as error:
        raise StoreError(f"{folder}: a plot cannot be written ({error}).") from error
    return written


def _draw(panels: dict[tuple[str, str], list[ReliabilityRow]]) -> Figure:
    shown = list(panels.items())[:_MOST_PANELS]
    columns = min(_COLUMNS, len(shown))
    lines = -(-len(shown) // columns)
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * columns, height * lines), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    if len(panels) > len(shown):
        figure.suptitle(f"The first {len(shown)} of {len(panels)}; all are in reliability.csv")
    parts = figure.subfigures(lines, columns, squeeze=False).flat
    for part, ((bench, method), rows) in zip(parts, shown, strict=False):
        curves, counts = part.subplots(2, 1, sharex=True, height_ratios=_HEIGHTS)
        _draw_curves(curves, f"{bench}: {method}", rows)
        _draw_counts(counts, rows)
    return figure


def _draw_curves(axes: Axes, title: str, rows: Sequence[ReliabilityRow]) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_ylabel("Accepted share")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.grid(visible=True, color="0.9")
    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="perfect")
    for kind in KINDS:
        own = [row for row in rows if row.kind == kind]
        if not own:
            continue
        colour, marker = _STYLES[kind]
        error = expected_calibration_error(own)
        axes.plot(
            [row.mean_predicted for row in own if row.mean_predicted is not None],
            [row.observed for row in own if row.observed is not None],
            color=colour,
            marker=marker,
            label=f"{_NAMES[kind]}, error {error:.3f}",
        )
    axes.legend(loc="upper left", fontsize=8)


def _draw_counts(axes: Axes, rows: Sequence[ReliabilityRow]) -> None:
    axes.set_xlabel("Mean predicted probability")
    axes.set_ylabel("Candidates")
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, axis="y", color="0.9")
    axes.set_axisbelow(True)
    width = 1 / RELIABILITY_BINS / (len(KINDS) + 1)
    for number, kind in enumerate(KINDS):
        own = [row for row in rows if row.kind == kind]
        axes.bar(
            [(row.bin - 0.5) / RELIABILITY_BINS + (number - 0.5) * width for row in own],
            [row.candidates for row in own],
            width=width,
            color=_STYLES[kind][0],
        )
    axes.set_ylim(bottom=0.8)  # a single candidate is still to be seen
