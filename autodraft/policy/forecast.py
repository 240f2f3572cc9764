"""What has not been drafted yet: the children of a frontier, and the tree of a round to come.

Both forecasts rest on calibrated chances of trees that were grown before. Knows no cost.
"""

from typing import Final

import numpy as np

from autodraft.tree.draft_tree import FloatArray, IntArray

CHILDREN: Final = 8
"""Most children of a node in a tree that adapts."""
_DEPTH_GROUPS: Final = 4
"""Levels that have statistics of their own; the last one stands for all deeper ones."""
_LINK_EDGES: Final = np.array((0.3, 0.7, 0.9))
_GROUPS: Final = len(_LINK_EDGES) + 1
_DEFAULT: Final = 0.6 * 0.25 ** np.arange(CHILDREN)
_DEFAULT_TRIALS: Final = 4.0
_MOST_TRIALS: Final = 400.0


class ChildForecast:
    """The chances of the children of a node that was not expanded yet, best first.

    Learned for each depth, and for how sure the node itself is given its parent: where the text is
    easy it often stays so.

    Attributes:
        sums: Summed chances of the children, [D, G, K].
        trials: Nodes expanded, [D, G].
    """

    def __init__(self, sums: FloatArray | None = None, trials: FloatArray | None = None) -> None:
        """Begin with sums of an earlier time, or with an assumption.

        Raises:
            ValueError: If they have another shape.
        """
        shape = (_DEPTH_GROUPS, _GROUPS, CHILDREN)
        self.sums: FloatArray = np.zeros(shape) if sums is None else np.array(sums, np.float64)
        self.trials: FloatArray = (
            np.zeros(shape[:2]) if trials is None else np.array(trials, np.float64)
        )
        if self.sums.shape != shape or self.trials.shape != shape[:2]:
            raise ValueError(f"sums of shape {self.sums.shape}, not {shape}")
        self._means: FloatArray | None = None

    def of(self, depth: int, links: FloatArray) -> FloatArray:
        """Return the expected chances of the children of nodes, given each node, [W, K].

        Args:
            depth: Depth of the nodes.
            links: Chance of each node given its parent, [W].
        """
        if self._means is None:
            trials = self.trials[..., None] + _DEFAULT_TRIALS
            self._means = (self.sums + _DEFAULT_TRIALS * _DEFAULT) / trials
        found: FloatArray = self._means[min(depth, _DEPTH_GROUPS - 1)][_link_groups(links)]
        return found

    def learn(self, depth: int, links: FloatArray, children: FloatArray) -> None:
        """Take note of nodes that were expanded.

        Args:
            depth: Depth of the nodes.
            links: Chance of each node given its parent, [W].
            children: Chances of their children given the node, best first, [W, ≤ K].
        """
        level = min(depth, _DEPTH_GROUPS - 1)
        groups = _link_groups(links)
        count = min(children.shape[1], CHILDREN)
        np.add.at(self.sums[level][:, :count], groups, children[:, :count])
        np.add.at(self.trials[level], groups, 1.0)
        full = self.trials[level] > _MOST_TRIALS
        if full.any():
            self.sums[level][full] /= 2
            self.trials[level][full] /= 2
        self._means = None


def _link_groups(links: FloatArray) -> IntArray:
    return _LINK_EDGES.searchsorted(links)


class GainTable:
    """Tokens that trees of fixed shapes are expected to gain, the bonus token left out.

    Attributes:
        widths: Frontier nodes expanded in one level, rising, [W].
        gains: Mean accepted length of the best tree of up to N nodes that depth d and width w
            allow, [D, W, N + 1]: depths from 1, nodes from 0.
        ease: How much more than that trees gained of each text that was tried, as a factor, [P].
    """

    def __init__(self, widths: IntArray, gains: FloatArray, ease: FloatArray | None = None) -> None:
        """Take what was measured; without ``ease`` all texts are alike.

        Raises:
            ValueError: If the shapes do not fit.
        """
        if gains.ndim != 3 or gains.shape[1] != len(widths) or not gains.size:
            raise ValueError(f"gains of shape {gains.shape} for {len(widths)} widths")
        if ease is not None and (ease.ndim != 1 or not len(ease)):
            raise ValueError(f"ease of shape {ease.shape} is not one factor a text")
        self.widths = widths
        self.gains = gains
        self.ease: FloatArray = np.ones(1) if ease is None else ease

    @property
    def depth(self) -> int:
        """Deepest tree that it knows."""
        return int(self.gains.shape[0])


def shape_gains(
    parents: IntArray, depths: IntArray, log_values: FloatArray, widths: IntArray, cap: int
) -> FloatArray:
    """Return what each fixed shape would have gained of one tree that was grown wide and deep.

    Args:
        parents: Parent of each node, [M], node 0 being the root.
        depths: Depth of each node, [M], rising.
        log_values: Log of each node's path probability, [M].
        widths: Widths, rising, [W].
        cap: Most nodes.

    Returns:
        Expected accepted length, [D, W, cap + 1], D the depth of the tree.
    """
    deepest = int(depths.max())
    gains = np.zeros((deepest, len(widths), cap + 1))
    values = np.exp(log_values)
    for number, width in enumerate(widths.tolist()):
        alive = np.zeros(len(parents), dtype=np.bool_)
        alive[0] = True
        expanded = alive.copy()
        for depth in range(1, deepest + 1):
            level = np.flatnonzero(depths == depth)
            level = level[expanded[parents[level]]]
            alive[level] = True
            best = level[np.argsort(-values[level], kind="stable")[:width]]
            expanded[best] = True
            found = -np.sort(-values[alive][1:])[:cap]
            total = found.cumsum()
            gains[depth - 1, number, 1 : len(found) + 1] = total
            gains[depth - 1, number, len(found) + 1 :] = total[-1] if len(total) else 0.0
    return gains
