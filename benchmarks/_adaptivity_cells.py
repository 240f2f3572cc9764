"""What one cell of the adaptivity benchmark shows: a benchmark, a link and a cost sensitivity.

Pure functions from request and round records to figures. All methods of a condition are compared
over the requests that every one of them finished, and scored in the unit of server-only decoding
of the same condition. Knows no engine and no file.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import _common as common

from autodraft.cost import Prices, objective_units, quantities_of, sum_quantities
from autodraft.records import RequestRecord, RoundRecord
from evaluation.lines import Case, RequestLine
from evaluation.metrics import REFERENCE_METHOD, SummaryRow, summarise
from evaluation.metrics.figures import question_rank
from evaluation.statistics import Estimate, Ratio, estimate

OBJECTIVE: Final = "total_cost"
BILLING: Final = "busy"
WANTED: Final = 0.98
"""No cell's interval should lie below this whole."""
DIGITS: Final = 4

Figures: TypeAlias = dict[str, Any]
_Question: TypeAlias = Sequence[RequestRecord]  # all its turns


@dataclass(frozen=True)
class Measured:
    """What was measured of one benchmark over one link.

    Attributes:
        bench: Name of the benchmark.
        rtt_ms: Round trip that the link was shaped to.
        lines: Requests, of every method the same ones, all of them finished.
        rounds: The rounds of each of them that has any.
        failed: Requests that ended in an error.
        prices: What the user pays.
    """

    bench: str
    rtt_ms: float
    lines: Sequence[RequestLine]
    rounds: Mapping[Case, Sequence[RoundRecord]]
    failed: int
    prices: Prices

    def questions(self, label: str) -> list[_Question]:
        """Return a method's records of each question, in an order that is every method's."""
        found: dict[int | str, list[RequestRecord]] = {}
        for line in self.lines:
            if line.case.method == label and line.record is not None:
                found.setdefault(line.case.question_id, []).append(line.record)
        return [found[name] for name in sorted(found, key=question_rank)]


@dataclass(frozen=True)
class Compared:
    """The methods of a cell, by their labels.

    Attributes:
        cs: Cost sensitivity.
        adaptive: Autodraft at this ``cs``.
        statics: The static methods with the shapes that were chosen for this ``cs``.
    """

    cs: float
    adaptive: str
    statics: tuple[str, ...]


def common_lines(lines: Iterable[RequestLine], labels: Iterable[str]) -> list[RequestLine]:
    """Return the finished requests that every method has; the last line of a request counts."""
    latest = {line.case: line for line in lines}
    finished: dict[str, set[tuple[int | str, int, int]]] = {label: set() for label in labels}
    for case, line in latest.items():
        if line.record is not None and case.method in finished:
            finished[case.method].add(_key(case))
    shared = set.intersection(*finished.values())
    return [
        line
        for case, line in latest.items()
        if line.record is not None and case.method in finished and _key(case) in shared
    ]


def _key(case: Case) -> tuple[int | str, int, int]:
    return case.question_id, case.turn, case.repeat


# ----------------------------------------------------------------------------------------- scores


def blended(measured: Measured, label: str, cs: float) -> Ratio:
    """Return a method's blend ``(1 − cs)·T/τ + cs·C/κ`` over its tokens, question by question.

    τ and κ are server-only's seconds and dollars per token of the same requests: constants of the
    condition, so that the blend of several questions is the sum of theirs, and server-only's score
    is 1.

    Raises:
        CannotMeasure: If the cost of a request is not known.
    """
    reference = measured.questions(REFERENCE_METHOD)
    tokens = math.fsum(map(_tokens, reference))
    tau_s = math.fsum(map(_seconds, reference)) / tokens
    kappa = math.fsum(_usd(one, measured.prices) for one in reference) / tokens
    questions = measured.questions(label)
    return Ratio(
        [
            (1 - cs) * _seconds(one) / tau_s + cs * _usd(one, measured.prices) / kappa
            for one in questions
        ],
        [float(_tokens(one)) for one in questions],
    )


def _tokens(question: _Question) -> int:
    return sum(record.output_tokens for record in question)


def _seconds(question: _Question) -> float:
    return math.fsum(record.total_s for record in question)


def _usd(question: _Question, prices: Prices) -> float:
    used = sum_quantities(quantities_of(record) for record in question)
    units = objective_units(OBJECTIVE, used, prices, BILLING)
    if units is None:
        raise common.CannotMeasure(
            "What a request cost is not known, because the energy of the user's device was not "
            "measured. Set DRAFT_WATTS and DRAFT_IDLE_WATTS in the configuration."
        )
    return units


def best(scores: Mapping[str, Ratio]) -> str:
    """Return the label of the least score; of equals, the first."""
    return min(scores, key=lambda label: scores[label].value or math.inf)


# ------------------------------------------------------------------------------------------ cells


def cell(measured: Measured, compared: Compared) -> Figures:
    """Return every figure of one cell; ratios of scores are above 1 where autodraft is better."""
    own = blended(measured, compared.adaptive, compared.cs)
    plain = blended(measured, REFERENCE_METHOD, compared.cs)
    statics = {label: blended(measured, label, compared.cs) for label in compared.statics}
    hardest = best(statics)
    scores = {label: _rounded(ratio.value) for label, ratio in statics.items()}
    return {
        "bench": measured.bench,
        "rtt_ms": measured.rtt_ms,
        "cs": compared.cs,
        "questions": len(own.numerators),
        "failed_requests": measured.failed,
        "best_static": hardest,
        "static_scores": scores,
        "score": _rounded(own.value),
        **_spread("vs_best_static", estimate(statics[hardest], own)),
        **_spread("vs_server_only", estimate(plain, own)),
        **_against_server_only(measured, compared.adaptive),
        **round_figures(measured, compared.adaptive),
    }


def _spread(name: str, found: Estimate) -> Figures:
    low, high = found.interval or (None, None)
    return {
        name: _rounded(found.value),
        f"{name}_low": _rounded(low),
        f"{name}_high": _rounded(high),
    }


def _against_server_only(measured: Measured, label: str) -> Figures:
    """Return the parts of the score, and what the answers were made of."""
    rows = {row.method: row for row in summarise(measured.lines, measured.prices, BILLING)}
    own, plain = rows[label], rows[REFERENCE_METHOD]
    return {
        "tokens_per_s": _rounded(own.tokens_per_s),
        "tokens_per_s_ratio": _rounded(own.speedup),
        "busy_cost_ratio": _quotient(own, plain, "total_busy_usd_per_1m"),
        "held_cost_ratio": _quotient(own, plain, "total_held_usd_per_1m"),
        "calls_saved": _rounded(own.calls_saved),
        "handed_over_share": _rounded(own.handed_over_share),
        "identical_share": _rounded(own.identical_share),
    }


def _quotient(own: SummaryRow, other: SummaryRow, column: str) -> float | None:
    above, below = getattr(own, column), getattr(other, column)
    return _rounded(above / below) if above is not None and below else None


def round_figures(measured: Measured, label: str) -> Figures:
    """Return the mean shape of a method's rounds, and how far its predictions were off.

    ``time_error`` is the median over rounds of ``|predicted / taken − 1|``; ``tokens_error`` the
    median over requests of the same for the sum of a request's rounds, because the tokens of a
    single round are a draw of the lot.
    """
    requests = [rounds for case, rounds in measured.rounds.items() if case.method == label]
    rounds = [one for many in requests for one in many]
    times = [one.predicted_s / one.round_s - 1 for one in rounds if one.predicted_s is not None]
    foreseen = [
        ([one.predicted_tokens for one in many], sum(one.emitted_tokens for one in many))
        for many in requests
        if many
    ]
    tokens = [math.fsum(known) / got - 1 for known, got in foreseen if None not in known]
    return {
        "rounds": len(rounds),
        "mean_width": _mean(one.width for one in rounds),
        "mean_depth": _mean(one.depth for one in rounds),
        "mean_nodes": _mean(one.num_nodes for one in rounds),
        "time_error": _median(map(abs, times)),
        "tokens_error": _median(map(abs, tokens)),
    }


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return _rounded(statistics.fmean(known)) if known else None


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return _rounded(statistics.median(known)) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


# -------------------------------------------------------------------------------------- all cells


def overall(cells: Sequence[Figures]) -> Figures:
    """Return the figures that are judged: the worst and the mean ratio, and the cells that lose.

    A cell loses where its whole interval lies below ``WANTED``.
    """
    found: Figures = {}
    for name in ("vs_best_static", "vs_server_only"):
        ratios = [one[name] for one in cells]
        found[f"worst_{name}"] = min(ratios)
        found[f"mean_{name}"] = _mean(ratios)
    found["cells_below_0.98"] = _lost(cells, "vs_best_static")
    found["cells_below_0.98_server_only"] = _lost(cells, "vs_server_only")
    return found


def _lost(cells: Sequence[Figures], name: str) -> int:
    return sum(one[f"{name}_high"] is not None and one[f"{name}_high"] < WANTED for one in cells)
