"""What tables on the console have in common: nothing of them is cut, and how figures are written.

On a narrow terminal the lines break instead. This module knows no figure.
"""

import math
from typing import Final

from rich.console import Console
from rich.table import Table

UNKNOWN: Final = "–"
_UNBOUNDED: Final = 10_000  # columns


def share(value: float | None) -> str:
    """Return a share in percent, rounded down: only a share of all may read 100.0%."""
    return UNKNOWN if value is None else f"{math.floor(value * 1000) / 10:.1f}%"


def width_of(console: Console, table: Table) -> int:
    """Return the columns that a table takes, whatever the console has."""
    unbounded = console.options.update(max_width=_UNBOUNDED)
    return console.measure(table, options=unbounded).maximum


def print_whole(console: Console, table: Table) -> None:
    """Print a table at its full width."""
    terminal = console.width
    console.width = max(terminal, width_of(console, table))
    console.print(table)
    console.width = terminal
