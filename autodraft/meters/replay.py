"""Energy out of a recording, for tests and simulations: the same figures at every replay.

This module reads no hardware.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence

from autodraft.errors import DataError
from autodraft.meters.counter import CounterMeter


class ReplayCounter:
    """A counter that says again what another has said, straight lines between its readings."""

    def __init__(
        self, samples: Sequence[tuple[float, float]], clock: Callable[[], float] | None = None
    ) -> None:
        """Begin a replay.

        Args:
            samples: Time in seconds and joules until then, at least two and in order.
            clock: Tells the time within the recording; None replays it from 0 on, in real time.

        Raises:
            DataError: Times do not increase or joules decrease.
        """
        pairs = list(zip(samples, samples[1:], strict=False))
        if not pairs:
            raise DataError(
                f"a recording of energy has {len(samples)} samples; it needs at least two."
            )
        for (first_s, first_j), (next_s, next_j) in pairs:
            if not (next_s > first_s and next_j >= first_j):
                raise DataError(
                    f"a recording of energy goes from {first_j} J at {first_s} s to {next_j} J at "
                    f"{next_s} s; times must increase and joules must not decrease."
                )
        started_s = time.perf_counter()
        self._samples = list(samples)
        self._clock = clock or (lambda: time.perf_counter() - started_s)

    def read(self) -> float | None:
        """Return the joules until now; None outside the recording."""
        now_s = self._clock()
        place = bisect_right(self._samples, now_s, key=lambda sample: sample[0])
        last_s, last_j = self._samples[-1]
        if place == len(self._samples):
            return last_j if now_s == last_s else None
        if place == 0:
            return None
        (before_s, before_j), (after_s, after_j) = self._samples[place - 1 : place + 1]
        return before_j + (after_j - before_j) * (now_s - before_s) / (after_s - before_s)

    def close(self) -> None:
        """Nothing is held."""


def replay_meter(
    samples: Sequence[tuple[float, float]],
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> CounterMeter:
    """Return a meter over a recording, labelled ``replay``; any window gives a figure.

    Args:
        samples: Time in seconds and joules until then, at least two and in order.
        clock: Tells the time within the recording; None replays it from 0 on, in real time.
        sleep: Waits so many seconds of that clock.

    Raises:
        DataError: The recording is too short or out of order.
    """
    counter = ReplayCounter(samples, clock)
    return CounterMeter("replay", 0.0, counter, clock or time.perf_counter, sleep)
