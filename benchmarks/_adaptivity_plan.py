"""What the adaptivity benchmark runs: its configurations, the shapes of static methods, its plan.

One condition is a benchmark over a link. The static methods run there once with every shape that
was chosen for one of the cost sensitivities, beside server-only decoding and autodraft at each of
them. Knows no engine and starts nothing.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import _common as common
import _live_target as live
from _adaptivity_cells import BILLING, OBJECTIVE, Compared
from _question_files import locations

from autodraft.config import (
    ADAPTIVE,
    AlgorithmsConfig,
    DatasetConfig,
    ExperimentConfig,
    MethodSpec,
    NetworkConfig,
    NetworkSetting,
    ObjectiveConfig,
    RunConfig,
    SamplingConfig,
    TreeConfig,
)
from evaluation.candidates import candidates
from evaluation.datasets import Question, hold_out, load_bench
from evaluation.metrics import REFERENCE_METHOD
from evaluation.plan import Condition, Plan
from evaluation.tuning import Tuning, choices

STATICS: Final = ("chain", "fixed_tree", "opt_tree")
METHODS: Final = (REFERENCE_METHOD, *STATICS, ADAPTIVE)
DTYPE: Final = "auto"
SMALL: Final = {"chain": (1, 4, 4), "fixed_tree": (4, 3, 16), "opt_tree": (4, 5, 16)}
"""Width, depth and nodes of the untuned shapes of ``--quick``, which suit a slow target."""

Shapes = Literal["tuned", "default", "small"]


@dataclass(frozen=True)
class Settings:
    """What is run.

    Attributes:
        benches: Names of the benchmarks.
        rtts_ms: Round trips that the link is shaped to.
        sensitivities: The values of ``cs``.
        questions: Questions measured of each benchmark over each link.
        validation: Questions of each benchmark that shapes are tuned on.
        tokens: Most tokens of an answer.
        seed: Draws the questions.
        shapes: Of the static methods: ``tuned``, their ``default`` ones, or ``SMALL``.
        first_turns: Ask the first turn of each question only.
    """

    benches: tuple[str, ...]
    rtts_ms: tuple[float, ...]
    sensitivities: tuple[float, ...]
    questions: int
    validation: int
    tokens: int
    seed: int
    shapes: Shapes
    first_turns: bool


@dataclass(frozen=True)
class Place:
    """One benchmark over one link."""

    bench: str
    rtt_ms: float

    @property
    def network(self) -> NetworkSetting:
        """How the link is shaped."""
        return NetworkSetting(rtt_ms=self.rtt_ms)

    @property
    def name(self) -> str:
        """A name for files."""
        return f"{self.bench.replace(':', '-')}_rtt{self.rtt_ms:g}"


def places(settings: Settings) -> list[Place]:
    """Return every benchmark over every link."""
    return [Place(bench, rtt) for bench in settings.benches for rtt in settings.rtts_ms]


# --------------------------------------------------------------------------------- configurations


def tuning_config(settings: Settings, place: Place) -> ExperimentConfig:
    """Return what ``python -m evaluation tune`` is given: the static methods, all tags ``auto``."""
    return _config(settings, place, (REFERENCE_METHOD, *STATICS), None)


def measuring_config(settings: Settings, place: Place) -> ExperimentConfig:
    """Return the configuration of the measured run; the port is the default one."""
    return _config(settings, place, METHODS, settings.questions)


def _config(
    settings: Settings, place: Place, methods: Sequence[str], limit: int | None
) -> ExperimentConfig:
    blocks = {
        "algorithms": AlgorithmsConfig(method_names=tuple(methods), chain_d=None),
        "dataset": DatasetConfig(
            benches=(place.bench,), question_limit=limit, validation_questions=settings.validation
        ),
        "network": NetworkConfig(rtt_ms=(place.rtt_ms,)),
        "objective": ObjectiveConfig(
            objective_metrics=(OBJECTIVE,),
            autodraft_cs_list=settings.sensitivities,
            billing=BILLING,
        ),
        "run": RunConfig(max_new_tokens=settings.tokens),
        "sampling": SamplingConfig(seeds=(settings.seed,)),
        "tree": TreeConfig(
            fixed_tree_width=None,
            fixed_tree_depth=None,
            fixed_tree_nodes=None,
            opt_tree_width=None,
        ),
    }
    return live.pair_config(DTYPE, methods).model_copy(update=blocks)


# ---------------------------------------------------------------------------- shapes and questions


def chosen_statics(
    config: ExperimentConfig, shapes: Shapes, cs: float, tuning: Tuning | None
) -> tuple[MethodSpec, ...]:
    """Return the static methods with their shapes for one cost sensitivity.

    Args:
        config: Of the measured run.
        shapes: Where the shapes come from.
        cs: Cost sensitivity that tuned shapes are chosen for.
        tuning: What tuning measured; None where nothing was tuned.

    Raises:
        CannotMeasure: If tuning measured no shape of any static method.
    """
    objective = config.objective.model_copy(update={"base_cost_sensitivity": cs})
    scored_at = config.model_copy(update={"objective": objective})
    found = []
    for spec in (spec for spec in config.methods() if spec.tuned):
        limits: tuple[int, int, int] | None = (spec.width, spec.max_depth, spec.node_budget)
        if shapes == "small":
            limits = SMALL[spec.method]
        elif tuning is not None:
            ranked = choices(tuning, spec, scored_at, OBJECTIVE)
            first = ranked[0].measured if ranked else None
            limits = first and (first.width, first.max_depth, first.node_budget)
        found += [
            shape
            for shape in candidates(spec, config)
            if (shape.width, shape.max_depth, shape.node_budget) == limits
        ]
    if not found:
        raise common.CannotMeasure(
            f"No shape of {', '.join(STATICS)} was measured when they were tuned. See why in the "
            "records of the tuning, or leave it out with --no-tuning."
        )
    return tuple(found)


def make_plan(
    settings: Settings, place: Place, tuning: Tuning | None
) -> tuple[Plan, list[Compared]]:
    """Return the plan of a condition, and what is compared at each cost sensitivity."""
    config = measuring_config(settings, place)
    adaptive = {spec.cs: spec for spec in config.methods() if spec.cs is not None}
    statics = {
        cs: chosen_statics(config, settings.shapes, cs, tuning) for cs in settings.sensitivities
    }
    distinct = {spec.label: spec for chosen in statics.values() for spec in chosen}
    methods = (config.method(REFERENCE_METHOD), *distinct.values(), *adaptive.values())
    condition = Condition(place.bench, place.network, settings.seed, methods)
    compared = [
        Compared(cs, adaptive[cs].label, tuple(spec.label for spec in statics[cs]))
        for cs in settings.sensitivities
    ]
    return Plan(config, (condition,), tuned_benches=frozenset({place.bench})), compared


def measured_questions(settings: Settings, bench: str) -> tuple[Question, ...]:
    """Draw the questions that are measured, in the order of the file; none is tuned on.

    Drawn, because files are sorted by category and the first ones would all be of one.

    Raises:
        DataError: If the benchmark's file is found nowhere, malformed or too short.
        CannotMeasure: If it has fewer questions than are to be measured.
    """
    questions, _ = hold_out(bench, load_bench(bench, locations()), settings.validation)
    if len(questions) < settings.questions:
        raise common.CannotMeasure(
            f"{bench} has {len(questions)} questions beside the {settings.validation} for "
            f"validation, and {settings.questions} are to be measured. Lower --questions."
        )
    drawn = sorted(random.Random(settings.seed).sample(range(len(questions)), settings.questions))
    chosen = tuple(questions[number] for number in drawn)
    if settings.first_turns:
        chosen = tuple(replace(one, turns=one.turns[:1]) for one in chosen)
    return chosen
