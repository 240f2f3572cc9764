"""One session of a run: from the first connection, or from where it stood, to the last file.

This module knows no command line and no environment.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple

from rich.console import Console

from autodraft.config import ExperimentConfig, MethodSpec, NetworkSetting
from autodraft.errors import LinkError
from autodraft.records import RoundRecord
from evaluation.interrupts import Interrupts
from evaluation.limits import expectations
from evaluation.lines import Case, RequestLine
from evaluation.manifest import Manifest
from evaluation.plan import Plan, Questions
from evaluation.progress import show_progress
from evaluation.report import Results, energy_methods, print_results, write_results
from evaluation.roles import Engine, Surroundings
from evaluation.runner import run_plan
from evaluation.store import RunStore
from evaluation.traces import RunTraces

EXIT_FAILED: Final = 1

EngineFactory = Callable[[ExperimentConfig], Engine]


class Consoles(NamedTuple):
    """Where tables go, and where everything else goes."""

    out: Console
    err: Console


def print_error(console: Console, message: str) -> None:
    """Print an error, on one line however long."""
    console.print(f"error: {message}", soft_wrap=True)


@dataclass(frozen=True)
class _WholeLines:
    """A store whose appends are never torn by a signal."""

    store: RunStore
    interrupts: Interrupts

    def append(self, line: RequestLine, rounds: Sequence[RoundRecord]) -> None:
        with self.interrupts.held():
            self.store.append(line, rounds)


@dataclass(frozen=True)
class _EngineWatch:
    """Measures each new link, and makes sure that a lost one leads back to the same server."""

    engine: Engine
    manifest: Manifest
    specs: Sequence[MethodSpec]
    note: Callable[[str], None]

    def linked(self, network: NetworkSetting) -> None:
        self.manifest.check_engine(self.engine.describe())
        self.manifest.set_rtt(network, self.engine.measure_rtt())
        for line in expectations(self.engine, self.specs):
            self.note(f"{network.label}: {line}")

    def relinked(self) -> None:
        self.manifest.check_engine(self.engine.describe())


@dataclass(frozen=True)
class Experiment:
    """A run that can be gone on with until nothing is left to do.

    Attributes:
        plan: What is run.
        questions: The questions of each benchmark.
        store: Where it is kept; locked, and mended if an earlier session was killed.
        manifest: Where it comes from.
        consoles: Where to print.
        interrupts: Hold signals back while a line is written.
    """

    plan: Plan
    questions: Questions
    store: RunStore
    manifest: Manifest
    consoles: Consoles
    interrupts: Interrupts

    def run(self, make_engine: EngineFactory, argv: Sequence[str]) -> int:
        """Do what is left to do and return the exit code.

        Args:
            make_engine: Makes the engine; not called where nothing is left to do.
            argv: The command line, for the manifest.
        """
        done = {line.case: line for line in self.store.read_requests() if line.status == "ok"}
        cases = list(self.plan.cases(self.questions))
        left = sum(case not in done for case in cases)
        if not left:
            self._say(
                f"Nothing is left to do in the run {self.store.run_id}: all {len(cases)} requests "
                "are answered. --fresh begins a new run."
            )
            self._conclude("finished")
            return 0
        if left < len(cases):
            self._say(
                f"Going on with the run {self.store.run_id}: {len(cases) - left} of {len(cases)} "
                "requests are answered already. --fresh begins a new run."
            )
        with closing(make_engine(self.plan.config)) as engine:
            return self._session(engine, argv, done, left)

    def _session(
        self, engine: Engine, argv: Sequence[str], done: dict[Case, RequestLine], left: int
    ) -> int:
        for warning in self.manifest.begin_session(argv):
            self._say(f"warning: {warning}")
        self._connect(engine)
        watch = _EngineWatch(engine, self.manifest, self.plan.config.methods(), self._say)
        sink = _WholeLines(self.store, self.interrupts)
        try:
            with show_progress(self.consoles.err, left) as progress:
                around = Surroundings(sink, progress, watch, done, tracer=self._tracer())
                stopped_by = run_plan(engine, self.plan, self.questions, around)
        except BaseException as error:  # Ctrl-C, a full disk, a fault of ours: keep what is there
            interrupted = isinstance(error, KeyboardInterrupt)
            self._end("interrupted" if interrupted else "failed")
            raise
        results = self._end("stopped" if stopped_by else "finished")
        return self._exit_code(results, stopped_by)

    def _tracer(self) -> RunTraces | None:
        if not self.plan.config.run.save_trace:
            return None
        return RunTraces(self.store, self.interrupts)

    def _connect(self, engine: Engine) -> None:
        try:
            engine.connect()
            self.manifest.check_engine(engine.describe())
        except BaseException:
            self.manifest.end_session("failed")
            raise

    def _end(self, status: str) -> Results:
        self.manifest.end_session(status)
        return self._conclude(status)

    def _conclude(self, status: str) -> Results:
        config = self.plan.config
        results = write_results(
            self.store, config.objective, self.plan.table_order, self.plan.curves, config.slo
        )
        self.manifest.conclude(status, energy_methods(results.rows))
        print_results(self.consoles.out, results, self.store.folder)
        return results

    def _exit_code(self, results: Results, stopped_by: LinkError | None) -> int:
        total = self.plan.requests(self.questions)
        done = sum(row.requests for row in results.rows)
        errors = sum(row.errors for row in results.rows)
        if stopped_by is not None:
            print_error(
                self.consoles.err,
                f"{stopped_by} The run stopped after {done} of {total} requests; these are in the "
                "files above. Go on later with --resume.",
            )
        elif errors:
            print_error(
                self.consoles.err,
                f"{errors} of {total} requests failed; their lines in requests.jsonl have status "
                '"error" and say why. The same command with --resume asks them again.',
            )
        return EXIT_FAILED if errors or stopped_by else 0

    def _say(self, text: str) -> None:
        self.consoles.err.print(text, soft_wrap=True)
