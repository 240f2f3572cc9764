"""Energy meters behind one small interface. They know no models, prices or configuration."""

from autodraft.meters.base import Energy, Meter, Window
from autodraft.meters.choose import ChosenMeter, choose_meter
from autodraft.meters.modelled import ModelledMeter
from autodraft.meters.replay import replay_meter

__all__ = [
    "ChosenMeter",
    "Energy",
    "Meter",
    "ModelledMeter",
    "Window",
    "choose_meter",
    "replay_meter",
]
