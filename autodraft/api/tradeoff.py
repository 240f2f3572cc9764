"""The trade-off curve of an engine: predicted once for a pair and a link, measured by its answers.

Puts profile, simulator and files together, and says what a curve means for limits. Runs no request.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autodraft.config import DEFAULT_MAX_NEW_TOKENS, ExperimentConfig, MethodSpec, SloConfig
from autodraft.cost import CurvePoint
from autodraft.engine.user import UserSide
from autodraft.policy.limits import CLOSE, Aim, aim_at, bounds_of, multipliers_at
from autodraft.records import LimitReport, RequestRecord
from autodraft.settings import data_dir
from autodraft.simulate import Devices, Place
from autodraft.simulate.curve import REFERENCE_CS, Outlook, point_of, reference_curve, timed
from autodraft.simulate.saved import TRADEOFF_FOLDER, Measured, SavedCurve

_ASSUMED: Final = "both machines as idle as when they were profiled"


class Tradeoffs:
    """The curves of one engine; its pair has been profiled before anything is asked of them."""

    def __init__(self, config: ExperimentConfig, user: UserSide) -> None:
        """Take the configuration, for ceilings and objective, and who knows the pair."""
        self._config = config
        self._user = user
        self._aims: dict[MethodSpec, Aim] = {}

    def devices(self) -> Devices:
        """Return what was measured of the pair's machines, in the simulator's form."""
        known = self._user.known
        source = f"profile of {known.key}"
        return Devices(known.tables.draft, known.tables.target, source, (_ASSUMED,))

    def predicted(
        self,
        cs_values: Sequence[float] = REFERENCE_CS,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        like: MethodSpec | None = None,
    ) -> list[CurvePoint]:
        """Return a predicted curve, kept under ``reference/`` in the data folder.

        Args:
            cs_values: Cost sensitivities.
            max_new_tokens: Most tokens of an answer.
            like: A spec whose other fields hold; None takes the configuration's.

        Raises:
            ProfileError: If a curve that is kept is damaged, or one cannot be kept.
        """
        specs = self._specs(cs_values, like)
        return reference_curve(self._outlook(max_new_tokens), specs, data_dir())

    def aim(self, spec: MethodSpec) -> Aim:
        """Return what is to be expected of a spec's limits, and where to begin.

        Args:
            spec: autodraft with at least one limit.

        Raises:
            ProfileError: As ``predicted``.
        """
        assert spec.cs is not None, "only autodraft follows limits"
        return aim_at(self.predicted(like=spec), spec.slo, spec.cs)

    def begin(self, spec: MethodSpec) -> None:
        """Say what is expected of limits, and begin there with those that are new to the pair.

        Raises:
            ProfileError: As ``predicted``.
        """
        if spec.cs is None or not spec.slo.limits:
            return
        pair, aim = self._user.known.pair, self.aim(spec)
        self._aims[spec] = aim
        if not pair.steers(spec):
            pair.steering(spec).start_at(*multipliers_at(spec.cs, aim.cs))

    def reports(self, spec: MethodSpec, record: RequestRecord) -> list[LimitReport] | None:
        """Return what became of a spec's limits in an answer that was begun; None without any."""
        if spec not in self._aims:
            return None
        point = point_of(spec, [timed(record)], self._place())
        return limit_reports(self._aims[spec], spec.slo, point)

    def save(
        self, spec: MethodSpec, record: RequestRecord, folder: Path | None
    ) -> tuple[Path, Path]:
        """Add an answer to the curve of its kind and write it; return JSON and picture.

        Args:
            spec: What made the answer.
            record: The answer's.
            folder: Where to; None takes ``tradeoff/`` in the data folder.

        Raises:
            StoreError: If a file cannot be read or written.
            ProfileError: As ``predicted``.
            ConfigError: If matplotlib is missing.
        """
        assert spec.cs is not None, "only autodraft has a curve"
        outlook, specs = self._outlook(DEFAULT_MAX_NEW_TOKENS), self._specs(REFERENCE_CS, spec)
        curve = SavedCurve(outlook, specs, reference_curve(outlook, specs, data_dir()))
        where = folder or data_dir() / TRADEOFF_FOLDER
        curve.read(where)
        curve.measured.setdefault(spec.cs, Measured()).add(timed(record))
        return curve.write(where)

    def _place(self) -> Place:
        known = self._user.known
        return Place(self.devices(), known.money, known.pair.link)

    def _outlook(self, max_new_tokens: int) -> Outlook:
        known = self._user.known
        found = known.survey
        return Outlook(self._place(), found.traces, found.prior, known.key, max_new_tokens)

    def _specs(self, cs_values: Sequence[float], like: MethodSpec | None) -> list[MethodSpec]:
        """Return autodraft at cost sensitivities, free of limits."""
        base = like or self._config.adaptive(REFERENCE_CS[0])
        free = {"variant": "", "slo": SloConfig()}
        return [base.model_copy(update={**free, "cs": cs}) for cs in cs_values]


def limit_reports(aim: Aim, slo: SloConfig, point: CurvePoint | None) -> list[LimitReport]:
    """Return what became of limits.

    Args:
        aim: What was expected.
        slo: The limits.
        point: What was measured; None where that is not known.
    """
    found = []
    for bound, forecast in zip(bounds_of(slo), aim.forecasts, strict=True):
        attained = None if point is None else bound.figure(point)
        met = None if attained is None else bound.shortfall(attained) <= CLOSE
        found.append(
            LimitReport(
                tag=bound.tag,
                limit=bound.value,
                attained=attained,
                met=met,
                attainable=forecast.attainable,
                feasible=forecast.feasible,
            )
        )
    return found
