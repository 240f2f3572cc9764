"""Find free places for the names beside the points of a plot. Pure geometry, in pixels.

This module knows no plotting library and no metric.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

_STEPS: Final = (1.0, 1.8, 2.8, 4.0)  # distances that are tried, nearest first
_SIDES: Final = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))


class Box(NamedTuple):
    """A rectangle with its sides along the axes."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: "Box") -> float:
        """Return the common area."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)

    @property
    def area(self) -> float:
        """The area."""
        return (self.right - self.left) * (self.top - self.bottom)


def _around(x: float, y: float, width: float, height: float) -> Box:
    return Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _candidates(x: float, y: float, width: float, height: float, marker: float) -> Iterator[Box]:
    """Yield boxes around a point, the nearest first; at the nearest distance they touch it."""
    for step in _STEPS:
        for side_x, side_y in _SIDES:
            shift_x = side_x * (width / 2 + marker * step)
            # Beside the point a name stays at its height; above and below it clears the marker.
            shift_y = side_y * (height / 2 + marker * step)
            yield _around(x + shift_x, y + shift_y, width, height)


def place_names(
    points: Sequence[tuple[float, float]],
    widths: Sequence[float],
    height: float,
    marker: float,
    bounds: Box,
    obstacles: Sequence[Box] = (),
) -> list[Box]:
    """Choose a box for each name: near its point, off other names, points and the border.

    Args:
        points: The points.
        widths: Widths of their names.
        height: Height of a name.
        marker: Diameter of a point's marker.
        bounds: Where names may be.
        obstacles: What else names should keep off.

    Returns:
        One box per point: of the places tried, the nearest among those with the least overlap.
    """
    markers = [_around(x, y, marker, marker) for x, y in points]
    placed: list[Box] = []
    for (x, y), width in zip(points, widths, strict=True):
        taken = [*markers, *obstacles, *placed]

        def cost(box: Box, taken: Sequence[Box] = taken) -> float:
            outside = box.area - box.overlap(bounds)
            return outside + sum(box.overlap(other) for other in taken)

        # min() keeps the first of equals, which is the nearest.
        placed.append(min(_candidates(x, y, width, height, marker), key=cost))
    return placed
