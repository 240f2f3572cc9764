"""The harness's command line: ``python -m evaluation run CONFIG``.

Exit codes: 0 all requests finished, 1 a request or the run failed, 2 the command line or the
configuration is wrong, 130 interrupted. Tables go to standard output; progress, warnings and
errors to standard error. The only module of the harness that reads the environment.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

from autodraft.config import ExperimentConfig
from autodraft.config_io import LoadedConfig, dump_yaml, load_config
from autodraft.errors import AutodraftError, ConfigError
from autodraft.records import SCHEMA_VERSION
from evaluation.datasets import BENCH_DIR_VARIABLE, Question
from evaluation.plan import Plan, check_plan, make_plan, print_dry_run
from evaluation.progress import show_progress
from evaluation.provenance import now, provenance
from evaluation.report import Results, energy_methods, print_results, write_results
from evaluation.runner import Engine, Outcome, run_plan, warm_up
from evaluation.store import RunStore, make_run_id

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
_RESULTS: Final = Path(__file__).resolve().parent.parent / "results"

EngineFactory = Callable[[ExperimentConfig], Engine]


class _Consoles(NamedTuple):
    out: Console
    err: Console


def _make_engine(config: ExperimentConfig) -> Engine:
    from autodraft import Autodraft  # here, so that a dry run or a mistake costs no heavy import

    return Autodraft.from_config(config)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation",
        description="Run an experiment against a target server.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run every method of a configuration on its benchmarks",
        description="Run every method of a configuration on its benchmarks.",
        allow_abbrev=False,
    )
    run.add_argument("config", metavar="CONFIG", type=Path, help="an XML or YAML experiment")
    run.add_argument(
        "--limit",
        metavar="N",
        type=_positive,
        help="only the first N questions of each benchmark (of each sub-task of spec_bench)",
    )
    run.add_argument(
        "--set",
        metavar="block.KEY=value",
        action="append",
        default=[],
        dest="overrides",
        help="replace one value of the configuration (may be given again)",
    )
    run.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        default=_RESULTS,
        help="folder of all results (default: results/ of the repository)",
    )
    run.add_argument(
        "--dry-run", action="store_true", help="print the plan and stop: no model, no server"
    )
    return parser


def _overrides(arguments: argparse.Namespace) -> list[str]:
    # Options become overrides, so that config.resolved.yaml alone repeats the run.
    overrides: list[str] = list(arguments.overrides)
    if arguments.limit is not None:
        overrides.append(f"dataset.QUESTION_LIMIT={arguments.limit}")
    if arguments.dry_run:
        overrides.append("run.DRY_RUN=1")
    return overrides


def _bench_dir() -> Path | None:
    value = os.environ.get(BENCH_DIR_VARIABLE)
    return Path(value).expanduser().absolute() if value else None


def _first_manifest(
    loaded: LoadedConfig,
    plan: Plan,
    questions: Mapping[str, Sequence[Question]],
    store: RunStore,
    argv: Sequence[str],
) -> dict[str, Any]:
    objective = loaded.config.objective
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": store.run_id,
        "status": "running",
        "started_at": now(),
        **provenance(argv),
        "config": str(loaded.source),
        "warnings": list(loaded.warnings),
        "methods": [{"label": spec.label, **spec.model_dump(mode="json")} for spec in plan.methods],
        "questions": {bench: len(items) for bench, items in questions.items()},
        "repeats": loaded.config.run.repeats,
        "seed": loaded.config.sampling.seed,
        "objectives": list(objective.objective_metrics),
        "billing": objective.billing,
        "prices": {
            "TARGET_PER_HOUR_COST": objective.target_per_hour_cost,
            "DRAFT_ELECTRICITY_COST_PER_KWH": objective.draft_electricity_cost_per_kwh,
            "USER_COMM_COST_PER_GB": objective.user_comm_cost_per_gb,
            "CLOUD_OUTBOUND_COST_PER_GB": objective.cloud_outbound_cost_per_gb,
            "DRAFT_PER_HOUR_COST": objective.draft_per_hour_cost,
        },
    }


def _create_store(loaded: LoadedConfig, root: Path) -> RunStore:
    resolved = dump_yaml(loaded.config)
    run_id = make_run_id(resolved, datetime.now(timezone.utc).date())
    store = RunStore.create(root.absolute(), loaded.source.stem, run_id)
    suffix = ".xml" if loaded.source.suffix.lower() == ".xml" else ".yaml"
    store.write_text(f"config{suffix}", loaded.text)
    store.write_text("config.resolved.yaml", resolved)
    return store


class _Run:
    """One run, from the first connection to the last file."""

    def __init__(
        self,
        plan: Plan,
        questions: Mapping[str, tuple[Question, ...]],
        store: RunStore,
        manifest: dict[str, Any],
        consoles: _Consoles,
    ) -> None:
        self._plan = plan
        self._questions = questions
        self._store = store
        self._manifest = manifest
        self._consoles = consoles

    def execute(self, engine: Engine) -> int:
        """Run the plan and return the exit code."""
        self._prepare(engine)
        total = self._plan.requests(self._questions)
        try:
            with show_progress(self._consoles.err, total) as progress:
                outcome = run_plan(engine, self._plan, self._questions, self._store, progress)
        except BaseException as error:  # Ctrl-C, a full disk, a fault of ours: keep what is there
            interrupted = isinstance(error, KeyboardInterrupt)
            self._finish("interrupted" if interrupted else "failed")
            raise
        results = self._finish("stopped" if outcome.stopped_by else "finished")
        return self._conclude(outcome, total, sum(row.requests for row in results.rows))

    def _prepare(self, engine: Engine) -> None:
        self._store.write_manifest(self._manifest)
        engine.connect()
        self._manifest |= {"engine": engine.describe(), "rtt_s": engine.measure_rtt()}
        self._store.write_manifest(self._manifest)
        if self._plan.config.run.warmup_questions:
            self._consoles.err.print("Warming up …")
        warm_up(engine, self._plan, self._questions)

    def _finish(self, status: str) -> Results:
        results = write_results(self._store, self._plan.config.objective)
        self._manifest |= {
            "status": status,
            "finished_at": now(),
            "energy_methods": energy_methods(results.rows),
        }
        self._store.write_manifest(self._manifest)
        print_results(self._consoles.out, results, self._store.folder)
        return results

    def _conclude(self, outcome: Outcome, total: int, done: int) -> int:
        if outcome.stopped_by is not None:
            _print_error(
                self._consoles.err,
                f"{outcome.stopped_by} The run stopped after {done} of {total} requests; "
                "these are in the files above.",
            )
        elif outcome.errors:
            _print_error(
                self._consoles.err,
                f"{outcome.errors} of {total} requests failed; their lines in requests.jsonl "
                'have status "error" and say why.',
            )
        return EXIT_FAILED if outcome.errors or outcome.stopped_by else 0


def _console(stderr: bool = False) -> Console:
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def _print_error(console: Console, message: str) -> None:
    console.print(f"error: {message}", soft_wrap=True)


def _run(arguments: argparse.Namespace, argv: Sequence[str], make_engine: EngineFactory) -> int:
    consoles = _Consoles(_console(), _console(stderr=True))
    loaded = load_config(arguments.config, _overrides(arguments))
    plan = make_plan(loaded.config)
    bench_dir = _bench_dir()
    for warning in loaded.warnings:
        consoles.err.print(f"warning: {warning}", soft_wrap=True)
    if loaded.config.run.dry_run:
        print_dry_run(consoles.out, plan, bench_dir)
        return 0
    questions = check_plan(plan, bench_dir)
    store = _create_store(loaded, arguments.output)
    manifest = _first_manifest(loaded, plan, questions, store, argv)
    try:
        with closing(make_engine(loaded.config)) as engine:
            return _Run(plan, questions, store, manifest, consoles).execute(engine)
    finally:
        store.discard_if_empty()


def main(argv: Sequence[str] | None = None, make_engine: EngineFactory = _make_engine) -> int:
    """Run the command line.

    Args:
        argv: Arguments after the program's name; default ``sys.argv[1:]``.
        make_engine: Makes the engine that answers; tests put their own here.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(given)
    try:
        return _run(arguments, ["python", "-m", "evaluation", *given], make_engine)
    except AutodraftError as error:
        _print_error(_console(stderr=True), str(error))
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    except KeyboardInterrupt:
        _print_error(_console(stderr=True), "Interrupted. Finished requests are kept.")
        return EXIT_INTERRUPTED
