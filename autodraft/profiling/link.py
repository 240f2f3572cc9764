"""What a round trip over the link takes: its delay, and its bandwidth each way.

Measured when the connection is made, then followed: the delay is the median of what the last few
rounds took beyond the server's own time and the bytes' own. This module opens no connection.
"""

import statistics
from collections import deque
from typing import Final

WINDOW: Final = 5
"""Rounds whose median is the present delay."""


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
