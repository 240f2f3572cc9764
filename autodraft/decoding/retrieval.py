"""Drafting from the text itself: where its last tokens stood before, what followed then?

Code edits, summaries and long lists repeat their context, and a draft by repetition costs no
forward. The idea is that of prompt lookup decoding (Saxena 2023) and of REST (He et al. 2023, arXiv
2311.08252); drafting from the longest suffix that occurred earlier, and trusting it by its length,
is that of SAM Decoding (Hu et al. 2024, arXiv 2411.10666). Here the continuations form a trie whose
branches carry probabilities learned from what the target accepted.

This module knows token ids only: no text, no model, no tree of a draft model, no clock.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MAX_NGRAM: Final = 8
"""Longest n-gram that is indexed."""
MAX_MATCH: Final = 32
"""Most tokens that a match is followed backwards."""
MAX_CONTINUATIONS: Final = 4
"""Most earlier occurrences that are continued, the most recent ones."""
MAX_NODES: Final = 64
"""Most nodes of a round's trie."""

MAX_LENGTH: Final = 16
"""Match length from which on all lengths share their statistics."""
PRIOR_TRIALS: Final = 8.0
"""Trials that the prior of a probability is worth."""
PRIOR_HALF_LENGTH: Final = 3.0
"""Match length at which the prior expects the first continuation to be right half the time."""
PRIOR_SHARES: Final = (1.0, 0.4, 0.2)
"""What the prior expects of each rank among siblings, as a share of what it expects of the first.

The last rank stands for all further ones.
"""

ROOT: Final = -1
"""Parent of a trie's first nodes: the last committed token."""


class Match(NamedTuple):
    """An earlier occurrence of the context's last tokens.

    Attributes:
        length: Tokens that agree, counted backwards, at most ``MAX_MATCH``.
        position: Index of the token that followed.
    """

    length: int
    position: int


class NgramIndex:
    """The token ids of one request, and where each of their n-grams was followed by what.

    An n-gram is entered when the token after it comes, so that it always has a continuation and the
    end of the context is never its own earlier occurrence.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._followers: dict[tuple[int, ...], tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._tokens)

    def append(self, tokens: Iterable[int]) -> None:
        """Take in tokens that follow; constant time for each."""
        for token in tokens:
            end = len(self._tokens)
            last = tuple(self._tokens[-MAX_NGRAM:])
            for length in range(1, len(last) + 1):
                ngram = last[-length:]
                older = self._followers.get(ngram, ())[: MAX_CONTINUATIONS - 1]
                self._followers[ngram] = (end, *older)
            self._tokens.append(token)

    def matches(self) -> list[Match]:
        """Return earlier occurrences of the longest indexed suffix that has any.

        Returns:
            At most ``MAX_CONTINUATIONS``, most recent first. They differ in length only beyond
            ``MAX_NGRAM``; empty where not even the last token occurred before.
        """
        for length in range(min(MAX_NGRAM, len(self._tokens)), 0, -1):
            if positions := self._followers.get(tuple(self._tokens[-length:])):
                return [Match(self._agreement(length, end), end) for end in positions]
        return []

    def _agreement(self, length: int, end: int) -> int:
        """Return how many tokens before ``end`` agree with the last ones; ``length`` surely do."""
        most = min(MAX_MATCH, end)
        while length < most and self._tokens[end - 1 - length] == self._tokens[-1 - length]:
            length += 1
        return length

    def continuation(self, position: int, offset: int) -> int:
        """Return the token ``offset`` places behind ``position``.

        Beyond the present end it goes on from ``position`` again: a text that has repeated all that
        stands between there and the end is one with that period.
        """
        return self._tokens[position + offset % (len(self._tokens) - position)]


class AcceptanceTable:
    """How often a retrieved token was the target's, by match length and rank among siblings.

    A conditional probability: after d accepted tokens of a continuation the match is d tokens
    longer, so that depth needs no cells of its own. Each is a Beta mean: a prior, then counts. It
    knows no request and is meant to outlive many.
    """

    def __init__(self) -> None:
        lengths = np.arange(1, MAX_LENGTH + 1)[:, None]
        prior = lengths / (lengths + PRIOR_HALF_LENGTH) * np.array(PRIOR_SHARES)
        self._hits: FloatArray = PRIOR_TRIALS * prior
        self._trials: FloatArray = np.full(prior.shape, PRIOR_TRIALS)

    def probability(self, length: int, rank: int) -> float:
        """Return the probability that a token is the target's, above 0 and below 1.

        Args:
            length: Tokens that agree before it, at least 1.
            rank: Its place among its siblings, from 0.
        """
        cell = _cell(length, rank)
        return float(self._hits[cell] / self._trials[cell])

    def learn(self, length: int, rank: int, *, hit: bool) -> None:
        """Count one token whose truth is known."""
        cell = _cell(length, rank)
        self._trials[cell] += 1
        self._hits[cell] += hit


def _cell(length: int, rank: int) -> tuple[int, int]:
    return min(length, MAX_LENGTH) - 1, min(rank, len(PRIOR_SHARES) - 1)


@dataclass(frozen=True)
class Continuations:
    """A trie of what could follow the context; parents come before their children.

    Attributes:
        tokens: Token ids, [M]; siblings differ.
        parents: Parent of each node, [M], an index into these arrays; ``ROOT`` for a first token.
        log_probs: Natural log of each node's probability given its path, [M]; those of siblings sum
            to at most 1.
    """

    tokens: IntArray
    parents: IntArray
    log_probs: FloatArray

    @property
    def path_log_probs(self) -> FloatArray:
        """Log probability of the path to each node, [M]."""
        paths = self.log_probs.tolist()
        for node, parent in enumerate(self.parents.tolist()):
            if parent != ROOT:
                paths[node] += paths[parent]
        return np.array(paths, dtype=np.float64)


class _Node(NamedTuple):
    """A node of the trie, and the cell of the table that it is a trial of."""

    token: int
    parent: int
    length: int
    rank: int
    log_prob: float


class Retriever:
    """Proposes continuations for one request after another and learns how far to trust them."""

    def __init__(self, table: AcceptanceTable) -> None:
        """Take the table to read and to teach; it may be shared with other retrievers."""
        self._table = table
        self.start()

    def start(self, prompt: Sequence[int] = ()) -> None:
        """Begin a request and forget the one before; the prompt may also come with the context."""
        self._index = NgramIndex()
        self._index.append(prompt)
        self._nodes: list[_Node] = []

    def propose(self, context: Sequence[int], max_depth: int) -> Continuations:
        """Learn from what was committed since the last call, then continue the context.

        Args:
            context: All committed token ids of the request, prompt included.
            max_depth: Most tokens of a continuation.
        """
        new = context[len(self._index) :]
        self._learn(new)
        self._index.append(new)
        self._nodes = self._grow(max_depth)
        return Continuations(
            np.array([node.token for node in self._nodes], dtype=np.int64),
            np.array([node.parent for node in self._nodes], dtype=np.int64),
            np.array([node.log_prob for node in self._nodes], dtype=np.float64),
        )

    def _learn(self, committed: Sequence[int]) -> None:
        """Walk the last trie along the truth: all children of a node reached are trials."""
        children: dict[int, list[int]] = defaultdict(list)
        for number, node in enumerate(self._nodes):
            children[node.parent].append(number)
        reached = ROOT
        for token in committed:
            right = None
            for number in children[reached]:
                node = self._nodes[number]
                self._table.learn(node.length, node.rank, hit=node.token == token)
                if node.token == token:
                    right = number
            if right is None:
                return
            reached = right

    def _grow(self, max_depth: int) -> list[_Node]:
        """Merge the continuations of all matches into a trie, level by level."""
        nodes: list[_Node] = []
        level: list[tuple[int, Sequence[Match]]] = [(ROOT, self._index.matches())]
        for depth in range(max_depth):
            below = []
            for parent, matches in level:
                for node, followed in self._children(parent, matches, depth):
                    if len(nodes) == MAX_NODES:
                        return nodes
                    below.append((len(nodes), followed))
                    nodes.append(node)
            level = below
        return nodes

    def _children(
        self, parent: int, matches: Sequence[Match], depth: int
    ) -> list[tuple[_Node, Sequence[Match]]]:
        """Return the tokens that follow at one node, likeliest first, each with its matches."""
        followed: dict[int, list[Match]] = defaultdict(list)
        for match in matches:
            followed[self._index.continuation(match.position, depth)].append(match)
        if len(followed) == 1:  # at most nodes: nothing to rank or to share
            (token,) = followed
            length = max(matches).length + depth
            log_prob = math.log(self._table.probability(length, 0))
            return [(_Node(token, parent, length, 0, log_prob), matches)]

        def longest_and_most(token: int) -> tuple[int, int]:
            return max(match.length for match in followed[token]), len(followed[token])

        # Stable: among equals the most recent comes first.
        ranked = sorted(followed, key=longest_and_most, reverse=True)
        lengths = [longest_and_most(token)[0] + depth for token in ranked]
        chances = [self._table.probability(length, rank) for rank, length in enumerate(lengths)]
        # The cells are learned apart, and only one sibling can be right.
        total = max(1.0, sum(chances))
        return [
            (_Node(token, parent, length, rank, math.log(chance / total)), followed[token])
            for rank, (token, length, chance) in enumerate(
                zip(ranked, lengths, chances, strict=True)
            )
        ]
