"""The four objectives as pure functions: quantities in, dollars or joules out.

Cost is linear in the quantities, so the cost of a sum is the sum of the costs: a round, a request
and a whole run are priced by the same function. Every method is billed by the same rule.

This module knows no configuration, no records, no clock and no meter. It holds no price of its
own: the defaults live in ``autodraft.config``. A quantity that was not measured is ``None``, and
so is everything that depends on it.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from autodraft.errors import ConfigError
from autodraft.units import (
    BYTES_PER_GB,
    JOULES_PER_KWH,
    SECONDS_PER_HOUR,
    TOKENS_PER_MILLION,
)

BILLINGS: Final = ("busy", "held")


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What a user pays.

    Attributes:
        target_per_hour_usd: Price of the target's machine, in $/h.
        electricity_usd_per_kwh: Price of electricity at the user's, in $/kWh.
        uplink_usd_per_gb: Price of traffic from the user to the cloud, in $/GB (1 GB = 1e9 bytes).
        downlink_usd_per_gb: Price of traffic from the cloud to the user, in $/GB.
        draft_per_hour_usd: Price of the user's device where it is rented, in $/h; it then replaces
            electricity. ``None`` where the device is the user's own.
    """

    target_per_hour_usd: float
    electricity_usd_per_kwh: float
    uplink_usd_per_gb: float
    downlink_usd_per_gb: float
    draft_per_hour_usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class Quantities:
    """What a round, a request or a run used.

    Attributes:
        output_tokens: Tokens of the output.
        target_busy_s: Model compute on the target's machine, in seconds.
        target_held_s: Wall time the target's machine was held, in seconds.
        total_s: Wall time at the user for which the drafting device was held, in seconds; 0 for a
            method in which it takes no part.
        draft_j: Energy of the user's device, in joules; 0 where it takes no part, ``None`` where
            it was not measured.
        target_j: Energy of the target, in joules; ``None`` where it was not measured.
        uplink_bytes: Bytes from the user to the cloud.
        downlink_bytes: Bytes from the cloud to the user.
    """

    output_tokens: int
    target_busy_s: float
    target_held_s: float
    total_s: float
    draft_j: float | None
    target_j: float | None
    uplink_bytes: int
    downlink_bytes: int


@dataclass(frozen=True, kw_only=True)
class CostBreakdown:
    """A cost in dollars and what it is made of.

    Attributes:
        target_usd: The target's machine.
        draft_usd: Electricity or rent of the user's device; ``None`` when its energy is unknown.
        uplink_usd: Traffic from the user to the cloud.
        downlink_usd: Traffic from the cloud to the user.
    """

    target_usd: float
    draft_usd: float | None
    uplink_usd: float
    downlink_usd: float

    @property
    def total_usd(self) -> float | None:
        """The sum of the components; ``None`` while one of them is unknown."""
        if self.draft_usd is None:
            return None
        return self.target_usd + self.draft_usd + self.uplink_usd + self.downlink_usd


def _billed_s(quantities: Quantities, billing: str) -> float:
    if billing == "busy":
        return quantities.target_busy_s
    if billing == "held":
        return quantities.target_held_s
    raise ConfigError(f"Unknown billing {billing!r}. Allowed: {', '.join(BILLINGS)}.")


def _draft_usd(quantities: Quantities, prices: Prices) -> float | None:
    if prices.draft_per_hour_usd is not None:
        return prices.draft_per_hour_usd * quantities.total_s / SECONDS_PER_HOUR
    if quantities.draft_j is None:
        return None
    return prices.electricity_usd_per_kwh * quantities.draft_j / JOULES_PER_KWH


def cost_of(quantities: Quantities, prices: Prices, billing: str) -> CostBreakdown:
    """Price what was used.

    Args:
        quantities: What was used.
        prices: What it costs.
        billing: ``busy`` bills the target's model compute, ``held`` the wall time of its session.

    Returns:
        The components; their sum is the objective ``total_cost``.

    Raises:
        ConfigError: If ``billing`` is neither of the two.
    """
    billed_s = _billed_s(quantities, billing)
    return CostBreakdown(
        target_usd=prices.target_per_hour_usd * billed_s / SECONDS_PER_HOUR,
        draft_usd=_draft_usd(quantities, prices),
        uplink_usd=prices.uplink_usd_per_gb * quantities.uplink_bytes / BYTES_PER_GB,
        downlink_usd=prices.downlink_usd_per_gb * quantities.downlink_bytes / BYTES_PER_GB,
    )


# The one table of objectives: unit, and how the units are found.
_Objective = Callable[[Quantities, Prices, str], float | None]
_OBJECTIVES: Final[dict[str, tuple[str, _Objective]]] = {
    "total_cost": ("usd", lambda q, prices, billing: cost_of(q, prices, billing).total_usd),
    "api_cost": ("usd", lambda q, prices, billing: cost_of(q, prices, billing).target_usd),
    "draft_energy": ("j", lambda q, prices, billing: q.draft_j),
    "target_energy": ("j", lambda q, prices, billing: q.target_j),
}
OBJECTIVES: Final = tuple(_OBJECTIVES)
OBJECTIVE_UNITS: Final = {name: unit for name, (unit, _) in _OBJECTIVES.items()}


def objective_units(
    objective: str, quantities: Quantities, prices: Prices, billing: str
) -> float | None:
    """Return the units of one objective: dollars or joules, see ``OBJECTIVE_UNITS``.

    Args:
        objective: ``total_cost``, ``api_cost`` (the target's dollars alone), ``draft_energy`` or
            ``target_energy``.
        quantities: What was used.
        prices: What it costs; the two energies do not depend on it.
        billing: ``busy`` or ``held``; the two energies do not depend on it.

    Returns:
        The units, or ``None`` when a quantity they need was not measured.

    Raises:
        ConfigError: If the objective or the billing is unknown.
    """
    if objective not in _OBJECTIVES:
        raise ConfigError(f"Unknown objective {objective!r}. Allowed: {', '.join(OBJECTIVES)}.")
    _, units = _OBJECTIVES[objective]
    return units(quantities, prices, billing)


def per_token(units: float | None, output_tokens: int) -> float | None:
    """Return units per output token; ``None`` when the units are unknown or there is no token."""
    if units is None or output_tokens == 0:
        return None
    return units / output_tokens


def per_million_tokens(units: float | None, output_tokens: int) -> float | None:
    """Return units per 1e6 output tokens; ``None`` like ``per_token``."""
    single = per_token(units, output_tokens)
    return None if single is None else single * TOKENS_PER_MILLION


def _sum_known(values: Iterable[float | None]) -> float | None:
    known: list[float] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return math.fsum(known)


def sum_quantities(parts: Iterable[Quantities]) -> Quantities:
    """Add up what several rounds, requests or runs used.

    An energy is ``None`` in the sum as soon as it is in one part: a sum that leaves some out would
    be too small without saying so.
    """
    items = list(parts)
    return Quantities(
        output_tokens=sum(item.output_tokens for item in items),
        target_busy_s=math.fsum(item.target_busy_s for item in items),
        target_held_s=math.fsum(item.target_held_s for item in items),
        total_s=math.fsum(item.total_s for item in items),
        draft_j=_sum_known(item.draft_j for item in items),
        target_j=_sum_known(item.target_j for item in items),
        uplink_bytes=sum(item.uplink_bytes for item in items),
        downlink_bytes=sum(item.downlink_bytes for item in items),
    )
