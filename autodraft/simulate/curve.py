"""The trade-off curve of a pair: predicted by the simulator, and measured where answers exist.

A predicted curve is kept under a key that says all it depends on, so that it is simulated once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from autodraft.config import MethodSpec
from autodraft.cost import CurvePoint, Timed, curve_point, quantities_of
from autodraft.errors import ProfileError
from autodraft.policy.survey import PairPrior
from autodraft.profiling.store import profile_path, read_profile, write_profile
from autodraft.profiling.traces import Trace
from autodraft.records import RequestRecord
from autodraft.simulate.simulator import Place, Simulator

REFERENCE_FOLDER: Final = "reference"
"""Name of the folder of predicted curves, inside that of AutoDraft's data."""
REFERENCE_CS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_KIND: Final = "curve"
LEAST_RTT_S: Final = 1e-3


@dataclass(frozen=True)
class Outlook:
    """What a curve is predicted from.

    Attributes:
        place: Machines, prices and link.
        traces: Texts that are taken to be like those to come.
        prior: What is known of the pair.
        pair_key: Which pair it is, in words.
        max_new_tokens: Most tokens of an answer; traces are not longer than they are.
    """

    place: Place
    traces: Sequence[Trace]
    prior: PairPrior
    pair_key: str
    max_new_tokens: int

    def point(self, spec: MethodSpec) -> CurvePoint | None:
        """Return what autodraft should come to by one spec; None without a price of its objective.

        Raises:
            ConfigError: If there is no trace.
        """
        simulator = Simulator(self.place, self.traces, self.prior)
        answers = [
            simulator.answer(trace, spec, self.max_new_tokens).request for trace in self.traces
        ]
        return point_of(spec, [timed(answer) for answer in answers], self.place)

    def curve(self, specs: Sequence[MethodSpec]) -> list[CurvePoint]:
        """Return the points of several specs, those that can be priced."""
        points = [self.point(spec) for spec in specs]
        return [point for point in points if point is not None]

    def key(
        self, specs: Sequence[MethodSpec], digits: int = 2, least_rtt_s: float = LEAST_RTT_S
    ) -> str:
        """Return all that a curve of these specs depends on, in words.

        Args:
            specs: autodraft at each cost sensitivity.
            digits: Of what was measured of the link.
            least_rtt_s: Delay, in seconds, below which all links are the same.
        """
        place = self.place
        figures = (
            max(place.link.rtt_s, least_rtt_s),
            place.link.uplink_bytes_per_s,
            place.link.downlink_bytes_per_s,
        )
        link = ", ".join(f"{figure:.{digits}g}" for figure in figures)
        parts = {
            "pair": self.pair_key,
            "link": link,
            "prices": place.money.prices,
            "billing": place.money.billing,
            "powers": place.money.powers,
            "tokens": self.max_new_tokens,
            "specs": [spec.model_dump() for spec in specs],
        }
        return "; ".join(f"{name}: {value}" for name, value in parts.items())


def timed(record: RequestRecord) -> Timed:
    """Return what a curve needs of an answer."""
    return Timed(quantities_of(record), record.ttft_s, record.total_s)


def point_of(spec: MethodSpec, answers: Sequence[Timed], place: Place) -> CurvePoint | None:
    """Return the point of answers of autodraft; None where their objective is not known."""
    assert spec.cs is not None, "only autodraft has a cost sensitivity"
    money = place.money
    return curve_point(spec.cs, answers, spec.objective, money.prices, money.billing)


def reference_curve(
    outlook: Outlook, specs: Sequence[MethodSpec], data_folder: Path
) -> list[CurvePoint]:
    """Return a predicted curve, from disk where it was predicted before.

    Args:
        outlook: What it is predicted from.
        specs: autodraft at each cost sensitivity.
        data_folder: AutoDraft's folder of data; the curve is kept below it.

    Raises:
        ProfileError: If what is kept is damaged, or cannot be kept.
        ConfigError: If the pair's profile holds no trace.
    """
    folder, key = data_folder / REFERENCE_FOLDER, outlook.key(specs)
    content = read_profile(folder, _KIND, key)
    if content is None:
        points = outlook.curve(specs)
        write_profile(folder, _KIND, key, {"points": [point._asdict() for point in points]})
        return points
    return _points(content, profile_path(folder, _KIND, key))


def _points(content: Mapping[str, Any], path: Path) -> list[CurvePoint]:
    try:
        return [CurvePoint(**point) for point in content["points"]]
    except (KeyError, TypeError) as error:
        raise ProfileError(
            f"The curve {path} is damaged ({error}). Delete the file: it is predicted again."
        ) from error
