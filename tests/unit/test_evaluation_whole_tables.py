"""Tables on a terminal that is too narrow for them."""

import io

from rich.console import Console
from rich.table import Table

from evaluation.whole_tables import print_whole, width_of


def test_nothing_is_cut_and_the_console_is_left_as_it_was() -> None:
    console = Console(file=io.StringIO(), width=20)
    table = Table()
    for heading in ("a long heading", "another heading"):
        table.add_column(heading, no_wrap=True)
    table.add_row("the first figure", "the second one")
    print_whole(console, table)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    for text in ("a long heading", "another heading", "the first figure", "the second one"):
        assert text in printed
    assert width_of(console, table) > console.width == 20
