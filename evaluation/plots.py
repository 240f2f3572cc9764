"""Draw throughput against an objective: a picture per benchmark, network setting and objective.

Each is written as png and svg. Points carry their method's name and, where they are known, error
bars; methods that differ in their cost sensitivity alone are joined to a curve, in its order.
Colours come from Okabe and Ito's palette, which colour-blind readers can tell apart, and each curve
and method has a marker of its own as well. This module computes no figure: it draws the rows it is
given.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from autodraft.errors import StoreError
from evaluation.labels import Box, place_names
from evaluation.metrics import Conditions, TradeoffRow

_SIZE_INCHES: Final = (7.0, 4.5)
_DPI: Final = 150
_MARGIN: Final = 0.18  # of the data's range, so that names beside the points stay inside
_POINTS_PER_INCH: Final = 72
_NAME_POINTS: Final = 9.0
_MARKER_POINTS: Final = 8.0
_BAR_POINTS: Final = 1.0
_CAP_POINTS: Final = 2.5
_CURVE_POINTS: Final = 1.2
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


_Bar: TypeAlias = tuple[list[float], list[float]]  # how far it reaches down and up


class _Picture(NamedTuple):
    """What the rows of one picture have in common.

    Attributes:
        conditions: Benchmark and network setting.
        objective: What is on the second axis.
    """

    conditions: Conditions
    objective: str

    @property
    def title(self) -> str:
        subject = ", ".join(self.conditions.names())
        return f"{subject}: throughput against {self.objective.replace('_', ' ')}"

    @property
    def file_stem(self) -> str:
        names = ["tradeoff", *self.conditions.names(), self.objective]
        return re.sub(r"[^A-Za-z0-9._-]+", "_", "_".join(names))


class _Point(NamedTuple):
    method: str
    curve: str | None
    cs: float
    tokens_per_s: float
    value: float
    bar_x: _Bar | None
    bar_y: _Bar | None


def _bar(value: float, low: float | None, high: float | None) -> _Bar | None:
    """Return the reach of an error bar; an interval beside its value reaches to it one way only."""
    if low is None or high is None:
        return None
    return [max(value - low, 0.0)], [max(high - value, 0.0)]


def _points(rows: Sequence[TradeoffRow]) -> list[_Point]:
    return [
        _Point(
            row.method,
            row.curve,
            row.cs,
            row.tokens_per_s,
            row.value,
            _bar(row.tokens_per_s, row.tokens_per_s_ci_low, row.tokens_per_s_ci_high),
            _bar(row.value, row.value_ci_low, row.value_ci_high),
        )
        for row in rows
        if row.tokens_per_s is not None and row.value is not None
    ]


def _bar_boxes(axes: Axes, point: _Point) -> list[Box]:
    """Return where the error bars are, in pixels, caps included."""
    cap = _CAP_POINTS * _DPI / _POINTS_PER_INCH
    boxes = []
    if point.bar_x is not None:
        (down,), (up,) = point.bar_x
        ends = [(point.tokens_per_s - down, point.value), (point.tokens_per_s + up, point.value)]
        (left, y), (right, _) = axes.transData.transform(ends)
        boxes.append(Box(left, y - cap, right, y + cap))
    if point.bar_y is not None:
        (down,), (up,) = point.bar_y
        ends = [(point.tokens_per_s, point.value - down), (point.tokens_per_s, point.value + up)]
        (x, bottom), (_, top) = axes.transData.transform(ends)
        boxes.append(Box(x - cap, bottom, x + cap, top))
    return boxes


def _name_points(axes: Axes, points: Sequence[_Point]) -> None:
    """Write a name near each point, with a thin line where it is not beside it.

    The name is the method's, and the cost sensitivity alone on a curve that the legend names.
    """
    names = _names(points)
    to_pixels = axes.transData.transform
    from_pixels = axes.transData.inverted().transform
    pixel = _DPI / _POINTS_PER_INCH
    frame = axes.get_window_extent()
    boxes = place_names(
        [tuple(to_pixels((point.tokens_per_s, point.value))) for point in points],
        [_LETTER_WIDTH * _NAME_POINTS * pixel * len(name) for name in names],
        height=_LINE_HEIGHT * _NAME_POINTS * pixel,
        marker=_MARKER_POINTS * pixel,
        bounds=Box(frame.x0, frame.y0, frame.x1, frame.y1),
        obstacles=[bar for point in points for bar in _bar_boxes(axes, point)],
    )
    for name, point, box in zip(names, points, boxes, strict=True):
        middle = ((box.left + box.right) / 2, (box.bottom + box.top) / 2)
        axes.annotate(
            name,
            (point.tokens_per_s, point.value),
            xytext=tuple(from_pixels(middle)),
            ha="center",
            va="center",
            fontsize=_NAME_POINTS,
            arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.6, "shrinkA": 0, "shrinkB": 4},
        )


def _names(points: Sequence[_Point]) -> list[str]:
    joined = {id(point) for members in _series(points) if len(members) > 1 for point in members}
    return [f"cs {point.cs:g}" if id(point) in joined else point.method for point in points]


def _axis_label(rows: Sequence[TradeoffRow]) -> str:
    first = rows[0]
    methods = sorted({row.energy_method for row in rows if row.energy_method is not None})
    how = f"{first.billing} time billed" if first.unit.startswith("usd") else " ".join(methods)
    detail = f"{how}, lower is better" if how else "lower is better"
    return f"{_AXIS_NAME[first.objective]}\n{detail}"


def _series(points: Sequence[_Point]) -> list[list[_Point]]:
    """Return the points of each curve in order of cs; a point of no curve is by itself."""
    found: dict[tuple[bool, str], list[_Point]] = {}
    for point in points:
        key = (point.curve is not None, point.curve or point.method)
        found.setdefault(key, []).append(point)
    return [sorted(members, key=lambda point: point.cs) for members in found.values()]


def _style(number: int) -> tuple[str, str]:
    """Return colour and marker; no two of the first 49 series have both in common."""
    colour, _ = _STYLES[number % len(_STYLES)]
    _, marker = _STYLES[(number + number // len(_STYLES)) % len(_STYLES)]
    return colour, marker


def _draw_series(axes: Axes, points: Sequence[_Point], colour: str, marker: str) -> None:
    if len(points) > 1:  # a curve; its points are named by their cs alone, so the legend names it
        axes.plot(
            [point.tokens_per_s for point in points],
            [point.value for point in points],
            color=colour,
            marker=marker,
            linewidth=_CURVE_POINTS,
            label=points[0].curve,
        )
    for point in points:
        axes.errorbar(
            point.tokens_per_s,
            point.value,
            xerr=point.bar_x,
            yerr=point.bar_y,
            fmt=marker,
            color=colour,
            markersize=_MARKER_POINTS,
            elinewidth=_BAR_POINTS,
            capsize=_CAP_POINTS,
        )


def _draw(picture: _Picture, rows: Sequence[TradeoffRow]) -> Figure:
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(picture.title)
    axes.set_xlabel("Tokens per second, higher is better")
    axes.set_ylabel(_axis_label(rows))
    axes.grid(visible=True, color="0.9")
    axes.set_axisbelow(True)
    axes.margins(_MARGIN)
    points = _points(rows)
    for number, members in enumerate(_series(points)):
        _draw_series(axes, members, *_style(number))
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", fontsize=_NAME_POINTS, ncols=2)
    figure.draw_without_rendering()  # fixes the axes' place, which the names are spread in
    _name_points(axes, points)
    return figure


def _pictures(rows: Sequence[TradeoffRow]) -> dict[_Picture, list[TradeoffRow]]:
    pictures: dict[_Picture, list[TradeoffRow]] = {}
    for row in rows:
        picture = _Picture(row.conditions, row.objective)
        pictures.setdefault(picture, []).append(row)
    return pictures


def draw_tradeoffs(rows: Sequence[TradeoffRow], folder: Path) -> list[Path]:
    """Draw every picture that has a measured point.

    There is one per benchmark, network setting and objective.

    Args:
        rows: Points of all pictures.
        folder: Where the pictures go; made if it does not exist.

    Returns:
        The files written.

    Raises:
        StoreError: If the folder or a file cannot be written.
    """
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for picture, group in _pictures(rows).items():
            if not _points(group):
                continue
            figure = _draw(picture, group)
            for suffix in _FORMATS:
                path = folder / f"{picture.file_stem}.{suffix}"
                figure.savefig(path)
                written.append(path)
    except OSError as error:
        raise StoreError(f"{folder}: a plot cannot be written ({error}).") from error
    return written
