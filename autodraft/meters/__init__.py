"""Energy meters behind one small interface. They know no models, prices or configuration."""

from autodraft.meters.base import Meter
from autodraft.meters.modelled import ModelledMeter

__all__ = ["Meter", "ModelledMeter"]
