"""Walking a verified tree: which drafted tokens are kept, and the token after them.

A node is accepted if and only if it is the token that the target itself puts after its parent, so
the output is that of plain decoding whatever was drafted (greedy: Leviathan et al. 2023, arXiv
2211.17192; tree case: SpecInfer, Miao et al. 2024, arXiv 2305.09781; drawn with shared noise:
Daliri, Musco, Suresh 2024, arXiv 2408.07978). The walk does not know how the target's tokens were
chosen.
"""

from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

UNDECIDED: Final = -1
"""No token: the walk ends, and who is not sure decides otherwise."""


class Choices(Protocol):
    """The target's choice after each node of a tree."""

    def __getitem__(self, node: int, /) -> int:
        """Return the token that the target puts after a node, or ``UNDECIDED``."""
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
        The accepted nodes from the root (excluded) downwards, and the bonus token, or ``UNDECIDED``
        where that is not certain yet.
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
