"""Growing a draft tree, one level per draft forward, and cutting out its best part.

The value of a node is the product of draft probabilities along its path, kept as a logarithm. A
child is never worth more than its parent, so the N best nodes of a grown tree always form a tree:
the one with the most expected tokens among all trees of N nodes (OPT-Tree, Wang et al. 2024,
arXiv 2406.17276, §3).

Growth does not know the draft model: the caller brings the candidates of each expanded node.
"""

import numpy as np

from autodraft.tree.draft_tree import NO_PARENT, DraftTree, FloatArray, IntArray


class TreeGrowth:
    """A tree under construction.

    Attributes:
        tokens: Token ids of all nodes so far, [M]; node 0 is the root.
        parents: Parent of each node, [M].
        depths: Depth of each node, [M].
        log_values: Log path probability of each node, [M].
        depth: Depth of the newest level; 0 before the first one.
    """

    def __init__(self, root_token: int) -> None:
        self.tokens: IntArray = np.array([root_token], dtype=np.int64)
        self.parents: IntArray = np.array([NO_PARENT], dtype=np.int64)
        self.depths: IntArray = np.zeros(1, dtype=np.int64)
        self.log_values: FloatArray = np.zeros(1)
        self.depth = 0
        self._level_start = 0

    @property
    def num_nodes(self) -> int:
        """Nodes proposed so far, root excluded."""
        return len(self.tokens) - 1

    @property
    def frontier_log_values(self) -> FloatArray:
        """Log values of the newest level, in the order its nodes were added."""
        return self.log_values[self._level_start :]

    def frontier(self, width: int) -> IntArray:
        """Return the ``width`` most valuable nodes of the newest level, best first, [≤ width]."""
        order = np.argsort(-self.frontier_log_values, kind="stable")[:width]
        return order + self._level_start

    def add_level(self, expanded: IntArray, tokens: IntArray, log_probs: FloatArray) -> None:
        """Add the candidates of the expanded nodes as the next level.

        Args:
            expanded: Nodes of the newest level that the draft model expanded, [W].
            tokens: Candidate token ids of each, [W, K].
            log_probs: Their log-probabilities given the path, [W, K]; -inf drops a candidate.
        """
        parents = np.repeat(expanded, tokens.shape[1])
        values = self.log_values[parents] + log_probs.ravel()
        possible = np.isfinite(values)
        parents, values = parents[possible], values[possible]
        self._level_start = len(self.tokens)
        self.depth += 1
        self.tokens = np.concatenate((self.tokens, tokens.ravel()[possible]))
        self.parents = np.concatenate((self.parents, parents))
        self.depths = np.concatenate((self.depths, np.full(len(parents), self.depth)))
        self.log_values = np.concatenate((self.log_values, values))

    def expected_tokens(self, num_nodes: int, max_depth: int | None = None) -> float:
        """Return the tokens expected of the best tree of ``num_nodes`` nodes, bonus included.

        That is 1 + the summed path probability of its nodes.

        Args:
            num_nodes: Nodes of the tree, root excluded.
            max_depth: Deepest level to count; None counts all.
        """
        drafted = slice(1, None if max_depth is None else self._end_of_level(max_depth))
        best_first = -np.sort(-self.log_values[drafted])
        return 1.0 + float(np.exp(best_first[:num_nodes]).sum())

    def _end_of_level(self, depth: int) -> int:
        return int(np.searchsorted(self.depths, depth, side="right"))

    def best(self, num_nodes: int) -> tuple[DraftTree, IntArray]:
        """Cut out the most valuable tree of ``num_nodes`` nodes.

        Returns:
            The tree, and for each of its nodes the node of this growth that it was, [N + 1].
        """
        # Stable, so that among equal values a parent, which was added first, is kept first.
        order = np.argsort(-self.log_values, kind="stable")[: num_nodes + 1]
        kept = np.sort(order)
        new_index = np.full(len(self.tokens), NO_PARENT, dtype=np.int64)
        new_index[kept] = np.arange(len(kept))
        parents = new_index[self.parents[kept]]
        parents[0] = NO_PARENT
        tree = DraftTree(self.tokens[kept], parents, self.depths[kept], self.log_values[kept])
        return tree, kept
