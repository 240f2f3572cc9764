"""What tuning measured, where it is kept, and which shape it speaks for.

One JSON file for each pair of models, benchmark and link holds what server-only decoding and every
candidate shape used on the validation questions. No price and no choice is in it: the choice is
made at look-up, with the prices, billing, objective and cost sensitivity of the configuration that
asks. This module measures nothing; `evaluation.tune` does. The formula: ``docs/tuning.md``.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from autodraft.config import ExperimentConfig, MethodSpec, NetworkSetting, ObjectiveConfig
from autodraft.cost import Quantities, objective_units, per_token
from autodraft.errors import DataError, StoreError
from evaluation.datasets import Locations, Question, hold_out, load_bench
from evaluation.metrics import REFERENCE_METHOD, prices_of
from evaluation.store import write_atomic

SCHEMA_VERSION: Final = 1
_HASH_DIGITS: Final = 8
_LONGEST_NAME: Final = 40
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9.]+")

Basis = Literal["blend", "time", "objective"]


class TuningKey(msgspec.Struct, frozen=True, kw_only=True):
    """What must be equal for a measurement to speak for a configuration.

    Attributes:
        target: The target model.
        draft: The draft model.
        target_quantization: As asked of the server; ``None`` leaves it to the server.
        draft_quantization: Quantisation of the draft.
        target_dtype: Number format asked of the target.
        draft_dtype: Number format of the draft.
        draft_device: Device of the draft, as DEVICE_MAP names it.
        server_name: Name of the server, which stands for its hardware.
        temperature: Of the sampling, and so are the next two.
        top_p: See there.
        top_k: See there.
        bench: Name of the benchmark.
        rtt_ms: What the link is shaped to, in milliseconds, and so are the next three.
        jitter_ms: See there.
        uplink_mbps: In Mbit/s; ``None`` for unlimited.
        downlink_mbps: In Mbit/s; ``None`` for unlimited.
    """

    target: str
    draft: str
    target_quantization: str | None
    draft_quantization: str
    target_dtype: str
    draft_dtype: str
    draft_device: str
    server_name: str
    temperature: float
    top_p: float
    top_k: int
    bench: str
    rtt_ms: float
    jitter_ms: float
    uplink_mbps: float | None
    downlink_mbps: float | None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one shape used on the validation questions, all requests together.

    Attributes:
        method: Method id, with its placement suffix where it has one.
        width: Most frontier nodes expanded in one level.
        max_depth: Greatest depth of a tree.
        node_budget: Most drafted nodes sent in a round.
        seconds: Submit to last token at the client; ``Quantities.total_s`` counts the user's
            device only.
        quantities: What is priced.
    """

    method: str
    width: int
    max_depth: int
    node_budget: int
    seconds: Annotated[float, msgspec.Meta(gt=0)]
    quantities: Quantities

    @property
    def seconds_per_token(self) -> float:
        """Mean time of an output token."""
        return self.seconds / self.quantities.output_tokens

    @property
    def size(self) -> tuple[int, int, int]:
        """What is compared where two shapes are equally good: the smaller one is taken."""
        return (self.node_budget, self.max_depth, self.width)

    def units(self, objective: ObjectiveConfig, name: str) -> float | None:
        """Return units of an objective per output token; None where they are not known."""
        units = objective_units(name, self.quantities, prices_of(objective), objective.billing)
        return per_token(units, self.quantities.output_tokens)


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured for one key.

    Attributes:
        schema_version: Version of this form.
        key: What it was measured for.
        questions_sha256: Hash of the validation questions, see `hash_questions`.
        questions: Validation questions that server-only and every candidate answered.
        requests: Their requests, which the sums are over.
        max_new_tokens: Most tokens of one answer.
        measured_at: When the run ended, UTC, ISO 8601.
        commit: Commit of AutoDraft; ``None`` without a checkout.
        run: Folder of the run with all records.
        shapes: Server-only decoding and the candidates.
    """

    schema_version: int = SCHEMA_VERSION
    key: TuningKey
    questions_sha256: str
    questions: int
    requests: int
    max_new_tokens: int
    measured_at: str | None
    commit: str | None
    run: str
    shapes: tuple[Measured, ...]

    @property
    def reference(self) -> Measured:
        """Server-only decoding."""
        return next(shape for shape in self.shapes if shape.method == REFERENCE_METHOD)


class Scored(NamedTuple):
    """A candidate and how good it is.

    Attributes:
        measured: The candidate.
        score: The lower the better.
        basis: What the score is: the ``blend`` of time and objective, each in parts of
            server-only's; its ``time`` alone, in parts of server-only's; or units of the
            ``objective`` per token alone.
    """

    measured: Measured
    score: float
    basis: Basis


class _Version(msgspec.Struct):
    schema_version: int


def hash_questions(questions: Sequence[Question]) -> str:
    """Return the SHA-256 of all that a question says to the model, in hex digits."""
    data = msgspec.json.encode([(item.id, item.turns, item.form, item.stop) for item in questions])
    return hashlib.sha256(data).hexdigest()


def validation_questions(
    config: ExperimentConfig, bench: str, locations: Locations
) -> tuple[Question, ...]:
    """Load the questions that a benchmark holds out, whatever its limit is.

    Raises:
        DataError: If the benchmark's file is missing or malformed, or too short.
    """
    questions = load_bench(bench, locations)
    return hold_out(bench, questions, config.dataset.validation_questions)[1]


# ---------------------------------------------------------------------------------------- storing


def key_of(config: ExperimentConfig, bench: str, network: NetworkSetting) -> TuningKey:
    """Return what must be equal for a measurement to speak for this configuration."""
    models, sampling = config.models, config.sampling
    return TuningKey(
        target=models.base_model_path,
        draft=models.draft_model_path,
        target_quantization=models.target_quantization,
        draft_quantization=models.draft_quantization,
        target_dtype=models.target_dtype,
        draft_dtype=models.dtype,
        draft_device=config.runtime.device_map,
        server_name=config.runtime.server_name,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        bench=bench,
        **network.model_dump(),
    )


def tuning_path(folder: Path, key: TuningKey) -> Path:
    """Return the file of a key: names that a reader knows, and a hash of the whole key."""
    network = NetworkSetting(
        rtt_ms=key.rtt_ms,
        jitter_ms=key.jitter_ms,
        uplink_mbps=key.uplink_mbps,
        downlink_mbps=key.downlink_mbps,
    )
    names = (_short(key.target), _short(key.draft), _short(key.bench), network.label)
    digest = hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:_HASH_DIGITS]
    return folder / f"{'_'.join(names)}-{digest}.json"


def _short(name: str) -> str:
    last = name.rstrip("/").rpartition("/")[2]
    return _NOT_IN_NAMES.sub("-", last).strip("-")[-_LONGEST_NAME:]


def write_tuning(folder: Path, tuning: Tuning) -> Path:
    """Write a tuning as a whole, over an earlier one of the same key, and return its file.

    Raises:
        StoreError: If it cannot be written.
    """
    path = tuning_path(folder, tuning.key)
    data = msgspec.json.format(msgspec.json.encode(tuning), indent=2) + b"\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
    except (OSError, StoreError) as error:
        raise StoreError(
            f"The tuning {path} cannot be written. Set AUTODRAFT_DATA_DIR to a writable folder and "
            "run the same command again: what was measured is kept."
        ) from error
    return path


def read_tuning(path: Path) -> Tuning | None:
    """Read a tuning.

    Returns:
        The tuning; None where there is none, or one of another schema version.

    Raises:
        StoreError: If the file cannot be read or is damaged.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"The tuning {path} cannot be read ({error.strerror}). Mend its permissions, or delete "
            "it and tune again: python -m evaluation tune CONFIG"
        ) from error
    try:
        if msgspec.json.decode(data, type=_Version).schema_version != SCHEMA_VERSION:
            return None
        tuning = msgspec.json.decode(data, type=Tuning)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error
    if REFERENCE_METHOD not in [shape.method for shape in tuning.shapes]:
        raise _damaged(path, f"{REFERENCE_METHOD} is not in it")
    if any(shape.quantities.output_tokens < 1 for shape in tuning.shapes):
        raise _damaged(path, "a shape has no output tokens")
    return tuning


def _damaged(path: Path, reason: str) -> StoreError:
    return StoreError(
        f"The tuning {path} is damaged ({reason}). Delete the file, and tune again: "
        "python -m evaluation tune CONFIG"
    )


# --------------------------------------------------------------------------------------- choosing


def rank(
    shapes: Sequence[Measured], reference: Measured, objective: ObjectiveConfig, name: str
) -> list[Scored]:
    """Sort the candidates of one method, the best one first; of equals, the smaller one first.

    The score is that of fixed methods in the tables, ``(1 − cs) · T/τ + cs · C/κ``, with
    BASE_COST_SENSITIVITY as ``cs``. Where server-only's κ is zero or unknown, or one candidate's C
    is, C/κ cannot be formed for all of them: then time alone counts where ``cs`` is below 1 or a C
    is unknown, else the objective alone.

    Args:
        shapes: The candidates.
        reference: Server-only decoding on the same requests.
        objective: Prices, billing and cost sensitivity.
        name: The objective.
    """
    cs = objective.base_cost_sensitivity
    tau, kappa = reference.seconds_per_token, reference.units(objective, name)
    times = [shape.seconds_per_token / tau for shape in shapes]
    known = [units for shape in shapes if (units := shape.units(objective, name)) is not None]
    basis: Basis = "time"
    scores = times
    if len(known) == len(shapes) and kappa:
        basis = "blend"
        scores = [
            (1 - cs) * time + cs * units / kappa for time, units in zip(times, known, strict=True)
        ]
    elif len(known) == len(shapes) and cs == 1:
        basis, scores = "objective", known
    scored = [Scored(shape, score, basis) for shape, score in zip(shapes, scores, strict=True)]
    return sorted(scored, key=lambda each: (each.score, each.measured.size))


def choices(
    tuning: Tuning, spec: MethodSpec, config: ExperimentConfig, objective: str
) -> list[Scored]:
    """Rank what was measured for a method and lies within a configuration's ceilings.

    Args:
        tuning: What was measured.
        spec: A spec of the configuration with `MethodSpec.tuned`.
        config: Ceilings, prices, billing and cost sensitivity.
        objective: Name of the objective.

    Returns:
        The best one first; empty where nothing fits.
    """
    fitting = [
        shape
        for shape in tuning.shapes
        if shape.method == spec.name and _limits(shaped(config, spec, shape)) == _limits(shape)
    ]
    return rank(fitting, tuning.reference, config.objective, objective)


def shaped(config: ExperimentConfig, spec: MethodSpec, shape: Measured) -> MethodSpec:
    """Return a spec with a shape that was measured, cut to the configuration's ceilings."""
    return config.reshaped(
        spec, width=shape.width, max_depth=shape.max_depth, node_budget=shape.node_budget
    )


def _limits(shape: MethodSpec | Measured) -> tuple[int, int, int]:
    return (shape.width, shape.max_depth, shape.node_budget)


@dataclass(frozen=True)
class StoredTuning:
    """Looks up the best shape among those measured; what a plan asks.

    Attributes:
        folder: Where tunings are kept.
        config: The configuration that asks.
        locations: Where question files may be taken from.
    """

    folder: Path
    config: ExperimentConfig
    locations: Locations
    _hashes: dict[str, str | None] = field(default_factory=dict, init=False, repr=False)

    def shape(self, spec: MethodSpec, bench: str, network: NetworkSetting) -> MethodSpec | None:
        """Return the spec with the best shape by the configuration's first objective.

        Returns:
            The spec; None where nothing was measured for it, on the questions that are validation
            questions now, within the ceilings.

        Raises:
            StoreError: If the file is damaged.
        """
        key = key_of(self.config, bench, network)
        tuning = read_tuning(tuning_path(self.folder, key))
        if tuning is None or tuning.key != key or tuning.questions_sha256 != self._hash(bench):
            return None
        found = choices(tuning, spec, self.config, self.config.objective.objective_metrics[0])
        return shaped(self.config, spec, found[0].measured) if found else None

    def _hash(self, bench: str) -> str | None:
        """Return the hash of the validation questions; None where they cannot be loaded."""
        if bench not in self._hashes:
            try:
                questions = validation_questions(self.config, bench, self.locations)
            except DataError:  # whoever needs the questions themselves reports it
                self._hashes[bench] = None
            else:
                self._hashes[bench] = hash_questions(questions)
        return self._hashes[bench]
