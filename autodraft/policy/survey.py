"""Learning the prior of a pair: wide and deep trees, and what became of them.

The trees of a survey have one fixed shape, wider and deeper than most rounds will need, so that
what smaller shapes would have gained can be read from them. Knows no model.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from autodraft.policy.base import Outcome, StaticPolicy, TreeLimits
from autodraft.policy.calibration import Calibration, Counts
from autodraft.policy.forecast import CHILDREN, ChildForecast, GainTable, shape_gains
from autodraft.tree.draft_tree import FloatArray, IntArray
from autodraft.tree.growth import TreeGrowth

WIDTHS: Final = (1, 2, 4, 8)
DEPTH: Final = 8
MOST_NODES: Final = 127
"""Most nodes that are sent; with the root they fill a step of most targets' tables."""


@dataclass(frozen=True)
class PairPrior:
    """What a survey has learned of a pair.

    Attributes:
        calibration: Counts, as ``Calibration`` takes them.
        child_sums: As ``ChildForecast`` takes them, and so are the next.
        child_trials: See there.
        widths: Of the table of gains.
        gains: As ``GainTable`` takes them, and so is the next.
        ease: See there.
        rounds: Rounds that it rests on.
    """

    calibration: Counts
    child_sums: FloatArray
    child_trials: FloatArray
    widths: IntArray
    gains: FloatArray
    ease: FloatArray
    rounds: int

    def knowledge(self, trust: float = 1.0) -> tuple[Calibration, ChildForecast, GainTable]:
        """Return what it says in the forms that policies use; each call makes new ones.

        Args:
            trust: What a trial of the survey is worth beside one that comes later.
        """
        return (
            Calibration(self.calibration * trust),
            ChildForecast(self.child_sums * trust, self.child_trials * trust),
            GainTable(self.widths, self.gains, self.ease),
        )


class _Level(NamedTuple):
    expanded: IntArray
    tokens: IntArray
    log_probs: FloatArray


class _Tree(NamedTuple):
    text: int
    parents: IntArray
    depths: IntArray
    levels: list[_Level]


class SurveyPolicy(StaticPolicy):
    """Grow trees of one wide and deep shape and keep what they teach; of many requests."""

    def __init__(self, node_budget: int, max_depth: int = DEPTH) -> None:
        """Prepare.

        Args:
            node_budget: Most nodes that the server takes.
            max_depth: Deepest tree that it takes.
        """
        nodes = min(MOST_NODES, node_budget)
        self.limits = TreeLimits(WIDTHS[-1], min(DEPTH, max_depth), nodes, CHILDREN)
        self._calibration = Calibration()
        self._levels: list[_Level] = []
        self._trees: list[_Tree] = []
        self._texts = 0

    def begin_text(self) -> None:
        """The rounds to come are of another text than those before."""
        self._texts += 1

    @property
    def rounds(self) -> int:
        """Rounds so far."""
        return len(self._trees)

    def begin(self, context_tokens: int, retrieved: FloatArray) -> None:
        """Begin a round."""
        self._levels = []

    def width(self, growth: TreeGrowth) -> int:
        """Return the fixed width until the fixed depth is reached."""
        return self.limits.width if growth.depth < self.limits.max_depth else 0

    def num_nodes(self, growth: TreeGrowth) -> int:
        """Return the fixed node budget, or all nodes where fewer grew."""
        return min(self.limits.node_budget, growth.num_nodes)

    def value(
        self, growth: TreeGrowth, expanded: IntArray, tokens: IntArray, log_probs: FloatArray
    ) -> FloatArray:
        """Keep the candidates; they are worth what the draft says."""
        self._levels.append(_Level(expanded, tokens, log_probs))
        return log_probs

    def observe(self, outcome: Outcome) -> None:
        """Count the candidates whose truth is known, and keep the tree."""
        for node, truth in zip(outcome.reached.tolist(), outcome.truths, strict=True):
            for depth, level in enumerate(self._levels, start=1):
                for row in np.flatnonzero(level.expanded == node).tolist():
                    hits = np.flatnonzero(level.tokens[row] == truth)
                    hit = int(hits[0]) if len(hits) else None
                    self._calibration.learn(depth, level.log_probs[row], hit)
        growth = outcome.growth
        if self._levels:
            tree = _Tree(self._texts, growth.parents, growth.depths, self._levels)
            self._trees.append(tree)

    def prior(self) -> PairPrior:
        """Return what was learned: all trees, valued by the final calibration.

        Raises:
            ValueError: If there was no round.
        """
        if not self._trees:
            raise ValueError("a survey without rounds teaches nothing")
        children, cap = ChildForecast(), self.limits.node_budget
        widths = np.array(WIDTHS, dtype=np.int64)
        gains = np.zeros((self.limits.max_depth, len(WIDTHS), cap + 1))
        by_text: dict[int, list[float]] = {}
        for tree in self._trees:
            values = self._valued(tree, children)
            found = shape_gains(tree.parents, tree.depths, values, widths, cap)
            most = 0.0
            if len(found):  # near the end of an answer a tree is cut: deeper ones gain no more
                gains += found[np.arange(len(gains)).clip(max=len(found) - 1)]
                most = float(found[-1, -1, -1])
            by_text.setdefault(tree.text, []).append(most)
        means = np.array([np.mean(of_text) for of_text in by_text.values()])
        usual = gains[-1, -1, -1] / len(self._trees)
        return PairPrior(
            self._calibration.counts,
            children.sums,
            children.trials,
            widths,
            gains / len(self._trees),
            means / usual if usual else np.ones(len(means)),
            len(self._trees),
        )

    def _valued(self, tree: _Tree, children: ChildForecast) -> FloatArray:
        """Return the calibrated log values of a tree, [M]; teach what children to expect."""
        values = np.zeros(len(tree.parents))
        first = 1
        for depth, level in enumerate(tree.levels, start=1):
            chances = self._calibration.log_chances(depth, level.log_probs)
            above = np.maximum(tree.parents[level.expanded], 0)
            links = np.exp(values[level.expanded] - values[above])
            children.learn(depth - 1, links, np.exp(chances))
            kept = chances.ravel()[np.isfinite(level.log_probs.ravel())]
            nodes = slice(first, first + len(kept))
            values[nodes] = values[tree.parents[nodes]] + kept
            first += len(kept)
        return values
