"""From the draft's probability of a token to the chance that the target agrees.

A draft model can be too sure or too modest, and more so for its second guess than for its first.
The chance is learned for each depth and rank as a monotone function of the draft's probability:
counts in bins, drawn towards all depths of the rank where there are few, made monotone by
isotonic regression (its min-max form; Barlow et al. 1972), and linear between the bins. Only
candidates whose parent was accepted count: those of another are never judged.

Greedy decoding: a token either is the target's or is not. Knows no model and no tree.
"""

import math
from typing import Final

import numpy as np

from autodraft.records import RELIABILITY_BINS
from autodraft.tree.draft_tree import FloatArray, IntArray

RANKS: Final = 4
"""The last rank stands for all further ones."""
DEPTH_STARTS: Final = (1, 2, 3, 5)
"""First depth of each group of depths that share their statistics."""
_EDGES: Final = np.array(
    (0.002, 0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3)
    + (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
)
_BINS: Final = len(_EDGES) + 1
_ALL: Final = np.concatenate(([0.0], _EDGES, [1.0]))
_CENTRES: Final = (_ALL[1:] + _ALL[:-1]) / 2
_POOL_TRIALS: Final = 4.0
"""Trials that the draft's own word is worth in the pool of a rank."""
_CELL_TRIALS: Final = 24.0
"""Trials that the pool of its rank is worth in a cell."""
_MOST_TRIALS: Final = 512.0
"""A bin with more of them halves its counts, so that the past is forgotten in time."""
_LEAST: Final = 1e-5

Counts = FloatArray
"""Trials, hits and summed draft probabilities of each depth, rank and bin, [3, D, R, B]."""


class Calibration:
    """Learned chances of one pair of models; meant to outlive many requests."""

    def __init__(self, counts: Counts | None = None) -> None:
        """Begin with counts of an earlier time, or with the draft's own word.

        Raises:
            ValueError: If the counts have another shape.
        """
        shape = (3, len(DEPTH_STARTS), RANKS, _BINS)
        self.counts: Counts = np.zeros(shape) if counts is None else np.array(counts, np.float64)
        if self.counts.shape != shape:
            raise ValueError(f"counts of shape {self.counts.shape}, not {shape}")
        self._chances: FloatArray | None = None
        self._means: FloatArray = np.empty(0)

    @property
    def trials(self) -> float:
        """Candidates seen, those forgotten left out."""
        return float(self.counts[0].sum())

    def log_chances(self, depth: int, log_probs: FloatArray) -> FloatArray:
        """Return the log of the chance of each candidate, given that its parent is right.

        Args:
            depth: Depth of the candidates, from 1.
            log_probs: The draft's log-probabilities, best first, [W, K].

        Returns:
            Natural logs, [W, K]; the chances of siblings sum to at most 1. What the draft excludes
            (-inf) stays excluded.
        """
        group = _group(depth)
        means, chances = self._curves()
        probs = np.exp(log_probs)
        found = np.empty_like(probs)
        last = RANKS - 1
        for rank in range(min(RANKS, probs.shape[1])):
            columns = slice(rank, rank + 1) if rank < last else slice(last, None)
            found[:, columns] = np.interp(
                probs[:, columns], means[group, rank], chances[group, rank]
            )
        found /= np.maximum(found.sum(axis=1, keepdims=True), 1.0)
        logs: FloatArray = np.log(np.maximum(found, _LEAST))
        logs[np.isneginf(log_probs)] = -math.inf
        return logs

    def learn(self, depth: int, log_probs: FloatArray, hit: int | None) -> None:
        """Count the candidates of one node that was reached.

        Args:
            depth: Depth of the candidates.
            log_probs: The draft's log-probabilities, best first, [K].
            hit: The candidate that was the target's choice; None where none was.
        """
        group, count = _group(depth), len(log_probs)
        probs = np.exp(log_probs)
        ranks = np.minimum(np.arange(count), RANKS - 1)
        bins = _EDGES.searchsorted(probs, side="right")
        np.add.at(self.counts[0, group], (ranks, bins), 1.0)
        np.add.at(self.counts[2, group], (ranks, bins), probs)
        if hit is not None:
            self.counts[1, group, ranks[hit], bins[hit]] += 1.0
        full = self.counts[0, group] > _MOST_TRIALS
        if full.any():
            self.counts[:, group, full] /= 2
        self._chances = None

    def _curves(self) -> tuple[FloatArray, FloatArray]:
        """Return what ``np.interp`` takes of each depth and rank: [D, R, B + 1] twice."""
        if self._chances is None:
            trials, hits, sums = self.counts
            means = (sums + _POOL_TRIALS * _CENTRES) / (trials + _POOL_TRIALS)
            pool_trials = trials.sum(axis=0)
            pool = (hits.sum(axis=0) + _POOL_TRIALS * _CENTRES) / (pool_trials + _POOL_TRIALS)
            weights = trials + _CELL_TRIALS
            chances = _monotone((hits + _CELL_TRIALS * pool) / weights, weights)
            start = np.zeros((*chances.shape[:-1], 1))  # what is never drafted is never right
            self._means = np.concatenate((start, means), axis=-1)
            self._chances = np.concatenate((start, chances), axis=-1)
        return self._means, self._chances


def _group(depth: int) -> int:
    return sum(depth >= start for start in DEPTH_STARTS[1:])


def _monotone(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the rising values closest to the given ones by weighted squares, along the last axis.

    The value at i is the largest over starts up to i of the least mean from there to an end from i
    on.
    """
    zero = np.zeros((*values.shape[:-1], 1))
    total = np.concatenate((zero, (values * weights).cumsum(axis=-1)), axis=-1)
    weight = np.concatenate((zero, weights.cumsum(axis=-1)), axis=-1)
    count = values.shape[-1]
    sums = total[..., None, 1:] - total[..., :-1, None]  # from a (row) to b (column)
    spans = weight[..., None, 1:] - weight[..., :-1, None]
    backwards = np.tri(count, k=-1, dtype=np.bool_)  # b before a
    means = np.where(backwards, math.inf, sums / np.where(backwards, 1.0, spans))
    least = np.minimum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]
    rising: FloatArray = np.where(backwards, -math.inf, least).max(axis=-2)
    return rising


class Reliability:
    """How often what was predicted came true, by the predicted probability: of one request."""

    def __init__(self) -> None:
        self._counts = np.zeros((3, RELIABILITY_BINS))

    def count(self, log_probs: FloatArray, hit: int | None) -> None:
        """Count the candidates of one node that was reached, [K]."""
        probs = np.exp(log_probs)
        bins: IntArray = np.minimum(
            (probs * RELIABILITY_BINS).astype(np.int64), RELIABILITY_BINS - 1
        )
        np.add.at(self._counts[0], bins, 1.0)
        np.add.at(self._counts[1], bins, probs)
        if hit is not None:
            self._counts[2, bins[hit]] += 1.0

    def bins(self) -> list[tuple[int, float, int]]:
        """Return candidates, summed probabilities and hits of each bin."""
        return [(int(n), float(total), int(hits)) for n, total, hits in self._counts.T]
