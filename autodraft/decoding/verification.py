"""Walking a verified tree: which drafted tokens are kept, and the token after them.

Greedy decoding: a node is accepted if and only if it is the arg-max after its parent, so the
output is that of plain decoding whatever was drafted (Leviathan et al. 2023, arXiv 2211.17192;
tree case: SpecInfer, Miao et al. 2024, arXiv 2305.09781). The walk does not know how the target's
tokens were chosen.
"""

import numpy as np
import numpy.typing as npt


def walk(
    tokens: npt.NDArray[np.int64],
    parents: npt.NDArray[np.int64],
    target_tokens: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], int]:
    """Follow the target's choices from the root as deep as the tree goes along.

    Args:
        tokens: Token of each node, [N + 1]; node 0 is the root.
        parents: Parent of each node, [N + 1].
        target_tokens: The token that the target puts after each node, [N + 1].

    Returns:
        The accepted nodes from the root (excluded) downwards, and the bonus token.
    """
    correct = tokens[1:] == target_tokens[parents[1:]]
    path: list[int] = []
    node = 0
    # Only nodes that match after their own parent can be on the path: usually very few.
    for candidate in np.flatnonzero(correct) + 1:
        if parents[candidate] == node:
            node = int(candidate)
            path.append(node)
    return np.array(path, dtype=np.int64), int(target_tokens[node])
