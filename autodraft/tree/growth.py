"""Growing a draft tree, one level per draft forward, and cutting out its best part.

The value of a node is the product of draft probabilities along its path, kept as a logarithm. A
child is never worth more than its parent, so the N best nodes of a grown tree always form a tree:
the one with the most expected tokens among all trees of N nodes (OPT-Tree, Wang et al. 2024,
arXiv 2406.17276, §3).

Growth does not know the draft model: the caller brings the candidates of each expanded node. Nor
does it know where grafted continuations come from.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import numpy as np

from autodraft.tree.draft_tree import NO_PARENT, DraftTree, FloatArray, IntArray

_FEW: Final = 8
"""One in so many nodes is few enough to look for them before sorting."""


class TreeGrowth:
    """A tree under construction.

    Attributes:
        tokens: Token ids of all nodes so far, [M]; node 0 is the root.
        parents: Parent of each node, [M].
        depths: Depth of each node, [M].
        log_values: Log path probability of each node, [M].
        depth: Depth of the newest level; 0 before the first one. Grafted nodes can lie deeper.
    """

    def __init__(self, root_token: int) -> None:
        self.tokens: IntArray = np.array([root_token], dtype=np.int64)
        self.parents: IntArray = np.array([NO_PARENT], dtype=np.int64)
        self.depths: IntArray = np.zeros(1, dtype=np.int64)
        self.log_values: FloatArray = np.zeros(1)
        self.depth = 0
        self._level = slice(0, 1)
        self._grafted = False

    @property
    def num_nodes(self) -> int:
        """Nodes proposed so far, root excluded, grafted ones included."""
        return len(self.tokens) - 1

    def path(self, node: int) -> list[int]:
        """Return the tokens that lead from the root, which is left out, to a node and its own."""
        tokens: list[int] = []
        while node > 0:
            tokens.append(int(self.tokens[node]))
            node = int(self.parents[node])
        return tokens[::-1]

    @property
    def frontier_log_values(self) -> FloatArray:
        """Log values of the newest level, in the order its nodes were added."""
        return self.log_values[self._level]

    def frontier(self, width: int) -> IntArray:
        """Return the ``width`` most valuable nodes of the newest level, best first, [≤ width]."""
        return _best_first(self.frontier_log_values, width) + self._level.start

    def add_level(self, expanded: IntArray, tokens: IntArray, log_probs: FloatArray) -> None:
        """Add the candidates of the expanded nodes as the next level.

        Args:
            expanded: Nodes of the newest level that the draft model expanded, [W].
            tokens: Candidate token ids of each, [W, K].
            log_probs: Their log-probabilities given the path, [W, K]; -inf drops a candidate.
        """
        assert not self._grafted, "graft() comes last"
        parents = expanded.repeat(tokens.shape[1])
        values = self.log_values[parents] + log_probs.ravel()
        tokens = tokens.ravel()
        possible = np.isfinite(values)
        if not possible.all():
            parents, values, tokens = parents[possible], values[possible], tokens[possible]
        self._level = slice(len(self.tokens), len(self.tokens) + len(parents))
        self.depth += 1
        self.tokens = np.concatenate((self.tokens, tokens))
        self.parents = np.concatenate((self.parents, parents))
        self.depths = np.concatenate((self.depths, np.full(len(parents), self.depth)))
        self.log_values = np.concatenate((self.log_values, values))

    def graft(self, parents: IntArray, tokens: IntArray, log_probs: FloatArray) -> None:
        """Add continuations found elsewhere below the root, once and last.

        A continuation's node that is there already (same parent, same token) keeps the larger of
        its two conditional probabilities, and what lies below it rises with it. The others become
        new nodes. ``depth`` and the frontier stay those of the newest level that was grown: no
        level can follow, because a grafted node has never been expanded.

        Args:
            parents: Parent of each node, [M], an index into these arrays; -1 for a child of the
                root. Parents come before their children, siblings carry different tokens.
            tokens: Token ids, [M].
            log_probs: Their log-probabilities given the path, [M], finite and at most 0.
        """
        assert not self._grafted, "graft() is called once"
        self._grafted = True
        num_grown = len(self.tokens)
        raised: dict[int, float] = {}  # node -> its new link
        nodes: list[int] = []  # where each continuation's node stands in this tree
        new: list[int] = []
        new_parents: list[int] = []
        for number, parent in enumerate(parents.tolist()):
            above = 0 if parent == NO_PARENT else nodes[parent]
            node = self._child(above, tokens[number]) if above < num_grown else None
            if node is None:
                node = num_grown + len(new)
                new.append(number)
                new_parents.append(above)
            elif log_probs[number] > self.log_values[node] - self.log_values[above]:
                raised[node] = log_probs[number]
            nodes.append(node)
        if raised:
            self._raise(raised)
        self._append(np.array(new_parents, dtype=np.int64), tokens[new], log_probs[new])

    def _child(self, parent: int, token: int) -> int | None:
        """Return the child of a node that carries a token, if there is one."""
        found = np.flatnonzero((self.parents == parent) & (self.tokens == token))
        return int(found[0]) if len(found) else None

    def _raise(self, raised: Mapping[int, float]) -> None:
        """Link nodes more surely to their parents; all that lies below them rises with them."""
        links = self.log_values - self.log_values[self.parents]
        rises = np.zeros(len(self.tokens), dtype=np.bool_)
        nodes = list(raised)
        links[nodes], rises[nodes] = list(raised.values()), True
        starts = np.searchsorted(self.depths, np.arange(1, self.depth + 2))
        for start, stop in pairwise(starts.tolist()):
            above = self.parents[start:stop]
            rises[start:stop] |= rises[above]
            level = start + np.flatnonzero(rises[start:stop])
            self.log_values[level] = self.log_values[self.parents[level]] + links[level]

    def _append(self, parents: IntArray, tokens: IntArray, links: FloatArray) -> None:
        """Add nodes, one by one: parents may be among them."""
        first = len(self.tokens)
        self.tokens = np.concatenate((self.tokens, tokens))
        self.parents = np.concatenate((self.parents, parents))
        self.depths = np.concatenate((self.depths, np.empty_like(parents)))
        self.log_values = np.concatenate((self.log_values, links))
        for node, parent in enumerate(parents.tolist(), start=first):
            self.depths[node] = self.depths[parent] + 1
            self.log_values[node] += self.log_values[parent]

    def expected_tokens(self, num_nodes: int, max_depth: int | None = None) -> float:
        """Return the tokens expected of the best tree of ``num_nodes`` nodes, bonus included.

        That is 1 + the summed path probability of its nodes.

        Args:
            num_nodes: Nodes of the tree, root excluded.
            max_depth: Deepest level to count; None counts all.
        """
        drafted = self.log_values[1:]
        if max_depth is not None:
            drafted = drafted[self.depths[1:] <= max_depth]
        if num_nodes < len(drafted):
            drafted = -np.partition(-drafted, num_nodes)[:num_nodes]
        return 1.0 + float(np.exp(drafted).sum())

    def best(self, num_nodes: int) -> tuple[DraftTree, IntArray]:
        """Cut out the most valuable tree of ``num_nodes`` nodes.

        Returns:
            The tree, and for each of its nodes the node of this growth that it was, [N + 1].
        """
        # Among equal values a parent, which was added first, is kept first.
        kept = np.sort(_best_first(self.log_values, num_nodes + 1))
        new_index = np.full(len(self.tokens), NO_PARENT, dtype=np.int64)
        new_index[kept] = np.arange(len(kept))
        parents = new_index[self.parents[kept]]
        parents[0] = NO_PARENT
        tree = DraftTree(self.tokens[kept], parents, self.depths[kept], self.log_values[kept])
        return tree, kept


def _best_first(values: FloatArray, count: int) -> IntArray:
    """Return the places of the ``count`` largest values, best first, then the earlier first."""
    costs = -values
    places = np.arange(len(costs))
    if count < len(costs) // _FEW:  # then sort the best ones alone, and what equals the last
        places = np.flatnonzero(costs <= np.partition(costs, count)[count])
    return places[np.argsort(costs[places], kind="stable")[:count]]
