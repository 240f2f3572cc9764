"""The draft tree: four arrays, node 0 the root.

A node comes after its parent, so one pass over the arrays is a walk from the root. The tree does
not know where its log-probabilities come from, nor who will verify it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

NO_PARENT = -1


@dataclass(frozen=True)
class DraftTree:
    """Nodes proposed in one round; node 0 is the root token, already part of the output.

    Attributes:
        tokens: Token ids, [N + 1].
        parents: Parent of each node, [N + 1]; ``parents[0]`` is -1 and ``parents[i] < i``.
        depths: Edges from the root, [N + 1].
        log_probs: Log of the product of draft probabilities along the path, [N + 1]; 0 at the root.
    """

    tokens: IntArray
    parents: IntArray
    depths: IntArray
    log_probs: FloatArray

    @property
    def num_nodes(self) -> int:
        """Drafted nodes, root excluded."""
        return len(self.tokens) - 1

    @property
    def depth(self) -> int:
        """Depth of the deepest node; 0 for a tree that is only its root."""
        return int(self.depths.max())


def node_depths(parents: IntArray) -> IntArray:
    """Return the depth of every node, [N], from its parents (topological order, root = -1)."""
    depths: IntArray = (parents != NO_PARENT).astype(np.int64)
    ancestors = own_or_parent(parents)
    while (above := depths[ancestors]).any():
        depths += above
        ancestors = ancestors[ancestors]  # twice as far up with every step
    return depths


def own_or_parent(parents: IntArray) -> IntArray:
    """Return the parent of each node, a root being its own, [N]."""
    return np.where(parents == NO_PARENT, np.arange(len(parents)), parents)


def received_tree(root_token: int, tokens: IntArray, parents: IntArray) -> DraftTree:
    """Rebuild a tree from the nodes that crossed the link.

    Args:
        root_token: The last committed token; it is never sent.
        tokens: Token ids of the nodes, [N].
        parents: Parent index of each node in the numbering with the root as 0, [N].

    Raises:
        ValueError: If a node does not come after its parent or two siblings carry the same token.
    """
    all_tokens = np.concatenate(([root_token], tokens)).astype(np.int64)
    all_parents = np.concatenate(([NO_PARENT], parents)).astype(np.int64)
    if (all_parents[1:] >= np.arange(1, len(all_parents))).any() or (all_parents[1:] < 0).any():
        raise ValueError("a node of the draft tree does not come after its parent")
    siblings = np.sort(all_parents[1:] * (all_tokens.max() + 1) + all_tokens[1:])
    if (siblings[1:] == siblings[:-1]).any():
        raise ValueError("two children of one node of the draft tree carry the same token")
    unknown = np.zeros(len(all_tokens))  # the draft's probabilities stay with the draft
    return DraftTree(all_tokens, all_parents, node_depths(all_parents), unknown)
