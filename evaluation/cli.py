"""The command line: ``python -m evaluation run CONFIG``, ``tune``, ``equality`` and ``simulate``.

Exit codes: 0 all requests finished, 1 a request or the run failed, 2 the command line or the
configuration is wrong, 130 interrupted by Ctrl-C or SIGTERM; of ``equality``: 0 equal as far as
must be, 1 not, 2 a run cannot be read. Tables go to standard output; progress, warnings and errors
to standard error. The only module of the harness that reads the environment.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from autodraft import settings
from autodraft.config import ExperimentConfig
from autodraft.config_io import LoadedConfig, dump_yaml, load_config
from autodraft.errors import AutodraftError, ConfigError, StoreError
from autodraft.simulate import load_devices, read_traces, scaled
from evaluation.datasets import Locations, describe_source, overlaps
from evaluation.dry_run import print_dry_run
from evaluation.equality import compare_runs, read_run
from evaluation.equality_report import figures, first_faults, print_verdict
from evaluation.estimate import ASSUMED_TOKENS_PER_S, TUNING_SUFFIX, find_rates
from evaluation.experiment import (
    EXIT_FAILED,
    Consoles,
    EngineFactory,
    Experiment,
    print_error,
)
from evaluation.interrupts import Interrupts
from evaluation.manifest import continued_manifest, new_manifest
from evaluation.plan import Plan, Questions, load_questions, make_plan, require_methods
from evaluation.report import print_results
from evaluation.resume import Wish, choose_run, resolved_text
from evaluation.roles import Engine
from evaluation.simulation import (
    SIMULATED_SUFFIX,
    Simulation,
    choose_traces,
    write_simulation,
)
from evaluation.store import RESOLVED_FILE, RunStore, make_run_id
from evaluation.tune import (
    load_validation,
    print_tuning_dry_run,
    tune,
    tuning_plan,
)
from evaluation.tuning import StoredTuning

EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130
_RESULTS: Final = Path(__file__).resolve().parent.parent / "results"
_OFFLINE_VARIABLES: Final = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
_TUNING_FOLDER: Final = "tuning"  # below the data folder
_TRUE_WORDS: Final = frozenset({"1", "on", "yes", "true"})  # as huggingface_hub reads them


def _make_engine(config: ExperimentConfig) -> Engine:
    from autodraft import Autodraft  # here, so that a dry run or a mistake costs no heavy import

    return Autodraft.from_config(config)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m evaluation",
        description="Run an experiment against a target server, and judge what came of it.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser(
        "run",
        help="run every method of a configuration on its benchmarks",
        description="Run every method of a configuration on its benchmarks. A run of the same "
        "configuration that was ended goes on where it stood.",
        allow_abbrev=False,
    )
    tuning = commands.add_parser(
        "tune",
        help="choose the shapes of its methods that are auto, on validation questions",
        description="Measure a grid of shapes for each method whose tags are auto, on questions "
        "that are never measured, and store what each used; runs take the best of them. A tuning "
        "of the same configuration that was ended goes on where it stood.",
        allow_abbrev=False,
    )
    for command, start in ((run, _run), (tuning, _tune)):
        _add_options(command)
        command.set_defaults(start=start)
    _add_equality(commands.add_parser)
    _add_simulate(commands.add_parser)
    return parser


def _add_simulate(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "simulate",
        help="run a configuration's methods over traces and latency tables",
        description="Run the methods of a configuration over recorded traces and latency tables: "
        "no model, no server. Prints what is assumed, then the tables of a run.",
        allow_abbrev=False,
    )
    _add_config(parser)
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=Path,
        required=True,
        help="trace.jsonl of a run with run.SAVE_TRACE=1",
    )
    parser.add_argument(
        "--tables",
        metavar="FILE",
        type=Path,
        required=True,
        help="latency tables: of `autodraft profile --export`, of gpu_check.sh, or by hand",
    )
    for side, name in (("draft", "draft steps"), ("target", "target forwards")):
        parser.add_argument(
            f"--{side}-factor",
            metavar="X",
            type=_rate,
            default=1.0,
            help=f"take {name} to last X times as long as in the tables (default: %(default)g)",
        )
    parser.add_argument(
        "--jobs", metavar="N", type=_positive, help="processes (default: one for each core)"
    )
    parser.set_defaults(start=_simulate, dry_run=False)


def _add_equality(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    parser = add_parser(
        "equality",
        help="compare the answers of two runs token by token",
        description="Hold every method of RUN_B, token by token, against server_only of RUN_A. "
        "Exit code 1: an answer is missing or ends too early, or differs in float32 where the two "
        "best logits were not close. Both runs may be the same.",
        allow_abbrev=False,
    )
    parser.add_argument("run_a", metavar="RUN_A", type=Path, help="folder of the run to compare to")
    parser.add_argument("run_b", metavar="RUN_B", type=Path, help="folder of the run to judge")
    parser.add_argument("--all", action="store_true", help="show every answer that differs")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all figures to a file")
    parser.set_defaults(start=_equality)


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", type=Path, help="an XML or YAML experiment")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=_positive,
        help="only the first N questions of each benchmark (of each sub-task of spec_bench)",
    )
    parser.add_argument(
        "--set",
        metavar="block.KEY=value",
        action="append",
        default=[],
        dest="overrides",
        help="replace one value of the configuration (may be given again)",
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        default=_RESULTS,
        help="folder of all results (default: results/ of the repository)",
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    _add_config(parser)
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument(
        "--resume",
        metavar="RUN_ID",
        nargs="?",
        const="",
        help="go on with an earlier run, or stop with an error where none has this configuration; "
        "without RUN_ID the newest that has",
    )
    earlier.add_argument(
        "--fresh", action="store_true", help="begin a new run, whatever runs there are"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the plan with an estimate of time and cost, and stop: no model, no server",
    )
    parser.add_argument(
        "--assume-tokens-per-s",
        metavar="X",
        type=_rate,
        default=ASSUMED_TOKENS_PER_S,
        help="speed for the estimate of --dry-run, where no earlier run of these models tells "
        "(default: %(default)g)",
    )


def _overrides(arguments: argparse.Namespace) -> list[str]:
    # Options become overrides, so that config.resolved.yaml alone repeats the run.
    overrides: list[str] = list(arguments.overrides)
    if arguments.limit is not None:
        overrides.append(f"dataset.QUESTION_LIMIT={arguments.limit}")
    if arguments.dry_run:
        overrides.append("run.DRY_RUN=1")
    return overrides


def _wish(arguments: argparse.Namespace) -> Wish:
    return Wish(
        fresh=arguments.fresh,
        insist=arguments.resume is not None,
        run_id=arguments.resume or None,
    )


def _locations(config: ExperimentConfig, download: bool) -> Locations:
    offline = any(
        os.environ.get(name, "").strip().lower() in _TRUE_WORDS for name in _OFFLINE_VARIABLES
    )
    bench_dir = config.dataset.bench_dir
    return Locations(
        bench_dir=Path(bench_dir).expanduser().absolute() if bench_dir else None,
        environment_dir=settings.bench_dir(),
        cache_dir=settings.cache_dir(),
        download=download and config.dataset.download and not offline,
    )


def _tunings() -> Path:
    return settings.data_dir() / _TUNING_FOLDER


def _create_store(loaded: LoadedConfig, folder: Path) -> RunStore:
    run_id = make_run_id(resolved_text(loaded.config), datetime.now(timezone.utc).date())
    store = RunStore.create(folder.parent, folder.name, run_id)
    suffix = ".xml" if loaded.source.suffix.lower() == ".xml" else ".yaml"
    store.write_text(RESOLVED_FILE, dump_yaml(loaded.config))
    store.write_text(f"config{suffix}", loaded.text)
    return store


@contextmanager
def _opened_store(
    loaded: LoadedConfig, folder: Path, wish: Wish
) -> Iterator[tuple[RunStore, bool]]:
    """Hold a run's folder, mended; yield it and whether an earlier session had it."""
    earlier = choose_run(folder, loaded.config, wish)
    store = _create_store(loaded, folder) if earlier is None else RunStore(earlier)
    with store.locked():
        if earlier is not None:
            store.mend()
        try:
            yield store, earlier is not None
        finally:
            store.discard_if_empty()


def _console(stderr: bool = False) -> Console:
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def _consoles() -> Consoles:
    return Consoles(_console(), _console(stderr=True))


def _warn(console: Console, warnings: Iterable[str]) -> None:
    for warning in warnings:
        console.print(f"warning: {warning}", soft_wrap=True)


@contextmanager
def _opened_experiment(
    loaded: LoadedConfig,
    plan: Plan,
    questions: Questions,
    folder: Path,
    wish: Wish,
    consoles: Consoles,
    locations: Locations,
) -> Iterator[Experiment]:
    """Hold an experiment that begins or goes on; its runs are below the folder."""
    with Interrupts() as interrupts, _opened_store(loaded, folder, wish) as (store, goes_on):
        take = continued_manifest if goes_on else new_manifest
        manifest = take(loaded, plan, questions, store)
        manifest.set_sources({bench: describe_source(bench, locations) for bench in plan.benches})
        yield Experiment(plan, questions, store, manifest, consoles, interrupts)


def _run(arguments: argparse.Namespace, argv: Sequence[str], make_engine: EngineFactory) -> int:
    consoles = _consoles()
    loaded = load_config(arguments.config, _overrides(arguments))
    root, dry = arguments.output.absolute(), loaded.config.run.dry_run
    locations = _locations(loaded.config, download=not dry)
    plan = make_plan(loaded.config, StoredTuning(_tunings(), loaded.config, locations))
    _warn(consoles.err, (*loaded.warnings, *plan.notes, *overlaps(plan.benches)))
    if dry:
        rates = find_rates(root, loaded.config, arguments.assume_tokens_per_s)
        print_dry_run(consoles.out, plan, locations, rates)
        return 0
    require_methods(plan)
    questions = load_questions(plan, locations)
    folder, wish = root / loaded.source.stem, _wish(arguments)
    with _opened_experiment(
        loaded, plan, questions, folder, wish, consoles, locations
    ) as experiment:
        return experiment.run(make_engine, argv)


def _tune(arguments: argparse.Namespace, argv: Sequence[str], make_engine: EngineFactory) -> int:
    consoles = _consoles()
    loaded = load_config(arguments.config, _overrides(arguments))
    root, dry = arguments.output.absolute(), loaded.config.run.dry_run
    locations = _locations(loaded.config, download=not dry)
    plan = tuning_plan(loaded.config)
    _warn(consoles.err, (*loaded.warnings, *overlaps(plan.benches)))
    if dry:
        rates = find_rates(root, loaded.config, arguments.assume_tokens_per_s)
        print_tuning_dry_run(consoles.out, plan, locations, rates)
        return 0
    validation = load_validation(plan, locations)
    folder, wish = root / f"{loaded.source.stem}{TUNING_SUFFIX}", _wish(arguments)
    with _opened_experiment(
        loaded, plan, validation.asked, folder, wish, consoles, locations
    ) as experiment:
        return tune(experiment, validation, _tunings(), make_engine, argv)


def _equality(arguments: argparse.Namespace, _argv: Sequence[str], _make: EngineFactory) -> int:
    consoles = _consoles()
    try:
        verdict = compare_runs(read_run(arguments.run_a), read_run(arguments.run_b))
        if arguments.json is not None:
            _write_json(arguments.json, figures(verdict))
    except StoreError as error:
        print_error(consoles.err, str(error))
        return EXIT_USAGE
    print_verdict(consoles.out, verdict, arguments.all)
    faults = verdict.faults
    for fault in first_faults(faults, arguments.all):
        print_error(consoles.err, fault)
    return EXIT_FAILED if faults else 0


def _simulate(arguments: argparse.Namespace, argv: Sequence[str], _make: EngineFactory) -> int:
    consoles = _consoles()
    loaded = load_config(arguments.config, _overrides(arguments))
    devices = load_devices(arguments.tables)
    simulation = Simulation(
        loaded.config,
        choose_traces(loaded.config, read_traces(arguments.trace)),
        scaled(devices, arguments.draft_factor, arguments.target_factor),
    )
    _warn(consoles.err, (*loaded.warnings, *loaded.config.notes()))
    consoles.out.print("Simulated. What it rests on:")
    for assumption in simulation.assumptions:
        consoles.out.print(f"  - {assumption}", soft_wrap=True)
    started = time.perf_counter()
    lines = simulation.run(arguments.jobs)
    seconds = time.perf_counter() - started
    rounds = sum(len(of_one) for _, of_one in lines)
    folder = arguments.output.absolute() / f"{loaded.source.stem}{SIMULATED_SUFFIX}"
    store = _create_store(loaded, folder)
    with store.locked():
        results = write_simulation(store, simulation, lines, argv)
    print_results(consoles.out, results, store.folder)
    consoles.err.print(f"{rounds} rounds in {seconds:.1f} s, {rounds / seconds:.0f} a second")
    return 0


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    try:
        path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written ({error.strerror}). Give --json another file."
        ) from error


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
        code: int = arguments.start(arguments, ["python", "-m", "evaluation", *given], make_engine)
    except AutodraftError as error:
        print_error(_console(stderr=True), str(error))
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    except KeyboardInterrupt:
        print_error(
            _console(stderr=True),
            "Interrupted. Finished requests are kept; go on later with --resume.",
        )
        return EXIT_INTERRUPTED
    return code
