"""From played answers to the figures and tables of ``draft_quality``.

Every figure is a total over a total, as in ``docs/metrics.md``: a long answer counts for more than
a short one. Knows no models.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import _common as common
from _draft_models import StepTimes

from evaluation.datasets import Question, subtask

CHAINS: Final = tuple(range(1, 9))
TREES: Final = (8, 16, 32, 64)
RETRIEVAL: Final = "_retrieval"
_COLUMNS: Final = ("chain4", "tree32", f"tree32{RETRIEVAL}")
_HEADINGS: Final = ("chain of 4", "tree of 32", "and retrieval")

Figures = dict[str, Any]


@dataclass(frozen=True)
class Played:
    """One question, answered and played.

    Attributes:
        question: The question.
        tokens: Tokens of the answer.
        top1: Tokens from the second on that were the draft's first choice.
        top4: Tokens from the second on that were among its four best.
        rounds: Rounds by way to draft, all over the tokens from the second on.
    """

    question: Question
    tokens: int
    top1: int
    top4: int
    rounds: Mapping[str, int]


def figures(played: Sequence[Played]) -> Figures:
    """Return what a table row holds; a figure without a single round is None."""
    positions = sum(one.tokens - 1 for one in played)
    found: Figures = {
        "questions": len(played),
        "tokens": sum(one.tokens for one in played),
        "positions": positions,
        "top1": _over(sum(one.top1 for one in played), positions),
        "top4": _over(sum(one.top4 for one in played), positions),
    }
    for way in played[0].rounds:
        found[f"mat_{way}"] = _over(positions, sum(one.rounds[way] for one in played))
    return found


def bench_figures(bench: str, played: Sequence[Played]) -> Figures:
    """Return a benchmark's figures, and those of its categories and its sub-tasks if it has any."""
    found = figures(played)
    found["categories"] = _by_group(played, lambda question: question.category)
    parts = _by_group(played, lambda question: subtask(bench, question.category))
    return found | ({"subtasks": parts} if len(parts) > 1 else {})


def step_figures(steps: Mapping[int, StepTimes]) -> Figures:
    """Return the times of a step: of each context, and over the contexts the median."""
    ratios = [times.ratio for times in steps.values()]
    return {
        "draft_step_ratio": round(statistics.median(ratios), 4),
        "draft_step_ms": _ms([times.draft_s for times in steps.values()]),
        "target_step_ms": _ms([times.target_s for times in steps.values()]),
        "steps": {
            str(context): {
                "draft_ms": _ms([times.draft_s]),
                "target_ms": _ms([times.target_s]),
                "ratio": round(times.ratio, 4),
            }
            for context, times in steps.items()
        },
    }


def print_bench(bench: str, found: Figures) -> None:
    """Print one benchmark's tables."""
    for title, groups in (("sub-task", "subtasks"), ("category", "categories")):
        if groups in found:
            print()
            header = [f"{bench}, {title}", "questions", "tokens", "top-1", "top-4", *_HEADINGS]
            rows = [*found[groups].items(), ("all", found)]
            common.print_table(header, [_row(name, row) for name, row in rows])
    print_mats(bench, found)


def print_mats(bench: str, found: Figures) -> None:
    """Print the mean accepted tokens of every way to draft."""
    print()
    chains = [_mat(found, f"chain{depth}") for depth in CHAINS]
    common.print_table([f"{bench}, chain of", *map(str, CHAINS)], [["MAT", *chains]])
    print()
    rows = [
        [name, *(_mat(found, f"tree{size}{suffix}") for size in TREES)]
        for name, suffix in (("MAT", ""), ("MAT with retrieval", RETRIEVAL))
    ]
    common.print_table([f"{bench}, best tree of", *map(str, TREES)], rows)


def print_steps(found: Figures) -> None:
    """Print a draft step's time beside a target step's."""
    print()
    rows = [
        [f"context {context}", f"{row['draft_ms']:.2f}", f"{row['target_ms']:.2f}", _plain(row)]
        for context, row in found["steps"].items()
    ]
    common.print_table(["one token (medians)", "draft ms", "target ms", "ratio"], rows)


def _by_group(played: Sequence[Played], group_of: Callable[[Question], str]) -> dict[str, Figures]:
    groups: dict[str, list[Played]] = {}
    for one in played:
        groups.setdefault(group_of(one.question), []).append(one)
    return {name: figures(members) for name, members in groups.items()}


def _over(total: int, parts: int) -> float | None:
    return round(total / parts, 4) if parts else None


def _ms(seconds: Sequence[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 3)


def _row(name: str, found: Figures) -> list[str]:
    counts = [str(found["questions"]), str(found["tokens"])]
    shares = [_share(found[key]) for key in ("top1", "top4")]
    return [name, *counts, *shares, *(_mat(found, way) for way in _COLUMNS)]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _mat(found: Figures, way: str) -> str:
    value = found[f"mat_{way}"]
    return "-" if value is None else f"{value:.2f}"


def _plain(row: Mapping[str, float]) -> str:
    return f"{row['ratio']:.3f}"
