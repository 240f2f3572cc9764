"""Which energy meter belongs to the machine that runs given models.

Knows models' devices and meters; knows no session and no price.
"""

from collections.abc import Sequence
from typing import Final

from autodraft.meters import ChosenMeter, choose_meter
from autodraft.models.hardware import gpu_uuids
from autodraft.models.loader import LoadedModel

IDLE_S: Final = 1.0
"""How long the idle power is measured, where there is a counter."""


def machine_meter(
    models: Sequence[LoadedModel], watts: float = 0.0, idle_watts: float = 0.0
) -> ChosenMeter:
    """Return the meter of this machine, its idle power measured; takes a second with a counter.

    Args:
        models: Models that run here; of several GPUs only those that hold one are counted.
        watts: Power at work, for a modelled figure, in W.
        idle_watts: Power while waiting, for a modelled figure, in W.
    """
    uuids = sorted({uuid for model in models for uuid in gpu_uuids(model.runner.devices)})
    chosen = choose_meter(uuids, watts, idle_watts)
    chosen.meter.measure_idle(IDLE_S)
    return chosen
