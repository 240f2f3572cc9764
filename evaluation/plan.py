"""Turn a configuration into the cells of an experiment, in the order in which they run.

A cell is benchmark × network × seed × method × repeat × choice. Everything that shares a benchmark,
a link and a seed is a `Condition`: within it the methods are compared. This module starts no engine
and writes no file.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Protocol, TypeAlias

from autodraft import Sampling
from autodraft.config import ExperimentConfig, MethodSpec, NetworkSetting
from evaluation.datasets import Locations, Question, first_questions, hold_out, load_bench
from evaluation.lines import Case
from evaluation.metrics import REFERENCE_METHOD, CurvePoint
from evaluation.tuning import hash_questions

Questions: TypeAlias = Mapping[str, tuple[Question, ...]]


class Tuned(Protocol):
    """Where the shapes that tuning chose are looked up."""

    def shape(self, spec: MethodSpec, bench: str, network: NetworkSetting) -> MethodSpec | None:
        """Return the spec with the shape chosen for it, or None where nothing was tuned."""
        ...


class NothingTuned:
    """No shape was ever tuned."""

    def shape(self, spec: MethodSpec, bench: str, network: NetworkSetting) -> MethodSpec | None:
        """Return None."""
        return None


class Draw(NamedTuple):
    """Which of several answers to the same question with the same seed.

    Attributes:
        repeat: Number of the repeat, from 1; the warm-up's is 0.
        choice: Number of the answer, from 0: another choice draws other tokens.
    """

    repeat: int
    choice: int = 0


@dataclass(frozen=True)
class Condition:
    """One benchmark over one link with one seed; its methods are compared with each other.

    Attributes:
        bench: Name of the benchmark.
        network: How the link is shaped.
        seed: Seed of the draws.
        methods: The methods with the shapes they have here.
    """

    bench: str
    network: NetworkSetting
    seed: int
    methods: tuple[MethodSpec, ...]

    @property
    def reference(self) -> str:
        """Label of the method whose answer to a turn is part of the next turn's prompt."""
        labels = [spec.label for spec in self.methods]
        return REFERENCE_METHOD if REFERENCE_METHOD in labels else labels[0]

    def case(self, question: Question, turn: int, draw: Draw, method: str) -> Case:
        """Return the name of one request."""
        return Case(
            bench=self.bench,
            question_id=question.id,
            category=question.category,
            turn=turn,
            repeat=draw.repeat,
            method=method,
            seed=self.seed,
            choice=draw.choice,
            **self.network.model_dump(),
        )

    def cases(self, question: Question, draw: Draw, first_turn: int = 1) -> Iterator[Case]:
        """Yield every request of one answer to a question, from a turn on."""
        for turn in range(first_turn, len(question.turns) + 1):
            for spec in self.methods:
                yield self.case(question, turn, draw, spec.label)


@dataclass(frozen=True)
class Plan:
    """What a configuration asks for.

    Attributes:
        config: The configuration.
        conditions: In the order in which they run: by benchmark, then network, then seed.
        notes: What a user should know of the shapes that were chosen.
        tuned_benches: The benchmarks on whose validation questions a shape was tuned.
    """

    config: ExperimentConfig
    conditions: tuple[Condition, ...]
    notes: tuple[str, ...] = ()
    tuned_benches: frozenset[str] = frozenset()

    @property
    def methods(self) -> tuple[MethodSpec, ...]:
        """The methods, one of each label, in the order of the tables."""
        every = (spec for condition in self.conditions for spec in condition.methods)
        return tuple({spec.label: spec for spec in every}.values())

    @property
    def curves(self) -> dict[str, CurvePoint]:
        """Where each method that adapts lies on its trade-off curve, by its label."""
        return {
            spec.label: CurvePoint(spec.curve, spec.cs)
            for spec in self.methods
            if spec.cs is not None
        }

    @property
    def benches(self) -> tuple[str, ...]:
        """The benchmarks, each once, in the order asked for."""
        return tuple(dict.fromkeys(condition.bench for condition in self.conditions))

    @property
    def networks(self) -> tuple[NetworkSetting, ...]:
        """The settings of the link, each once."""
        return tuple(dict.fromkeys(condition.network for condition in self.conditions))

    @property
    def repeats(self) -> range:
        """Numbers of the repeats, from 1."""
        return range(1, self.config.run.repeats + 1)

    @property
    def draws(self) -> tuple[Draw, ...]:
        """Which answers each question gets with each seed, in the order in which they are asked."""
        return tuple(Draw(*each) for each in product(self.repeats, self.config.choices()))

    def sampling(self, condition: Condition, draw: Draw) -> Sampling:
        """Return how the tokens of an answer are chosen."""
        wanted = self.config.sampling
        return Sampling(
            temperature=wanted.temperature,
            top_p=wanted.top_p,
            top_k=wanted.top_k,
            seed=condition.seed,
            choice=draw.choice,
        )

    @property
    def table_order(self) -> tuple[tuple[str, str, str], ...]:
        """Benchmark, label of the network and label of the method: the order of the tables."""
        order = (
            (condition.bench, condition.network.label, spec.label)
            for condition in self.conditions
            for spec in condition.methods
        )
        return tuple(dict.fromkeys(order))

    def cases(self, questions: Questions) -> Iterator[Case]:
        """Yield every request of a run, warm-up left out."""
        for condition in self.conditions:
            for draw in self.draws:
                for question in questions[condition.bench]:
                    yield from condition.cases(question, draw)

    def requests(self, questions: Questions) -> int:
        """Return how many requests a run sends, warm-up left out."""
        return sum(1 for _ in self.cases(questions))


def make_plan(config: ExperimentConfig, tuned: Tuned | None = None) -> Plan:
    """Find the cells that a configuration asks for.

    Args:
        config: The configuration.
        tuned: Knows the shapes that tuning chose; None where nothing was.

    Raises:
        ConfigError: If it asks for no method.
    """
    tuned = tuned or NothingTuned()
    conditions: list[Condition] = []
    chosen: list[tuple[str, NetworkSetting, MethodSpec]] = []
    missing: list[tuple[str, NetworkSetting, MethodSpec]] = []
    for bench, network in product(config.dataset.benches, config.network.settings()):
        shaped = []
        for spec in config.methods():
            found = tuned.shape(spec, bench, network) if spec.tuned else None
            if spec.tuned:
                (missing if found is None else chosen).append((bench, network, found or spec))
            shaped.append(found or spec)
        conditions += [Condition(bench, network, seed, tuple(shaped)) for seed in config.seeds()]
    tuned_benches = tuple(dict.fromkeys(bench for bench, _, _ in chosen))
    notes = [
        f"{bench}, {network.label}, {spec.label}: tuned, so it takes {_shape(spec)}."
        for bench, network, spec in chosen
    ]
    notes += [
        f"{bench}, {network.label}, {spec.label}: not tuned, so it takes {_shape(spec)}. To choose "
        "on validation questions, run: python -m evaluation tune CONFIG"
        for bench, network, spec in missing
    ]
    notes += [
        f"{bench}: the last {config.dataset.validation_questions} questions of each sub-task are "
        "not measured, because shapes were tuned on them."
        for bench in tuned_benches
    ]
    return Plan(config, tuple(conditions), tuple(notes), frozenset(tuned_benches))


def _shape(spec: MethodSpec) -> str:
    if spec.width == 1:
        return f"d={spec.max_depth}"
    return f"width {spec.width}, depth {spec.max_depth} and {spec.node_budget} nodes"


def require_methods(plan: Plan) -> None:
    """Do nothing if every method exists in this version.

    Raises:
        ConfigError: If one does not.
    """
    for spec in plan.methods:
        spec.require_available()


def load_measured(plan: Plan, bench: str, locations: Locations) -> tuple[Question, ...]:
    """Load the questions that a run measures: validation questions left out, cut to the limit.

    Validation questions are left out for every method and every link as soon as one shape was
    tuned on them, so that all are measured on the same questions.

    Raises:
        DataError: If the benchmark's file is missing or malformed, or too short for both.
    """
    dataset, questions = plan.config.dataset, load_bench(bench, locations)
    if bench in plan.tuned_benches:
        questions, _ = hold_out(bench, questions, dataset.validation_questions)
    return first_questions(bench, questions, dataset.question_limit)


def load_questions(plan: Plan, locations: Locations) -> dict[str, tuple[Question, ...]]:
    """Load the questions of each benchmark of a plan; raises like `load_measured`."""
    return {bench: load_measured(plan, bench, locations) for bench in plan.benches}


def fixed_part(plan: Plan, questions: Questions) -> dict[str, Any]:
    """Return what must stay as it is from session to session of one run, as JSON values.

    The configuration is compared apart. This is what stands outside of it: the text of the
    questions, and the shapes that were looked up.
    """
    return {
        "questions": {
            bench: {"count": len(questions[bench]), "sha256": hash_questions(questions[bench])}
            for bench in plan.benches
        },
        "methods": [
            {
                "bench": condition.bench,
                "network": condition.network.label,
                "label": spec.label,
                **spec.model_dump(mode="json"),
            }
            for condition in plan.conditions
            if condition.seed == plan.conditions[0].seed
            for spec in condition.methods
        ],
    }
