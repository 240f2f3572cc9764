"""Limits (block ``slo``): what to expect of them before a run, and who has met them after it.

Every method is judged; only autodraft follows them. This module computes no figure of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from autodraft.config import MethodSpec, SloConfig
from evaluation.metrics import SummaryRow
from evaluation.roles import Engine
from evaluation.whole_tables import UNKNOWN, print_whole

CLOSE: Final = 0.05
"""A limit counts as met where it is missed by no more than this share."""


@dataclass(frozen=True, kw_only=True)
class LimitRow:
    """What became of one limit: a row of ``limits.csv``.

    Attributes:
        bench: Name of the benchmark.
        network: Label of the network setting.
        method: Label of the method.
        tag: The limit.
        limit: Its value.
        attained: The method's figure over all its answers, in the same unit.
        met: Whether that meets the limit within 5 %; ``None`` where it was not measured.
    """

    bench: str
    network: str
    method: str
    tag: str
    limit: float
    attained: float | None
    met: bool | None


LIMIT_COLUMNS: Final = tuple(item.name for item in fields(LimitRow))


def limit_rows(rows: Sequence[SummaryRow], slo: SloConfig) -> list[LimitRow]:
    """Judge every method by the limits, over all its answers.

    Args:
        rows: The table of the run.
        slo: The limits.
    """
    return [
        LimitRow(
            bench=row.bench,
            network=row.conditions.network.label,
            method=row.method,
            tag=tag,
            limit=limit,
            attained=attained,
            met=None if attained is None else _met(limit, attained, least),
        )
        for row in rows
        for tag, limit, attained, least in _judged(row, slo)
    ]


def _judged(row: SummaryRow, slo: SloConfig) -> list[tuple[str, float, float | None, bool]]:
    """Return tag, limit, figure, and whether that must be at least the limit."""
    known = (
        ("MIN_TOKENS_PER_S", slo.min_tokens_per_s, row.tokens_per_s, True),
        ("MAX_COST_PER_1M_TOKENS", slo.max_cost_per_1m_tokens, row.total_cost_usd_per_1m, False),
        ("MAX_TPOT_MS", slo.max_tpot_ms, _ms(row.tpot_s), False),
        ("MAX_TTFT_MS", slo.max_ttft_ms, _ms(row.ttft_s), False),
    )
    return [(tag, limit, found, least) for tag, limit, found, least in known if limit is not None]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _met(limit: float, attained: float, least: bool) -> bool:
    return attained >= limit * (1 - CLOSE) if least else attained <= limit * (1 + CLOSE)


def expectations(engine: Engine, specs: Sequence[MethodSpec]) -> list[str]:
    """Return what the profile says of limits, before anything is asked: one line for each.

    Args:
        engine: Connected.
        specs: The methods of the run.

    Raises:
        AutodraftError: If the pair cannot be profiled.
    """
    lines = {}
    for spec in specs:
        if not spec.slo.limits:
            continue
        for each in engine.forecast(spec.slo, spec=spec):
            text = f"{each.name}={each.limit:g}: the best attainable is about {each.attainable:.4g}"
            if not each.feasible:
                text += ", so that it cannot be met; autodraft comes as near as it can"
            lines[each.name] = f"{text} (by the profile of the pair and the link)."
    return list(lines.values())


def print_limits(console: Console, rows: Sequence[LimitRow]) -> None:
    """Print who has met which limit: one table for each benchmark and network setting."""
    tables: dict[tuple[str, str], list[LimitRow]] = {}
    for row in rows:
        tables.setdefault((row.bench, row.network), []).append(row)
    for (bench, network), found in tables.items():
        tags = {row.tag: row.limit for row in found}
        table = Table(
            title=f"{bench}, {network}: limits, met within {CLOSE:.0%}",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        table.add_column("method", no_wrap=True)
        for tag, limit in tags.items():
            table.add_column(f"{tag}\n{limit:g}", justify="right", no_wrap=True)
        for method in dict.fromkeys(row.method for row in found):
            cells = {row.tag: _cell(row) for row in found if row.method == method}
            table.add_row(method, *(cells[tag] for tag in tags))
        print_whole(console, table)


def _cell(row: LimitRow) -> str:
    if row.attained is None:
        return UNKNOWN
    return f"{row.attained:.4g} {'met' if row.met else 'missed'}"
