"""Limits beside the blend: at least so many tokens a second, at most so many dollars per token.

A limit is met through the multiplier of its quantity (Lagrange; the multipliers are adjusted online
by what was used beyond the allowance, which is dual ascent, or a virtual queue in the words of
Neely 2010). What is held is the average from the first answer on, not every single round. Where a
limit cannot be met its multiplier stops at a bound, where nothing else weighs much.

Everything is in parts of what a token of server-only decoding takes or costs. Knows no clock.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from autodraft.config import SloConfig
from autodraft.cost import SECONDS, CurvePoint, Phases, weighted
from autodraft.policy.base import Outcome
from autodraft.units import MS_PER_S, TOKENS_PER_MILLION

GAIN: Final = 0.04
"""How much a multiplier rises by what one token of server-only decoding takes. Twice as much hands
whole answers over for a single hard one; half as much is still on its way after ten answers."""
MOST: Final = 24.0
"""Bound of a multiplier: the blend that was asked for keeps a twenty-fifth of the weight."""
MARGIN: Final = 0.02
"""How much within a limit is aimed at: the average ends on either side of its aim."""
CLOSE: Final = 0.05
"""A limit counts as met where it is missed by no more than this share."""


class Rates(NamedTuple):
    """What server-only decoding takes and costs, and what each second and byte costs in dollars.

    Attributes:
        tau_s: Seconds of a token.
        kappa_usd: Dollars of a token.
        dollars: Dollars of each second and byte.
    """

    tau_s: float
    kappa_usd: float
    dollars: Phases


class Usage(NamedTuple):
    """What a round, a token or the beginning of an answer has used, as ``Phases.of_round`` has it.

    Attributes:
        draft_s: Seconds of drafting.
        verify_s: Seconds of the target's forward.
        wait_s: Seconds in which neither computed.
        uplink_bytes: Sent.
        downlink_bytes: Received.
    """

    draft_s: float
    verify_s: float
    wait_s: float
    uplink_bytes: float = 0.0
    downlink_bytes: float = 0.0


def usage_of(outcome: Outcome) -> Usage:
    """Return what a round has used."""
    drafting_s = outcome.draft_s + outcome.ahead_s  # the latter in place of waiting
    wait_s = outcome.round_s - drafting_s - outcome.verify_s
    return Usage(drafting_s, outcome.verify_s, wait_s, outcome.uplink_bytes, outcome.downlink_bytes)


class _Limit:
    """One quantity that is held within an allowance per token, in parts of server-only's."""

    def __init__(self, allowed: float) -> None:
        self.allowed = allowed * (1.0 - MARGIN)
        self.multiplier = 0.0

    def observe(self, used: float, tokens: int) -> None:
        """Let the multiplier follow what was used beyond the allowance."""
        debt = used - self.allowed * tokens
        self.multiplier = min(max(0.0, self.multiplier + GAIN * debt), MOST)


class Steering:
    """The blend with its multipliers, from the first answer of a pair, a spec and limits on.

    Attributes:
        phases: The weights at present; server-only decoding costs about 1 a token.
    """

    def __init__(self, nominal: Phases, rates: Rates, slo: SloConfig) -> None:
        """Begin with multipliers of zero.

        Args:
            nominal: The blend that was asked for.
            rates: What server-only decoding takes and costs.
            slo: The limits; that on the time to the first token moves nothing, for no tree does.
        """
        self._nominal = nominal
        self._rates = rates
        self._seconds = weighted([(1.0 / rates.tau_s, SECONDS)])
        self._dollars = weighted([(1.0 / rates.kappa_usd, rates.dollars)])
        speed, tpot, money = slo.min_tokens_per_s, slo.max_tpot_ms, slo.max_cost_per_1m_tokens
        self._speed = _Limit(1.0 / (speed * rates.tau_s)) if speed is not None else None
        self._tpot = _Limit(tpot / MS_PER_S / rates.tau_s) if tpot is not None else None
        self._money = (
            _Limit(money / TOKENS_PER_MILLION / rates.kappa_usd) if money is not None else None
        )
        self.phases = nominal
        self._mix()

    def start_at(self, time_multiplier: float, money_multiplier: float) -> None:
        """Begin with multipliers that a forecast has found."""
        for limit in (self._speed, self._tpot):
            if limit is not None:
                limit.multiplier = min(time_multiplier, MOST)
        if self._money is not None:
            self._money.multiplier = min(money_multiplier, MOST)
        self._mix()

    def observe(self, used: Usage, tokens: int, *, later: int) -> None:
        """Take note of what tokens have used; the weights follow.

        Args:
            used: What they have used.
            tokens: How many they are.
            later: How many of them are not the first of their answer.
        """
        seconds, dollars = SECONDS.of_round(*used), self._rates.dollars.of_round(*used)
        seconds, dollars = seconds / self._rates.tau_s, dollars / self._rates.kappa_usd
        if self._speed is not None:
            self._speed.observe(seconds, tokens)
        if self._tpot is not None and later:
            self._tpot.observe(seconds, later)
        if self._money is not None:
            self._money.observe(dollars, tokens)
        self._mix()

    @property
    def multipliers(self) -> tuple[float, float]:
        """Those of time and of money at present."""
        time = sum(limit.multiplier for limit in (self._speed, self._tpot) if limit is not None)
        return time, 0.0 if self._money is None else self._money.multiplier

    def _mix(self) -> None:
        time, money = self.multipliers
        total = 1.0 + time + money
        parts = [(1.0 / total, self._nominal), (time / total, self._seconds)]
        if self._dollars is not None:
            parts.append((money / total, self._dollars))
        self.phases = weighted(parts)


class Forecast(NamedTuple):
    """What is to be expected of one limit.

    Attributes:
        name: The tag of the limit.
        limit: Its value, in the tag's unit.
        attainable: The best value that any cost sensitivity, or the server alone, is expected to
            reach, in the same unit.
        feasible: Whether that meets the limit.
    """

    name: str
    limit: float
    attainable: float
    feasible: bool


class Aim(NamedTuple):
    """Where to begin, and what to expect.

    Attributes:
        cs: The cost sensitivity that is expected to meet the limits at the least cost to the blend
            that was asked for; the nearest to them where none does.
        together: Whether it is expected to meet all of them.
        forecasts: One for each limit.
    """

    cs: float
    together: bool
    forecasts: tuple[Forecast, ...]


class Bound(NamedTuple):
    """One limit: what it bounds, and by how much.

    Attributes:
        tag: Its tag.
        value: Its value, in the tag's unit.
        least: Whether figures are to be at least that; else at most.
        figure: Returns the figure of a point that it bounds, in the tag's unit.
    """

    tag: str
    value: float
    least: bool
    figure: Callable[[CurvePoint], float]

    def shortfall(self, figure: float) -> float:
        """Return by which share a figure misses the limit; at most 0 where it does not."""
        return (self.value / figure if self.least else figure / self.value) - 1.0


def bounds_of(slo: SloConfig) -> list[Bound]:
    """Return the limits that are set."""
    known = (
        ("MIN_TOKENS_PER_S", slo.min_tokens_per_s, True, _speed),
        ("MAX_COST_PER_1M_TOKENS", slo.max_cost_per_1m_tokens, False, _dollars),
        ("MAX_TPOT_MS", slo.max_tpot_ms, False, _tpot_ms),
        ("MAX_TTFT_MS", slo.max_ttft_ms, False, _ttft_ms),
    )
    return [
        Bound(tag, value, least, figure) for tag, value, least, figure in known if value is not None
    ]


def _speed(point: CurvePoint) -> float:
    return point.tokens_per_s


def _dollars(point: CurvePoint) -> float:
    return point.usd_per_1m


def _tpot_ms(point: CurvePoint) -> float:
    return point.tpot_s * MS_PER_S


def _ttft_ms(point: CurvePoint) -> float:
    return point.ttft_s * MS_PER_S


def aim_at(curve: Sequence[CurvePoint], slo: SloConfig, cs: float) -> Aim:
    """Choose where to begin on a predicted curve.

    Args:
        curve: Points of rising cost sensitivity, at least one.
        slo: Limits, at least one.
        cs: The cost sensitivity that was asked for; the nearest that meets the limits costs it
            least.
    """
    bounds = bounds_of(slo)

    def worst(point: CurvePoint) -> float:
        return max(bound.shortfall(bound.figure(point)) for bound in bounds)

    forecasts = []
    for bound in bounds:
        best = (max if bound.least else min)(map(bound.figure, curve))
        feasible = bound.shortfall(best) <= 0
        forecasts.append(Forecast(bound.tag, bound.value, best, feasible))
    meeting = [point for point in curve if worst(point) <= 0]
    if meeting:
        chosen = min(meeting, key=lambda point: abs(point.cs - cs))
    else:
        chosen = min(curve, key=worst)
    return Aim(chosen.cs, bool(meeting), tuple(forecasts))


def multipliers_at(cs: float, wanted: float) -> tuple[float, float]:
    """Return the multipliers of time and money that move a blend of time and money.

    Args:
        cs: The cost sensitivity that was asked for.
        wanted: The one that it is to act like.
    """
    if wanted < cs:
        return min(cs / wanted - 1.0, MOST) if wanted > 0 else MOST, 0.0
    if wanted > cs:
        return 0.0, min((wanted - cs) / (1.0 - wanted), MOST) if wanted < 1 else MOST
    return 0.0, 0.0
