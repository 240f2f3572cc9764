"""What drafting ahead remembers: a growth that goes on beyond the tree that was sent.

An outcome of a round is an accepted path and the bonus token behind it: a node that was proposed
and not sent, or a child of a sent leaf once that is expanded too. So the likeliest nodes that were
not expanded yet are, whatever outcome they belong to, and what the draft model says there is
remembered. The next round grows its tree as it would have without; where the memory has the answer
a forward is saved. What is below another outcome is forgotten. The trees are the same either way.

Knows the shape of what is remembered and where it stands in the cache; no model and no clock.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from autodraft.tree.draft_tree import BoolArray, FloatArray, IntArray
from autodraft.tree.growth import TreeGrowth

_ROOT: Final = 0

Given = tuple[IntArray, FloatArray]
"""Candidates behind a node and the logs of their probabilities, [K] each."""


class Lookahead:
    """A growth that goes on beyond what was sent; its nodes keep their numbers.

    Attributes:
        tokens: Token of each node.
        depths: Depth of each node.
        rows: Row behind the root, in the cache, of each node that was expanded; parents come first.
        ahead: Nodes that were expanded ahead.
    """

    def __init__(
        self, growth: TreeGrowth, given: Mapping[int, Given], rows: Mapping[int, int]
    ) -> None:
        """Begin with a growth.

        Args:
            growth: All that was proposed, grafted nodes included.
            given: What the draft model said behind those that were expanded.
            rows: Their rows behind the root; the root has none.
        """
        self.tokens: list[int] = growth.tokens.tolist()
        self.depths: list[int] = growth.depths.tolist()
        self.rows = dict(sorted(rows.items(), key=lambda item: item[1]))
        self.ahead: set[int] = set()
        self._parents: list[int] = growth.parents.tolist()
        self._values: list[float] = growth.log_values.tolist()
        self._given = dict(given)
        self._below: dict[int, dict[int, int]] = {}  # node -> token -> child
        for node in range(1, len(self.tokens)):
            self._below.setdefault(self._parents[node], {})[self.tokens[node]] = node
        self._open: list[tuple[float, int]] = []
        for node in given:
            self._reach_below(node)

    def best(self, count: int) -> tuple[list[int], float]:
        """Return the likeliest nodes to expand next, and the chance that one of them comes true.

        None is below another, so that their chances add up.
        """
        nodes = [node for _, node in heapq.nsmallest(count, self._open)]
        return nodes, sum(math.exp(self._values[node]) for node in nodes)

    def parent_row(self, node: int) -> int | None:
        """Return the row of a node's parent; None where that is the root."""
        return self.rows.get(self._parents[node])

    def path(self, node: int) -> list[int]:
        """Return the tokens that lead from the root, which is left out, to a node and its own."""
        tokens = []
        while node != _ROOT:
            tokens.append(self.tokens[node])
            node = self._parents[node]
        return tokens[::-1]

    def expand(
        self, nodes: Sequence[int], rows: Sequence[int], given: Given, log_chances: FloatArray
    ) -> None:
        """Take in what the draft model says behind nodes.

        Args:
            nodes: As ``best`` returned them last, [W].
            rows: Their rows behind the root, rising, [W].
            given: Candidates and logs of their probabilities, [W, K] each.
            log_chances: Logs of the chances of the candidates given the node, [W, K].
        """
        for _ in nodes:
            heapq.heappop(self._open)
        for place, node in enumerate(nodes):
            tokens, log_probs = given[0][place], given[1][place]
            self.rows[node] = rows[place]
            self.ahead.add(node)
            self._given[node] = tokens, log_probs
            values = (self._values[node] + log_chances[place]).tolist()
            for token, value in zip(tokens.tolist(), values, strict=True):
                self._propose(node, token, value)
            self._reach_below(node)

    def child(self, node: int, token: int) -> int | None:
        """Return a node's child that carries a token, if it was proposed."""
        return self._below.get(node, {}).get(token)

    def given(self, node: int) -> Given | None:
        """Return what the draft model said behind a node; None where it was not asked."""
        return self._given.get(node)

    def memory_at(
        self, node: int, visible: BoolArray, context_tokens: int, most: int
    ) -> "Memory | None":
        """Return what is remembered below a node.

        Args:
            node: The root of the round to come.
            visible: Which rows each row sees, [R, R].
            context_tokens: Committed tokens, that node the last of them.
            most: Rows below it that are remembered at most.

        Returns:
            None where it was not expanded; one that was has all above it in the cache.
        """
        if node not in self.rows:
            return None
        inside, below = {node}, []
        for each in self.rows:
            if self._parents[each] in inside:
                inside.add(each)
                below.append(each)
        return Memory(self, node, below[:most], visible, context_tokens)

    def _propose(self, parent: int, token: int, value: float) -> None:
        """Add a candidate, unless it is excluded or was grafted there before."""
        below = self._below.setdefault(parent, {})
        if token in below or not math.isfinite(value):
            return
        below[token] = len(self.tokens)
        self.tokens.append(token)
        self.depths.append(self.depths[parent] + 1)
        self._parents.append(parent)
        self._values.append(value)

    def _reach_below(self, node: int) -> None:
        """Let the children of an expanded node be expanded, those that were not yet."""
        for child in self._below.get(node, {}).values():
            if child not in self._given:
                heapq.heappush(self._open, (-self._values[child], child))


class Memory:
    """What was said ahead below the node that became a round's root.

    Attributes:
        visible: Which of the remembered rows each of them sees, [D, D].
        rows_before: Rows of the root and of what is below it, rising, behind the root of the round
            before, [1 + D].
        context_tokens: Committed tokens, the root the last of them; behind others it is void.
        used: Nodes that were expanded ahead and whose forward it has saved.
    """

    def __init__(
        self,
        lookahead: Lookahead,
        root: int,
        below: Sequence[int],
        visible: BoolArray,
        context_tokens: int,
    ) -> None:
        """Take over a node's part of a lookahead.

        Args:
            lookahead: What was drafted ahead.
            root: The node.
            below: Expanded nodes below it, in the order of their rows, [D].
            visible: Which of all rows each of them sees, [R, R].
            context_tokens: Committed tokens.
        """
        rows = np.array([lookahead.rows[node] for node in below], dtype=np.int64)
        self.visible: BoolArray = visible[np.ix_(rows, rows)]
        self.rows_before = [lookahead.rows[root], *rows.tolist()]
        self.context_tokens = context_tokens
        self.used = 0
        self._lookahead = lookahead
        self._rows = {node: row for row, node in enumerate(below)}
        self._node_of = {_ROOT: root}

    def root(self) -> Given:
        """Return what the draft model said behind the round's root."""
        return self._use(self._node_of[_ROOT])

    def find(self, growth: TreeGrowth, node: int) -> tuple[int, Given] | None:
        """Return row and candidates of a node of the new round's growth; None if not remembered.

        Args:
            growth: The new growth.
            node: A node of it; its parent has been looked for before.
        """
        above = self._node_of.get(int(growth.parents[node]))
        if above is None:
            return None
        found = self._lookahead.child(above, int(growth.tokens[node]))
        if found is None or found not in self._rows:
            return None
        self._node_of[node] = found
        return self._rows[found], self._use(found)

    def _use(self, node: int) -> Given:
        given = self._lookahead.given(node)
        assert given is not None, "what has a row was expanded"
        self.used += node in self._lookahead.ahead
        return given
