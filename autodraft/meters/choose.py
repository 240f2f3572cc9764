"""Which meter a machine gets, and why: the best counter that answers, else two constant powers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autodraft.meters.base import Meter
from autodraft.meters.counter import CounterMeter, Unavailable
from autodraft.meters.modelled import ModelledMeter
from autodraft.meters.nvml import POLL_S, nvml_meter, nvml_power_meter
from autodraft.meters.rapl import RAPL_ROOT, rapl_meter
from autodraft.units import MS_PER_S


@dataclass(frozen=True)
class ChosenMeter:
    """A meter and why it was chosen.

    Attributes:
        meter: The meter.
        reason: One sentence: what its figures are, and why there were no better ones.
    """

    meter: Meter
    reason: str


@dataclass(frozen=True)
class _Candidate:
    """A meter that may turn out not to be there, and what its figures are."""

    open: Callable[[], CounterMeter | Unavailable]
    figures: str


def choose_meter(
    gpu_uuids: Sequence[str],
    watts: float,
    idle_watts: float,
    *,
    rapl_root: Path = RAPL_ROOT,
    nvml: Any = None,
) -> ChosenMeter:
    """Return the meter of a machine.

    A process that computes on GPUs is charged for these GPUs: energy counter, else polled power.
    One that computes on the CPU alone is charged for the CPU packages. Without a counter the energy
    is modelled.

    Args:
        gpu_uuids: The GPUs that the process uses (``GPU-…``); empty for the CPU alone.
        watts: Power at work, for a modelled figure, in W.
        idle_watts: Power while waiting, for a modelled figure, in W.
        rapl_root: Where Linux shows the counters of the CPU packages.
        nvml: The NVIDIA driver's library; ``pynvml`` when None.
    """
    candidates = _on_gpus(gpu_uuids, nvml) if gpu_uuids else _on_cpu(rapl_root)
    missing: list[str] = []
    for candidate in candidates:
        found = candidate.open()
        if not isinstance(found, Unavailable):
            return ChosenMeter(found, _sentence(candidate.figures, missing))
        if found.reason not in missing:
            missing.append(found.reason)
    modelled = ModelledMeter(watts, idle_watts)
    return ChosenMeter(modelled, _sentence("Compute time by configured watts", missing))


def _on_gpus(uuids: Sequence[str], nvml: Any) -> tuple[_Candidate, ...]:
    gpus = ", ".join(uuids)
    return (
        _Candidate(lambda: nvml_meter(uuids, nvml), f"The energy counter of {gpus}"),
        _Candidate(
            lambda: nvml_power_meter(uuids, nvml),
            f"The power of {gpus}, read every {POLL_S * MS_PER_S:.0f} ms and integrated",
        ),
    )


def _on_cpu(root: Path) -> tuple[_Candidate, ...]:
    figures = "The RAPL counters of the CPU packages, as no NVIDIA GPU is in use"
    return (_Candidate(lambda: rapl_meter(root), figures),)


def _sentence(figures: str, missing: Sequence[str]) -> str:
    return f"{figures}, because {', and '.join(missing)}." if missing else f"{figures}."
