"""The turns that the identity benchmark asks, and in which ways. Knows no model and no engine."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import _common as common
from _question_files import locations

from autodraft.settings import bench_dir
from evaluation.datasets import Question, load_bench

BENCHES: Final = ("mt_bench", "humaneval", "spec_bench")
BUNDLED_BENCHES: Final = ("quick",)
SAMPLED_EVERY: Final = 3
"""One turn in so many is asked with draws as well."""
STRICT_DTYPE: Final = "float32"
DTYPES: Final = {STRICT_DTYPE: "fp32", "bfloat16": "bf16"}
"""dtype -> what its figures begin with."""

_Named = tuple[str, tuple[str, ...], tuple[str, ...]]  # a turn without its number


@dataclass(frozen=True)
class Turn:
    """One message of a user, with what was said before.

    Attributes:
        number: Of all turns, from 0.
        name: Benchmark, question and turn.
        messages: The user's messages up to this one, in order.
        earlier: Names of the turns of those before it.
    """

    number: int
    name: str
    messages: tuple[str, ...]
    earlier: tuple[str, ...]


class Way(NamedTuple):
    """How turns are asked.

    Attributes:
        dtype: Of both models.
        exact: Whether close tokens are decided again.
        sampled: Whether tokens are drawn.
    """

    dtype: str
    exact: bool = False
    sampled: bool = False

    @property
    def strict(self) -> bool:
        """Whether rounding is no excuse."""
        return self.dtype == STRICT_DTYPE

    def __str__(self) -> str:
        """Return it in words."""
        words = [self.dtype, "drawn" if self.sampled else "greedy"]
        return ", ".join([*words, *(["exact"] if self.exact else [])])


def ways_of(dtype: str) -> tuple[Way, ...]:
    """Return how turns are asked in a dtype, the plainest first."""
    other = Way(dtype, sampled=True) if dtype == STRICT_DTYPE else Way(dtype, exact=True)
    return Way(dtype), other


def asked_in(way: Way, turns: Sequence[Turn]) -> Sequence[Turn]:
    """Return the turns that are asked in one way."""
    return turns[::SAMPLED_EVERY] if way.sampled else turns


def draw_turns(count: int, seed: int) -> list[Turn]:
    """Return turns of every benchmark; the bundled one where no folder of question files is set.

    Args:
        count: Turns of each benchmark; a question is asked with all its turns as long as they fit.
        seed: Draws the questions: files are sorted by category.

    Raises:
        DataError: If a benchmark's file is found nowhere or is malformed.
        CannotMeasure: If a benchmark has fewer turns.
    """
    found: list[_Named] = []
    for bench in BENCHES if bench_dir() else BUNDLED_BENCHES:
        questions = list(load_bench(bench, locations()))
        random.Random(f"{seed} {bench}").shuffle(questions)
        turns = [turn for question in questions for turn in _turns(question)]
        if len(turns) < count:
            raise common.CannotMeasure(
                f"{bench} has {len(turns)} turns, and {count} are asked for. Lower --turns."
            )
        found += turns[:count]
    return [Turn(number, *rest) for number, rest in enumerate(found)]


def _turns(question: Question) -> list[_Named]:
    """Return name, messages and earlier turns of each turn of a question."""
    names = [f"{question.bench}/{question.id}/{turn + 1}" for turn in range(len(question.turns))]
    return [
        (name, question.turns[: turn + 1], tuple(names[:turn])) for turn, name in enumerate(names)
    ]
