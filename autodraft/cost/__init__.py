"""What a generation costs, in dollars or joules. Pure functions; they measure nothing."""

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
    "CostBreakdown",
    "Prices",
    "Quantities",
    "cost_of",
    "objective_units",
    "per_million_tokens",
    "per_token",
    "sum_quantities",
]
