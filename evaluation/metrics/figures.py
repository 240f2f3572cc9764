"""The figures of one method under one set of conditions, from the records of its requests.

Every headline figure is given twice: as total over total, where a long answer counts for more than
a short one, and as the mean of the questions' own ratios. What was not measured is None. This
module knows no files and holds no price.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from autodraft.config import ObjectiveConfig
from autodraft.cost import (
    OBJECTIVE_UNITS,
    Prices,
    cost_of,
    objective_units,
    per_million_tokens,
    per_token,
    quantities_of,
    sum_quantities,
    takes_part,
)
from autodraft.records import RequestRecord
from evaluation.statistics import Estimate, Ratio, estimate, percentiles

REFERENCE_METHOD: Final = "server_only"
OBJECTIVE_COLUMN: Final = {
    "total_cost": "total_cost_usd_per_1m",
    "api_cost": "api_cost_usd_per_1m",
    "draft_energy": "draft_energy_j_per_token",
    "target_energy": "target_energy_j_per_token",
}
AHEAD_COLUMNS: Final = (
    "ahead_hit_share",
    "ahead_used_share",
    "ahead_saved_ms_per_token",
    "ahead_wasted_j_per_token",
)
_RANKS: Final = (50, 90, 99)

# (question, turn, repeat, seed, choice): the same request, whatever the method
Key: TypeAlias = tuple[int | str, int, int, int, int]
Records: TypeAlias = Mapping[Key, RequestRecord]
Columns: TypeAlias = dict[str, float | None]

_Question: TypeAlias = Sequence[RequestRecord]  # all its turns, repeats, seeds and choices
_Total: TypeAlias = Callable[[_Question], float | None]


def prices_of(objective: ObjectiveConfig) -> Prices:
    """Return the prices that a configuration holds."""
    return Prices(
        target_per_hour_usd=objective.target_per_hour_cost,
        electricity_usd_per_kwh=objective.draft_electricity_cost_per_kwh,
        uplink_usd_per_gb=objective.user_comm_cost_per_gb,
        downlink_usd_per_gb=objective.cloud_outbound_cost_per_gb,
        draft_per_hour_usd=objective.draft_per_hour_cost,
    )


def question_rank(question_id: int | str) -> tuple[bool, int, str]:
    """Return what questions are sorted by: numbers before names."""
    named = isinstance(question_id, str)
    return (named, 0, question_id) if isinstance(question_id, str) else (named, question_id, "")


def _by_question(records: Records, keys: Iterable[Key]) -> list[_Question]:
    """Return the records of each question, in an order that is not that of the run."""
    questions: dict[int | str, list[RequestRecord]] = {}
    for key in sorted(keys, key=lambda key: (question_rank(key[0]), key[1:])):
        questions.setdefault(key[0], []).append(records[key])
    return list(questions.values())


def _tokens(records: _Question) -> int:
    return sum(record.output_tokens for record in records)


def _seconds(records: _Question) -> float:
    return math.fsum(record.total_s for record in records)


def _rounds(records: _Question) -> int:
    return sum(record.rounds for record in records)


def _round_tokens(records: _Question) -> int:
    return sum(record.round_tokens for record in records)


def _calls_saved(records: _Question) -> int:
    return _tokens(records) - sum(record.target_forwards for record in records)


def _units(objective: str, prices: Prices, billing: str) -> _Total:
    """Return what a question cost, in the unit that makes a token's share the column's unit."""
    scale = per_million_tokens if OBJECTIVE_UNITS[objective] == "usd" else per_token

    def total(records: _Question) -> float | None:
        used = sum_quantities(quantities_of(record) for record in records)
        return scale(objective_units(objective, used, prices, billing), 1)

    return total


def _ratio(questions: Sequence[_Question], top: _Total, bottom: _Total) -> Ratio | None:
    """Return a ratio of totals; ``None`` as soon as one question's part is unknown."""
    numerators = [value for question in questions if (value := top(question)) is not None]
    denominators = [value for question in questions if (value := bottom(question)) is not None]
    if not len(numerators) == len(denominators) == len(questions):
        return None
    return Ratio(numerators, denominators)


def _spread(name: str, found: Estimate) -> Columns:
    """Return the four columns of a headline figure."""
    low, high = found.interval or (None, None)
    return {
        name: found.value,
        f"{name}_ci_low": low,
        f"{name}_ci_high": high,
        f"{name}_mean_of_questions": found.mean_of_questions,
    }


def _headlines(questions: Sequence[_Question], prices: Prices, billing: str) -> Columns:
    parts: dict[str, tuple[_Total, _Total]] = {
        "tokens_per_s": (_tokens, _seconds),
        "mat": (_round_tokens, _rounds),
        "calls_saved": (_calls_saved, _tokens),
    }
    for objective, column in OBJECTIVE_COLUMN.items():
        parts[column] = (_units(objective, prices, billing), _tokens)
    columns: Columns = {}
    for name, (top, bottom) in parts.items():
        ratio = _ratio(questions, top, bottom)
        columns |= _spread(name, estimate(ratio) if ratio else Estimate())
    return columns


def _comparisons(own: Records, reference: Records, prices: Prices, billing: str) -> Columns:
    """Compare with server-only decoding over the requests that both finished."""
    common = own.keys() & reference.keys()
    mine, base = _by_question(own, common), _by_question(reference, common)
    same = sum(own[key].output_ids == reference[key].output_ids for key in common)
    columns: Columns = {"identical_share": same / len(common) if common else None}
    cost = _units("total_cost", prices, billing)
    for name, top, bottom in (("speedup", _tokens, _seconds), ("cost_ratio", cost, _tokens)):
        ratio, other = _ratio(mine, top, bottom), _ratio(base, top, bottom)
        found = estimate(ratio, other) if ratio and other else Estimate()
        if own is reference:  # 1 by definition: chance has no part in it
            found = found._replace(interval=None)
        columns |= _spread(name, found)
    return columns


def _delays(records: _Question) -> Columns:
    later = [record for record in records if record.output_tokens > 1]
    waits = [record.total_s - record.ttft_s for record in later]
    counts = [record.output_tokens - 1 for record in later]
    ttft = [record.ttft_s for record in records]
    columns: Columns = {
        "ttft_s": math.fsum(ttft) / len(ttft) if ttft else None,
        "tpot_s": Ratio(waits, counts).value,
    }
    samples = {
        "ttft": ttft,
        "tpot": [wait / count for wait, count in zip(waits, counts, strict=True)],
        "latency": [record.total_s for record in records],
    }
    for name, values in samples.items():
        found = percentiles(values, _RANKS)
        columns |= {f"{name}_p{rank}_s": value for rank, value in zip(_RANKS, found, strict=True)}
    return columns


def _net_j(record: RequestRecord) -> float | None:
    return record.draft_net_j if takes_part(record) else 0.0


def _known_sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known else math.fsum(value for value in known if value is not None)


def _costs(records: _Question, prices: Prices, billing: str) -> Columns:
    used = sum_quantities(quantities_of(record) for record in records)
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
    chosen = held if billing == "held" else busy
    return columns | {
        # The sum over all requests once more: to the last bit the column that BILLING names.
        "total_cost_usd_per_1m": per_million_tokens(chosen.total_usd, tokens),
        "api_cost_usd_per_1m": per_million_tokens(chosen.target_usd, tokens),
        "uplink_bytes_per_token": per_token(used.uplink_bytes, tokens),
        "downlink_bytes_per_token": per_token(used.downlink_bytes, tokens),
        "draft_energy_net_j_per_token": per_token(
            _known_sum(_net_j(record) for record in records), tokens
        ),
        "target_energy_net_j_per_token": per_token(
            _known_sum(record.target_net_j for record in records), tokens
        ),
    }


def _handed_over(records: _Question) -> Columns:
    handed_over = [record.handed_over_tokens for record in records]
    tokens = _tokens(records)
    return {"handed_over_share": per_token(_known_sum(handed_over), tokens)}


def _ahead(records: _Question) -> Columns:
    """Return what drafting ahead has brought; nothing where nothing was drafted ahead."""
    nodes = sum(record.ahead_nodes for record in records)
    if not nodes:
        return dict.fromkeys(AHEAD_COLUMNS)
    rounds, tokens = sum(record.ahead_rounds for record in records), _tokens(records)
    hits = sum(record.ahead_hits for record in records)
    saved_s = math.fsum(record.saved_s for record in records)
    spent_s = math.fsum(record.ahead_s for record in records)
    wasted_s = math.fsum(record.wasted_s for record in records)
    wasted = _known_sum(_wasted_j(record) for record in records)
    return {
        "ahead_hit_share": hits / rounds if rounds else None,
        "ahead_used_share": 1.0 - wasted_s / spent_s,
        "ahead_saved_ms_per_token": per_token(saved_s * 1e3, tokens),
        "ahead_wasted_j_per_token": per_token(wasted, tokens),
    }


def _wasted_j(record: RequestRecord) -> float | None:
    """Return the energy of drafting ahead that no round has used: its share of the net."""
    if not record.wasted_s:
        return 0.0
    if record.draft_net_j is None:
        return None
    return record.draft_net_j * record.wasted_s / ((record.draft_s or 0.0) + record.ahead_s)


def _exactness(records: _Question) -> Columns:
    exact = [record.redecided_tokens for record in records if record.exact]
    return {
        "exact_share": len(exact) / len(records) if records else None,
        "redecided_per_answer": sum(exact) / len(exact) if exact else None,
    }


def figures_of(own: Records, reference: Records, prices: Prices, billing: str) -> Columns:
    """Compute every figure of a row.

    Args:
        own: The method's finished requests.
        reference: Those of ``server_only`` under the same conditions; the very same object where
            the method is the reference.
        prices: What the user pays.
        billing: ``busy`` or ``held``: what the objective columns are billed by.

    Returns:
        The figures by column.

    Raises:
        ConfigError: If ``billing`` is neither of the two.
    """
    questions = _by_question(own, own)
    records = [record for question in questions for record in question]
    return {
        **_headlines(questions, prices, billing),
        **_comparisons(own, reference, prices, billing),
        **_exactness(records),
        **_handed_over(records),
        **_ahead(records),
        **_delays(records),
        **_costs(records, prices, billing),
    }
