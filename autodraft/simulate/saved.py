"""Trade-off curves on disk: one JSON file for each pair, link and objective, and its picture.

Answers add to the measured points of the file that is there. Drawing needs matplotlib, which comes
with the extra ``harness``.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from autodraft.config import MethodSpec
from autodraft.cost import OBJECTIVE_UNITS, CurvePoint, Quantities, Timed, sum_quantities
from autodraft.errors import ConfigError, StoreError
from autodraft.simulate.curve import Outlook, point_of

TRADEOFF_FOLDER: Final = "tradeoff"
"""Name of the folder of curves, inside that of AutoDraft's data."""
_SCHEMA: Final = 1
_SAME_RTT_S: Final = 0.01
"""Shorter links share a file: their delay is mostly the machine's noise."""
_HASH_LENGTH: Final = 12
_SIZE_INCHES: Final = (7.0, 4.5)
_DPI: Final = 150
_COLOURS: Final = ("#0072B2", "#D55E00")  # predicted, measured: Okabe and Ito


@dataclass
class Measured:
    """Answers at one cost sensitivity, added up.

    Attributes:
        answers: How many.
        used: What they used together; None before the first.
        ttft_s: Sum of the seconds to their first tokens.
        total_s: Sum of the seconds to their last tokens.
    """

    answers: int = 0
    used: Quantities | None = None
    ttft_s: float = 0.0
    total_s: float = 0.0

    def add(self, answer: Timed) -> None:
        """Take in one more."""
        self.answers += 1
        parts = [answer.used] if self.used is None else [self.used, answer.used]
        self.used = sum_quantities(parts)
        self.ttft_s += answer.ttft_s
        self.total_s += answer.total_s

    def point(self, spec: MethodSpec, outlook: Outlook) -> CurvePoint | None:
        """Return their point; None without answers, or where their objective is not known."""
        if self.used is None:
            return None
        found = point_of(spec, [Timed(self.used, self.ttft_s, self.total_s)], outlook.place)
        if found is None:
            return None
        later = max(1, self.used.output_tokens - self.answers)
        return found._replace(
            ttft_s=self.ttft_s / self.answers, tpot_s=(self.total_s - self.ttft_s) / later
        )


@dataclass
class SavedCurve:
    """A curve as it is kept.

    Attributes:
        outlook: What it was predicted from.
        specs: autodraft at each cost sensitivity of the predicted points.
        predicted: The predicted points.
        measured: Answers by cost sensitivity.
    """

    outlook: Outlook
    specs: Sequence[MethodSpec]
    predicted: Sequence[CurvePoint]
    measured: dict[float, Measured] = field(default_factory=dict)

    @property
    def objective(self) -> str:
        """What is weighed against time."""
        return self.specs[0].objective

    @property
    def stem(self) -> str:
        """Name of its files, without suffix: one for links that are much the same."""
        key = self.outlook.key(self.specs, digits=1, least_rtt_s=_SAME_RTT_S)
        return f"{self.objective}-{sha256(key.encode()).hexdigest()[:_HASH_LENGTH]}"

    def measured_points(self) -> list[CurvePoint]:
        """Return the measured points by rising cost sensitivity."""
        points = [
            measured.point(self.specs[0].model_copy(update={"cs": cs}), self.outlook)
            for cs, measured in sorted(self.measured.items())
        ]
        return [point for point in points if point is not None]

    def read(self, folder: Path) -> None:
        """Take in the answers that a file holds already.

        Raises:
            StoreError: If the file cannot be read or is damaged.
        """
        path = folder / f"{self.stem}.json"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            for cs, sums in content["answers"].items():
                used = Quantities(**sums.pop("used"))
                self.measured[float(cs)] = Measured(used=used, **sums)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreError(
                f"The trade-off file {path} cannot be used ({error}). Delete it: it is written "
                "again, without the answers that it counted."
            ) from error

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write JSON and picture; return their paths.

        Raises:
            StoreError: If they cannot be written.
            ConfigError: If matplotlib is missing.
        """
        json_path, png_path = (folder / f"{self.stem}{suffix}" for suffix in (".json", ".png"))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self._content(), indent=1, allow_nan=False)
            _replace(json_path, (text + "\n").encode())
            _draw(self, png_path)
        except OSError as error:
            raise StoreError(
                f"The trade-off curve cannot be written to {folder} ({error.strerror}). Name "
                "another folder with tradeoff_dir."
            ) from error
        return json_path, png_path

    def _content(self) -> Mapping[str, Any]:
        return {
            "schema": _SCHEMA,
            "objective": self.objective,
            "unit": f"{OBJECTIVE_UNITS[self.objective]} per million tokens",
            "billing": self.outlook.place.money.billing,
            "holds_for": self.outlook.key(self.specs),
            "predicted_from": f"{len(self.outlook.traces)} answers of the pair's survey",
            "predicted": [point._asdict() for point in self.predicted],
            "measured": [point._asdict() for point in self.measured_points()],
            "answers": {str(cs): asdict(each) for cs, each in sorted(self.measured.items())},
        }


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_bytes(data)
    draft.replace(path)


def _draw(curve: SavedCurve, path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "The picture of a trade-off curve needs matplotlib. Install it with "
            "pip install 'autodraft-sd[harness]', or leave out save_tradeoff."
        ) from error
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    kinds = (("predicted", curve.predicted), ("measured", curve.measured_points()))
    for (name, points), colour in zip(kinds, _COLOURS, strict=True):
        if points:
            axes.plot(*_axes_of(points), marker="o", color=colour, label=name)
        for point in points:
            place = (point.tokens_per_s, point.units_per_1m)
            axes.annotate(f"{point.cs:g}", place, textcoords="offset points", xytext=(5, 5))
    axes.set_xlabel("tokens/s")
    axes.set_ylabel(f"{curve.objective}, {OBJECTIVE_UNITS[curve.objective]} per million tokens")
    axes.set_title("Trade-off by cost sensitivity")
    if axes.lines:
        axes.legend()
    figure.savefig(path.with_suffix(".tmp.png"), format="png")
    path.with_suffix(".tmp.png").replace(path)


def _axes_of(points: Iterable[CurvePoint]) -> tuple[list[float], list[float]]:
    known = [point for point in points if math.isfinite(point.units_per_1m)]
    return [point.tokens_per_s for point in known], [point.units_per_1m for point in known]
