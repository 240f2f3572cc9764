"""The block of the link between user and cloud, shaped at the client's socket.

The one place for its defaults. This module knows no socket: `NetworkSetting` says what is wanted.
"""

import math
from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any, Final

from pydantic import Field

from autodraft.config.base import Block, Strict
from autodraft.config.knob import Each, Number, OrWord, knob

MOST_SETTINGS: Final = 1_000


class NetworkSetting(Strict):
    """One setting of the link: what is added to the real one, at the client's socket.

    Attributes:
        rtt_ms: Round-trip time that is added, half of it each way, in milliseconds.
        jitter_ms: Spread of that delay, in milliseconds: each way is uniform over
            ``(rtt_ms ± jitter_ms) / 2``.
        uplink_mbps: Bandwidth from user to cloud, in Mbit/s; None is unlimited.
        downlink_mbps: Bandwidth from cloud to user, in Mbit/s; None is unlimited.
    """

    rtt_ms: float = Field(default=0.0, ge=0)
    jitter_ms: float = Field(default=0.0, ge=0)
    uplink_mbps: float | None = Field(default=None, gt=0)
    downlink_mbps: float | None = Field(default=None, gt=0)

    @property
    def label(self) -> str:
        """A short name for tables and files: ``unshaped``, ``rtt20``, ``rtt20_jitter5_up10``."""
        values = (
            ("rtt", self.rtt_ms),
            ("jitter", self.jitter_ms),
            ("up", self.uplink_mbps),
            ("down", self.downlink_mbps),
        )
        return "_".join(f"{name}{value:g}" for name, value in values if value) or "unshaped"


class NetworkConfig(Block):
    """The link, shaped at the client's socket; a list sweeps."""

    rtt_ms: Annotated[
        tuple[float, ...],
        knob(
            "RTT_MS",
            Each(Number()),
            "Round-trip time that is added to the real one, half of it each way. A list sweeps.",
            unit="ms",
        ),
    ] = (0.0,)
    jitter_ms: Annotated[
        tuple[float, ...],
        knob(
            "JITTER_MS",
            Each(Number()),
            "Spread of the added delay: each way is uniform over (RTT_MS ± JITTER_MS) / 2. A list "
            "sweeps.",
            unit="ms",
        ),
    ] = (0.0,)
    uplink_mbps: Annotated[
        tuple[float | None, ...],
        knob(
            "UPLINK_MBPS",
            Each(OrWord("unlimited", Number(0, above=True))),
            "Bandwidth from user to cloud. A list sweeps.",
            unit="Mbit/s",
        ),
    ] = (None,)
    downlink_mbps: Annotated[
        tuple[float | None, ...],
        knob(
            "DOWNLINK_MBPS",
            Each(OrWord("unlimited", Number(0, above=True))),
            "Bandwidth from cloud to user. A list sweeps.",
            unit="Mbit/s",
        ),
    ] = (None,)

    @classmethod
    def conflicts(cls, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return what is wrong between the lists: too many settings of the link."""
        count = math.prod(len(values[name]) for name in cls.model_fields)
        if count <= MOST_SETTINGS:
            return []
        longest = max(cls.model_fields, key=lambda name: len(values[name]))
        text = (
            f"the lists of the block network have {count} combinations, and at most "
            f"{MOST_SETTINGS} are swept in one experiment. Shorten {longest.upper()} first."
        )
        return [(longest, text)]

    def settings(self) -> tuple[NetworkSetting, ...]:
        """Return every combination of the lists, the round-trip time varying slowest."""
        return tuple(
            NetworkSetting(rtt_ms=rtt, jitter_ms=jitter, uplink_mbps=up, downlink_mbps=down)
            for rtt, jitter, up, down in product(
                self.rtt_ms, self.jitter_ms, self.uplink_mbps, self.downlink_mbps
            )
        )
