"""Print what a run would do, how long it would take, and what would stop it.

No engine is made, no server asked, nothing downloaded and nothing written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from autodraft.config import MethodSpec, NetworkSetting
from autodraft.errors import ConfigError, DataError
from evaluation.datasets import Locations, Question, describe_source
from evaluation.estimate import Rates, basis, target_cost_usd, warm_up_turns
from evaluation.plan import Condition, Plan, load_measured
from evaluation.progress import format_duration
from evaluation.whole_tables import print_whole

_HEADINGS: Final = (
    "benchmark", "network", "method", "seed", "questions", "repeats", "choices", "requests",
    "at most", "state",
)  # fmt: skip
_RIGHT: Final = frozenset({"seed", "questions", "repeats", "choices", "requests", "at most"})


@dataclass
class _Totals:
    """What all rows come to."""

    cells: int = 0
    requests: int = 0
    tokens: int = 0
    seconds: float = 0.0
    warm_up_s: float = 0.0
    complete: bool = True
    assumed_for: dict[str, None] = field(default_factory=dict)


def print_dry_run(console: Console, plan: Plan, locations: Locations, rates: Rates) -> None:
    """Print the cells of a plan, their number, and an estimate of time and cost.

    Args:
        console: Where to.
        plan: The plan.
        locations: Where question files may be taken from.
        rates: Speed of the methods.
    """
    table = Table(title="Plan", title_justify="left", box=box.SIMPLE_HEAD)
    table.pad_edge, table.collapse_padding = False, True
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading in _RIGHT else "left", no_wrap=True)
    found = {bench: _find(plan, bench, locations) for bench in plan.benches}
    stories = dict.fromkeys(each.story for each in found.values() if each.story)
    totals, warm = _Totals(), set[NetworkSetting]()
    for condition in plan.conditions:
        asked = found[condition.bench].questions
        for spec in condition.methods:
            state, story = _state(spec, asked)
            if story:
                stories.setdefault(story)
            table.add_row(*_row(plan, condition, spec, asked, totals, rates), state)
        if asked and condition.network not in warm:
            warm.add(condition.network)
            totals.warm_up_s += _warm_up_s(plan, condition, asked, rates)
    print_whole(console, table)
    for bench, each in found.items():
        if each.source:
            console.print(f"{bench}: {each.source}", soft_wrap=True)
    _print_totals(console, plan, totals, rates)
    for story in stories:
        console.print(f"would stop the run: {story}", soft_wrap=True)


class _Found(NamedTuple):
    """The questions of a benchmark and where they come from, or the story of why there are none."""

    questions: tuple[Question, ...] | None
    source: str = ""
    story: str = ""


def _find(plan: Plan, bench: str, locations: Locations) -> _Found:
    try:
        questions = load_measured(plan, bench, locations)
        return _Found(questions, describe_source(bench, locations))
    except DataError as error:
        return _Found(None, story=str(error))


def _state(spec: MethodSpec, asked: Sequence[Question] | None) -> tuple[str, str]:
    """Return a short note, and the full story of a method that cannot run."""
    try:
        spec.require_available()
    except ConfigError as error:
        notes, story = ["not available yet"], str(error)
    else:
        notes, story = [], ""
    if asked is None:
        notes.append("questions missing")
    return ", ".join(notes) or "ready", story


def _row(
    plan: Plan,
    condition: Condition,
    spec: MethodSpec,
    asked: Sequence[Question] | None,
    totals: _Totals,
    rates: Rates,
) -> list[str]:
    """Return the cells of a row but the last, and add to the totals."""
    draws = len(plan.draws)
    times = [str(len(plan.repeats)), str(len(plan.config.choices()))]
    totals.cells += draws
    head = [condition.bench, condition.network.label, spec.label, str(condition.seed)]
    if asked is None:
        totals.complete = False
        return [*head, "–", *times, "–", "–"]
    requests = draws * sum(len(question.turns) for question in asked)
    tokens = requests * plan.config.run.max_new_tokens
    seconds, measured = rates.seconds(spec, condition.network, requests, tokens)
    if not measured:
        totals.assumed_for.setdefault(spec.label)
    totals.requests += requests
    totals.tokens += tokens
    totals.seconds += seconds
    return [*head, str(len(asked)), *times, str(requests), format_duration(seconds)]


def _warm_up_s(plan: Plan, condition: Condition, asked: Sequence[Question], rates: Rates) -> float:
    turns = warm_up_turns(plan.config.run.warmup_questions, asked)
    tokens = turns * plan.config.run.max_new_tokens
    return sum(
        rates.seconds(spec, condition.network, turns, tokens)[0] for spec in condition.methods
    )


def _print_totals(console: Console, plan: Plan, totals: _Totals, rates: Rates) -> None:
    missing = "" if totals.complete else " (without the benchmarks whose questions are missing)"
    console.print(
        f"{totals.cells} cells, {totals.requests} requests, at most {totals.tokens} output "
        f"tokens{missing}",
        soft_wrap=True,
    )
    if not totals.requests:
        return
    seconds = totals.seconds + totals.warm_up_s
    labels = [spec.label for spec in plan.methods]
    console.print(
        f"Estimate: at most {format_duration(seconds)} (h:mm:ss or m:ss), of which "
        f"{format_duration(totals.warm_up_s)} warm-up; target at most "
        f"{target_cost_usd(plan.config, seconds):.4g} $. By "
        f"{basis(rates, labels, list(totals.assumed_for))}.",
        soft_wrap=True,
    )
