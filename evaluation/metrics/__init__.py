"""From request lines to the rows of the tables. Every formula is in ``docs/metrics.md``."""

from evaluation.metrics.figures import REFERENCE_METHOD, prices_of
from evaluation.metrics.reliability import (
    KINDS,
    RELIABILITY_COLUMNS,
    ReliabilityRow,
    expected_calibration_error,
    reliability,
)
from evaluation.metrics.rows import (
    CATEGORY_COLUMNS,
    SUMMARY_COLUMNS,
    TRADEOFF_COLUMNS,
    CategoryRow,
    Conditions,
    CurvePoint,
    SummaryRow,
    TradeoffRow,
)
from evaluation.metrics.tables import Order, summarise, summarise_categories, tradeoff

__all__ = [
    "CATEGORY_COLUMNS",
    "KINDS",
    "REFERENCE_METHOD",
    "RELIABILITY_COLUMNS",
    "SUMMARY_COLUMNS",
    "TRADEOFF_COLUMNS",
    "CategoryRow",
    "Conditions",
    "CurvePoint",
    "Order",
    "ReliabilityRow",
    "SummaryRow",
    "TradeoffRow",
    "expected_calibration_error",
    "prices_of",
    "reliability",
    "summarise",
    "summarise_categories",
    "tradeoff",
]
