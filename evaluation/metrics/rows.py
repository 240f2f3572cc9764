"""The rows of the tables: their fields are the columns, in their order.

``None`` means not measured, or nothing to divide by. Formulas: ``docs/metrics.md``. This module
computes nothing.
"""

from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from autodraft.config import NetworkSetting


class Conditions(NamedTuple):
    """What has to be equal for two methods to be compared.

    Attributes:
        bench: Name of the benchmark.
        network: What the link was shaped to.
    """

    bench: str
    network: NetworkSetting

    def names(self) -> list[str]:
        """Return the benchmark, and the network if it is shaped."""
        return [self.bench, *([self.network.label] if self.network != NetworkSetting() else [])]


class CurvePoint(NamedTuple):
    """Where a method lies on a trade-off curve.

    Attributes:
        curve: Name of the curve, which methods that differ in their cost sensitivity alone share.
        cs: The cost sensitivity that the method minimises for, 0 … 1.
    """

    curve: str
    cs: float


@dataclass(frozen=True, kw_only=True)
class _Row:
    """What every row begins with."""

    bench: str
    rtt_ms: float
    jitter_ms: float
    uplink_mbps: float | None
    downlink_mbps: float | None

    @property
    def conditions(self) -> Conditions:
        """What this row may be compared under."""
        network = NetworkSetting(
            rtt_ms=self.rtt_ms,
            jitter_ms=self.jitter_ms,
            uplink_mbps=self.uplink_mbps,
            downlink_mbps=self.downlink_mbps,
        )
        return Conditions(self.bench, network)


@dataclass(frozen=True, kw_only=True)
class SummaryRow(_Row):
    """One benchmark, network setting and method: a row of ``summary.csv``."""

    method: str
    seeds: str
    choices: int
    questions: int
    requests: int
    errors: int
    output_tokens: int
    tokens_per_s: float | None
    tokens_per_s_ci_low: float | None
    tokens_per_s_ci_high: float | None
    tokens_per_s_mean_of_questions: float | None
    speedup: float | None
    speedup_ci_low: float | None
    speedup_ci_high: float | None
    speedup_mean_of_questions: float | None
    ttft_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    tpot_s: float | None
    tpot_p50_s: float | None
    tpot_p90_s: float | None
    tpot_p99_s: float | None
    latency_p50_s: float | None
    latency_p90_s: float | None
    latency_p99_s: float | None
    mat: float | None
    mat_ci_low: float | None
    mat_ci_high: float | None
    mat_mean_of_questions: float | None
    calls_saved: float | None
    calls_saved_ci_low: float | None
    calls_saved_ci_high: float | None
    calls_saved_mean_of_questions: float | None
    identical_share: float | None
    exact_share: float | None
    redecided_per_answer: float | None
    handed_over_share: float | None
    ahead_hit_share: float | None
    ahead_used_share: float | None
    ahead_saved_ms_per_token: float | None
    ahead_wasted_j_per_token: float | None
    target_busy_usd_per_1m: float | None
    target_held_usd_per_1m: float | None
    draft_usd_per_1m: float | None
    uplink_usd_per_1m: float | None
    downlink_usd_per_1m: float | None
    total_busy_usd_per_1m: float | None
    total_held_usd_per_1m: float | None
    uplink_bytes_per_token: float | None
    downlink_bytes_per_token: float | None
    billing: str
    total_cost_usd_per_1m: float | None
    total_cost_usd_per_1m_ci_low: float | None
    total_cost_usd_per_1m_ci_high: float | None
    total_cost_usd_per_1m_mean_of_questions: float | None
    api_cost_usd_per_1m: float | None
    api_cost_usd_per_1m_ci_low: float | None
    api_cost_usd_per_1m_ci_high: float | None
    api_cost_usd_per_1m_mean_of_questions: float | None
    cost_ratio: float | None
    cost_ratio_ci_low: float | None
    cost_ratio_ci_high: float | None
    cost_ratio_mean_of_questions: float | None
    draft_energy_method: str | None
    draft_energy_j_per_token: float | None
    draft_energy_j_per_token_ci_low: float | None
    draft_energy_j_per_token_ci_high: float | None
    draft_energy_j_per_token_mean_of_questions: float | None
    draft_energy_net_j_per_token: float | None
    target_energy_method: str | None
    target_energy_j_per_token: float | None
    target_energy_j_per_token_ci_low: float | None
    target_energy_j_per_token_ci_high: float | None
    target_energy_j_per_token_mean_of_questions: float | None
    target_energy_net_j_per_token: float | None


@dataclass(frozen=True, kw_only=True)
class CategoryRow(SummaryRow):
    """The same of a part of the benchmark: a row of ``categories.csv``.

    Attributes:
        part: ``category``, as the benchmark names it, or ``sub-task``, several categories in one.
        category: Name of that part.
    """

    part: str
    category: str


@dataclass(frozen=True, kw_only=True)
class TradeoffRow(_Row):
    """One point of a trade-off plot: a row of ``tradeoff.csv``.

    Attributes:
        objective: The objective on the second axis.
        method: The method's label.
        tokens_per_s: Throughput, with its interval.
        value: Objective units per 1M tokens in dollars, per token in joules, with its interval.
        unit: ``usd_per_1m_tokens`` or ``j_per_token``.
        billing: ``busy`` or ``held``; plays no part for joules.
        energy_method: How joules on the second axis were found; ``None`` for dollars.
        curve: The trade-off curve that it is a point of; ``None`` for methods that do not adapt.
        cs: The cost sensitivity that ``score`` is taken at: the method's own, where it adapts.
        score: Time and objective units in one figure; 1 for ``server_only``, lower is better.
    """

    objective: str
    method: str
    tokens_per_s: float | None
    tokens_per_s_ci_low: float | None
    tokens_per_s_ci_high: float | None
    value: float | None
    value_ci_low: float | None
    value_ci_high: float | None
    unit: str
    billing: str
    energy_method: str | None
    curve: str | None
    cs: float
    score: float | None


SUMMARY_COLUMNS: Final = tuple(item.name for item in fields(SummaryRow))
CATEGORY_COLUMNS: Final = ("bench", "part", "category", *SUMMARY_COLUMNS[1:])
TRADEOFF_COLUMNS: Final = tuple(item.name for item in fields(TradeoffRow))
