"""The target's choice after each context, as the answer's wish has it, and how sure it is.

Below float32 two tokens can lie so close that a forward of other rows would put them the other way
round. With ``exact`` such a token is left undecided while a tree is walked: a forward of a single
token, the kind that plain decoding does, has the last word (DESIGN §4).
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from autodraft.decoding.sampler import Chosen, Sampler
from autodraft.decoding.stopping import StopRules
from autodraft.decoding.verification import UNDECIDED, Choices
from autodraft.decoding.wish import Wish
from autodraft.models.candidates import GreedyChoices, best_tokens, host_rows
from autodraft.models.runner import ModelRunner
from autodraft.records import TokenScore

IntArray = npt.NDArray[np.int64]

CHEAP_EPS: Final = 1e-3
"""Numbers this fine or finer leave so few tokens open that to decide them again costs under 3 %.

In bfloat16 6 to 8 of 100 tokens are open, which costs 6 to 20 %; the share falls with the step, and
float16's is an eighth of that (docs/losslessness.md).
"""


def is_exact(asked: bool | None, runner: ModelRunner) -> bool:
    """Return whether an answer is exact: the same for every answer of a target.

    Args:
        asked: What the client says; None leaves it open.
        runner: The target: in float32 there is nothing to narrow.
    """
    if not runner.rounds_off:
        return False
    return runner.eps <= CHEAP_EPS if asked is None else asked


class Judge:
    """Chooses the target's tokens of one answer.

    Attributes:
        redecided: Tokens that were left undecided so far.
    """

    def __init__(
        self, runner: ModelRunner, prompt: Sequence[int], rules: StopRules, wish: Wish
    ) -> None:
        """Begin an answer.

        Args:
            runner: Whose logits they are.
            prompt: Token ids.
            rules: Name the tokens that end it.
            wish: How tokens are chosen, whether exactly, and whether their scores are wanted.
        """
        self.redecided = 0
        self._runner = runner
        self._exact = is_exact(bool(wish.exact), runner)
        self._top = wish.top_logprobs
        self._scores: list[TokenScore] = []
        self._sampler: Sampler | None = None
        if self._exact or self._top is not None or not wish.sampling.plain:
            self._sampler = Sampler(wish.sampling, prompt, rules.eos_ids, runner.vocab_size)

    def choices(self, logits: torch.Tensor, tokens: IntArray, parents: IntArray) -> Choices:
        """Return the choices after each node of a tree, decided when they are asked for.

        Args:
            logits: After each node, [N + 1, V].
            tokens: Token of each, [N + 1].
            parents: Parent of each, [N + 1].
        """
        if self._sampler is None:
            return GreedyChoices(logits)
        return _TreeChoices(self, logits, tokens, parents)

    def decide(self, logits: torch.Tensor, path: Sequence[int] = ()) -> int:
        """Return the choice after one row of logits, for good.

        Args:
            logits: Of a single row, [1, V].
            path: Token ids between the committed context and it.
        """
        if self._sampler is None:
            return int(best_tokens(logits)[0])
        return self.ask(logits, 0, path, final=True)

    def ask(self, logits: torch.Tensor, row: int, path: Sequence[int], *, final: bool) -> int:
        """Return the choice after a row of logits; ``UNDECIDED`` where it is not final and close.

        Args:
            logits: Of the last forward, [N, V].
            row: The row.
            path: Token ids between the committed context and it.
            final: Whether it is to be decided in any case.
        """
        assert self._sampler is not None
        values = host_rows(logits[row : row + 1])[0]
        raw = values if self._top is None else values.copy()
        sharpener = self._runner.sharpener(row, float(values.max())) if self._exact else None
        chosen = self._sampler.choose(values, path, sharpener)
        if sharpener is not None and not final and chosen.gap < sharpener.margin:
            self.redecided += 1
            return UNDECIDED
        if self._top is not None:
            self._scores.append(_score(chosen, raw, self._top))
        return chosen.token

    def commit(self, tokens: Iterable[int]) -> None:
        """Take in tokens that the answer goes on with."""
        if self._sampler is not None:
            self._sampler.append(tokens)

    def take_scores(self) -> list[TokenScore]:
        """Return the scores of the tokens chosen since the last call, where they are wanted."""
        scores, self._scores = self._scores, []
        return scores


class _TreeChoices:
    """The choices after the nodes of one tree."""

    def __init__(
        self, judge: Judge, logits: torch.Tensor, tokens: IntArray, parents: IntArray
    ) -> None:
        self._judge = judge
        self._logits = logits
        self._tokens = tokens.tolist()
        self._parents = parents.tolist()

    def __getitem__(self, node: int) -> int:
        path: list[int] = []
        above = node
        while above > 0:
            path.append(self._tokens[above])
            above = self._parents[above]
        return self._judge.ask(self._logits, node, path[::-1], final=False)


def _score(chosen: Chosen, row: npt.NDArray[np.float32], top: int) -> TokenScore:
    """Return how surely a token was chosen from a row of raw logits, [V]."""
    highest = row.max()
    total = float(highest) + math.log(np.exp(row - highest).sum(dtype=np.float64))
    places: list[int] = []
    if top:
        last = max(len(row) - top, 0)
        found = np.flatnonzero(row >= np.partition(row, last)[last])
        places = found[np.lexsort((found, -row[found]))][:top].tolist()  # the lowest of equals
    best = [(place, float(row[place]) - total) for place in places]
    return TokenScore(chosen.gap, float(row[chosen.token]) - total, best)
