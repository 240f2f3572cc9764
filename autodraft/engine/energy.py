"""Which energy meter belongs to the machine that runs given models.

Knows models' devices and meters; knows no session and no price.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from autodraft.meters import Meter, choose_meter
from autodraft.models.hardware import gpu_uuids
from autodraft.models.loader import LoadedModel

IDLE_S: Final = 1.0
"""How long the idle power is measured, where there is a counter."""


class MachineMeter(NamedTuple):
    """The meter of a machine.

    Attributes:
        meter: The meter.
        reason: Why it is this one, a sentence.
        idle_watts: What the machine drew before it was asked for anything, in W; None where that
            could not be measured.
    """

    meter: Meter
    reason: str
    idle_watts: float | None


def machine_meter(
    models: Sequence[LoadedModel], watts: float = 0.0, idle_watts: float = 0.0
) -> MachineMeter:
    """Return the meter of this machine, its idle power measured; takes a second with a counter.

    Args:
        models: Models that run here; of several GPUs only those that hold one are counted.
        watts: Power at work, for a modelled figure, in W.
        idle_watts: Power while waiting, for a modelled figure, in W.
    """
    uuids = sorted({uuid for model in models for uuid in gpu_uuids(model.runner.devices)})
    chosen = choose_meter(uuids, watts, idle_watts)
    return MachineMeter(chosen.meter, chosen.reason, chosen.meter.measure_idle(IDLE_S))
