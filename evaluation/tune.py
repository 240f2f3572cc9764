"""The command ``tune``: measure candidate shapes on validation questions and store what they used.

It is an ordinary run of server-only decoding and every candidate, with the same records and the
same way to go on after it was ended; what is special is its plan, its questions, and that its sums
are stored for later runs. This module knows no command line and no environment.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table

from autodraft.config import ExperimentConfig, MethodSpec, NetworkSetting
from autodraft.cost import OBJECTIVE_UNITS, per_million_tokens, quantities_of, sum_quantities
from autodraft.errors import DataError
from autodraft.records import RequestRecord
from evaluation.candidates import candidates, tuned_methods
from evaluation.datasets import Locations, Question, first_questions
from evaluation.estimate import Rates, basis, target_cost_usd, warm_up_turns
from evaluation.experiment import EXIT_FAILED, EngineFactory, Experiment, print_error
from evaluation.lines import Case, RequestLine
from evaluation.metrics import REFERENCE_METHOD
from evaluation.plan import Condition, Draw, Plan, Questions
from evaluation.progress import format_duration
from evaluation.tuning import (
    Measured,
    Scored,
    Tuning,
    choices,
    hash_questions,
    key_of,
    validation_questions,
    write_tuning,
)
from evaluation.whole_tables import print_whole

# which question, turn, repeat and choice
_Key: TypeAlias = tuple[int | str, int, int, int]


# --------------------------------------------------------------------------------- what is measured


def tuning_plan(config: ExperimentConfig) -> Plan:
    """Return the plan of a tuning: for each benchmark and link, server-only and the candidates.

    Raises:
        ConfigError: As `evaluation.candidates.tuned_methods` does.
    """
    shapes = [shape for spec in tuned_methods(config) for shape in candidates(spec, config)]
    methods = (config.method(REFERENCE_METHOD), *shapes)
    seed = config.seeds()[0]
    return Plan(
        config,
        tuple(
            Condition(bench, network, seed, methods)
            for bench, network in product(config.dataset.benches, config.network.settings())
        ),
    )


@dataclass(frozen=True)
class Validation:
    """The validation questions of each benchmark.

    Attributes:
        held_out: All of them; never measured by a run with a tuned method.
        asked: Those that are asked: the first ones, where the configuration has a limit.
    """

    held_out: Questions
    asked: Questions


def load_validation(plan: Plan, locations: Locations) -> Validation:
    """Load the validation questions of a plan.

    Raises:
        DataError: If a benchmark's file is missing or malformed, or too short.
    """
    dataset = plan.config.dataset
    held_out = {
        bench: validation_questions(plan.config, bench, locations) for bench in plan.benches
    }
    asked = {
        bench: first_questions(bench, questions, dataset.question_limit)
        for bench, questions in held_out.items()
    }
    return Validation(held_out, asked)


# ------------------------------------------------------------------------------------- the command


def tune(
    experiment: Experiment,
    validation: Validation,
    folder: Path,
    make_engine: EngineFactory,
    argv: Sequence[str],
) -> int:
    """Measure what is not measured yet, store the sums, print the choices; return the exit code.

    Args:
        experiment: A run of `tuning_plan` on the questions that are asked.
        validation: The validation questions.
        folder: Where tunings are kept.
        make_engine: Makes the engine; not called where nothing is left to do.
        argv: The command line, for the manifest.

    Raises:
        StoreError: If something cannot be read or written.
    """
    code = experiment.run(make_engine, argv)
    plan, out = experiment.plan, experiment.consoles.out
    lines = {line.case: line for line in experiment.store.read_requests()}
    for condition in plan.conditions:
        name = f"{condition.bench}, {condition.network.label}"
        tuning = _sum_up(experiment, condition, validation, lines)
        if tuning is None:
            code = EXIT_FAILED
            print_error(
                experiment.consoles.err,
                f"{name}: no choice is stored, because not every question was asked or "
                f"{REFERENCE_METHOD} and the candidates finished none in common. Run the same "
                "command again: it goes on where it stood.",
            )
            continue
        path = write_tuning(folder, tuning)
        for objective in plan.config.objective.objective_metrics:
            out.print(
                f"{name}: tuned for {objective} at cs "
                f"{plan.config.objective.base_cost_sensitivity:g} on {tuning.questions} validation "
                "questions",
                soft_wrap=True,
            )
            print_whole(out, _choice_table(tuning, plan.config, objective))
        out.print(f"Stored in {path}", soft_wrap=True)
    return code


def _sum_up(
    experiment: Experiment,
    condition: Condition,
    validation: Validation,
    lines: Mapping[Case, RequestLine],
) -> Tuning | None:
    """Add up the requests that all shapes finished; None where that is no measurement yet."""
    plan = experiment.plan
    records = _records(condition, plan.draws, validation.asked[condition.bench], lines)
    if records is None or not records[REFERENCE_METHOD]:
        return None
    # A shape that finished nothing is beyond a limit of the server: it must not void the others.
    finished = {label: own for label, own in records.items() if own}
    common = set.intersection(*(set(own) for own in finished.values()))
    shapes = [
        _measured(spec, [finished[spec.label][key] for key in common])
        for spec in condition.methods
        if spec.label in finished and common
    ]
    if len(shapes) < 2 or any(not s.quantities.output_tokens or not s.seconds for s in shapes):
        return None
    last = experiment.manifest.sessions[-1] if experiment.manifest.sessions else {}
    return Tuning(
        key=key_of(plan.config, condition.bench, condition.network),
        questions_sha256=hash_questions(validation.held_out[condition.bench]),
        questions=len({question_id for question_id, *_ in common}),
        requests=len(common),
        max_new_tokens=plan.config.run.max_new_tokens,
        measured_at=last.get("ended_at"),
        commit=last.get("commit"),
        run=str(experiment.store.folder),
        shapes=tuple(shapes),
    )


def _records(
    condition: Condition,
    draws: Sequence[Draw],
    questions: Sequence[Question],
    lines: Mapping[Case, RequestLine],
) -> dict[str, dict[_Key, RequestRecord]] | None:
    """Return what each method finished, by its label; None while a question was not asked."""
    found: dict[str, dict[_Key, RequestRecord]] = {spec.label: {} for spec in condition.methods}
    for draw, question in product(draws, questions):
        for case in condition.cases(question, draw):
            line = lines.get(case)
            if line is None and case.turn == 1:  # a later turn is not asked after an error
                return None
            if line is not None and line.record is not None:
                key = (case.question_id, case.turn, case.repeat, case.choice)
                found[case.method][key] = line.record
    return found


def _measured(spec: MethodSpec, records: Sequence[RequestRecord]) -> Measured:
    return Measured(
        method=spec.name,
        width=spec.width,
        max_depth=spec.max_depth,
        node_budget=spec.node_budget,
        seconds=math.fsum(record.total_s for record in records),
        quantities=sum_quantities(quantities_of(record) for record in records),
    )


# -------------------------------------------------------------------------------------- on consoles


def _choice_table(tuning: Tuning, config: ExperimentConfig, objective: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    energy = OBJECTIVE_UNITS[objective] == "j"
    headings = ["chosen shape", "score", "tokens/s", "$/1M tokens", "runner-up"]
    headings += [f"{objective} J/token"] if energy else []
    table.add_column("method", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for spec in (spec for spec in config.methods() if spec.tuned):
        ranked = choices(tuning, spec, config, objective)
        if not ranked:
            table.add_row(spec.label, "none: every candidate failed")
            continue
        best = ranked[0].measured
        dollars = best.units(config.objective, "total_cost")
        cells = [
            _shape(ranked[0]),
            _score(ranked[0], objective),
            f"{1 / best.seconds_per_token:.2f}",
            _number(per_million_tokens(dollars, 1)),
            f"{_shape(ranked[1])} ({ranked[1].score:.3g})" if len(ranked) > 1 else "–",
        ]
        cells += [_number(best.units(config.objective, objective))] if energy else []
        table.add_row(spec.label, *cells)
    return table


def _shape(scored: Scored) -> str:
    shape = scored.measured
    if shape.width == 1:
        return f"d={shape.max_depth}"
    return f"w{shape.width} d{shape.max_depth} n{shape.node_budget}"


def _score(scored: Scored, objective: str) -> str:
    alone = {"blend": "", "time": " (time alone)", "objective": f" ({objective} alone)"}
    return f"{scored.score:.3g}{alone[scored.basis]}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def print_tuning_dry_run(console: Console, plan: Plan, locations: Locations, rates: Rates) -> None:
    """Print what a tuning would measure, with an estimate of time and cost.

    No engine is made, no server asked, and nothing written.

    Args:
        console: Where to.
        plan: What `tuning_plan` returned.
        locations: Where question files may be taken from.
        rates: Speed of the methods.
    """
    table = Table(
        title="Plan of the tuning", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False
    )
    for heading in ("benchmark", "network", "method", "shapes", "questions", "requests", "at most"):
        left = heading in ("benchmark", "network", "method")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    stories: dict[str, None] = {}
    questions: dict[str, Sequence[Question]] = {}
    for bench in plan.benches:
        try:
            found = validation_questions(plan.config, bench, locations)
        except DataError as error:
            stories[str(error)] = None
        else:
            questions[bench] = first_questions(bench, found, plan.config.dataset.question_limit)
    estimate = _Estimate(plan, rates)
    for condition in plan.conditions:
        for label, shapes in _by_label(plan, condition).items():
            asked = questions.get(condition.bench)
            head = [condition.bench, condition.network.label, label, str(len(shapes))]
            cells = estimate.add(condition, label, shapes, asked) if asked else ["–"] * 3
            table.add_row(*head, *cells)
    print_whole(console, table)
    console.print(estimate.in_words(), soft_wrap=True)
    for story in stories:
        console.print(f"would stop the tuning: {story}", soft_wrap=True)


def _by_label(plan: Plan, condition: Condition) -> dict[str, list[MethodSpec]]:
    """Return the shapes of each method under the label that it has in an ordinary run."""
    found: dict[str, list[MethodSpec]] = {}
    for spec in condition.methods:
        found.setdefault(spec.model_copy(update={"variant": ""}).label, []).append(spec)
    return found


class _Estimate:
    """Adds up how long a tuning takes, at most, warm-up included."""

    def __init__(self, plan: Plan, rates: Rates) -> None:
        self._plan, self._rates = plan, rates
        self._requests, self._seconds = 0, 0.0
        self._labels: dict[str, bool] = {}  # whether a rate is known
        self._first: dict[NetworkSetting, str] = {}  # benchmark that warms the link up

    def add(
        self,
        condition: Condition,
        label: str,
        shapes: Sequence[MethodSpec],
        asked: Sequence[Question],
    ) -> list[str]:
        """Add the shapes of one method; return its questions, requests and time in words."""
        run = self._plan.config.run
        turns = sum(len(question.turns) for question in asked)
        requests = len(shapes) * len(self._plan.draws) * turns
        unrecorded = 0
        if self._first.setdefault(condition.network, condition.bench) == condition.bench:
            unrecorded = len(shapes) * warm_up_turns(run.warmup_questions, asked)
        sent = requests + unrecorded
        usual = shapes[0].model_copy(update={"variant": ""})  # rates are known by this label
        seconds, known = self._rates.seconds(
            usual, condition.network, sent, sent * run.max_new_tokens
        )
        self._requests += requests
        self._seconds += seconds
        self._labels[label] = self._labels.get(label, True) and known
        return [str(len(asked)), str(requests), format_duration(seconds)]

    def in_words(self) -> str:
        """Say what all comes to."""
        text = f"{self._requests} requests, at most "
        text += f"{self._requests * self._plan.config.run.max_new_tokens} output tokens."
        if not self._requests:
            return text
        assumed = [label for label, known in self._labels.items() if not known]
        return (
            f"{text} Estimate: at most {format_duration(self._seconds)} (h:mm:ss or m:ss), warm-up "
            f"included; target at most {target_cost_usd(self._plan.config, self._seconds):.4g} $. "
            f"By {basis(self._rates, list(self._labels), assumed)}."
        )
