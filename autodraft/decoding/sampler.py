"""From the logits after a context to the token that follows it, and to guesses of that token.

A drawn token is ``argmax_i(log p(i) + G(i))``, with p the distribution after all processors and G
Gumbel noise of (seed, choice, position, token id): that samples p exactly, and makes the answer a
function of prompt and seed, whatever was drafted (DESIGN §4; Daliri, Musco, Suresh 2024, arXiv
2408.07978). The draft ranks its candidates by the same noise: it guesses the very token that the
target will draw.

Rows of logits are numpy arrays whose columns stand for token ids; no model, no tree, no cache.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from autodraft.decoding.noise import gumbel_noise, stream_key
from autodraft.decoding.sampling import Sampling

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Logits = npt.NDArray[np.float32]

_SORTED_FIRST = 256
"""Tokens that are sorted for top-p before all of them are."""


class Chosen(NamedTuple):
    """A token, and how surely it was chosen.

    Attributes:
        token: Token id.
        gap: Distance of the second best token, in logits; infinite where there was no other.
    """

    token: int
    gap: float


class Sharpener(Protocol):
    """Whoever computes some logits of a row again, more precisely.

    Attributes:
        margin: Logits that lie closer than this may stand in the wrong order.
    """

    margin: float

    def __call__(self, columns: IntArray, /) -> FloatArray | None:
        """Return the logits of some columns, [K]; None where there are no better ones."""
        ...


class Sampler:
    """Chooses the tokens of one answer, or guesses them.

    Its context grows with ``append``; a path of further tokens, which need not come true, is handed
    to each question, so that siblings in a tree never see each other.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        eos_ids: Collection[int],
        vocab_size: int,
        columns: IntArray | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            sampling: How tokens are chosen.
            prompt: Token ids.
            eos_ids: Token ids that end an answer.
            vocab_size: Token ids of the model.
            columns: Token ids that the columns of the logits stand for, rising, [C]; None is all,
                in order.
        """
        self._sampling = sampling
        self._columns: IntArray = np.arange(vocab_size) if columns is None else columns
        self._all = columns is None
        self._every: IntArray = np.arange(len(self._columns))
        self._context = list(prompt)
        self._prompt_tokens = len(prompt)
        known = max(vocab_size, int(self._columns[-1]) + 1)
        self._in_prompt = np.zeros(known, dtype=np.bool_)
        self._in_prompt[[token for token in prompt if token < known]] = True
        self._counts = np.zeros(known, dtype=np.int32)
        self._eos = self._places(sorted(eos_ids))
        biased = sorted(sampling.logit_bias)
        self._biased = self._places(biased)
        ids = self._columns[self._biased].tolist()
        self._biases = np.array([sampling.logit_bias[token] for token in ids], dtype=np.float32)

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer so far."""
        return len(self._context)

    def append(self, tokens: Iterable[int]) -> None:
        """Take in tokens that the answer goes on with."""
        for token in tokens:
            self._context.append(token)
            if token < len(self._counts):  # a draft may not have it
                self._counts[token] += 1

    def choose(
        self, row: Logits, path: Sequence[int] = (), sharpener: Sharpener | None = None
    ) -> Chosen:
        """Return the token that follows the context and a path behind it; the lowest id wins a tie.

        Args:
            row: The target's logits there, [C]; written over.
            path: Token ids that follow the context.
            sharpener: Asked for the logits of tokens between which the row leaves it open.
        """
        raw = row.copy() if sharpener else row
        self._edit(row, path)
        scores = row.astype(np.float64)
        places, columns, scale = self._every, self._columns, 1.0
        if self._sampling.draws:
            scale = self._sampling.temperature
            scores /= scale
            kept = self._kept(scores)
            if kept is not None:
                scores, places, columns = scores[kept], kept, columns[kept]
            scores += gumbel_noise(self._key(len(path)), columns)
        if sharpener:
            self._sharpen(scores, raw, places, sharpener, scale)
        best = int(scores.argmax())
        highest = scores[best]
        scores[best] = -np.inf
        second = scores.max()  # of a single one, or where no other is allowed: none
        gap = float(highest - second) * scale if np.isfinite(second) else np.inf
        return Chosen(int(columns[best]), gap)

    def rank(
        self, rows: Logits, paths: Sequence[Sequence[int]], count: int
    ) -> tuple[IntArray, FloatArray]:
        """Return the likeliest guesses of the tokens behind several paths of equal length.

        Args:
            rows: The draft's logits, [W, C]; written over. What must not be guessed is -inf.
            paths: Token ids behind the context that lead to each row, W of them.
            count: Guesses for each, K.

        Returns:
            Token ids [W, K], best first, and the logs of the softmax of the scores they are ranked
            by, noise included, [W, K]; -inf where there are fewer candidates.
        """
        noise = None
        if self._sampling.draws:
            noise = gumbel_noise(self._key(len(paths[0])), self._columns)
        ranked = [
            self._ranked(row, path, count, noise) for row, path in zip(rows, paths, strict=True)
        ]
        places, log_probs = zip(*ranked, strict=True)
        return self._columns[np.stack(places)], np.stack(log_probs)

    # ----------------------------------------------------------------------- what it rests on

    def _key(self, path_tokens: int) -> int:
        sampling = self._sampling
        return stream_key(sampling.seed, sampling.choice, len(self._context) + path_tokens)

    def _ranked(
        self, row: Logits, path: Sequence[int], count: int, noise: FloatArray | None
    ) -> tuple[IntArray, FloatArray]:
        self._edit(row, path)
        scores = row.astype(np.float64)
        kept = None
        if noise is not None:
            scores /= self._sampling.temperature
            kept = self._kept(scores)
            scores = scores + noise if kept is None else scores[kept] + noise[kept]
        count_here = min(count, len(scores))
        best = _best_places(scores, count_here)
        highest = scores[best[0]]
        shift = highest if np.isfinite(highest) else 0.0  # nothing may be guessed
        total = np.exp(scores - shift).sum() or 1.0
        log_probs = np.full(count, -np.inf)
        log_probs[:count_here] = scores[best] - shift - np.log(total)
        places = np.zeros(count, dtype=np.int64)
        places[:count_here] = best if kept is None else kept[best]
        return places, log_probs

    def _sharpen(
        self,
        scores: FloatArray,
        raw: Logits,
        places: IntArray,
        sharpener: Sharpener,
        scale: float,
    ) -> None:
        """Correct the scores between which the winner is, where there are several."""
        close = np.flatnonzero(scores >= scores.max() - sharpener.margin / scale)
        if len(close) > 1:
            columns = places[close]
            if (sharp := sharpener(columns)) is not None:
                scores[close] += (sharp - raw[columns]) / scale

    def _places(self, token_ids: Sequence[int]) -> IntArray:
        """Return the columns of those token ids that have one."""
        ids = np.asarray(token_ids, dtype=np.int64)
        places = self._columns.searchsorted(ids)
        there = places < len(self._columns)
        there[there] = self._columns[places[there]] == ids[there]
        return places[there]

    def _edit(self, row: Logits, path: Sequence[int]) -> None:
        """Change the logits as the tokens before them ask for."""
        sampling = self._sampling
        if len(self._biased):
            row[self._biased] += self._biases
        if sampling.penalises:
            self._penalise(row, path)
        if sampling.bad_words:
            row[self._places(self._banned(path))] = -np.inf
        emitted = len(self._context) - self._prompt_tokens + len(path)
        if emitted < sampling.min_new_tokens:
            row[self._eos] = -np.inf

    def _penalise(self, row: Logits, path: Sequence[int]) -> None:
        sampling = self._sampling
        counts, in_prompt = self._counts, self._in_prompt
        if path:
            counts = counts.copy()
            np.add.at(counts, [token for token in path if token < len(counts)], 1)
        if not self._all:
            counts, in_prompt = counts[self._columns], in_prompt[self._columns]
        if sampling.repetition_penalty != 1:
            seen = (counts > 0) | in_prompt
            penalty = np.float32(sampling.repetition_penalty)
            row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
        if sampling.presence_penalty:
            row[counts > 0] -= np.float32(sampling.presence_penalty)
        if sampling.frequency_penalty:
            row -= np.float32(sampling.frequency_penalty) * counts.astype(np.float32)

    def _banned(self, path: Sequence[int]) -> list[int]:
        """Return the tokens that would complete a bad word."""
        longest = max(map(len, self._sampling.bad_words)) - 1
        last = (self._context[-longest:] if longest else []) + list(path)
        return sorted(
            {
                word[-1]
                for word in self._sampling.bad_words
                if len(word) == 1 or last[1 - len(word) :] == list(word[:-1])
            }
        )

    def _kept(self, scores: FloatArray) -> IntArray | None:
        """Return the columns that truncation leaves, rising; None for all."""
        sampling = self._sampling
        kept: IntArray | None = None
        if 0 < sampling.top_k < len(scores):
            kept = np.sort(_best_places(scores, sampling.top_k))
        if sampling.top_p < 1:
            some = scores if kept is None else scores[kept]
            nucleus = _nucleus(some, sampling.top_p)
            kept = nucleus if kept is None else kept[nucleus]
        if sampling.min_p > 0:
            some = scores if kept is None else scores[kept]
            likely = np.flatnonzero(some >= some.max() + np.log(sampling.min_p))
            kept = likely if kept is None else kept[likely]
        return kept


def _best_places(scores: FloatArray, count: int) -> IntArray:
    """Return the places of the ``count`` largest scores, best first, then the earlier first."""
    costs = -scores
    places = np.arange(len(costs))
    if count < len(costs):
        places = np.flatnonzero(costs <= np.partition(costs, count - 1)[count - 1])
    return places[np.argsort(costs[places], kind="stable")[:count]]


def _nucleus(scores: FloatArray, top_p: float) -> IntArray:
    """Return the places of the fewest best scores that hold ``top_p`` of the mass, rising."""
    weights = np.exp(scores - scores.max())
    needed = top_p * weights.sum()
    count = min(_SORTED_FIRST, len(scores))
    while True:
        best = _best_places(scores, count)
        held = weights[best].cumsum()
        if held[-1] >= needed or count == len(scores):
            return np.sort(best[: int((held < needed).sum()) + 1])
        count = len(scores)
