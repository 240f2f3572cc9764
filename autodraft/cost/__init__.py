"""What a generation costs, in dollars or joules. Pure functions; they measure nothing."""

from autodraft.cost.blend import SECONDS, Phases, Powers, blend, phase_units, weighted
from autodraft.cost.objective import (
    BILLINGS,
    OBJECTIVE_UNITS,
    OBJECTIVES,
    CostBreakdown,
    Prices,
    Quantities,
    cost_of,
    objective_units,
    per_million_tokens,
    per_token,
    sum_quantities,
)
from autodraft.cost.tradeoff import CurvePoint, Timed, curve_point
from autodraft.cost.usage import quantities_of, takes_part

__all__ = [
    "BILLINGS",
    "OBJECTIVES",
    "OBJECTIVE_UNITS",
    "SECONDS",
    "CostBreakdown",
    "CurvePoint",
    "Phases",
    "Powers",
    "Prices",
    "Quantities",
    "Timed",
    "blend",
    "cost_of",
    "curve_point",
    "objective_units",
    "per_million_tokens",
    "per_token",
    "phase_units",
    "quantities_of",
    "sum_quantities",
    "takes_part",
    "weighted",
]
