"""Growing trees by hand-made candidates, and the best part of them against brute force."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.tree.draft_tree import FloatArray
from autodraft.tree.growth import TreeGrowth

LINKS = (0.0, -0.1, -0.5, -0.5, -2.0, -40.0, -np.inf)
"""Log-probabilities of a link: certain, tied, hopeless, excluded."""


def log(*rows: list[float]) -> FloatArray:
    with np.errstate(divide="ignore"):
        values: FloatArray = np.log(np.array(rows))
    return values


def grown() -> TreeGrowth:
    """0 → 1 (0.6), 2 (0.4); 1 → 3 (0.3), 4 (0.3); 2 → 5 (0.36), 6 (0.04)."""
    growth = TreeGrowth(root_token=9)
    growth.add_level(np.array([0]), np.array([[11, 12]]), log([0.6, 0.4]))
    growth.add_level(np.array([1, 2]), np.array([[13, 14], [15, 16]]), log([0.5, 0.5], [0.9, 0.1]))
    return growth


@st.composite
def random_growths(draw: st.DrawFn, max_nodes: int = 60) -> TreeGrowth:
    """Grow level by level as the drafter does, with links of any worth, ties among them."""
    growth = TreeGrowth(root_token=0)
    children = draw(st.integers(1, 3))
    expanded = np.zeros(1, dtype=np.int64)
    for _ in range(draw(st.integers(1, 5))):
        if growth.num_nodes + len(expanded) * children > max_nodes:
            break
        links = [
            [draw(st.sampled_from(LINKS)) for _ in range(children)] for _ in range(len(expanded))
        ]
        tokens = np.arange(children)[None].repeat(len(expanded), axis=0)
        growth.add_level(expanded, tokens, np.array(links))
        expanded = growth.frontier(draw(st.integers(1, 3)))
        if len(expanded) == 0:
            break
    return growth


def test_values_are_products_along_the_path() -> None:
    growth = grown()
    expected = [1.0, 0.6, 0.4, 0.3, 0.3, 0.36, 0.04]
    assert np.exp(growth.log_values) == pytest.approx(expected)
    assert growth.parents.tolist() == [-1, 0, 0, 1, 1, 2, 2]
    assert growth.depths.tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert growth.tokens.tolist() == [9, 11, 12, 13, 14, 15, 16]
    assert growth.depth == 2
    assert growth.num_nodes == 6


def test_the_frontier_is_the_best_of_the_newest_level_only() -> None:
    growth = grown()
    assert growth.frontier(2).tolist() == [5, 3]
    assert growth.frontier(100).tolist() == [5, 3, 4, 6]
    assert np.exp(growth.frontier_log_values) == pytest.approx([0.3, 0.3, 0.36, 0.04])


def test_an_impossible_candidate_is_dropped() -> None:
    growth = TreeGrowth(root_token=9)
    growth.add_level(np.array([0]), np.array([[11, 12, 13]]), log([0.7, 0.0, 0.3]))
    assert growth.tokens.tolist() == [9, 11, 13]
    assert growth.parents.tolist() == [-1, 0, 0]


def test_a_level_without_candidates_leaves_an_empty_frontier() -> None:
    growth = TreeGrowth(root_token=9)
    growth.add_level(np.array([0]), np.array([[11]]), log([0.0]))
    assert growth.num_nodes == 0
    assert growth.frontier(4).tolist() == []


@pytest.mark.parametrize(
    ("num_nodes", "expected"), [(0, 1.0), (1, 1.6), (2, 2.0), (3, 2.36), (6, 3.0), (50, 3.0)]
)
def test_expected_tokens_are_one_and_the_best_nodes_values(num_nodes: int, expected: float) -> None:
    assert grown().expected_tokens(num_nodes) == pytest.approx(expected)


def test_the_best_tree_is_cut_out_and_numbered_anew() -> None:
    tree, kept = grown().best(3)
    assert kept.tolist() == [0, 1, 2, 5]
    assert tree.tokens.tolist() == [9, 11, 12, 15]
    assert tree.parents.tolist() == [-1, 0, 0, 2]
    assert tree.depths.tolist() == [0, 1, 1, 2]
    assert np.exp(tree.log_probs) == pytest.approx([1.0, 0.6, 0.4, 0.36])


def test_the_best_tree_of_no_nodes_is_the_root() -> None:
    tree, kept = grown().best(0)
    assert kept.tolist() == [0]
    assert tree.parents.tolist() == [-1]


def test_certain_links_are_kept_from_the_top_down() -> None:
    growth = TreeGrowth(root_token=0)
    for level in range(6):
        growth.add_level(np.array([level]), np.array([[level + 1]]), log([1.0]))
    tree, kept = growth.best(4)
    assert kept.tolist() == [0, 1, 2, 3, 4]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3]


@given(random_growths(), st.integers(0, 70))
def test_the_best_nodes_are_closed_under_parents(growth: TreeGrowth, num_nodes: int) -> None:
    tree, kept = growth.best(num_nodes)
    assert tree.num_nodes == min(num_nodes, growth.num_nodes)
    assert tree.parents[0] == -1
    for node in range(1, len(kept)):
        parent = tree.parents[node]
        assert 0 <= parent < node
        assert growth.parents[kept[node]] == kept[parent]
        assert tree.depths[node] == tree.depths[parent] + 1
    assert tree.tokens.tolist() == growth.tokens[kept].tolist()
    assert tree.log_probs.tolist() == growth.log_values[kept].tolist()


@given(random_growths(), st.integers(0, 70))
def test_expected_tokens_are_those_of_the_best_tree(growth: TreeGrowth, num_nodes: int) -> None:
    tree, _ = growth.best(num_nodes)
    assert growth.expected_tokens(num_nodes) == pytest.approx(np.exp(tree.log_probs).sum())


@given(random_growths(max_nodes=9), st.integers(0, 9))
def test_no_subtree_of_the_same_size_is_worth_more(growth: TreeGrowth, num_nodes: int) -> None:
    size = min(num_nodes, growth.num_nodes)
    values, parents = np.exp(growth.log_values), growth.parents
    subtrees = (
        nodes
        for nodes in combinations(range(1, growth.num_nodes + 1), size)
        if all(parents[node] == 0 or parents[node] in nodes for node in nodes)
    )
    best = max(values[list(nodes)].sum() for nodes in subtrees)
    tree, _ = growth.best(size)
    assert np.exp(tree.log_probs[1:]).sum() == pytest.approx(best)
