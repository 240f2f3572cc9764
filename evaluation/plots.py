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
from evaluation.metrics import TradeoffRow

_SIZE_INCHES: Final = (7.0, 4.5)
_DPI: Final = 150
_MARGIN: Final = 0.18  # of the data's range, so that names beside the points stay inside
_LABEL_GAP: Final = 1.35  # least distance of two names, in heights of one
_NAME_SIZE_POINTS: Final = 9.0
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


def _spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move numbers apart until neighbours differ by ``gap``, the middle of each cluster kept."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    clusters: list[tuple[list[int], float]] = []  # members from low to high, middle
    for index in order:
        members, middle = [index], heights[index]
        while clusters:
            below, below_middle = clusters[-1]
            if middle - below_middle >= gap * (len(members) + len(below)) / 2:
                break
            clusters.pop()
            members = below + members
            middle = sum(heights[member] for member in members) / len(members)
        clusters.append((members, middle))
    placed = [0.0] * len(heights)
    for members, middle in clusters:
        for rank, member in enumerate(members):
            placed[member] = middle + gap * (rank - (len(members) - 1) / 2)
    return placed


def _name_points(axes: Axes, points: Sequence[_Point]) -> None:
    """Write each name to the right of its point, or left of it in the right half."""
    to_pixels = axes.transData.transform
    pixels = [to_pixels((point.tokens_per_s, point.value)) for point in points]
    gap = _LABEL_GAP * _NAME_SIZE_POINTS * _DPI / 72
    middle = to_pixels((sum(axes.get_xlim()) / 2, 0))[0]
    for is_right in (False, True):
        side = [index for index, (x, _) in enumerate(pixels) if (x > middle) == is_right]
        for index, height in zip(side, _spread([pixels[i][1] for i in side], gap), strict=True):
            shift_points = (height - pixels[index][1]) * 72 / _DPI
            axes.annotate(
                points[index].method,
                (points[index].tokens_per_s, points[index].value),
                xytext=(-12 if is_right else 12, shift_points),
                textcoords="offset points",
                ha="right" if is_right else "left",
                va="center",
                fontsize=_NAME_SIZE_POINTS,
                arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.6, "shrinkB": 4},
            )


def _axis_label(objective: str, unit: str, billing: str, energy_method: str | None) -> str:
    how = f"{billing} time billed" if unit.startswith("usd") else energy_method
    return f"{_AXIS_NAME[objective]}{f' ({how})' if how else ''}, lower is better"


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
        axes.plot(point.tokens_per_s, point.value, marker, color=colour, markersize=8)
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
