"""What every counted energy has in common: the difference between two readings of joules.

This module knows no device; a counter of one is handed in.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from autodraft.meters.base import Energy

_UNKNOWN: Final = Energy(None, None)
_STEP_S: Final = 0.001  # how often a counter is looked at while its next step is awaited


class Counter(Protocol):
    """Joules that a machine has drawn since some moment; only differences mean anything."""

    def read(self) -> float | None:
        """Return the joules so far; None when they cannot be read now."""
        ...

    def close(self) -> None:
        """Free what the counter holds."""
        ...


@dataclass(frozen=True)
class Unavailable:
    """Why a machine has no counter of some kind, as the end of a sentence."""

    reason: str


class CounterMeter:
    """A meter over one counter, under a label of its own."""

    def __init__(
        self,
        method: str,
        shortest_s: float,
        counter: Counter,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Make a meter; it closes the counter.

        Args:
            method: The label of its figures.
            shortest_s: Shortest window that gives a figure, in seconds: a few updates of the
                counter, so that the one missed at either end weighs little.
            counter: Joules of the machine.
            clock: Seconds, for the idle power.
            sleep: Waits so many seconds.
        """
        self._method = method
        self._shortest_s = shortest_s
        self._counter = counter
        self._clock = clock
        self._sleep = sleep
        self._idle_watts: float | None = None
        self._closed = False

    @property
    def method(self) -> str:
        """The label of these figures."""
        return self._method

    @property
    def shortest_s(self) -> float:
        """Shortest window, in seconds, that gives a figure."""
        return self._shortest_s

    def begin(self) -> "CounterWindow":
        """Begin a window."""
        return CounterWindow(self, self._read())

    def measure_idle(self, seconds: float) -> float | None:
        """Measure the power of the machine while nothing is asked of it.

        Takes ``seconds``, or the shortest window where that is longer. Begins and ends when the
        counter steps: a coarse counter read at any moment is off by up to a step.

        Returns:
            The power in watts, which net figures subtract from now on; None when the counter
            cannot be read, and net figures are None as well.
        """
        before_s, before_j = self._next_step()
        self._sleep(max(seconds, self._shortest_s))
        after_s, after_j = self._next_step()
        gross_j = _drawn(before_j, after_j)
        self._idle_watts = None if gross_j is None else gross_j / (after_s - before_s)
        return self._idle_watts

    def close(self) -> None:
        """Free the counter; open windows end without a figure. A second time does nothing."""
        if not self._closed:
            self._closed = True
            self._counter.close()

    def energy(self, before_j: float | None, total_s: float) -> Energy:
        """Return the energy since a reading ``total_s`` seconds ago."""
        gross_j = _drawn(before_j, self._read())
        if gross_j is None or total_s < self._shortest_s:
            return _UNKNOWN
        if self._idle_watts is None:
            return Energy(gross_j, None)
        return Energy(gross_j, gross_j - self._idle_watts * total_s)

    def _read(self) -> float | None:
        return None if self._closed else self._counter.read()

    def _next_step(self) -> tuple[float, float | None]:
        """Wait until the counter changes, but no longer than the shortest window."""
        first = last = self._read()
        until_s = self._clock() + self._shortest_s
        while last == first and last is not None and self._clock() < until_s:
            self._sleep(_STEP_S)
            last = self._read()
        return self._clock(), last


class CounterWindow:
    """The time since one reading of a counter."""

    def __init__(self, meter: CounterMeter, before_j: float | None) -> None:
        self._meter = meter
        self._before_j = before_j

    def end(self, busy_s: float, total_s: float) -> Energy:
        """Return what the machine drew since the window began.

        Args:
            busy_s: Not needed: a counter sees work and waiting alike.
            total_s: Wall time of the window, in seconds.

        Returns:
            The joules. Unknown when the window was too short for the counter or the counter could
            not be read at both ends. ``net_j`` is unknown as long as the idle power is, and can
            come out a little below 0 where the machine did next to nothing: raising such figures
            to 0 would bias their mean.
        """
        return self._meter.energy(self._before_j, total_s)


class Poller:
    """Does something again and again in the background, until it is closed."""

    def __init__(self, action: Callable[[], object], every_s: float) -> None:
        self._action = action
        self._every_s = every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="energy-counter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it, and wait until it has ended."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            self._action()


def _drawn(before_j: float | None, after_j: float | None) -> float | None:
    """Return the joules between two readings; None without both, or after a reset to 0."""
    if before_j is None or after_j is None or after_j < before_j:
        return None
    return after_j - before_j
