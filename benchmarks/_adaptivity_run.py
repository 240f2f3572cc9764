"""Tunes and measures the conditions of the adaptivity benchmark, and goes on where it stood.

Shapes are tuned by the command ``python -m evaluation tune``; the measured runs are ordinary runs
of the harness, so that methods take turns on each question and what was answered is kept. The
target server is started when the first request needs it. Knows no score and no table.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import _common as common
import _live_target as live
import msgspec
from _adaptivity_cells import Compared, Measured, common_lines
from _adaptivity_plan import (
    DTYPE,
    Place,
    Settings,
    make_plan,
    measured_questions,
    tuning_config,
)
from _question_files import locations
from rich.console import Console

from autodraft import Autodraft
from autodraft.config import ExperimentConfig, NetworkSetting
from autodraft.config_io import LoadedConfig, dump_yaml, load_config
from autodraft.models.embedded import EMBEDDED_TARGET
from autodraft.records import RoundRecord
from evaluation.datasets import describe_source
from evaluation.experiment import Consoles, Experiment
from evaluation.interrupts import Interrupts
from evaluation.lines import Case, RequestLine, decode_case
from evaluation.manifest import continued_manifest, new_manifest
from evaluation.metrics import prices_of
from evaluation.plan import Plan, Questions
from evaluation.resume import Wish, choose_run, resolved_text
from evaluation.store import RESOLVED_FILE, ROUNDS_FILE, RunStore, make_run_id
from evaluation.tuning import (
    Tuning,
    hash_questions,
    key_of,
    read_tuning,
    tuning_path,
    validation_questions,
)

TARGET_OPTIONS: Final = ("--base-model-path", EMBEDDED_TARGET, "--dtype", DTYPE)
CONFIGS, TUNINGS, RUNS, DATA = "configs", "tuning-runs", "runs", "data"
"""What lies in the folder of the benchmark."""
TUNING_FOLDER: Final = "tuning"
"""Where the command keeps its tunings, below the data folder."""


class Workshop:
    """Makes the measurements of a folder; starts the target server when it is needed first."""

    def __init__(self, settings: Settings, folder: Path, stack: contextlib.ExitStack) -> None:
        """Take the settings and the folder.

        Args:
            settings: What is run.
            folder: Where everything is kept.
            stack: Ends the server.
        """
        self._settings = settings
        self._folder = folder
        self._stack = stack
        self._port: int | None = None
        self._told_profile = False

    def measure(self, place: Place) -> tuple[Measured, list[Compared]]:
        """Tune and measure what is not measured yet; return all records of a condition.

        Raises:
            AutodraftError: If files, models, link or server fail.
            CannotMeasure: If something was not asked, or nothing was finished by all methods.
        """
        tuning = self._tuning(place) if self._settings.shapes == "tuned" else None
        plan, compared = make_plan(self._settings, place, tuning)
        questions = {place.bench: measured_questions(self._settings, place.bench)}
        name = f"{place.name}_{self._settings.shapes}"
        loaded = self._written(name, plan.config)
        with (
            Interrupts() as interrupts,
            _opened_store(loaded.config, self._folder / RUNS / name) as (store, goes_on),
        ):
            take = continued_manifest if goes_on else new_manifest
            manifest = take(loaded, plan, questions, store)
            manifest.set_sources({place.bench: describe_source(place.bench, locations())})
            err = _console()
            experiment = Experiment(
                plan, questions, store, manifest, Consoles(err, err), interrupts
            )
            experiment.run(self._engine, sys.argv)
            lines, rounds = store.read_requests(), read_rounds(store)
        return collected(place, plan, questions, lines, rounds), compared

    # ----------------------------------------------------------------------------------- tuning

    def _tuning(self, place: Place) -> Tuning:
        """Return what tuning measured; run the command where that is not there."""
        config = tuning_config(self._settings, place)
        validation = validation_questions(config, place.bench, locations())
        path = tuning_path(
            self._folder / DATA / TUNING_FOLDER, key_of(config, place.bench, place.network)
        )
        wanted = (hash_questions(validation), self._settings.tokens)
        tuning = read_tuning(path)
        if tuning is None or _made_of(tuning) != wanted:
            code = self._tune(place.name, config)
            tuning = read_tuning(path)
            if tuning is None or _made_of(tuning) != wanted:
                raise common.CannotMeasure(
                    f"Tuning {place.name} ended with exit code {code} and stored no choice; its "
                    "messages are above. The same command with the same --folder goes on."
                )
        return tuning

    def _tune(self, name: str, config: ExperimentConfig) -> int:
        """Run the command; what it stores stays in the folder, away from the user's own data."""
        path = self._written(name, config).source
        command = [sys.executable, "-m", "evaluation", "tune", str(path)]
        command += ["--output", str(self._folder / TUNINGS)]
        command += ["--set", f"runtime.TARGET_PORT={self._target_port()}"]
        paths = os.pathsep.join(filter(None, (str(live.CHECKOUT), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {
            "AUTODRAFT_DATA_DIR": str(self._folder / DATA),
            "AUTODRAFT_TOKEN": live.TOKEN,
            "PYTHONPATH": paths,
        }
        return subprocess.run(command, env=environment, stdout=sys.stderr, check=False).returncode

    # -------------------------------------------------------------------------------- measuring

    def _written(self, name: str, config: ExperimentConfig) -> LoadedConfig:
        """Write a configuration, and read it as the harness does."""
        path = self._folder / CONFIGS / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_yaml(config), encoding="utf-8")
        return load_config(path)

    def _target_port(self) -> int:
        if self._port is None:
            self._port = self._stack.enter_context(live.live_target(*TARGET_OPTIONS)).port
        return self._port

    def _engine(self, config: ExperimentConfig) -> Autodraft:
        """Make an engine whose profile is there.

        It is made over the bare link: over a long one each of its forwards would cost a round trip.
        """
        runtime = config.runtime.model_copy(update={"target_port": self._target_port()})
        engine = Autodraft.from_config(
            config.model_copy(update={"runtime": runtime}), token=live.TOKEN
        )
        with contextlib.ExitStack() as undo:
            undo.callback(engine.close)
            engine.use_network(NetworkSetting())
            profile = engine.profile()
            if not self._told_profile:
                print(profile, file=sys.stderr)
                self._told_profile = True
            undo.pop_all()
        return engine


def collected(
    place: Place,
    plan: Plan,
    questions: Questions,
    lines: Sequence[RequestLine],
    rounds: dict[Case, list[RoundRecord]],
) -> Measured:
    """Take what all methods finished out of the records of a run.

    Raises:
        CannotMeasure: If the run stopped before it had asked everything, or there is nothing.
    """
    latest = {line.case: line for line in lines}
    # A later turn is not asked after an error of the reference.
    if any(case not in latest and case.turn == 1 for case in plan.cases(questions)):
        raise common.CannotMeasure(
            f"{place.name} stopped before everything was asked; the messages above say why. The "
            "same command with the same --folder goes on."
        )
    kept = common_lines(lines, [spec.label for spec in plan.methods])
    if not kept:
        raise common.CannotMeasure(
            f"{place.name}: no request was finished by every method; the run's requests.jsonl "
            "says why."
        )
    cases = {line.case for line in kept}
    return Measured(
        bench=place.bench,
        rtt_ms=place.rtt_ms,
        lines=kept,
        rounds={case: many for case, many in rounds.items() if case in cases},
        failed=sum(line.status == "error" for line in latest.values()),
        prices=prices_of(plan.config.objective),
    )


def read_rounds(store: RunStore) -> dict[Case, list[RoundRecord]]:
    """Return the rounds of each request of a run that has any."""
    path = store.folder / ROUNDS_FILE
    found: dict[Case, list[RoundRecord]] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        case = decode_case(line, f"{path}:{number}")
        found.setdefault(case, []).append(msgspec.json.decode(line, type=RoundRecord))
    return found


@contextlib.contextmanager
def _opened_store(config: ExperimentConfig, folder: Path) -> Iterator[tuple[RunStore, bool]]:
    """Hold the newest run of this configuration, mended, or a new one; say if it was there."""
    earlier = choose_run(folder, config, Wish())
    store = RunStore(earlier) if earlier else _new_store(config, folder)
    with store.locked():
        if earlier:
            store.mend()
        try:
            yield store, earlier is not None
        finally:
            store.discard_if_empty()


def _new_store(config: ExperimentConfig, folder: Path) -> RunStore:
    run_id = make_run_id(resolved_text(config), datetime.now(timezone.utc).date())
    store = RunStore.create(folder.parent, folder.name, run_id)
    store.write_text(RESOLVED_FILE, dump_yaml(config))
    return store


def _made_of(tuning: Tuning) -> tuple[str, int]:
    return tuning.questions_sha256, tuning.max_new_tokens


def _console() -> Console:
    return Console(stderr=True, markup=False, emoji=False, highlight=False)
