"""How fast memory is read and copied by plain operations, and how much of that decoding uses.

Every decoding step reads all weights once, so their bytes times the steps per second is what
decoding reads, and what memory gives is its limit. Knows no model; caches are whatever this
machine has.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch

COPY_BYTES: Final = 1 << 30
"""Of each side of a copy: no cache holds it."""
REPEATS: Final = 3
GIGA: Final = 1e9


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per second that plain operations move, one figure for each time they ran.

    Attributes:
        copy: Read and written by a copy.
        read: Read by a sum.
        read_again: Read by sums over a buffer of the weights' size, one after another: what
            decoding does, with whatever the caches keep of it.
    """

    copy: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    read_again: list[float] = field(default_factory=list)


def measure(bandwidth: Bandwidth, weights_bytes: int, copy_bytes: int = COPY_BYTES) -> None:
    """Add figures of all three kinds; all of torch's threads take part."""
    source = torch.ones(copy_bytes // 4)
    target = torch.empty_like(source)
    weights = torch.ones(weights_bytes // 4)
    bandwidth.copy.extend(_rates(2 * source.nbytes, lambda: target.copy_(source)))
    bandwidth.read.extend(_rates(source.nbytes, source.sum))
    bandwidth.read_again.extend(_rates(weights.nbytes, weights.sum))


def _rates(moved_bytes: int, function: Callable[[], object]) -> list[float]:
    function()  # pages are mapped at the first touch
    rates = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        function()
        rates.append(moved_bytes / (time.perf_counter() - started))
    return rates


def merit(bandwidth: Bandwidth, weights_bytes: int, decode_tokens_per_s: float) -> dict[str, float]:
    """Return the weights read per second beside what memory gives (medians), in GB/s and shares.

    Args:
        bandwidth: What memory gives.
        weights_bytes: Bytes that a decoding step reads.
        decode_tokens_per_s: Steps per second.
    """
    copy, read, again = map(
        statistics.median, (bandwidth.copy, bandwidth.read, bandwidth.read_again)
    )
    weights = weights_bytes * decode_tokens_per_s
    return {
        "weights_bytes": weights_bytes,
        "weights_gb_per_s": weights / GIGA,
        "copy_gb_per_s": copy / GIGA,
        "read_gb_per_s": read / GIGA,
        "read_again_gb_per_s": again / GIGA,
        "share_of_copy": weights / copy,
        "share_of_read": weights / read,
        "share_of_read_again": weights / again,
        "limit_tokens_per_s": read / weights_bytes,
    }
