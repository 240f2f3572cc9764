"""The trade-off curve of an engine: predicted once for a pair and a link, measured by its answers.

Puts profile, simulator and files together. Runs no request.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autodraft.config import DEFAULT_MAX_NEW_TOKENS, ExperimentConfig, MethodSpec
from autodraft.cost import CurvePoint
from autodraft.engine.user import Known
from autodraft.profiling.link import LinkEstimate
from autodraft.records import RequestRecord
from autodraft.settings import data_dir
from autodraft.simulate import Devices, Place
from autodraft.simulate.curve import REFERENCE_CS, Outlook, reference_curve, timed
from autodraft.simulate.saved import TRADEOFF_FOLDER, Measured, SavedCurve

_ASSUMED: Final = "both machines as idle as when they were profiled"


def devices_of(known: Known) -> Devices:
    """Return what was measured of a pair's machines, in the simulator's form."""
    return Devices(
        known.tables.draft,
        known.tables.target,
        f"profile of {known.key}",
        (_ASSUMED,),
    )


class Tradeoffs:
    """The curves of one engine."""

    def __init__(self, config: ExperimentConfig) -> None:
        """Take the configuration: prices, ceilings and the objective."""
        self._config = config

    def outlook(self, known: Known, link: LinkEstimate, max_new_tokens: int) -> Outlook:
        """Return what curves are predicted from.

        Args:
            known: The pair.
            link: The link as it is.
            max_new_tokens: Most tokens of an answer.
        """
        place = Place(devices_of(known), known.money, link)
        found = known.survey
        return Outlook(place, found.traces, found.prior, known.key, max_new_tokens)

    def specs(
        self, cs_values: Sequence[float] = REFERENCE_CS, like: MethodSpec | None = None
    ) -> list[MethodSpec]:
        """Return autodraft at cost sensitivities.

        Args:
            cs_values: The cost sensitivities.
            like: A spec whose other fields hold; None takes the configuration's.
        """
        base = like or self._config.adaptive(REFERENCE_CS[0])
        return [base.model_copy(update={"cs": cs, "variant": ""}) for cs in cs_values]

    def predicted(
        self,
        known: Known,
        link: LinkEstimate,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        cs_values: Sequence[float] = REFERENCE_CS,
        like: MethodSpec | None = None,
    ) -> list[CurvePoint]:
        """Return a predicted curve, kept under ``reference/`` in the data folder."""
        outlook = self.outlook(known, link, max_new_tokens)
        return reference_curve(outlook, self.specs(cs_values, like), data_dir())

    def save(
        self,
        known: Known,
        link: LinkEstimate,
        spec: MethodSpec,
        record: RequestRecord,
        folder: Path | None,
    ) -> tuple[Path, Path]:
        """Add an answer to the curve of its kind and write it; return JSON and picture.

        Args:
            known: The pair.
            link: The link as it was.
            spec: What made the answer.
            record: The answer's.
            folder: Where to; None takes ``tradeoff/`` in the data folder.

        Raises:
            StoreError: If a file cannot be read or written.
            ProfileError: If a predicted curve that is kept is damaged.
            ConfigError: If matplotlib is missing.
        """
        assert spec.cs is not None, "only autodraft has a curve"
        outlook = self.outlook(known, link, DEFAULT_MAX_NEW_TOKENS)
        specs = self.specs(like=spec)
        points = reference_curve(outlook, specs, data_dir())
        curve = SavedCurve(outlook, specs, points)
        where = folder or data_dir() / TRADEOFF_FOLDER
        curve.read(where)
        curve.measured.setdefault(spec.cs, Measured()).add(timed(record))
        return curve.write(where)
