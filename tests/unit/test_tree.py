"""Trees as arrays against brute force: depths, ancestors, positions, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.tree.attention import ancestor_mask, node_positions
from autodraft.tree.draft_tree import IntArray, node_depths, received_tree


@st.composite
def parent_arrays(draw: st.DrawFn, max_size: int = 40, lowest: int = 0) -> IntArray:
    """Parents of a random tree: the root's is -1, every other node comes after its parent."""
    size = draw(st.integers(1, max_size))
    parents = [-1, *(draw(st.integers(lowest, node - 1)) for node in range(1, size))]
    return np.array(parents, dtype=np.int64)


def forests() -> st.SearchStrategy[IntArray]:
    """Several trees at once: any node can be a root."""
    return parent_arrays(lowest=-1)


def path_to_root(parents: IntArray, node: int) -> list[int]:
    path = []
    while node != -1:
        path.append(node)
        node = int(parents[node])
    return path


def array(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


@given(parent_arrays() | forests())
def test_the_mask_holds_each_node_and_its_ancestors_and_nothing_else(parents: IntArray) -> None:
    visible = ancestor_mask(parents)
    assert visible.shape == (len(parents), len(parents))
    for node in range(len(parents)):
        assert set(np.flatnonzero(visible[node])) == set(path_to_root(parents, node))


@given(parent_arrays() | forests())
def test_the_depth_is_the_number_of_edges_to_the_root(parents: IntArray) -> None:
    expected = [len(path_to_root(parents, node)) - 1 for node in range(len(parents))]
    assert node_depths(parents).tolist() == expected


def test_the_mask_of_a_long_chain_is_a_full_triangle() -> None:
    parents = np.arange(-1, 299)
    assert (ancestor_mask(parents) == np.tri(300, dtype=np.bool_)).all()


def test_masks_and_depths_leave_the_parents_as_they_were() -> None:
    parents = array(-1, 0, 1, 1)
    ancestor_mask(parents)
    node_depths(parents)
    assert parents.tolist() == [-1, 0, 1, 1]


def test_nodes_of_one_depth_share_a_position() -> None:
    assert node_positions(array(0, 1, 1, 2), root_position=17).tolist() == [17, 18, 18, 19]


def test_a_received_tree_has_the_root_in_front_and_depths_of_its_own() -> None:
    tree = received_tree(7, tokens=array(5, 5, 6, 9), parents=array(0, 1, 1, 2))
    assert tree.tokens.tolist() == [7, 5, 5, 6, 9]
    assert tree.parents.tolist() == [-1, 0, 1, 1, 2]
    assert tree.depths.tolist() == [0, 1, 2, 2, 3]
    assert tree.num_nodes == 4
    assert tree.depth == 3


def test_a_received_tree_may_be_the_root_alone() -> None:
    tree = received_tree(7, tokens=array(), parents=array())
    assert tree.tokens.tolist() == [7]
    assert tree.num_nodes == 0
    assert tree.depth == 0


@given(parent_arrays())
def test_every_tree_of_different_tokens_is_received_as_it_was(parents: IntArray) -> None:
    tokens = np.arange(1, len(parents)) * 1000
    tree = received_tree(3, tokens, parents[1:])
    assert tree.parents.tolist() == parents.tolist()
    assert tree.tokens[1:].tolist() == tokens.tolist()


@pytest.mark.parametrize(
    "parents",
    [array(1, 0), array(0, 3, 2), array(0, 2), array(0, 9), array(0, -1), array(-2, 0)],
    ids=["own parent", "child first", "own parent behind", "outside", "second root", "negative"],
)
def test_a_node_that_does_not_come_after_its_parent_is_refused(parents: IntArray) -> None:
    with pytest.raises(ValueError, match="does not come after its parent"):
        received_tree(7, tokens=np.arange(len(parents)), parents=parents)


@pytest.mark.parametrize("parents", [array(0, 0), array(0, 1, 1)], ids=["at the root", "below"])
def test_two_siblings_with_the_same_token_are_refused(parents: IntArray) -> None:
    tokens = np.full(len(parents), 4)
    with pytest.raises(ValueError, match="carry the same token"):
        received_tree(7, tokens, parents)


def test_the_same_token_under_two_parents_is_fine() -> None:
    tree = received_tree(4, tokens=array(4, 5, 4, 4), parents=array(0, 0, 1, 2))
    assert tree.num_nodes == 4
