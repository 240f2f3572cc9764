"""How long a run will take, and what its target will cost, at most: for the dry run.

Rates are those of the newest finished run of the same models below the output folder; where there
is none they are assumed, and said to be. Nothing is measured here, and no server is asked.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from autodraft.config import ExperimentConfig, MethodSpec, NetworkSetting
from autodraft.config_io import load_config
from autodraft.cost import Quantities, cost_of
from autodraft.errors import ConfigError
from evaluation.datasets import Question
from evaluation.metrics import prices_of
from evaluation.store import MANIFEST_FILE, RESOLVED_FILE

ASSUMED_TOKENS_PER_S: Final = 20.0
TUNING_SUFFIX: Final = "-tune"
"""What the folder of an experiment's tunings ends with."""
TOKENS_PER_ROUND: Final = 2
"""Assumed for the round trips of speculation, where a rate was not measured over the link."""
_MS_PER_S: Final = 1000.0


@dataclass(frozen=True)
class Rates:
    """Output tokens per second, and where they come from.

    Attributes:
        assumed: Rate of a method of which nothing is known.
        measured: By method label and added round-trip time in milliseconds.
        run: The run they were measured in; None where there was none.
    """

    assumed: float = ASSUMED_TOKENS_PER_S
    measured: Mapping[tuple[str, float], float] | None = None
    run: str | None = None

    def seconds(
        self, spec: MethodSpec, network: NetworkSetting, requests: int, tokens: int
    ) -> tuple[float, bool]:
        """Return the most seconds that requests of one method take.

        Args:
            spec: The method.
            network: How the link is shaped.
            requests: How many requests.
            tokens: The most output tokens of all of them together.

        Returns:
            The seconds, and whether the rate was measured.
        """
        measured = self.measured or {}
        if (rate := measured.get((spec.label, network.rtt_ms))) is not None:
            return tokens / rate, True
        rate = measured.get((spec.label, 0.0))
        speculates_over_link = spec.node_budget > 0 and spec.placement == "user"
        trips = requests + (tokens / TOKENS_PER_ROUND if speculates_over_link else 0)
        waiting_s = trips * network.rtt_ms / _MS_PER_S
        return tokens / (rate or self.assumed) + waiting_s, rate is not None


def target_cost_usd(config: ExperimentConfig, seconds: float) -> float:
    """Return what the target costs, were it busy for all of that time."""
    used = Quantities(
        output_tokens=0,
        target_busy_s=seconds,
        target_held_s=seconds,
        total_s=0.0,
        draft_j=0.0,
        target_j=None,
        uplink_bytes=0,
        downlink_bytes=0,
    )
    objective = config.objective
    return cost_of(used, prices_of(objective), objective.billing).target_usd


def warm_up_turns(wanted: int, questions: Sequence[Question]) -> int:
    """Return how many requests ``wanted`` warm-up questions are, begun anew where they run out."""
    return sum(len(question.turns) for question in islice(cycle(questions), wanted))


def find_rates(root: Path, config: ExperimentConfig, assumed: float) -> Rates:
    """Look for the newest finished run of the same models in the same form.

    Args:
        root: Folder of all results; it may not exist.
        config: The configuration that is to be run.
        assumed: Rate of a method of which nothing is found, in tokens per second.
    """
    for folder in _finished_newest_first(root):
        try:
            models = load_config(folder / RESOLVED_FILE).config.models
        except ConfigError:  # of another version
            continue
        if folder.parent.name.endswith(TUNING_SUFFIX):  # its labels are those of candidates
            continue
        if models == config.models and (measured := _measured(folder / "summary.csv")):
            return Rates(assumed, measured, f"{folder.parent.name}/{folder.name}")
    return Rates(assumed)


def _finished_newest_first(root: Path) -> list[Path]:
    found = []
    for path in root.glob(f"*/*/{MANIFEST_FILE}"):
        try:
            manifest = json.loads(path.read_bytes())
            if manifest["status"] == "finished":
                found.append((str(manifest["sessions"][-1]["ended_at"]), path.parent))
        except (OSError, ValueError, LookupError, TypeError):  # of another version, or damaged
            continue
    return [folder for _, folder in sorted(found, reverse=True)]


def _measured(summary: Path) -> dict[tuple[str, float], float]:
    """Return tokens per second by method and round-trip time, totals over totals."""
    try:
        with summary.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError:
        return {}
    totals: dict[tuple[str, float], tuple[float, float]] = {}
    for row in rows:
        tokens, rate = _number(row, "output_tokens"), _number(row, "tokens_per_s")
        if tokens and rate:
            key = (row["method"], _number(row, "rtt_ms") or 0.0)
            before = totals.get(key, (0.0, 0.0))
            totals[key] = (before[0] + tokens, before[1] + tokens / rate)
    return {key: tokens / seconds for key, (tokens, seconds) in totals.items()}


def _number(row: Mapping[str, str | None], name: str) -> float | None:
    try:
        return float(row.get(name) or "")
    except ValueError:
        return None


def basis(rates: Rates, labels: Sequence[str], assumed_for: Sequence[str]) -> str:
    """Say in words what an estimate rests on.

    Args:
        rates: What it was made with.
        labels: All methods.
        assumed_for: Those of which no rate was known.
    """
    parts = []
    if len(assumed_for) < len(labels):
        parts.append(f"rates of the run {rates.run}")
    if assumed_for:
        which = "" if len(assumed_for) == len(labels) else f" for {', '.join(assumed_for)}"
        parts.append(
            f"an assumption{which}: {rates.assumed:g} tokens/s (--assume-tokens-per-s), plus the "
            f"added round-trip time once a request, or every {TOKENS_PER_ROUND} tokens where the "
            "user drafts"
        )
    return "; ".join(parts)
