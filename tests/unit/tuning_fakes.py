"""A fake engine whose best shapes are known, and a bench to tune on.

The fake engine accepts at most five drafted tokens a round. A chain of d needs 120 / (min(d, 5) +
1) rounds for its 120 tokens; a round takes 1 s of the target, 1.5 s of drafting a token, and the
round trip; a drafted token costs 1 J. Server-only decoding takes 1 s a token. So the best d is

* 1 by time on the bare link (150 s against 160, 165, 168, 170, 200 …),
* 5 by time with 9 s of round trip (350 s against 690, 520, 435, 384, 380 …),
* 5 by the target's time (20 s, as for 6, 8 and 10), and 1 by the draft's energy.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autodraft.config import ExperimentConfig, MethodSpec, NetworkSetting
from autodraft.config_io import LoadedConfig, dump_yaml
from autodraft.errors import AutodraftError
from autodraft.records import GenerationResult
from evaluation.datasets import Locations
from evaluation.experiment import Consoles, Experiment
from evaluation.interrupts import Interrupts
from evaluation.manifest import continued_manifest, new_manifest
from evaluation.store import RESOLVED_FILE, RunStore, make_run_id
from evaluation.tune import load_validation, tune, tuning_plan
from evaluation.tuning import StoredTuning, key_of, tuning_path
from tests.unit.evaluation_fakes import make_config, make_record

TOKENS = 120
BARE = NetworkSetting()
LONG = NetworkSetting(rtt_ms=9000)
AUTO_TREES = {
    "fixed_tree_width": None,
    "fixed_tree_depth": None,
    "fixed_tree_nodes": None,
    "opt_tree_width": None,
}
FREE = {
    "draft_electricity_cost_per_kwh": 0,
    "user_comm_cost_per_gb": 0,
    "cloud_outbound_cost_per_gb": 0,
    "target_per_hour_cost": 3600,  # 1 $ a second
}
Failure = Callable[[MethodSpec], AutodraftError | None]


class SpeedEngine:
    """Takes the time and energy that the module's docstring says."""

    def __init__(self, failure: Failure = lambda _: None) -> None:
        self.asked: list[str] = []
        self.prompts: set[str] = set()
        self._failure = failure
        self._rtt_s = 0.0

    def connect(self) -> None:
        pass

    def use_network(self, setting: NetworkSetting) -> None:
        self._rtt_s = setting.rtt_ms / 1000

    def measure_rtt(self) -> float:
        return self._rtt_s

    def describe(self) -> dict[str, Any]:
        return {"target": {"model": "fake"}}

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        self.prompts.add(messages[0]["content"])
        return [ord(letter) for letter in messages[-1]["content"]]

    def encode_text(self, text: str) -> list[int]:
        raise AssertionError("quick has no question of the form completion")

    def run(
        self,
        *,
        prompt_ids: Sequence[int],
        method: MethodSpec,
        max_new_tokens: int,
        stop: Sequence[str] = (),
        **wish: Any,
    ) -> GenerationResult:
        self.asked.append(method.label)
        if (error := self._failure(method)) is not None:
            raise error
        d = method.max_depth
        rounds = TOKENS // (min(d, 5) + 1)
        record = make_record(
            method.name,
            output_tokens=TOKENS,
            total_s=rounds * (1 + 1.5 * d + self._rtt_s) if d else TOKENS + self._rtt_s,
            target_busy_s=float(rounds),
            draft_j=float(rounds * d),
        )
        return GenerationResult(
            text="An answer.",
            token_ids=record.output_ids,
            finish_reason=record.finish_reason,
            request=record,
            rounds=[],
        )

    def close(self) -> None:
        pass


def config_for(
    name: str = "total_cost", cs: float = 0.5, /, **blocks: Mapping[str, Any]
) -> ExperimentConfig:
    """Return a configuration with ``chain`` tuned on the two last questions of ``quick``."""
    settings: dict[str, dict[str, Any]] = {
        "algorithms": {"method_names": ("server_only", "chain")},
        "dataset": {"benches": ("quick",), "validation_questions": 2},
        "network": {"rtt_ms": (0, 9000)},
        "objective": FREE | {"objective_metrics": (name,), "base_cost_sensitivity": cs},
        "run": {"warmup_questions": 0, "retries": 0},
    }
    for block, fields in blocks.items():
        settings[block] = settings.get(block, {}) | dict(fields)
    return make_config(**settings)


def locations(folder: Path) -> Locations:
    return Locations(bench_dir=None, environment_dir=None, cache_dir=folder, download=False)


def no_engine(_: ExperimentConfig) -> SpeedEngine:
    raise AssertionError("an engine was made")


@dataclass
class Bench:
    """A folder for runs and one for tunings."""

    folder: Path
    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)

    @property
    def tunings(self) -> Path:
        return self.folder / "data" / "tuning"

    def tune(
        self,
        config: ExperimentConfig,
        make_engine: Callable[[ExperimentConfig], SpeedEngine],
        goes_on: Path | None = None,
    ) -> tuple[int, Path]:
        """Tune as the command does; return the exit code and the run's folder."""
        loaded = LoadedConfig(config, (), Path("mine.yaml"), "")
        plan = tuning_plan(config)
        validation = load_validation(plan, locations(self.folder))
        if goes_on is None:
            run_id = make_run_id(dump_yaml(config), date(2026, 1, 2))
            store = RunStore.create(self.folder / "results", "mine-tune", run_id)
            store.write_text(RESOLVED_FILE, dump_yaml(config))
        else:
            store = RunStore(goes_on)
        take = new_manifest if goes_on is None else continued_manifest
        manifest = take(loaded, plan, validation.asked, store)
        consoles = Consoles(Console(file=self.out, width=200), Console(file=self.err, width=200))
        with Interrupts() as interrupts, pytest.MonkeyPatch.context() as patch:
            # Plots take most of the time, and are tested elsewhere.
            patch.setattr("evaluation.report.draw_tradeoffs", lambda *_: [])
            experiment = Experiment(plan, validation.asked, store, manifest, consoles, interrupts)
            return tune(experiment, validation, self.tunings, make_engine, ["tune"]), store.folder

    def tuned(self, config: ExperimentConfig) -> StoredTuning:
        return StoredTuning(self.tunings, config, locations(self.folder))

    def best(self, config: ExperimentConfig, network: NetworkSetting = BARE) -> int | None:
        """Return the length that a run of the configuration takes; None where it is not tuned."""
        found = self.tuned(config).shape(config.method("chain"), "quick", network)
        return None if found is None else found.max_depth

    def file(self, config: ExperimentConfig, network: NetworkSetting = BARE) -> Path:
        return tuning_path(self.tunings, key_of(config, "quick", network))


def tuned_bench(folder: Path) -> Bench:
    """Return what a finished tuning left."""
    found = Bench(folder)
    code, _ = found.tune(config_for(), lambda _: SpeedEngine())
    assert code == 0
    return found
