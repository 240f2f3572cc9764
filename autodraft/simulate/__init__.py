"""The policies over recorded traces and latency tables: no model, no server, no socket."""

from autodraft.policy.survey import PairPrior
from autodraft.profiling.traces import Trace, encode_trace, read_traces
from autodraft.simulate.devices import Devices, devices_content, load_devices, scaled
from autodraft.simulate.simulator import Place, Simulated, Simulator, place_of

__all__ = [
    "Devices",
    "PairPrior",
    "Place",
    "Simulated",
    "Simulator",
    "Trace",
    "devices_content",
    "encode_trace",
    "load_devices",
    "place_of",
    "read_traces",
    "scaled",
]
