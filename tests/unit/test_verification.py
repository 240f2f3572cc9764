"""Walking verified trees: cases worked out by hand, then a naive walk on random trees."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.decoding.verification import walk
from autodraft.tree.draft_tree import IntArray

TOKENS = [9, 11, 12, 13, 14, 15]
PARENTS = [-1, 0, 0, 1, 1, 3]
"""9 → 11 → 13 → 15, 9 → 11 → 14, 9 → 12."""


@st.composite
def verified_trees(draw: st.DrawFn) -> tuple[IntArray, IntArray, IntArray]:
    """Tokens, parents and the target's choices of a random tree over a small vocabulary."""
    tokens, parents = [draw(st.integers(0, 4))], [-1]
    for _ in range(draw(st.integers(0, 30))):
        parent, token = draw(st.integers(0, len(tokens) - 1)), draw(st.integers(0, 4))
        if (parent, token) not in zip(parents, tokens, strict=True):
            parents.append(parent)
            tokens.append(token)
    choices = draw(st.lists(st.integers(0, 4), min_size=len(tokens), max_size=len(tokens)))
    return np.array(tokens), np.array(parents), np.array(choices)


def naive_walk(tokens: IntArray, parents: IntArray, choices: IntArray) -> tuple[list[int], int]:
    node = 0
    path: list[int] = []
    while True:
        fitting = [
            child
            for child in range(1, len(tokens))
            if parents[child] == node and tokens[child] == choices[node]
        ]
        if not fitting:
            return path, int(choices[node])
        (node,) = fitting
        path.append(node)


@pytest.mark.parametrize(
    ("choices", "path", "bonus"),
    [
        ([77, 0, 0, 0, 0, 0], [], 77),
        ([12, 0, 88, 0, 0, 0], [2], 88),
        ([11, 13, 0, 15, 0, 99], [1, 3, 5], 99),
        ([11, 14, 0, 0, 66, 0], [1, 4], 66),
        ([11, 55, 0, 15, 0, 0], [1], 55),
        ([77, 13, 0, 15, 0, 99], [], 77),
        ([15, 13, 0, 0, 0, 0], [], 15),
    ],
    ids=[
        "nothing accepted",
        "a leaf of depth one",
        "everything down to the deepest leaf",
        "a branch",
        "a stop half-way",
        "matches below a rejected node",
        "the right token at the wrong depth",
    ],
)
def test_a_walk_by_hand(choices: list[int], path: list[int], bonus: int) -> None:
    accepted, token = walk(np.array(TOKENS), np.array(PARENTS), np.array(choices))
    assert accepted.tolist() == path
    assert token == bonus


def test_a_tree_of_its_root_alone_gives_the_bonus_token() -> None:
    accepted, bonus = walk(np.array([9]), np.array([-1]), np.array([42]))
    assert accepted.tolist() == []
    assert accepted.dtype == np.int64
    assert bonus == 42


def test_a_chain_is_accepted_up_to_its_first_fault() -> None:
    tokens, parents = np.array([9, 1, 2, 3, 4]), np.arange(-1, 4)
    accepted, bonus = walk(tokens, parents, np.array([1, 2, 8, 4, 5]))
    assert accepted.tolist() == [1, 2]
    assert bonus == 8


@given(verified_trees())
def test_the_walk_is_the_naive_walk(tree: tuple[IntArray, IntArray, IntArray]) -> None:
    accepted, bonus = walk(*tree)
    assert (accepted.tolist(), bonus) == naive_walk(*tree)
