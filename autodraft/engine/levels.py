"""Where the expanded nodes of one growth stand in the draft's cache, and whom they see.

Rows are counted from the slot behind the root. Knows the cache's order, not the cache.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from autodraft.policy.base import TreeLimits
from autodraft.tree.draft_tree import BoolArray, IntArray

NOT_CACHED: Final = -1


class Levels:
    """The rows behind one round's root."""

    def __init__(
        self,
        root_slot: int,
        limits: TreeLimits,
        spare: int = 0,
        remembered: BoolArray | None = None,
    ) -> None:
        """Begin with what stands there already.

        Args:
            root_slot: Where the root stands.
            limits: Ceilings of the growth.
            spare: Rows that may come on top of those.
            remembered: Whom the rows see that stand behind the root already, [D, D]; None where
                there are none.
        """
        known = 0 if remembered is None else len(remembered)
        expanded = limits.width * limits.max_depth
        nodes = 1 + limits.most_children * (1 + expanded)  # the root's children, and theirs
        most = expanded + spare + known
        self._first_slot = root_slot + 1
        self._count = known
        self._rows: IntArray = np.full(nodes, NOT_CACHED, dtype=np.int64)  # the root is context
        # One row more than nodes: row -1 stays empty, it stands for the root's ancestors.
        self._visible: BoolArray = np.zeros((most + 1, most), dtype=np.bool_)
        if remembered is not None:
            self._visible[:known, :known] = remembered

    @property
    def visible(self) -> BoolArray:
        """Which row sees which, [R, R]."""
        return self._visible[: self._count, : self._count]

    def add(self, nodes: IntArray, parents: IntArray) -> BoolArray:
        """Place nodes in the next rows; return whom they see behind the root, [W, S]."""
        rows, visible = self.add_below(self._rows[parents])
        self._rows[nodes] = rows
        return visible

    def add_below(self, above: IntArray | Sequence[int]) -> tuple[IntArray, BoolArray]:
        """Take the next rows for nodes; return them, [W], and whom they see, [W, S].

        Args:
            above: Row of each node's parent, ``NOT_CACHED`` for the root, [W].
        """
        rows = np.arange(self._count, self._count + len(above))
        self._count += len(above)
        self._visible[rows] = self._visible[above]
        self._visible[rows, rows] = True
        return rows, self._visible[rows, : self._count]

    def place(self, node: int, row: int) -> None:
        """Note which of the rows that stood there already is a node's."""
        self._rows[node] = row

    def row(self, node: int) -> int:
        """Return the row of a node that was expanded."""
        return int(self._rows[node])

    def slots(self, nodes: IntArray) -> IntArray:
        """Return the cache slot of each node, ``NOT_CACHED`` where it was never expanded."""
        grown = nodes < len(self._rows)  # a grafted node can lie behind all that could grow
        rows = np.where(grown, self._rows[np.where(grown, nodes, 0)], NOT_CACHED)
        return np.where(rows == NOT_CACHED, NOT_CACHED, rows + self._first_slot)
