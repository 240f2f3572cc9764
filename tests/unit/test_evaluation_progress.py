"""What a run shows while it goes on: lines where nobody watches, a bar on a terminal."""

import io

import msgspec
from rich.console import Console

from autodraft.errors import ContextLengthError
from evaluation.lines import RequestLine
from evaluation.progress import LineProgress, format_duration, show_progress
from tests.unit.evaluation_fakes import make_case, make_line


def test_a_line_for_each_request_tells_the_time_left() -> None:
    console = Console(file=io.StringIO(), width=200)
    times = iter((0.0, 10.0, 30.0))
    progress = LineProgress(console, total=6, clock=lambda: next(times))
    progress.advance(make_line())
    progress.skip(2)
    progress.advance(RequestLine.failed(make_case(), ContextLengthError("too long")))
    progress.note("link lost")
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "[1/6] quick 1 turn 1 chain: 10 tokens, 5.0 tokens/s (about 0:50 left)",
        "[4/6] quick 1 turn 1 chain: ContextLengthError: too long (about 0:15 left)",
        "link lost",
    ]


def test_a_shaped_link_is_named() -> None:
    console = Console(file=io.StringIO(), width=200)
    line = make_line()
    case = msgspec.structs.replace(line.case, rtt_ms=20.0)
    LineProgress(console, total=1).advance(msgspec.structs.replace(line, case=case))
    assert "quick rtt20 1 turn 1" in console.file.getvalue()  # type: ignore[attr-defined]


def test_on_a_terminal_only_errors_and_notes_leave_a_line() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with show_progress(console, total=4) as progress:
        progress.advance(make_line(question_id=7))
        progress.skip(1)
        progress.advance(RequestLine.failed(make_case(), ContextLengthError("too long")))
        progress.note("link lost")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "ContextLengthError: too long" in shown
    assert "link lost" in shown
    assert "3/4" in shown
    assert "10 tokens" not in shown


def test_a_duration_has_hours_only_where_it_needs_them() -> None:
    assert [format_duration(seconds) for seconds in (5, 245.4, 3723)] == [
        "0:05",
        "4:05",
        "1:02:03",
    ]
