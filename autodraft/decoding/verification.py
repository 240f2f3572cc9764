"""Walking a verified tree: which drafted tokens are kept, and the token after them.

Greedy decoding: a node is accepted if and only if it is the arg-max after its parent, so the
output is that of plain decoding whatever was drafted (Leviathan et al. 2023, arXiv 2211.17192;
tree case: SpecInfer, Miao et al. 2024, arXiv 2305.09781). The walk does not know how the target's
tokens were chosen.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt


class Choices(Protocol):
    """The target's choice after each node of a tree."""

    def __getitem__(self, node: int, /) -> int:
        """Return the token that the target puts after a node."""
        ...


def walk(
    tokens: npt.NDArray[np.int64],
    parents: npt.NDArray[np.int64],
    choices: Choices | npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], int]:
    """Follow the target's choices from the root as deep as the tree goes along.

    Args:
        tokens: Token of each node, [N + 1]; node 0 is the root.
        parents: Parent of each node, [N + 1].
        choices: The token that the target puts after each node, [N + 1]; only those of the root and
            of accepted nodes are asked for.

    Returns:
        The accepted nodes from the root (excluded) downwards, and the bonus token.
    """
    path: list[int] = []
    node = 0
    while True:
        choice = int(choices[node])
        matches = np.flatnonzero((parents == node) & (tokens == choice))
        if len(matches) == 0:
            return np.array(path, dtype=np.int64), choice
        node = int(matches[0])
        path.append(node)
