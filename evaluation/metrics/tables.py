"""From request lines to the rows of the tables.

What is compared has the same benchmark and network setting, and answer by answer the same seed and
choice. The latest line of a request counts. But for that the order of the lines plays no part:
where the caller names an order of the rows, the same lines give the same tables. This module knows
no formula of a figure.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from autodraft.config import NetworkSetting
from autodraft.cost import OBJECTIVE_UNITS, Prices
from autodraft.records import RequestRecord
from evaluation.datasets import subtask
from evaluation.lines import Case, RequestLine
from evaluation.metrics.figures import (
    OBJECTIVE_COLUMN,
    REFERENCE_METHOD,
    Key,
    Records,
    figures_of,
    question_rank,
)
from evaluation.metrics.rows import CategoryRow, Conditions, CurvePoint, SummaryRow, TradeoffRow

Order: TypeAlias = Sequence[tuple[str, str, str]]
"""Benchmark, label of the network setting, label of the method, of the rows in their order."""

_CATEGORY: Final = "category"
_SUBTASK: Final = "sub-task"
_VALUE_UNIT: Final = {"usd": "usd_per_1m_tokens", "j": "j_per_token"}
_ENERGY_METHOD: Final = {
    "draft_energy": "draft_energy_method",
    "target_energy": "target_energy_method",
}


class _Group(NamedTuple):
    conditions: Conditions
    method: str


class _Part(NamedTuple):
    bench: str
    kind: Literal["category", "sub-task"]
    name: str


class _Ranks:
    """Sorts rows: by benchmark, network and method, as an order names them first."""

    def __init__(self, order: Order) -> None:
        benches, networks, methods = zip(*order, strict=True) if order else ((), (), ())
        self.benches = self._numbers(benches)
        self._networks = self._numbers(networks)
        self._methods = self._numbers(methods)

    @staticmethod
    def _numbers(names: Iterable[str]) -> dict[str, int]:
        return {name: number for number, name in enumerate(dict.fromkeys(names))}

    def of_group(self, group: _Group) -> tuple[int, int, int]:
        bench, network = group.conditions
        return (
            self.benches[bench],
            self._networks[network.label],
            self._methods[group.method],
        )


def _group_of(case: Case) -> _Group:
    network = NetworkSetting(
        rtt_ms=case.rtt_ms,
        jitter_ms=case.jitter_ms,
        uplink_mbps=case.uplink_mbps,
        downlink_mbps=case.downlink_mbps,
    )
    return _Group(Conditions(case.bench, network), case.method)


def latest(lines: Iterable[RequestLine]) -> list[RequestLine]:
    """Return the last line of each case: a request asked again has the lines of both attempts."""
    return list({line.case: line for line in lines}.values())


def _complete(order: Order, lines: Iterable[RequestLine]) -> Order:
    """Return the order with what it does not name behind, by first appearance."""
    groups = dict.fromkeys(_group_of(line.case) for line in lines)
    found = ((g.conditions.bench, g.conditions.network.label, g.method) for g in groups)
    return [*order, *found]


def _by_key(lines: Iterable[RequestLine]) -> Records:
    return {_key(line.case): line.record for line in lines if line.record is not None}


def _key(case: Case) -> Key:
    return (case.question_id, case.turn, case.repeat, case.seed, case.choice)


def _names(found: Iterable[str | None]) -> str | None:
    return " ".join(sorted({name for name in found if name is not None})) or None


def _row(
    group: _Group,
    lines: Sequence[RequestLine],
    own: Records,
    reference: Records,
    prices: Prices,
    billing: str,
) -> SummaryRow:
    bench, network = group.conditions
    cases = [line.case for line in lines]
    return SummaryRow(
        bench=bench,
        rtt_ms=network.rtt_ms,
        jitter_ms=network.jitter_ms,
        uplink_mbps=network.uplink_mbps,
        downlink_mbps=network.downlink_mbps,
        method=group.method,
        seeds=" ".join(map(str, sorted({case.seed for case in cases}))),
        choices=len({case.choice for case in cases}),
        questions=len({question_id for question_id, *_ in own}),
        requests=len(own),
        errors=sum(line.status == "error" for line in lines),
        output_tokens=sum(record.output_tokens for record in own.values()),
        billing=billing,
        draft_energy_method=_names(record.draft_energy_method for record in own.values()),
        target_energy_method=_names(record.target_energy_method for record in own.values()),
        **figures_of(own, reference, prices, billing),
    )


def _rows(
    lines: Iterable[RequestLine], prices: Prices, billing: str, ranks: _Ranks
) -> list[SummaryRow]:
    """Compute the rows of lines that are the latest of their case."""
    groups: dict[_Group, list[RequestLine]] = {}
    for line in lines:
        groups.setdefault(_group_of(line.case), []).append(line)
    records = {group: _by_key(members) for group, members in groups.items()}
    nothing: dict[Key, RequestRecord] = {}
    return [
        _row(
            group,
            groups[group],
            records[group],
            records.get(_Group(group.conditions, REFERENCE_METHOD), nothing),
            prices,
            billing,
        )
        for group in sorted(groups, key=ranks.of_group)
    ]


def summarise(
    lines: Iterable[RequestLine], prices: Prices, billing: str, order: Order = ()
) -> list[SummaryRow]:
    """Compute the table of a run.

    Args:
        lines: The run's request lines, failed ones included, in the order of the run.
        prices: What the user pays.
        billing: ``busy`` or ``held``: what the objective columns are billed by.
        order: The order of the benchmarks, network settings and methods; what it does not name
            follows by first appearance.

    Returns:
        One row per benchmark, network setting and method, over all seeds and choices.

    Raises:
        ConfigError: If ``billing`` is neither of the two.
    """
    current = latest(lines)
    return _rows(current, prices, billing, _Ranks(_complete(order, current)))


def summarise_categories(
    lines: Iterable[RequestLine], prices: Prices, billing: str, order: Order = ()
) -> list[CategoryRow]:
    """Compute the same for each part of a benchmark by itself.

    Args:
        lines: As for ``summarise``, and so are the other arguments.
        prices: See there.
        billing: See there.
        order: See there.

    Returns:
        The rows of each category, and of each sub-task where a benchmark has several; parts in
        the order of their first questions.

    Raises:
        ConfigError: If ``billing`` is neither of the two.
    """
    current = latest(lines)
    ranks = _Ranks(_complete(order, current))
    parts: dict[_Part, list[RequestLine]] = {}
    for line in current:
        for part in _parts_of(line.case):
            parts.setdefault(part, []).append(line)

    def rank(part: _Part) -> tuple[object, ...]:
        first = min(question_rank(line.case.question_id) for line in parts[part])
        return (ranks.benches[part.bench], part.kind == _SUBTASK, first, part.name)

    return [
        CategoryRow(part=part.kind, category=part.name, **vars(row))
        for part in sorted(parts, key=rank)
        for row in _rows(parts[part], prices, billing, ranks)
    ]


def _parts_of(case: Case) -> list[_Part]:
    parts = [_Part(case.bench, _CATEGORY, case.category)]
    if (name := subtask(case.bench, case.category)) != case.bench:
        parts.append(_Part(case.bench, _SUBTASK, name))
    return parts


def _seconds_per_token(row: SummaryRow) -> float | None:
    return 1 / row.tokens_per_s if row.tokens_per_s else None


def _column(row: SummaryRow, name: str) -> float | None:
    value: float | None = getattr(row, name)
    return value


def _score(row: SummaryRow, reference: SummaryRow | None, column: str, cs: float) -> float | None:
    """Return ``(1 − cs) · T/τ + cs · C/κ``: time and units per token over those of server-only."""
    if reference is None:
        return None
    time, units = _seconds_per_token(row), _column(row, column)
    usual_time, usual_units = _seconds_per_token(reference), _column(reference, column)
    if time is None or units is None or not usual_time or not usual_units:
        return None
    return (1 - cs) * time / usual_time + cs * units / usual_units


def tradeoff(
    rows: Sequence[SummaryRow],
    objectives: Sequence[str],
    cs: float,
    curves: Mapping[str, CurvePoint] = MappingProxyType({}),
) -> list[TradeoffRow]:
    """Return the points of the trade-off plots: throughput against each objective.

    Args:
        rows: The table of the run.
        objectives: The objectives, in their order.
        cs: The cost sensitivity that fixed methods are scored at, 0 … 1.
        curves: By the label of each method that adapts: its curve, and the cost sensitivity that
            it is scored at.

    Returns:
        One row per benchmark, network setting, objective and method.
    """
    same: dict[Conditions, list[SummaryRow]] = {}
    for row in rows:
        same.setdefault(row.conditions, []).append(row)
    references = {row.conditions: row for row in rows if row.method == REFERENCE_METHOD}
    return [
        _point(
            row,
            references.get(conditions),
            objective,
            curves.get(row.method) or CurvePoint("", cs),
        )
        for conditions, members in same.items()
        for objective in objectives
        for row in members
    ]


def _point(
    row: SummaryRow, reference: SummaryRow | None, objective: str, place: CurvePoint
) -> TradeoffRow:
    column = OBJECTIVE_COLUMN[objective]
    how = _ENERGY_METHOD.get(objective)
    return TradeoffRow(
        bench=row.bench,
        rtt_ms=row.rtt_ms,
        jitter_ms=row.jitter_ms,
        uplink_mbps=row.uplink_mbps,
        downlink_mbps=row.downlink_mbps,
        objective=objective,
        method=row.method,
        tokens_per_s=row.tokens_per_s,
        tokens_per_s_ci_low=row.tokens_per_s_ci_low,
        tokens_per_s_ci_high=row.tokens_per_s_ci_high,
        value=_column(row, column),
        value_ci_low=_column(row, f"{column}_ci_low"),
        value_ci_high=_column(row, f"{column}_ci_high"),
        unit=_VALUE_UNIT[OBJECTIVE_UNITS[objective]],
        billing=row.billing,
        energy_method=None if how is None else getattr(row, how),
        curve=place.curve or None,
        cs=place.cs,
        score=_score(row, reference, column, place.cs),
    )
