"""Points of the trade-off between speed and an objective, one for each cost sensitivity.

Pure numbers: where they come from, a simulation or a measurement, is the caller's business.
"""

from collections.abc import Iterable
from typing import NamedTuple

from autodraft.cost.objective import (
    Prices,
    Quantities,
    cost_of,
    objective_units,
    per_million_tokens,
    sum_quantities,
)


class CurvePoint(NamedTuple):
    """What one cost sensitivity comes to.

    Attributes:
        cs: The cost sensitivity, 0 … 1.
        tokens_per_s: Output tokens over the time from submit to last token.
        units_per_1m: Units of the objective per million output tokens.
        usd_per_1m: Dollars of total cost per million output tokens.
        ttft_s: Mean seconds to the first token.
        tpot_s: Mean seconds of a later token.
    """

    cs: float
    tokens_per_s: float
    units_per_1m: float
    usd_per_1m: float
    ttft_s: float
    tpot_s: float


class Timed(NamedTuple):
    """One answer: what it used, and when its tokens came.

    Attributes:
        used: What it used.
        ttft_s: Seconds to its first token.
        total_s: Seconds to its last token.
    """

    used: Quantities
    ttft_s: float
    total_s: float


def curve_point(
    cs: float, answers: Iterable[Timed], objective: str, prices: Prices, billing: str
) -> CurvePoint | None:
    """Return the point of answers that were made at one cost sensitivity.

    Args:
        cs: The cost sensitivity.
        answers: The answers, at least one of them with a token.
        objective: One of ``OBJECTIVES``.
        prices: What is paid.
        billing: ``busy`` or ``held``.

    Returns:
        Totals over totals; None where a quantity that the objective needs was not measured.

    Raises:
        ConfigError: If objective or billing is unknown.
    """
    found = list(answers)
    total = sum_quantities(each.used for each in found)
    tokens, seconds = total.output_tokens, sum(each.total_s for each in found)
    units = per_million_tokens(objective_units(objective, total, prices, billing), tokens)
    dollars = per_million_tokens(cost_of(total, prices, billing).total_usd, tokens)
    if units is None or dollars is None or seconds <= 0:
        return None
    first_s = sum(each.ttft_s for each in found)
    later = max(1, tokens - len(found))
    return CurvePoint(
        cs=cs,
        tokens_per_s=tokens / seconds,
        units_per_1m=units,
        usd_per_1m=dollars,
        ttft_s=first_s / len(found),
        tpot_s=(seconds - first_s) / later,
    )
