"""Rounds played against an answer that is known: what each of them would have yielded.

What the target says at every position is known, so no round needs its forward: the accepted path is
walked along the answer. Rounds follow one another as in the round loop, each from where the one
before it ended. Knows no models: growths and agreements are brought.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autodraft.decoding.retrieval import Retriever
from autodraft.decoding.verification import walk
from autodraft.tree.draft_tree import BoolArray, DraftTree
from autodraft.tree.growth import TreeGrowth


@dataclass(frozen=True)
class KnownAnswer:
    """The target's answer to one prompt. A position is an index into its tokens.

    Attributes:
        prompt: Token ids of the prompt.
        tokens: Token ids of the answer; the first came from prefill, rounds yield the others.
        limit: Most tokens that the answer could have had.
    """

    prompt: Sequence[int]
    tokens: Sequence[int]
    limit: int

    def context(self, position: int) -> list[int]:
        """Return what is committed before the token at ``position``."""
        return [*self.prompt, *self.tokens[:position]]

    def room(self, position: int) -> int:
        """Return the deepest tree allowed before ``position``: the bonus token needs a place."""
        return self.limit - position - 1


class Guesser(Protocol):
    """One way to draft, playing one answer."""

    def accepted(self, position: int) -> int:
        """Return the accepted length of a round that begins before ``position``."""
        ...


class Chain:
    """A chain of ``depth`` tokens: accepted as far as the draft's first choice is the target's.

    While all are accepted the draft stands on the true text, so its choices there are those that
    one pass over the answer gives.
    """

    def __init__(self, answer: KnownAnswer, agrees: BoolArray, depth: int) -> None:
        """Take the agreement at every position, [T]."""
        self._answer = answer
        self._agrees = agrees
        self._depth = depth

    def accepted(self, position: int) -> int:
        """Return the length of the run of agreements, within depth and room."""
        end = position + min(self._depth, self._answer.room(position))
        run = self._agrees[position:end]
        return len(run) if run.all() else int(run.argmin())


class BestTree:
    """The ``num_nodes`` most valuable nodes of the draft's growth, with or without retrieval."""

    def __init__(
        self,
        answer: KnownAnswer,
        growth_at: Callable[[int], TreeGrowth],
        num_nodes: int,
        depth: int,
        retriever: Retriever | None = None,
    ) -> None:
        """Prepare one answer.

        Args:
            answer: What the target says.
            growth_at: Gives the draft model's growth before a position; it is left as it was.
            num_nodes: Nodes sent.
            depth: Deepest level allowed.
            retriever: Its continuations are grafted; it learns from this tree's own rounds.
        """
        self._answer = answer
        self._growth_at = growth_at
        self._num_nodes = num_nodes
        self._depth = depth
        self._retriever = retriever
        if retriever is not None:
            retriever.start()

    def accepted(self, position: int) -> int:
        """Return the length of the tree's path along the answer."""
        growth = self._growth_at(position)
        if self._retriever is not None:
            growth = self._grafted(growth, position, self._retriever)
        tree, _ = growth.best(min(self._num_nodes, growth.num_nodes))
        return accepted_length(tree, self._answer.tokens[position:])

    def _grafted(self, growth: TreeGrowth, position: int, retriever: Retriever) -> TreeGrowth:
        depth = min(self._depth, self._answer.room(position))
        if depth < 1:
            return growth
        found = retriever.propose(self._answer.context(position), depth)
        grown = copy.deepcopy(growth)
        grown.graft(found.parents, found.tokens, found.log_probs)
        return grown


def accepted_length(tree: DraftTree, continuation: Sequence[int]) -> int:
    """Return how many drafted tokens of a tree are those of the answer's continuation."""
    truth = np.full(tree.depth + 1, -1, dtype=np.int64)  # no token: the answer has ended
    known = continuation[: tree.depth + 1]
    truth[: len(known)] = known
    # Off the accepted path these are not the target's tokens, but there the walk does not look.
    path, _ = walk(tree.tokens, tree.parents, truth[tree.depths])
    return len(path)


def play(length: int, guessers: Sequence[Guesser]) -> list[list[int]]:
    """Play one answer once by each guesser, all of them in step.

    Positions are visited in rising order, so that guessers standing at the same one can share what
    was grown there.

    Args:
        length: Tokens of the answer.
        guessers: Who plays.

    Returns:
        Of each guesser the accepted lengths of its rounds. A round yields one token more, cut at
        the answer's end.
    """
    rounds: list[list[int]] = [[] for _ in guessers]
    ahead = [1] * len(guessers)  # prefill gives the first token and is no round
    while (position := min(ahead)) < length:
        for number, guesser in enumerate(guessers):
            if ahead[number] == position:
                rounds[number].append(guesser.accepted(position))
                ahead[number] += rounds[number][-1] + 1
    return rounds
