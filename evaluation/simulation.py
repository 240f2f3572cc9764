"""``python -m evaluation simulate``: a configuration's methods over traces and latency tables.

The same policies, records, tables and plots as a real run; no model and no server. What is assumed
stands above the tables and in the manifest.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final

from autodraft.config import ExperimentConfig, MethodSpec, NetworkSetting
from autodraft.errors import ConfigError
from autodraft.records import RoundRecord
from autodraft.simulate import Devices, PairPrior, Place, Simulator, Trace, place_of
from evaluation.lines import Case, RequestLine, hash_prompt
from evaluation.metrics import CurvePoint, Order
from evaluation.provenance import now, provenance
from evaluation.report import Results, write_results
from evaluation.store import RunStore

SIMULATED_SUFFIX: Final = "-simulated"
_ALWAYS: Final = (
    "Off the target's own text the draft is as sure of itself as at the same place of that text.",
    "Nothing else runs on the machines: no queue, and no jitter of the link.",
    "Energy is modelled by the watts of the block objective.",
)

Line = tuple[RequestLine, list[RoundRecord]]


@dataclass(frozen=True)
class Simulation:
    """What is simulated.

    Attributes:
        config: Methods, prices, links and the limit of an answer.
        traces: The answers.
        devices: The machines.
    """

    config: ExperimentConfig
    traces: tuple[Trace, ...]
    devices: Devices

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the figures rest on, in words."""
        pairs = sorted({f"{trace.target} answered, {trace.draft} drafted" for trace in self.traces})
        questions = len({(trace.bench, trace.question_id) for trace in self.traces})
        return (
            f"Tables: {self.devices.source}.",
            *(f"Tables: {each}." for each in self.devices.assumptions),
            f"Traces: {len(self.traces)} answers to {questions} questions; {'; '.join(pairs)}.",
            *_ALWAYS,
            "autodraft begins with what the first ten traces teach, as a survey of the pair would.",
        )

    def run(self, jobs: int | None = None) -> list[Line]:
        """Simulate every method over every link.

        Args:
            jobs: Processes; None takes as many as there are cores.

        Raises:
            ConfigError: If a method does not exist, or nothing can be learned from the traces.
        """
        links, specs = self.config.network.settings(), self.config.methods()
        for spec in specs:
            spec.require_available()
        prior = None
        if any(spec.cs is not None for spec in specs):  # the same over every link
            prior = Simulator(self._place(links[0]), self.traces).prior
        cells = list(product(links, specs))
        cell = partial(self.cell, prior)
        workers = min(len(cells), jobs or os.cpu_count() or 1)
        if workers == 1:
            parts: Iterable[list[Line]] = map(cell, *zip(*cells, strict=True))
            return [line for part in parts for line in part]
        with ProcessPoolExecutor(workers) as pool:
            parts = pool.map(cell, *zip(*cells, strict=True))
            return [line for part in parts for line in part]

    def _place(self, network: NetworkSetting) -> Place:
        return place_of(self.devices, self.config.objective, network)

    def cell(
        self, prior: PairPrior | None, network: NetworkSetting, spec: MethodSpec
    ) -> list[Line]:
        """Simulate one method over one link: a pair of its own, from the first answer to the last.

        Args:
            prior: What is known of the pair; None where the method does not adapt.
            network: The link.
            spec: The method.
        """
        simulator = Simulator(self._place(network), self.traces, prior)
        limit = self.config.run.max_new_tokens
        return [_line(simulator, trace, spec, network, limit) for trace in self.traces]


def choose_traces(config: ExperimentConfig, traces: Sequence[Trace]) -> tuple[Trace, ...]:
    """Return the traces of the benchmarks that a configuration names, or of all without any.

    Raises:
        ConfigError: If none of the traces is of one of them, or tokens are to be drawn.
    """
    if config.sampling.temperature > 0:
        raise ConfigError(
            f"TEMPERATURE={config.sampling.temperature:g}: traces are of greedy answers. Simulate "
            "with --set sampling.TEMPERATURE=0"
        )
    wanted = config.dataset.benches
    chosen = [trace for trace in traces if trace.bench in wanted]
    if not chosen:
        there = ", ".join(sorted({trace.bench for trace in traces}))
        raise ConfigError(
            f"BENCHES_CSV names {', '.join(wanted)}, and the trace has answers to {there} alone. "
            f"--set dataset.BENCHES_CSV={there.replace(' ', '')}"
        )
    limit = config.dataset.question_limit
    return tuple(chosen if limit is None else _first(chosen, limit))


def _first(traces: Sequence[Trace], limit: int) -> list[Trace]:
    """Return the traces of the first questions of each benchmark."""
    kept: dict[str, list[int | str]] = {}
    found = []
    for trace in traces:
        questions = kept.setdefault(trace.bench, [])
        if trace.question_id not in questions and len(questions) < limit:
            questions.append(trace.question_id)
        if trace.question_id in questions:
            found.append(trace)
    return found


def _line(
    simulator: Simulator, trace: Trace, spec: MethodSpec, network: NetworkSetting, limit: int
) -> Line:
    found = simulator.answer(trace, spec, limit)
    case = Case(
        bench=trace.bench,
        question_id=trace.question_id,
        category=trace.category,
        turn=trace.turn,
        repeat=1,
        method=spec.label,
        rtt_ms=network.rtt_ms,
        jitter_ms=network.jitter_ms,
        uplink_mbps=network.uplink_mbps,
        downlink_mbps=network.downlink_mbps,
    )
    prompt = hash_prompt(trace.prompt_ids)
    return RequestLine(case=case, status="ok", prompt_hash=prompt, record=found.request), list(
        found.rounds
    )


def write_simulation(
    store: RunStore, simulation: Simulation, lines: Sequence[Line], argv: Sequence[str]
) -> Results:
    """Write what a real run would have written; the manifest says that it was simulated.

    Raises:
        StoreError: If a file cannot be written.
    """
    for line, rounds in lines:
        store.append(line, rounds)
    manifest: dict[str, Any] = {
        "simulated": True,
        "assumptions": list(simulation.assumptions),
        "at": now(),
        **provenance(argv),
    }
    store.write_manifest(manifest)
    config = simulation.config
    specs = config.methods()
    order: Order = [
        (bench, network.label, spec.label)
        for bench in dict.fromkeys(trace.bench for trace in simulation.traces)
        for network in config.network.settings()
        for spec in specs
    ]
    curves = {spec.label: CurvePoint(spec.curve, spec.cs) for spec in specs if spec.cs is not None}
    return write_results(store, config.objective, order, curves, config.slo)
