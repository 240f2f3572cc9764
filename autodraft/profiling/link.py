"""What a round trip over the link takes: its delay, and its bandwidth each way.

Measured when the connection is made, then followed: the delay is the median of what the last few
rounds took beyond the server's own time and the bytes' own. This module opens no connection.
"""

import statistics
from collections import deque
from collections.abc import Callable
from typing import Final

Ping = Callable[[int, int], float]
"""Seconds of a round trip with so many further bytes up, and so many down."""

WINDOW: Final = 5
"""Rounds whose median is the present delay."""
PROBE_BYTES: Final = 1024
LARGEST_PROBE_BYTES: Final = 65_536
_EMPTY_PINGS: Final = 5
_PROBES: Final = 3
_PROBE_S: Final = 0.1
"""What the bytes of one large probe should take at most."""
_LEAST_S: Final = 0.005
"""A large probe whose bytes take less than this shows no bandwidth: a round's kilobyte takes less
than a tenth of a millisecond then."""
_LEAST_SHARE: Final = 0.1
"""Nor does one whose bytes take less than this share of the empty round trip."""


class LinkEstimate:
    """The present delay and bandwidth of one link.

    Attributes:
        rtt_s: Seconds of an empty round trip.
        uplink_bytes_per_s: Bandwidth to the target; infinite where it does not show.
        downlink_bytes_per_s: Bandwidth from it.
    """

    def __init__(
        self,
        rtt_s: float,
        uplink_bytes_per_s: float = float("inf"),
        downlink_bytes_per_s: float = float("inf"),
    ) -> None:
        self.rtt_s = rtt_s
        self.uplink_bytes_per_s = uplink_bytes_per_s
        self.downlink_bytes_per_s = downlink_bytes_per_s
        self._recent: deque[float] = deque([rtt_s], maxlen=WINDOW)

    def seconds(self, uplink_bytes: float, downlink_bytes: float) -> float:
        """Return what a round trip with so many bytes takes."""
        return self.rtt_s + self._of_bytes(uplink_bytes, downlink_bytes)

    def observe(self, seconds: float, uplink_bytes: float, downlink_bytes: float) -> None:
        """Take note of one round trip, the server's own time left out."""
        self._recent.append(max(0.0, seconds - self._of_bytes(uplink_bytes, downlink_bytes)))
        self.rtt_s = statistics.median(self._recent)

    def _of_bytes(self, uplink_bytes: float, downlink_bytes: float) -> float:
        return uplink_bytes / self.uplink_bytes_per_s + downlink_bytes / self.downlink_bytes_per_s


def measure(ping: Ping) -> LinkEstimate:
    """Measure a link: its delay by empty round trips, its bandwidth by what bytes take longer.

    A bandwidth is infinite where the bytes of a large probe take no longer than the noise of empty
    round trips, 5 ms, or a tenth of the round trip: no round would notice. On a slow link the
    probes are smaller, so that the bytes of each take about a tenth of a second.

    Args:
        ping: Makes one round trip.
    """
    empty = sorted(ping(0, 0) for _ in range(_EMPTY_PINGS))
    # Other work on the machines only ever delays: of probes the least is the link's own.
    both_s = min(ping(PROBE_BYTES, PROBE_BYTES) for _ in range(_PROBES)) - empty[0]
    times = max(1.0, _PROBE_S / max(both_s, 1e-9))
    size = min(LARGEST_PROBE_BYTES, int(PROBE_BYTES * times))
    noise_s = max(empty[-2] - empty[1], _LEAST_S, _LEAST_SHARE * empty[0])
    up_s = min(ping(size, 0) for _ in range(_PROBES)) - empty[0]
    down_s = min(ping(0, size) for _ in range(_PROBES)) - empty[0]
    return LinkEstimate(
        statistics.median(empty),
        size / up_s if up_s > noise_s else float("inf"),
        size / down_s if down_s > noise_s else float("inf"),
    )
