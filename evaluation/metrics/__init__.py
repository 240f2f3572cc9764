"""From request lines to the rows of the tables. Every formula is in ``docs/metrics.md``."""

from evaluation.metrics.figures import REFERENCE_METHOD, prices_of, quantities_of
from evaluation.metrics.rows import (
    CATEGORY_COLUMNS,
    SUMMARY_COLUMNS,
    TRADEOFF_COLUMNS,
    CategoryRow,
    Conditions,
    SummaryRow,
    TradeoffRow,
)
from evaluation.metrics.tables import Order, summarise, summarise_categories, tradeoff

__all__ = [
    "CATEGORY_COLUMNS",
    "REFERENCE_METHOD",
    "SUMMARY_COLUMNS",
    "TRADEOFF_COLUMNS",
    "CategoryRow",
    "Conditions",
    "Order",
    "SummaryRow",
    "TradeoffRow",
    "prices_of",
    "quantities_of",
    "summarise",
    "summarise_categories",
    "tradeoff",
]
