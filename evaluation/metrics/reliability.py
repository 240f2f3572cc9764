"""How well probabilities foretold what the target accepted, from request lines.

A candidate counts where its parent was accepted: then the target's choice says whether it was
right. A row without candidates has no figures. This module knows no model and no calibration.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final, Literal, TypeAlias

from autodraft.records import RELIABILITY_BINS, RequestRecord
from evaluation.lines import RequestLine
from evaluation.metrics.tables import Order, latest

Kind: TypeAlias = Literal["draft", "calibrated"]
_Bin: TypeAlias = tuple[int, float, int]  # candidates, sum of their probabilities, right ones

KINDS: Final[tuple[Kind, ...]] = ("draft", "calibrated")


@dataclass(frozen=True, kw_only=True)
class ReliabilityRow:
    """One bin of probabilities: a row of ``reliability.csv``.

    Attributes:
        bench: Name of the benchmark.
        method: The method's label.
        kind: Whose probabilities: the ``draft`` model's own, or ``calibrated`` ones.
        bin: Number of the bin from 1; all are equally wide, and together reach from 0 to 1.
        candidates: Candidates in it.
        mean_predicted: Mean of their probabilities.
        observed: Share of them that was the target's choice.
    """

    bench: str
    method: str
    kind: Kind
    bin: int
    candidates: int
    mean_predicted: float | None
    observed: float | None


RELIABILITY_COLUMNS: Final = tuple(item.name for item in fields(ReliabilityRow))


def reliability(lines: Iterable[RequestLine], order: Order = ()) -> list[ReliabilityRow]:
    """Add up the bins of each benchmark and method, over networks, seeds and requests.

    Args:
        lines: The run's request lines; the latest line of a request counts.
        order: Benchmark, network setting and method of the rows in their order; what it does not
            name follows by first appearance.

    Returns:
        A row for every bin of each benchmark, method and kind that a request has counts of.
    """
    found: dict[tuple[str, str], list[RequestRecord]] = {
        (bench, method): [] for bench, _, method in order
    }
    for line in latest(lines):
        if line.record is not None:
            found.setdefault((line.case.bench, line.case.method), []).append(line.record)
    rows: list[ReliabilityRow] = []
    for (bench, method), records in found.items():
        for kind in KINDS:
            counted = [bins for record in records if (bins := _bins(record, kind)) is not None]
            rows += _rows(bench, method, kind, counted)
    return rows


def expected_calibration_error(rows: Iterable[ReliabilityRow]) -> float | None:
    """Return the mean distance of observed from predicted, each bin by its candidates.

    That is ``Σ n · |observed − mean_predicted| / Σ n``; ``None`` without a candidate.
    """
    total, distances = 0, []
    for row in rows:
        if row.observed is not None and row.mean_predicted is not None:
            total += row.candidates
            distances.append(row.candidates * abs(row.observed - row.mean_predicted))
    return math.fsum(distances) / total if total else None


def _bins(record: RequestRecord, kind: Kind) -> Sequence[_Bin] | None:
    return record.draft_reliability if kind == "draft" else record.reliability


def _rows(
    bench: str, method: str, kind: Kind, counted: Sequence[Sequence[_Bin]]
) -> list[ReliabilityRow]:
    if not counted:
        return []
    rows = []
    for number in range(RELIABILITY_BINS):
        candidates = sum(bins[number][0] for bins in counted)
        predicted = math.fsum(bins[number][1] for bins in counted)
        right = sum(bins[number][2] for bins in counted)
        rows.append(
            ReliabilityRow(
                bench=bench,
                method=method,
                kind=kind,
                bin=number + 1,
                candidates=candidates,
                mean_predicted=predicted / candidates if candidates else None,
                observed=right / candidates if candidates else None,
            )
        )
    return rows
