"""What the drift benchmark shows: scores of stretches of an answer, and when they are steady again.

Pure functions. A round, and a token that the server made alone, is one piece; it spreads its cost
evenly over its tokens, so that two answers to one prompt can be compared over the same tokens
wherever their rounds began. Knows no engine and no clock.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from evaluation.statistics import Estimate, Ratio, estimate

SETTLED_ROUNDS: Final = 20
"""After so many rounds the score should be the steady one again."""
TOLERANCE: Final = 0.05
"""It is, where it is no more than this share above it."""
DIGITS: Final = 4

Figures: TypeAlias = dict[str, Any]


class Piece(NamedTuple):
    """A round, or a step of the server alone.

    Attributes:
        cost: In the blend's unit.
        tokens: Tokens that it added to the answer.
        alone: Whether the server made them alone.
    """

    cost: float
    tokens: int
    alone: bool = False


@dataclass(frozen=True)
class Answer:
    """An answer and what its pieces cost.

    Attributes:
        token_ids: The answer; its first token comes from prefill and is part of no piece.
        pieces: What made the others, in order.
        stepped_at: Pieces that were over when the condition changed; None where none did.
    """

    token_ids: tuple[int, ...]
    pieces: tuple[Piece, ...]
    stepped_at: int | None = None

    def position(self, pieces: int) -> int:
        """Return how many tokens were there after so many pieces."""
        return 1 + sum(piece.tokens for piece in self.pieces[:pieces])

    def cost_between(self, first: int, end: int) -> float:
        """Return what the tokens ``first`` … ``end − 1`` of the answer cost."""
        costs, start = [], 1
        for piece in self.pieces:
            shared = min(end, start + piece.tokens) - max(first, start)
            if shared > 0:
                costs.append(piece.cost * shared / piece.tokens)
            start += piece.tokens
        return math.fsum(costs)


@dataclass(frozen=True)
class Turn:
    """Two answers to one prompt, equally long.

    Attributes:
        drifted: The condition changed in the midst of it.
        steady: It had been the new one for long.
    """

    drifted: Answer
    steady: Answer

    @property
    def rounds_after(self) -> int:
        """Pieces of the drifted answer after the step."""
        return len(self.drifted.pieces) - self._stepped_at

    @property
    def identical(self) -> bool:
        """Whether both answers are the same."""
        return self.drifted.token_ids == self.steady.token_ids

    @property
    def _stepped_at(self) -> int:
        assert self.drifted.stepped_at is not None, "the condition has changed"
        return self.drifted.stepped_at

    def tokens(self, after: int, until: int | None = None) -> tuple[int, int]:
        """Return the first token of a stretch of rounds after the step, and the end of it.

        Args:
            after: Rounds after the step that are left out.
            until: Rounds after the step at which the stretch ends; None is the answer's end.
        """
        last = self.rounds_after if until is None else min(until, self.rounds_after)
        after = min(after, last)
        step = self._stepped_at
        return self.drifted.position(step + after), self.drifted.position(step + last)


class Stretch(NamedTuple):
    """The scores of both sides over the same tokens, prompt by prompt."""

    drifted: Ratio
    steady: Ratio

    @property
    def ratio(self) -> float | None:
        """Drifted over steady; None where no token lies in the stretch."""
        own, other = self.drifted.value, self.steady.value
        return None if own is None or not other else own / other

    @property
    def estimate(self) -> Estimate:
        """The ratio with its interval over prompts."""
        return estimate(self.drifted, self.steady)


def stretch(turns: Sequence[Turn], after: int, until: int | None = None) -> Stretch:
    """Return the scores of a stretch of rounds after the step, all prompts together."""
    spans = [turn.tokens(after, until) for turn in turns]
    tokens = [float(end - first) for first, end in spans]
    both = list(zip(turns, spans, strict=True))
    return Stretch(
        Ratio([turn.drifted.cost_between(*span) for turn, span in both], tokens),
        Ratio([turn.steady.cost_between(*span) for turn, span in both], tokens),
    )


def rounds_to_settle(turns: Sequence[Turn]) -> int | None:
    """Return after how many rounds what is left is as good as steady, to within ``TOLERANCE``.

    The least such number; None where no number is that leaves every prompt a round to judge by.
    """
    for rounds in range(min(turn.rounds_after for turn in turns)):
        ratio = stretch(turns, rounds).ratio
        if ratio is not None and ratio <= 1 + TOLERANCE:
            return rounds
    return None


def cell_figures(turns: Sequence[Turn]) -> Figures:
    """Return what is said of one case at one cost sensitivity."""
    early, late = stretch(turns, 0, SETTLED_ROUNDS), stretch(turns, SETTLED_ROUNDS)
    found = late.estimate
    low, high = found.interval or (None, None)
    return {
        "prompts": len(turns),
        "identical_share": _rounded(statistics.fmean(turn.identical for turn in turns)),
        "rounds_after": _rounded(statistics.fmean(turn.rounds_after for turn in turns)),
        "fewest_rounds_after": min(turn.rounds_after for turn in turns),
        "settled_rounds": sum(max(0, turn.rounds_after - SETTLED_ROUNDS) for turn in turns),
        "alone_share": alone_share([turn.drifted for turn in turns]),
        "steady_alone_share": alone_share([turn.steady for turn in turns]),
        "early_score": _rounded(early.drifted.value),
        "early_ratio": _rounded(early.ratio),
        "settled_score": _rounded(late.drifted.value),
        "steady_score": _rounded(late.steady.value),
        "settled_ratio": _rounded(found.value),
        "low": _rounded(low),
        "high": _rounded(high),
        "rounds_to_settle": rounds_to_settle(turns),
    }


def alone_share(answers: Sequence[Answer]) -> float:
    """Return the share of tokens that the server made alone.

    Only tokens after the step count where there was one.
    """
    pieces = [piece for one in answers for piece in one.pieces[one.stepped_at or 0 :]]
    alone = sum(piece.tokens for piece in pieces if piece.alone)
    return round(alone / sum(piece.tokens for piece in pieces), DIGITS)


def overall(cells: Sequence[Figures]) -> Figures:
    """Return the figures that are judged; one that is not known in a cell is not known at all."""
    return {
        f"worst_{name}": _worst([cell[name] for cell in cells])
        for name in ("settled_ratio", "rounds_to_settle")
    }


def _worst(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) and known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
