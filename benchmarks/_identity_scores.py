"""Where answers part from those of server-only decoding, and how close the choice was there.

Pure functions from answers to figures. Knows no engine and no file.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from _identity_answers import Answer
from _identity_padded import PADDED
from _identity_run import AGAIN, REFERENCE
from _identity_turns import DTYPES, Way, ways_of

from evaluation.equality import CLOSE, parting

CONTROLS: Final = (REFERENCE, AGAIN, PADDED)
DIGITS: Final = 4

Figures: TypeAlias = dict[str, Any]
Asked: TypeAlias = Sequence[Mapping[str, Answer]]  # of each turn the answers by label


class Difference(NamedTuple):
    """Where an answer parts from server-only's.

    Attributes:
        turn: Name of the turn.
        method: Label of the method.
        position: Index of the first token that differs, from 0.
        gap: Distance of the second best token there, in server-only decoding; None where no second
            token was left, or for a cut.
        cut: Whether one answer simply ends where the other goes on, which rounding does not do.
    """

    turn: str
    method: str
    position: int
    gap: float | None
    cut: bool

    @property
    def close(self) -> bool:
        """Whether rounding in float32 can be what did it."""
        return self.gap is not None and self.gap <= CLOSE

    def __str__(self) -> str:
        """Return it in words."""
        how = "no second best" if self.gap is None else f"gap {self.gap:.3g}"
        how = "one answer ends there" if self.cut else how
        return f"{self.method}, {self.turn}: token {self.position} ({how})"


def difference(reference: Answer, own: Answer) -> Difference | None:
    """Return where an answer parts from the reference; None where it does not."""
    found = parting(reference.output_ids, own.output_ids)
    if found is None:
        return None
    gap = None if found.cut or reference.gaps is None else reference.gaps[found.position]
    return Difference(own.turn, own.method, found.position, gap, found.cut)


class Tally(NamedTuple):
    """Answers held against server-only's.

    Attributes:
        answers: All of them.
        differences: Of those that differ.
        compared: Tokens up to the first that differs, that one included: behind it the contexts are
            not the same.
    """

    answers: Sequence[Answer]
    differences: Sequence[Difference]
    compared: int

    @property
    def identical_share(self) -> float:
        """Part of the answers that are equal to the last token."""
        return 1 - len(self.differences) / len(self.answers)

    def figures(self) -> Figures:
        """Return what is shown of it."""
        tokens = sum(len(answer.output_ids) for answer in self.answers)
        gaps = [one.gap for one in self.differences if one.gap is not None]
        redecided = sum(answer.redecided for answer in self.answers)
        return {
            "answers": len(self.answers),
            "identical_share": _rounded(self.identical_share),
            "differences_per_1000_tokens": _rounded(1000 * len(self.differences) / self.compared),
            "median_position": _median(one.position for one in self.differences),
            "median_gap": _median(gaps),
            "max_gap": max(gaps, default=None),
            "redecided_per_100_tokens": _rounded(100 * redecided / tokens),
        }


def tally(asked: Asked, labels: Iterable[str]) -> Tally:
    """Hold the answers of some labels, together, against server-only's to the same turns."""
    answers, differences, compared = [], [], 0
    for label in labels:
        for turn in asked:
            own = turn[label]
            found = difference(turn[REFERENCE], own)
            answers.append(own)
            differences += [] if found is None else [found]
            compared += len(own.output_ids) if found is None else found.position + 1
    return Tally(answers, differences, compared)


def way_figures(way: Way, asked: Asked) -> Figures:
    """Return every figure of one way to ask."""
    labels = [label for label in asked[0] if label != REFERENCE]
    speculative = [label for label in labels if label not in CONTROLS]
    padded = [turn[PADDED] for turn in asked if PADDED in turn]
    return {
        **way._asdict(),
        "turns": len(asked),
        "speculative": tally(asked, speculative).figures(),
        "methods": {label: tally(asked, [label]).figures() for label in labels},
        "padded_accepted_tokens": sum(answer.accepted for answer in padded) if padded else None,
        "differences": [list(one) for one in tally(asked, labels).differences],
    }


def faults(found: Mapping[Way, Asked]) -> list[str]:
    """Return the differences that must not be: cuts, and in float32 what is not rounding."""
    return [
        f"{way}: {one}"
        for way, asked in found.items()
        for one in tally(asked, [label for label in asked[0] if label != REFERENCE]).differences
        if one.cut or (way.strict and not one.close)
    ]


def overall(found: Mapping[Way, Asked]) -> Figures:
    """Return the shares that are judged; None where something was not asked."""
    figures: Figures = {}
    for dtype, name in DTYPES.items():
        plain, other = ways_of(dtype)
        kind = "sampled" if other.sampled else "exact"
        figures[f"{name}_identical"] = _share(found, [plain])
        figures[f"{name}_{kind}_identical"] = _share(found, [other])
    rounding = [way for way in found if not way.strict]
    figures["noise_floor"] = _share(found, [way for way in rounding if not way.exact], PADDED)
    figures["noise_floor_exact"] = _share(found, [way for way in rounding if way.exact], PADDED)
    figures["aa_control"] = _share(found, list(found), AGAIN)
    return figures


def _share(
    found: Mapping[Way, Asked], ways: Sequence[Way], label: str | None = None
) -> float | None:
    """Return the part of equal answers of one label, or of all that speculate, in some ways."""
    equal = answers = 0
    for asked in (found[way] for way in ways if way in found):
        labels = [name for name in asked[0] if name not in CONTROLS] if label is None else [label]
        one = tally(asked, labels)
        answers += len(one.answers)
        equal += len(one.answers) - len(one.differences)
    return _rounded(equal / answers) if answers else None


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def _rounded(value: float) -> float:
    return round(value, DIGITS)
