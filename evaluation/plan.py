"""Turn a configuration into the cells of an experiment: benchmark × method × repeat.

This module starts no engine and writes no file. It says before anything heavy begins what a run
would do and whether this version can do it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autodraft.config import ExperimentConfig, MethodSpec
from autodraft.errors import ConfigError, DataError
from evaluation.datasets import Question, load_bench


@dataclass(frozen=True)
class Cell:
    """One part of an experiment: all questions of one benchmark, with one method, once.

    Attributes:
        bench: Name of the benchmark.
        method: The method.
        repeat: Number of the repeat, from 1.
    """

    bench: str
    method: MethodSpec
    repeat: int


@dataclass(frozen=True)
class Plan:
    """What a configuration asks for.

    Attributes:
        config: The configuration.
        methods: The methods, in the order of the tables; their labels are unique.
        benches: The benchmarks, each once, in the order asked for.
    """

    config: ExperimentConfig
    methods: tuple[MethodSpec, ...]
    benches: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The methods' labels."""
        return tuple(spec.label for spec in self.methods)

    def cells(self) -> tuple[Cell, ...]:
        """Return every cell of the experiment."""
        return tuple(
            Cell(bench, method, repeat)
            for bench in self.benches
            for method in self.methods
            for repeat in range(1, self.config.run.repeats + 1)
        )

    def requests(self, questions: Mapping[str, tuple[Question, ...]]) -> int:
        """Return how many requests a run sends, warm-up left out."""
        turns = sum(len(question.turns) for bench in self.benches for question in questions[bench])
        return turns * len(self.methods) * self.config.run.repeats


def make_plan(config: ExperimentConfig) -> Plan:
    """Find the cells that a configuration asks for.

    Raises:
        ConfigError: If it asks for no method.
    """
    return Plan(config, config.methods(), config.dataset.benches)


def check_plan(plan: Plan, bench_dir: Path | None) -> dict[str, tuple[Question, ...]]:
    """Make sure that everything planned can run, and load the questions.

    Args:
        plan: The plan.
        bench_dir: Folder of the benchmark files, if the user named one.

    Returns:
        The questions of each benchmark, cut to the configured limit.

    Raises:
        ConfigError: If a method does not exist in this version.
        DataError: If a benchmark's file is missing or malformed.
    """
    for spec in plan.methods:
        spec.require_available()
    limit = plan.config.dataset.question_limit
    return {bench: load_bench(bench, bench_dir, limit) for bench in plan.benches}


def _method_note(spec: MethodSpec) -> tuple[str, str]:
    """Return a short note and the full story; both empty when the method can run."""
    try:
        spec.require_available()
    except ConfigError as error:
        return "method not available yet", str(error)
    return "", ""


def _bench_note(plan: Plan, bench: str, bench_dir: Path | None) -> tuple[int | None, str, str]:
    """Return the number of turns, a short note and the full story."""
    try:
        questions = load_bench(bench, bench_dir, plan.config.dataset.question_limit)
    except DataError as error:
        return None, "questions missing or malformed", str(error)
    return sum(len(question.turns) for question in questions), "", ""


def print_dry_run(console: Console, plan: Plan, bench_dir: Path | None) -> None:
    """Print what a run would do and what would stop it, without doing any of it.

    Args:
        console: Where to.
        plan: The plan.
        bench_dir: Folder of the benchmark files, if the user named one.
    """
    table = Table(title="Plan", title_justify="left")
    for heading in ("benchmark", "method", "repeat", "requests", "state"):
        table.add_column(heading, justify="right" if heading in ("repeat", "requests") else "left")
    method_notes = {spec.label: _method_note(spec) for spec in plan.methods}
    bench_notes = {bench: _bench_note(plan, bench, bench_dir) for bench in plan.benches}
    for cell in plan.cells():
        turns, bench_note, _ = bench_notes[cell.bench]
        note = ", ".join(filter(None, (method_notes[cell.method.label][0], bench_note)))
        requests = "–" if turns is None else str(turns)
        table.add_row(cell.bench, cell.method.label, str(cell.repeat), requests, note or "ready")
    console.print(table)
    stories = [story for _, story in method_notes.values()]
    stories += [story for _, _, story in bench_notes.values()]
    for story in filter(None, stories):
        console.print(f"would stop the run: {story}", soft_wrap=True)
