"""Which meter a machine gets, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from autodraft.meters.base import Meter
from autodraft.meters.modelled import ModelledMeter


@dataclass(frozen=True)
class ChosenMeter:
    """A meter and why it was chosen."""

    meter: Meter
    reason: str


def choose_meter(gpu_uuids: Sequence[str], watts: float, idle_watts: float) -> ChosenMeter:
    """Return the meter of the machine."""
    return ChosenMeter(ModelledMeter(watts, idle_watts), "There is no counter.")
