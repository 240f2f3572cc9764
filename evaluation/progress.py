"""Show how far a run is: a bar with the time left on a terminal, plain lines elsewhere.

This module knows nothing of methods or metrics beyond what a request line says of itself.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

from autodraft.config import NetworkSetting
from evaluation.lines import RequestLine
from evaluation.roles import Progress


def _outcome(line: RequestLine) -> str:
    if line.record is None:
        return line.error or "error"
    tokens = line.record.output_tokens
    rate = f"{tokens / line.record.total_s:.1f} tokens/s" if line.record.total_s else "–"
    return f"{tokens} tokens, {rate}"


def _name(line: RequestLine) -> str:
    case = line.case
    network = NetworkSetting(
        rtt_ms=case.rtt_ms,
        jitter_ms=case.jitter_ms,
        uplink_mbps=case.uplink_mbps,
        downlink_mbps=case.downlink_mbps,
    )
    link = "" if network == NetworkSetting() else f" {network.label}"
    choice = f" choice {case.choice}" if case.choice else ""
    return f"{case.bench}{link} {case.question_id} turn {case.turn}{choice} {case.method}"


def format_duration(seconds: float) -> str:
    """Return hours, minutes and seconds, for example ``1:02:03`` or ``4:05``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass
class LineProgress:
    """One plain line per finished request, with the estimated time left."""

    console: Console
    total: int
    clock: Callable[[], float] = time.perf_counter
    _done: int = field(default=0, init=False)
    _start_s: float = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self._start_s = self.clock()

    def advance(self, line: RequestLine) -> None:
        """Count the request as done and print a line."""
        self._done += 1
        left_s = (self.clock() - self._start_s) / self._done * (self.total - self._done)
        self.console.print(
            f"[{self._done}/{self.total}] {_name(line)}: {_outcome(line)} "
            f"(about {format_duration(left_s)} left)",
            soft_wrap=True,
        )

    def skip(self, requests: int) -> None:
        """Count requests as done."""
        self._done += requests

    def note(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, soft_wrap=True)


@dataclass(frozen=True)
class BarProgress:
    """A bar at the foot of the terminal; only errors and notes leave a line."""

    bar: RichProgress
    total: int

    def __post_init__(self) -> None:
        """Put the bar's only task there."""
        self.bar.add_task("", total=self.total)

    def advance(self, line: RequestLine) -> None:
        """Move the bar."""
        (task,) = self.bar.task_ids
        self.bar.update(task, advance=1, description=_name(line))
        if line.record is None:
            self.note(f"{_name(line)}: {_outcome(line)}")

    def skip(self, requests: int) -> None:
        """Move the bar."""
        (task,) = self.bar.task_ids
        self.bar.update(task, advance=requests)

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self.bar.console.print(text, soft_wrap=True)


@contextmanager
def show_progress(console: Console, total: int) -> Iterator[Progress]:
    """Show progress while the block runs.

    Args:
        console: Where to; a terminal gets a bar, anything else plain lines.
        total: Requests of the whole run.
    """
    if not console.is_terminal:
        yield LineProgress(console, total)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=console) as bar:
        yield BarProgress(bar, total)
