"""Who sees whom in a tree, and at which position each node stands.

Both are derived from the parents on either side of the link and never sent. The committed context
before the tree is visible to every node; this module does not know how long it is.
"""

import numpy as np

from autodraft.tree.draft_tree import BoolArray, IntArray, own_or_parent


def ancestor_mask(parents: IntArray) -> BoolArray:
    """Return which nodes each node attends to: itself and all its ancestors, [N, N].

    Args:
        parents: Parent of each node, [N]; -1 for a root, ``parents[i] < i`` otherwise.
    """
    ancestors = own_or_parent(parents)
    visible = np.eye(len(parents), dtype=np.bool_)
    visible[np.arange(len(parents)), ancestors] = True
    while (ancestors != (further := ancestors[ancestors])).any():
        visible |= visible[ancestors]  # what an ancestor sees, its descendants see
        ancestors = further  # twice as far up with every step
    return visible


def node_positions(depths: IntArray, root_position: int) -> IntArray:
    """Return the absolute context position of every node, [N]: the root's plus its depth."""
    return depths + root_position
