"""From request lines to the rows of the tables. Every formula is in ``docs/metrics.md``.

Ratios are totals over totals: a long answer counts for more than a short one. A figure whose
parts were not measured is None. This module reads no files, draws nothing and holds no price.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Final, TypeAlias

from autodraft.config import ObjectiveConfig
from autodraft.cost import (
    OBJECTIVE_UNITS,
    Prices,
    Quantities,
    cost_of,
    objective_units,
    per_million_tokens,
    per_token,
    sum_quantities,
)
from autodraft.records import RequestRecord
from evaluation.lines import RequestLine

REFERENCE_METHOD: Final = "server_only"
_ON_SERVER: Final = "@server"

# (question, turn, repeat): the same request, whatever the method
_Key: TypeAlias = tuple[int | str, int, int]
_Records: TypeAlias = Mapping[_Key, RequestRecord]


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """One benchmark and method. The fields are the columns of ``summary.csv``, in its order.

    ``None`` means not measured, or nothing to divide by. Formulas: ``docs/metrics.md``.
    """

    bench: str
    method: str
    questions: int
    requests: int
    errors: int
    output_tokens: int
    tokens_per_s: float | None
    speedup: float | None
    ttft_s: float | None
    tpot_s: float | None
    mat: float | None
    calls_saved: float | None
    identical_share: float | None
    target_busy_usd_per_1m: float | None
    target_held_usd_per_1m: float | None
    draft_usd_per_1m: float | None
    uplink_usd_per_1m: float | None
    downlink_usd_per_1m: float | None
    total_busy_usd_per_1m: float | None
    total_held_usd_per_1m: float | None
    uplink_bytes_per_token: float | None
    downlink_bytes_per_token: float | None
    energy_method: str | None
    billing: str
    total_cost_usd_per_1m: float | None
    api_cost_usd_per_1m: float | None
    draft_energy_j_per_token: float | None
    target_energy_j_per_token: float | None


@dataclass(frozen=True, kw_only=True)
class TradeoffRow:
    """One point of a trade-off plot. The fields are the columns of ``tradeoff.csv``.

    Attributes:
        bench: Name of the benchmark.
        objective: The objective on the second axis.
        method: The method's label.
        tokens_per_s: Throughput.
        value: Objective units per 1M tokens in dollars, per token in joules.
        unit: ``usd_per_1m_tokens`` or ``j_per_token``.
        billing: ``busy`` or ``held``; plays no part for joules.
    """

    bench: str
    objective: str
    method: str
    tokens_per_s: float | None
    value: float | None
    unit: str
    billing: str


SUMMARY_COLUMNS: Final = tuple(item.name for item in fields(SummaryRow))
TRADEOFF_COLUMNS: Final = tuple(item.name for item in fields(TradeoffRow))
_OBJECTIVE_COLUMN: Final = {
    "total_cost": "total_cost_usd_per_1m",
    "api_cost": "api_cost_usd_per_1m",
    "draft_energy": "draft_energy_j_per_token",
    "target_energy": "target_energy_j_per_token",
}
_VALUE_UNIT: Final = {"usd": "usd_per_1m_tokens", "j": "j_per_token"}


def prices_of(objective: ObjectiveConfig) -> Prices:
    """Return the prices that a configuration holds."""
    return Prices(
        target_per_hour_usd=objective.target_per_hour_cost,
        electricity_usd_per_kwh=objective.draft_electricity_cost_per_kwh,
        uplink_usd_per_gb=objective.user_comm_cost_per_gb,
        downlink_usd_per_gb=objective.cloud_outbound_cost_per_gb,
        draft_per_hour_usd=objective.draft_per_hour_cost,
    )


def quantities_of(record: RequestRecord) -> Quantities:
    """Return what a request used, in the form that the cost functions take."""
    user_drafts = not record.method.endswith(_ON_SERVER) and (
        record.draft_s is not None or record.drafted_nodes > 0
    )
    return Quantities(
        output_tokens=record.output_tokens,
        target_busy_s=record.target_busy_s,
        target_held_s=record.target_held_s,
        total_s=record.total_s if user_drafts else 0.0,
        draft_j=record.draft_j,
        target_j=record.target_j,
        uplink_bytes=record.uplink_bytes,
        downlink_bytes=record.downlink_bytes,
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _tokens_per_s(records: Sequence[RequestRecord]) -> float | None:
    return _ratio(
        sum(record.output_tokens for record in records),
        math.fsum(record.total_s for record in records),
    )


def _speedup(own: _Records, reference: _Records) -> float | None:
    """Compare throughput over the requests that both methods finished."""
    common = own.keys() & reference.keys()
    mine = _tokens_per_s([own[key] for key in common])
    base = _tokens_per_s([reference[key] for key in common])
    return mine / base if mine is not None and base else None


def _identical_share(own: _Records, reference: _Records) -> float | None:
    common = own.keys() & reference.keys()
    same = sum(own[key].output_ids == reference[key].output_ids for key in common)
    return _ratio(same, len(common))


def _timing(records: Sequence[RequestRecord]) -> dict[str, float | None]:
    later = [record for record in records if record.output_tokens > 1]
    return {
        "tokens_per_s": _tokens_per_s(records),
        "ttft_s": _ratio(math.fsum(record.ttft_s for record in records), len(records)),
        "tpot_s": _ratio(
            math.fsum(record.total_s - record.ttft_s for record in later),
            sum(record.output_tokens - 1 for record in later),
        ),
    }


def _acceptance(records: Sequence[RequestRecord]) -> dict[str, float | None]:
    forwards_per_token = _ratio(
        sum(record.target_forwards for record in records),
        sum(record.output_tokens for record in records),
    )
    return {
        "mat": _ratio(
            sum(record.round_tokens for record in records),
            sum(record.rounds for record in records),
        ),
        "calls_saved": None if forwards_per_token is None else 1 - forwards_per_token,
    }


def _costs(used: Quantities, prices: Prices, billing: str) -> dict[str, float | None]:
    tokens = used.output_tokens
    busy, held = (cost_of(used, prices, name) for name in ("busy", "held"))
    dollars = {
        "target_busy_usd_per_1m": busy.target_usd,
        "target_held_usd_per_1m": held.target_usd,
        "draft_usd_per_1m": busy.draft_usd,
        "uplink_usd_per_1m": busy.uplink_usd,
        "downlink_usd_per_1m": busy.downlink_usd,
        "total_busy_usd_per_1m": busy.total_usd,
        "total_held_usd_per_1m": held.total_usd,
    }
    columns = {name: per_million_tokens(value, tokens) for name, value in dollars.items()}
    for objective, column in _OBJECTIVE_COLUMN.items():
        units = objective_units(objective, used, prices, billing)
        scale = per_million_tokens if OBJECTIVE_UNITS[objective] == "usd" else per_token
        columns[column] = scale(units, tokens)
    return columns


def _row(
    bench: str,
    method: str,
    lines: Sequence[RequestLine],
    reference: _Records,
    prices: Prices,
    billing: str,
) -> SummaryRow:
    own = _by_key(lines)
    records = list(own.values())
    used = sum_quantities(quantities_of(record) for record in records)
    energy_methods = sorted({record.energy_method or "" for record in records} - {""})
    return SummaryRow(
        bench=bench,
        method=method,
        questions=len({question_id for question_id, _, _ in own}),
        requests=len(records),
        errors=sum(line.status == "error" for line in lines),
        output_tokens=used.output_tokens,
        speedup=_speedup(own, reference),
        identical_share=_identical_share(own, reference),
        uplink_bytes_per_token=_ratio(used.uplink_bytes, used.output_tokens),
        downlink_bytes_per_token=_ratio(used.downlink_bytes, used.output_tokens),
        energy_method=" ".join(energy_methods) or None,
        billing=billing,
        **_timing(records),
        **_acceptance(records),
        **_costs(used, prices, billing),
    )


def _by_key(lines: Sequence[RequestLine]) -> dict[_Key, RequestRecord]:
    return {
        (line.case.question_id, line.case.turn, line.case.repeat): line.record
        for line in lines
        if line.record is not None
    }


def summarise(lines: Sequence[RequestLine], prices: Prices, billing: str) -> list[SummaryRow]:
    """Compute the table of a run.

    Args:
        lines: The run's request lines, failed ones included.
        prices: What the user pays.
        billing: ``busy`` or ``held``: what the objective columns are billed by.

    Returns:
        One row per benchmark and method.

    Raises:
        ConfigError: If ``billing`` is neither of the two.
    """
    groups: dict[tuple[str, str], list[RequestLine]] = {}
    for line in lines:
        groups.setdefault((line.case.bench, line.case.method), []).append(line)
    return [
        _row(
            bench,
            method,
            group,
            _by_key(groups.get((bench, REFERENCE_METHOD), [])),
            prices,
            billing,
        )
        for (bench, method), group in groups.items()
    ]


def tradeoff(rows: Sequence[SummaryRow], objectives: Sequence[str]) -> list[TradeoffRow]:
    """Return the points of the trade-off plots: throughput against each objective."""
    return [
        TradeoffRow(
            bench=row.bench,
            objective=objective,
            method=row.method,
            tokens_per_s=row.tokens_per_s,
            value=asdict(row)[_OBJECTIVE_COLUMN[objective]],
            unit=_VALUE_UNIT[OBJECTIVE_UNITS[objective]],
            billing=row.billing,
        )
        for objective in objectives
        for row in rows
    ]
