"""Compare the answers of two runs token by token: is every method's output that of server-only?

A difference is a fault in float32, unless the two best tokens lay so close that rounding decides;
below float32 it is reported. An answer that is missing, or ends where the other goes on, is a fault
anywhere. This module reads runs; it prints nothing and knows no engine.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from autodraft.config import NetworkSetting
from autodraft.errors import StoreError
from evaluation.lines import Case, RequestLine
from evaluation.metrics import REFERENCE_METHOD
from evaluation.store import REQUESTS_FILE, RunStore

CLOSE: Final = 1e-4
"""Two logits nearer than this may change places by rounding in float32."""
STRICT_DTYPE: Final = "float32"
_TOLD: Final = ("model", "revision", "quantization", "dtype")

Side: TypeAlias = Literal["A", "B"]


class Parting(NamedTuple):
    """Where two answers part.

    Attributes:
        position: Index of the first token that differs, from 0.
        tokens: The token id there in each; None where that answer has ended.
    """

    position: int
    tokens: tuple[int | None, int | None]

    @property
    def cut(self) -> bool:
        """Whether one answer simply ends where the other goes on, which rounding does not do."""
        return None in self.tokens


def parting(one: Sequence[int], other: Sequence[int]) -> Parting | None:
    """Return where two answers, by their token ids, part; None where they are equal."""
    for position, tokens in enumerate(zip_longest(one, other)):
        if tokens[0] != tokens[1]:
            return Parting(position, tokens)
    return None


class Place(NamedTuple):
    """Which answer, whatever the method."""

    bench: str
    network: str
    question_id: int | str
    turn: int
    repeat: int
    seed: int
    choice: int

    @classmethod
    def of(cls, case: Case) -> "Place":
        """Return where a request of a run belongs."""
        network = NetworkSetting(
            rtt_ms=case.rtt_ms,
            jitter_ms=case.jitter_ms,
            uplink_mbps=case.uplink_mbps,
            downlink_mbps=case.downlink_mbps,
        )
        rest = (case.question_id, case.turn, case.repeat, case.seed, case.choice)
        return cls(case.bench, network.label, *rest)

    @property
    def conversation(self) -> "Place":
        """The first turn of the same conversation."""
        return self._replace(turn=1)

    def __str__(self) -> str:
        """Return all of it in words."""
        link = "" if self.network == NetworkSetting().label else f" {self.network}"
        return (
            f"{self.bench}{link} {self.question_id} turn {self.turn} (repeat {self.repeat}, seed "
            f"{self.seed}, choice {self.choice})"
        )


Answers: TypeAlias = Mapping[Place, RequestLine]


@dataclass(frozen=True)
class Run:
    """What a folder holds of a run.

    Attributes:
        folder: The folder.
        answers: The latest line of each request, failed ones included, by method and place.
        networks: The links that it was to run over.
        target: What its manifest says of the target; empty where it says nothing.
    """

    folder: Path
    answers: Mapping[str, Answers]
    networks: tuple[str, ...]
    target: Mapping[str, Any]

    @property
    def strict(self) -> bool:
        """Whether rounding is no excuse: float32 that is not quantised, or nobody knows."""
        dtype, quantization = self.target.get("dtype"), self.target.get("quantization")
        return dtype in (None, STRICT_DTYPE) and quantization in (None, "none")


def read_run(folder: Path) -> Run:
    """Read a run's answers.

    Raises:
        StoreError: If it is no run, or cannot be read.
    """
    if not (folder / REQUESTS_FILE).is_file():
        raise StoreError(
            f"{folder} is not the folder of a run: it has no {REQUESTS_FILE}. Give one of the "
            "folders below results/<experiment>/."
        )
    store = RunStore(folder)
    answers: dict[str, dict[Place, RequestLine]] = {}
    try:
        manifest = store.read_manifest() or {}
        for method in manifest.get("methods", ()):
            answers.setdefault(method["label"], {})
        networks = dict.fromkeys(manifest.get("networks", ()))
        described = [session.get("engine") or {} for session in manifest.get("sessions", ())]
        targets = [target for engine in described if (target := engine.get("target"))]
    except (AttributeError, TypeError, LookupError) as error:
        raise StoreError(f"{folder}: manifest.json is not that of a run ({error!r}).") from error
    for line in store.read_requests():
        place = Place.of(line.case)
        answers.setdefault(line.case.method, {})[place] = line
        networks.setdefault(place.network)
    return Run(folder, answers, tuple(networks), targets[0] if targets else {})


class Difference(NamedTuple):
    """Where two answers part.

    Attributes:
        place: Which answer.
        position: Index of the first token that differs, from 0.
        tokens: The token id there in A and in B; None where that answer has ended.
        gap: Distance of the second best token there in A, in logits; None where not recorded.
    """

    place: Place
    position: int
    tokens: tuple[int | None, int | None]
    gap: float | None

    @property
    def cut(self) -> bool:
        """Whether one answer simply ends where the other goes on."""
        return Parting(self.position, self.tokens).cut


class Missing(NamedTuple):
    """An answer that one run has and the other has not.

    Attributes:
        place: Which answer.
        side: Where it is missing.
        error: How the request failed; None where it was never recorded.
    """

    place: Place
    side: Side
    error: str | None

    def __str__(self) -> str:
        """Return it in words."""
        how = "is missing in" if self.error is None else "failed in"
        return f"{self.place} {how} {self.side}" + (f": {self.error}" if self.error else "")


@dataclass(frozen=True)
class Comparison:
    """One method's answers in B against server-only's in A.

    Attributes:
        method: The method's label.
        compared: Answers that both have, to the same prompt.
        differences: Those that differ.
        missing: Answers that only one has.
        other_prompts: Answers to different prompts, which say nothing about each other.
    """

    method: str
    compared: int
    differences: tuple[Difference, ...]
    missing: tuple[Missing, ...]
    other_prompts: tuple[Place, ...]

    @property
    def identical_share(self) -> float | None:
        """Share of the answers compared that are equal; None without any."""
        return 1 - len(self.differences) / self.compared if self.compared else None

    @property
    def median_position(self) -> float | None:
        """Median over the differing answers of where they part; None without any."""
        positions = [difference.position for difference in self.differences]
        return statistics.median(positions) if positions else None


@dataclass(frozen=True)
class Verdict:
    """What a comparison of two runs came to.

    Attributes:
        a: The run whose server-only answers are the measure.
        b: The run that is held against them.
        methods: Every method of B; without server-only where both runs are one.
        control: Server-only against itself; None where there is nothing to do it with.
        control_note: What is compared in the control, or why there is none.
        notes: What a reader should know of the two runs.
    """

    a: Run
    b: Run
    methods: tuple[Comparison, ...]
    control: Comparison | None
    control_note: str
    notes: tuple[str, ...]

    @property
    def strict(self) -> bool:
        """Whether every difference between logits that are not close is a fault."""
        return self.a.strict and self.b.strict

    @property
    def parts(self) -> tuple[Comparison, ...]:
        """All comparisons; the control where it is not one of the methods."""
        names = {part.method for part in self.methods}
        apart = self.control is not None and self.control.method not in names
        return (*self.methods, *([self.control] if apart and self.control else []))

    def is_fault(self, difference: Difference) -> bool:
        """Return whether a difference is more than rounding."""
        gap = difference.gap
        return difference.cut or (self.strict and (gap is None or gap > CLOSE))

    @property
    def faults(self) -> list[str]:
        """What makes the runs unequal, in words."""
        astray = [each.place for part in self.parts for each in part.differences]
        return [fault for part in self.parts for fault in self._faults_of(part, astray)]

    def _faults_of(self, part: Comparison, astray: Sequence[Place]) -> list[str]:
        first: dict[Place, int] = {}  # conversation -> the first turn in which anything differs
        for place in astray:
            first[place.conversation] = min(place.turn, first.get(place.conversation, place.turn))
        found = [f"{part.method}: {missing}" for missing in part.missing]
        found += [
            f"{part.method}: {each.place} differs at token {each.position}"
            + (", where one answer ends" if each.cut else "")
            for each in part.differences
            if self.is_fault(each)
        ]
        # A later turn's prompt holds the earlier answers: where these differ it must differ too.
        found += [
            f"{part.method}: {place} answers another prompt in B than in A"
            for place in part.other_prompts
            if first.get(place.conversation, place.turn) >= place.turn
        ]
        return found


def compare_runs(a: Run, b: Run) -> Verdict:
    """Hold every method of B against server-only of A.

    Raises:
        StoreError: If there is nothing to compare.
    """
    reference = a.answers.get(REFERENCE_METHOD)
    if not reference:
        names = ", ".join(a.answers) or "none"
        raise StoreError(
            f"{a.folder} has no answers of {REFERENCE_METHOD}, the measure of all others (methods "
            f"there: {names}). Run it with {REFERENCE_METHOD} among the methods."
        )
    same = a.folder.resolve() == b.folder.resolve()
    sources = {network: _source(network, a.networks) for network in b.networks}
    expected = {
        place._replace(network=network): line
        for network, source in sources.items()
        for place, line in reference.items()
        if place.network == source
    }
    methods = tuple(
        compare_answers(method, expected, answers)
        for method, answers in b.answers.items()
        if not (same and method == REFERENCE_METHOD)
    )
    control, note = _control(reference, methods, same)
    verdict = Verdict(a, b, methods, control, note, tuple(_notes(a, b, sources)))
    if not any(part.compared for part in verdict.parts) and not verdict.faults:
        raise StoreError(
            f"{b.folder} has nothing to compare with {REFERENCE_METHOD} of {a.folder}: give a run "
            "with other methods, or with REPEATS above 1."
        )
    return verdict


def _source(network: str, networks: Sequence[str]) -> str:
    """Return the link of A that a link of B is held against: the answers depend on none."""
    return network if network in networks else networks[0]


def _notes(a: Run, b: Run, sources: Mapping[str, str]) -> Iterable[str]:
    for name in _TOLD:
        before, after = a.target.get(name), b.target.get(name)
        if before != after:
            yield f"the target's {name} is {before} in A and {after} in B"
    for network, source in sources.items():
        if network != source:
            yield f"{network} of B is compared with {source} of A"
    for network in a.networks:
        if network not in sources.values():
            yield f"{network} of A is not compared: B has no such link"
    for side, run in (("A", a), ("B", b)):
        if run.target.get("dtype") is None:
            yield f"the manifest of {side} names no dtype: judged as {STRICT_DTYPE}"


def _control(
    reference: Answers, methods: Sequence[Comparison], same: bool
) -> tuple[Comparison | None, str]:
    """Return server-only against itself, and a word on it."""
    if not same:
        for part in methods:
            if part.method == REFERENCE_METHOD:
                return part, f"{REFERENCE_METHOD} of A against {REFERENCE_METHOD} of B"
        return None, f"none: B has no {REFERENCE_METHOD}"
    first = min(place.repeat for place in reference)
    later = {place: line for place, line in reference.items() if place.repeat > first}
    if not later:
        return None, "none: REPEATS=1"
    repeats = {place.repeat for place in later}
    again = {
        place._replace(repeat=repeat): line
        for place, line in reference.items()
        if place.repeat == first
        for repeat in repeats
    }
    note = f"{REFERENCE_METHOD}, repeat {first} against the later ones"
    return compare_answers(REFERENCE_METHOD, again, later), note


def compare_answers(method: str, reference: Answers, own: Answers) -> Comparison:
    """Compare answers place by place.

    Args:
        method: Label of what ``own`` are the answers of.
        reference: Server-only's, of A.
        own: Those of B.
    """
    compared = 0
    differences: list[Difference] = []
    missing: list[Missing] = []
    other_prompts: list[Place] = []
    for place in dict.fromkeys((*reference, *own)):
        sides: tuple[tuple[Side, RequestLine | None], ...] = (
            ("A", reference.get(place)),
            ("B", own.get(place)),
        )
        gone = [(side, line) for side, line in sides if line is None or line.record is None]
        missing += [Missing(place, side, line.error if line else None) for side, line in gone]
        if gone:
            continue
        before, after = reference[place], own[place]
        if before.prompt_hash != after.prompt_hash:
            other_prompts.append(place)
            continue
        compared += 1
        if (difference := _difference(place, before, after)) is not None:
            differences.append(difference)
    return Comparison(method, compared, tuple(differences), tuple(missing), tuple(other_prompts))


def _difference(place: Place, before: RequestLine, after: RequestLine) -> Difference | None:
    assert before.record is not None
    assert after.record is not None
    found = parting(before.record.output_ids, after.record.output_ids)
    if found is None:
        return None
    gaps = before.record.output_gaps or []
    gap = gaps[found.position] if found.position < len(gaps) else None
    return Difference(place, *found, gap)
