"""Print tables of which nothing is cut: on a narrow terminal the lines break instead.

This module knows no figure.
"""

from typing import Final

from rich.console import Console
from rich.table import Table

_UNBOUNDED: Final = 10_000  # columns


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
