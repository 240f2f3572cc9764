"""Draw throughput against an objective: one picture per benchmark and objective, png and svg.

Points carry their method's name; colours come from Okabe and Ito's palette, which colour-blind
readers can tell apart, and each method has a marker of its own as well. This module computes no
figure: it draws the rows it is given.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from autodraft.errors import StoreError
from evaluation.labels import Box, place_names
from evaluation.metrics import TradeoffRow

_SIZE_INCHES: Final = (7.0, 4.5)
_DPI: Final = 150
_MARGIN: Final = 0.18  # of the data's range, so that names beside the points stay inside
_POINTS_PER_INCH: Final = 72
_NAME_POINTS: Final = 9.0
_MARKER_POINTS: Final = 8.0
_LETTER_WIDTH: Final = 0.62  # of the font's size, on average
_LINE_HEIGHT: Final = 1.3  # of the font's size
_FORMATS: Final = ("png", "svg")
_STYLES: Final = (  # colour and marker
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
    ("#000000", "X"),
)
_AXIS_NAME: Final = {
    "total_cost": "Total cost in $ per 1M tokens",
    "api_cost": "Target's cost in $ per 1M tokens",
    "draft_energy": "Energy at the user in J per token",
    "target_energy": "Energy of the target in J per token",
}


class _Point(NamedTuple):
    method: str
    tokens_per_s: float
    value: float


def _points(rows: Sequence[TradeoffRow]) -> list[_Point]:
    return [
        _Point(row.method, row.tokens_per_s, row.value)
        for row in rows
        if row.tokens_per_s is not None and row.value is not None
    ]


def _name_points(axes: Axes, points: Sequence[_Point]) -> None:
    """Write each method's name near its point, with a thin line where it is not beside it."""
    to_pixels = axes.transData.transform
    from_pixels = axes.transData.inverted().transform
    pixel = _DPI / _POINTS_PER_INCH
    frame = axes.get_window_extent()
    boxes = place_names(
        [tuple(to_pixels((point.tokens_per_s, point.value))) for point in points],
        [_LETTER_WIDTH * _NAME_POINTS * pixel * len(point.method) for point in points],
        height=_LINE_HEIGHT * _NAME_POINTS * pixel,
        marker=_MARKER_POINTS * pixel,
        bounds=Box(frame.x0, frame.y0, frame.x1, frame.y1),
    )
    for point, box in zip(points, boxes, strict=True):
        middle = ((box.left + box.right) / 2, (box.bottom + box.top) / 2)
        axes.annotate(
            point.method,
            (point.tokens_per_s, point.value),
            xytext=tuple(from_pixels(middle)),
            ha="center",
            va="center",
            fontsize=_NAME_POINTS,
            arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.6, "shrinkA": 0, "shrinkB": 4},
        )


def _axis_label(objective: str, unit: str, billing: str, energy_method: str | None) -> str:
    how = f"{billing} time billed" if unit.startswith("usd") else energy_method
    detail = f"{how}, lower is better" if how else "lower is better"
    return f"{_AXIS_NAME[objective]}\n{detail}"


def _draw(rows: Sequence[TradeoffRow], energy_method: str | None) -> Figure:
    first = rows[0]
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(f"{first.bench}: throughput against {first.objective.replace('_', ' ')}")
    axes.set_xlabel("Tokens per second, higher is better")
    axes.set_ylabel(_axis_label(first.objective, first.unit, first.billing, energy_method))
    axes.grid(visible=True, color="0.9")
    axes.set_axisbelow(True)
    axes.margins(_MARGIN)
    points = _points(rows)
    for number, point in enumerate(points):
        colour, marker = _STYLES[number % len(_STYLES)]
        axes.plot(point.tokens_per_s, point.value, marker, color=colour, markersize=_MARKER_POINTS)
    figure.draw_without_rendering()  # fixes the axes' place, which the names are spread in
    _name_points(axes, points)
    return figure


def _file_stem(bench: str, objective: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", f"tradeoff_{bench}_{objective}")


def draw_tradeoffs(
    rows: Sequence[TradeoffRow], folder: Path, energy_method: str | None = None
) -> list[Path]:
    """Draw one picture per benchmark and objective that has a measured point.

    Args:
        rows: Points of all pictures.
        folder: Where the pictures go; made if it does not exist.
        energy_method: How the joules were found, for the axis' label.

    Returns:
        The files written.

    Raises:
        StoreError: If the folder or a file cannot be written.
    """
    pictures: dict[tuple[str, str], list[TradeoffRow]] = {}
    for row in rows:
        pictures.setdefault((row.bench, row.objective), []).append(row)
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for (bench, objective), group in pictures.items():
            if not _points(group):
                continue
            figure = _draw(group, energy_method)
            for suffix in _FORMATS:
                path = folder / f"{_file_stem(bench, objective)}.{suffix}"
                figure.savefig(path)
                written.append(path)
    except OSError as error:
        raise StoreError(f"{folder}: a plot cannot be written ({error}).") from error
    return written
