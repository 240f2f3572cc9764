"""What the check was asked for, and the form of what it found.

Figures arrive while they are measured: the report of a check that is cut short holds them too.
Measures nothing itself.
"""

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import safetensors
import torch
import transformers

from autodraft import __version__
from autodraft.models.hardware import device_label
from gpu_checks.lossless import Comparison, verdict
from gpu_checks.models import free_bytes
from gpu_checks.rounds import Outcome
from gpu_checks.shapes import Pair, Shape
from gpu_checks.tables import GRID, TINY_GRID, Cells, Grid

MODES: Final = ("eager", "compiled")


@dataclass(frozen=True)
class Settings:
    """What the command was asked for.

    Attributes:
        device: Where everything runs.
        dtype: Of the large models; outputs are always compared in float32.
        tiny: Toy sizes, to check the workings alone.
        compiled: Whether to compile: ``auto`` does on CUDA only.
        seed: Seed of weights, prompts and trees.
        out: Where the report is written as well; None writes it to standard output only.
    """

    device: torch.device
    dtype: torch.dtype
    tiny: bool
    compiled: str
    seed: int
    out: Path | None

    @property
    def grid(self) -> Grid:
        """What the tables are measured over."""
        return TINY_GRID if self.tiny else GRID


class PairTables:
    """The latency tables of one pair of models.

    Attributes:
        pair: The models.
        draft_steps: Levels of drafting, by mode.
        verifications: Verifications, by mode.
        prefills: Prompts of the target.
    """

    def __init__(self, pair: Pair, why: str, itemsize: int) -> None:
        """Begin with empty tables.

        Args:
            pair: The models.
            why: Why it is these, in words.
            itemsize: Bytes of a weight.
        """
        self.pair = pair
        self._why = why
        self._itemsize = itemsize
        names = {"eager": "", "compiled": "compiled "}
        self.draft_steps = {m: Cells(f"{names[m]}draft steps of {pair.draft.name}") for m in MODES}
        self.verifications = {m: Cells(f"{names[m]}verify of {pair.target.name}") for m in MODES}
        self.prefills = Cells(f"prefill of {pair.target.name}")

    def models(self) -> dict[str, Any]:
        """Return the models, for JSON."""
        described = {
            role: {
                **asdict(shape),
                "weights": "random",
                "parameters": shape.parameters,
                "weights_bytes": shape.parameters * self._itemsize,
                "read_bytes": self._read_bytes(shape),
            }
            for role, shape in (("target", self.pair.target), ("draft", self.pair.draft))
        }
        return {**described, "why": self._why}

    def tables(self, copied: float | None) -> dict[str, Any]:
        """Return the tables, for JSON; ``copied`` is the speed of a memory copy in GB/s."""
        drafts, targets = self.draft_steps, self.verifications
        pair = self.pair
        prompts = [_without_context(row) for row in self.prefills.as_rows("tokens")]
        return {
            "draft_step_ms": {
                mode: self._with_shares(drafts[mode].as_rows("width"), "width", pair.draft, copied)
                for mode in MODES
            },
            "verify_ms": {
                mode: self._with_shares(_with_nodes(targets[mode]), "rows", pair.target, copied)
                for mode in MODES
            },
            "prefill_ms": {"eager": prompts},
        }

    def _with_shares(
        self, rows: list[dict[str, Any]], label: str, shape: Shape, copied: float | None
    ) -> list[dict[str, Any]]:
        """Say of single-row forwards how near they come to the speed of the memory."""
        for row in rows:
            if row[label] == 1:
                rate = self._read_bytes(shape) / (row["ms"] * 1e6)
                row["weights_gb_per_s"] = round(rate, 3)
                row["share_of_bandwidth"] = round(rate / copied, 4) if copied else None
        return rows

    def _read_bytes(self, shape: Shape) -> int:
        return shape.parameters_read * self._itemsize


def _with_nodes(cells: Cells) -> list[dict[str, Any]]:
    """Put the drafted nodes, which leave out the root, beside the rows that were forwarded."""
    return [{"nodes": row["rows"] - 1, **row} for row in cells.as_rows("rows")]


def _without_context(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "context"}


@dataclass
class Report:
    """Everything found so far.

    Attributes:
        settings: What was asked for.
        comparisons: Answers compared for losslessness.
        copied_gb_per_s: Speed of a memory copy, bytes read and written.
        pairs: Tables of the pairs of models; the first pair is the one measured in full.
        outcome: What came of the rounds over loopback.
        compiled_skipped: Why nothing was compiled; None where it was, or was yet to be.
        failed: Parts that broke, and why.
    """

    settings: Settings
    comparisons: list[Comparison] = field(default_factory=list)
    copied_gb_per_s: float | None = None
    pairs: list[PairTables] = field(default_factory=list)
    outcome: Outcome | None = None
    compiled_skipped: str | None = None
    failed: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._head = _head(self.settings)

    @property
    def held(self) -> bool:
        """Whether losslessness held and no part broke."""
        return bool(verdict(self.comparisons)["held"]) and not self.failed

    def as_dict(self) -> dict[str, Any]:
        """Return the report but for the time it took."""
        copied = self.copied_gb_per_s
        pairs: list[dict[str, Any]] = [
            {"models": pair.models(), "tables": pair.tables(copied)} for pair in self.pairs
        ]
        first = pairs[0] if pairs else {"models": None, "tables": None}
        return {
            **self._head,
            "held": self.held,
            "failed": self.failed,
            "models": first["models"],
            "lossless": verdict(self.comparisons),
            "bandwidth_gb_per_s": copied,
            "tables": first["tables"],
            "more_pairs": pairs[1:],
            "compiled_skipped": self.compiled_skipped,
            "round": self.outcome and self.outcome.as_dict(),
        }


def _head(settings: Settings) -> dict[str, Any]:
    device = settings.device
    found: dict[str, Any] = {
        "name": str(device),
        "label": device_label(device),
        "free_bytes": free_bytes(device),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    return {
        "check": "gpu",
        "device": found,
        "versions": {
            "autodraft": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
            "safetensors": safetensors.__version__,
        },
        "dtype": str(settings.dtype).removeprefix("torch."),
        "tiny": settings.tiny,
        "seed": settings.seed,
    }


def table_lines(rows: Sequence[dict[str, Any]], label: str) -> list[str]:
    """Return a table for people: ms by the number of rows and by context."""
    contexts = sorted({row["context"] for row in rows})
    times = {(row[label], row["context"]): row["ms"] for row in rows}
    lines = [" ".join([label.rjust(8), *(str(context).rjust(10) for context in contexts)])]
    for count in sorted({row[label] for row in rows}):
        found = [times.get((count, context)) for context in contexts]
        cells = ["-" if ms is None else f"{ms:.3f}" for ms in found]
        lines.append(" ".join([str(count).rjust(8), *(cell.rjust(10) for cell in cells)]))
    return lines
