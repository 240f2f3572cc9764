"""The server's side of a co-located method: the rounds of the user's engine, run in place.

The trees go straight to the verifier instead of over a link. This module does not know sessions,
messages or bills.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from autodraft.decoding.stopping import Ending
from autodraft.engine.rounds import Meanwhile, Progress, Rounds, Traffic, Verdict
from autodraft.engine.verifier import Verifier
from autodraft.records import RoundRecord, TokenScore
from autodraft.tree.draft_tree import DraftTree


class LocalTarget:
    """A verifier in this process, as the rounds see it.

    Attributes:
        max_depth: Deepest tree that it takes.
        traffic: No bytes: nothing is sent.
    """

    traffic = Traffic(0, 0)

    def __init__(self, verifier: Verifier, max_depth: int) -> None:
        self._verifier = verifier
        self.max_depth = max_depth

    def verify(self, tree: DraftTree, meanwhile: Meanwhile | None = None) -> Verdict:
        """Verify one round's tree and commit what the target agrees with; nothing is awaited."""
        started = time.perf_counter()
        path, bonus = self._verifier.verify(tree.tokens[1:], tree.parents[1:], self.max_depth)
        scores = self._verifier.take_scores()
        return Verdict(path, bonus, 0.0, time.perf_counter() - started, scores)


class RoundDone(NamedTuple):
    """A round that was run in place.

    Attributes:
        tokens: New tokens of the answer.
        record: What was measured; nothing of it crossed a link.
        scores: Of the tokens, where they were asked for.
    """

    tokens: list[int]
    record: RoundRecord
    scores: list[TokenScore]


class InPlace:
    """Goes on with an answer whose prompt has been prefilled."""

    def __init__(
        self, rounds: Rounds, target: LocalTarget, prompt: Sequence[int], ending: Ending
    ) -> None:
        """Prepare; ``start`` comes next.

        Args:
            rounds: Drafts and decides the shapes.
            target: Verifies.
            prompt: Token ids of the prompt.
            ending: Of the answer, which has no token yet.
        """
        self._rounds = rounds
        self._prompt = prompt
        self._max_new_tokens = ending.rules.max_new_tokens
        self._progress = Progress(ending, list(prompt), rounds.node_budget)
        self._blocks = rounds.decode(self._progress, target)

    @property
    def draft_s(self) -> float:
        """Time spent drafting so far, the draft's prefill included."""
        return self._progress.draft_s or 0.0

    def start(self, first_token: int) -> None:
        """Take the answer's first token, and let the drafter take in the prompt."""
        self._progress.commit([first_token])
        self._progress.draft_s = self._rounds.start(self._prompt, self._max_new_tokens)

    def round(self) -> RoundDone:
        """Run one round of an answer that has not ended."""
        before = len(self._progress.scores)
        tokens = next(self._blocks)
        return RoundDone(tokens, self._progress.rounds[-1], self._progress.scores[before:])

    def finish(self) -> None:
        """Free what the drafter held."""
        self._rounds.finish()
