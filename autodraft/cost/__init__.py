"""What a generation costs, in dollars or joules. Pure functions; they measure nothing."""

from autodraft.cost.blend import SECONDS, Phases, Powers, blend, phase_units
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

__all__ = [
    "BILLINGS",
    "OBJECTIVES",
    "OBJECTIVE_UNITS",
    "SECONDS",
    "CostBreakdown",
    "Phases",
    "Powers",
    "Prices",
    "Quantities",
    "blend",
    "cost_of",
    "objective_units",
    "per_million_tokens",
    "per_token",
    "phase_units",
    "sum_quantities",
]
