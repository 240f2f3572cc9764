"""Energy of NVIDIA GPUs: the driver's own counter or, where a GPU has none, its power over time.

This module knows GPUs by their UUIDs alone, and counts no other. It imports the driver's library
(``pynvml`` of the package nvidia-ml-py) only when a meter is asked for.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from autodraft.meters.counter import Counter, CounterMeter, Poller, Unavailable
from autodraft.units import MJ_PER_J

logger = logging.getLogger(__name__)

POLL_S: Final = 0.05
"""How often the power is read where there is no energy counter, in seconds."""

_MW_PER_W: Final = 1e3

# The library is an untyped module of functions on opaque handles; tests hand in another.
Nvml = Any
Handle = Any


class EnergyCounter:
    """The sum of the energy counters of some GPUs."""

    def __init__(self, nvml: Nvml, gpus: Sequence[Handle]) -> None:
        """Read the counters once; raises ``nvml.NVMLError`` where a GPU has none."""
        self._nvml = nvml
        self._gpus = gpus
        self._joules()

    def read(self) -> float | None:
        """Return the joules of all GPUs since the driver was loaded; None on a fault."""
        try:
            return self._joules()
        except self._nvml.NVMLError as error:
            logger.warning("the energy counter of a GPU cannot be read: %s", error)
            return None

    def close(self) -> None:
        """Let the driver's library go."""
        self._nvml.nvmlShutdown()

    def _joules(self) -> float:
        query = self._nvml.nvmlDeviceGetTotalEnergyConsumption
        return float(sum(query(gpu) for gpu in self._gpus)) / MJ_PER_J


class PowerCounter:
    """Joules from the power of some GPUs, read again and again and integrated (trapezoids)."""

    def __init__(
        self,
        nvml: Nvml,
        gpus: Sequence[Handle],
        poll_s: float = POLL_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Read the power once and go on in the background; raises ``nvml.NVMLError``."""
        self._nvml = nvml
        self._gpus = gpus
        self._clock = clock
        self._lock = threading.Lock()
        self._joules: float | None = 0.0
        self._last_s, self._last_watts = clock(), self._watts()
        self._poller = Poller(self.read, poll_s)

    def read(self) -> float | None:
        """Read the power and return the joules until now; None for good once a reading failed.

        The power between two readings is taken to change evenly. After a failed one the energy
        since the last is not known, and no later sum can make up for it.
        """
        with self._lock:
            if self._joules is None:
                return None
            now_s = self._clock()
            try:
                watts = self._watts()
            except self._nvml.NVMLError as error:
                logger.warning("no energy from now on: the power of a GPU is not told: %s", error)
                self._joules = None
                return None
            self._joules += (self._last_watts + watts) / 2 * (now_s - self._last_s)
            self._last_s, self._last_watts = now_s, watts
            return self._joules

    def close(self) -> None:
        """End the reading and let the driver's library go."""
        self._poller.close()
        self._nvml.nvmlShutdown()

    def _watts(self) -> float:
        query = self._nvml.nvmlDeviceGetPowerUsage
        return float(sum(query(gpu) for gpu in self._gpus)) / _MW_PER_W


@dataclass(frozen=True)
class _Kind:
    """One way to count the energy of GPUs."""

    method: str
    shortest_s: float
    counter: Callable[[Nvml, Sequence[Handle]], Counter]
    words: str


# The driver updates the energy counter every 20 to 100 ms, depending on the GPU: of half a second
# an update is at most a fifth. The power it tells is a mean over up to a second.
_COUNTED: Final = _Kind("nvml", 0.5, EnergyCounter, "energy counter")
_POLLED: Final = _Kind("nvml_power", 1.0, PowerCounter, "power")


def nvml_meter(uuids: Sequence[str], nvml: Nvml = None) -> CounterMeter | Unavailable:
    """Return a meter over the energy counters of some GPUs (Volta and newer have one).

    Args:
        uuids: The GPUs, as the driver names them (``GPU-…``).
        nvml: The driver's library; ``pynvml`` when None.
    """
    return _open(_COUNTED, uuids, nvml)


def nvml_power_meter(uuids: Sequence[str], nvml: Nvml = None) -> CounterMeter | Unavailable:
    """Return a meter over the polled power of some GPUs; arguments as for ``nvml_meter``."""
    return _open(_POLLED, uuids, nvml)


def _open(kind: _Kind, uuids: Sequence[str], nvml: Nvml) -> CounterMeter | Unavailable:
    try:
        nvml = nvml or import_module("pynvml")
    except ImportError:
        return Unavailable("nvidia-ml-py is not installed (pip install 'autodraft-sd[energy]')")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Unavailable(f"the NVIDIA driver does not answer ({error})")
    try:
        counter = kind.counter(nvml, [nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids])
    except nvml.NVMLError as error:
        nvml.nvmlShutdown()
        return Unavailable(f"the {kind.words} of {', '.join(uuids)} cannot be read ({error})")
    return CounterMeter(kind.method, kind.shortest_s, counter)
