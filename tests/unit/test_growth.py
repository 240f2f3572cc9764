"""Growing trees by hand-made candidates, and the best part of them against brute force."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.tree.draft_tree import FloatArray, IntArray
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
def test_the_best_nodes_are_the_first_of_all_sorted(growth: TreeGrowth, num_nodes: int) -> None:
    _, kept = growth.best(num_nodes)
    best_first = np.argsort(-growth.log_values, kind="stable")
    assert kept.tolist() == sorted(best_first[: num_nodes + 1].tolist())


@given(st.lists(st.sampled_from(LINKS[:-1]), min_size=1, max_size=60), st.integers(0, 9))
def test_the_frontier_is_the_first_of_its_level_sorted(links: list[float], width: int) -> None:
    growth = TreeGrowth(root_token=0)
    growth.add_level(np.array([0]), np.arange(len(links))[None], np.array([links]))
    assert (
        growth.frontier(width).tolist()
        == sorted(range(1, len(links) + 1), key=lambda node: -links[node - 1])[:width]
    )


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


# ---------------------------------------------------------------------------------- grafting

Trie = tuple[IntArray, IntArray, FloatArray]  # parents, tokens, log-probabilities


def trie(*nodes: tuple[int, int, float]) -> Trie:
    """Continuations from (parent, token, probability) of each node."""
    parents, tokens, chances = zip(*nodes, strict=True) if nodes else ((), (), ())
    return (
        np.array(parents, dtype=np.int64),
        np.array(tokens, dtype=np.int64),
        np.log(np.array(chances)),
    )


@st.composite
def random_tries(draw: st.DrawFn, max_nodes: int = 12) -> Trie:
    """Continuations whose tokens are often those of ``random_growths``."""
    nodes: list[tuple[int, int, float]] = []
    for _ in range(draw(st.integers(0, max_nodes))):
        parent, token = draw(st.integers(-1, len(nodes) - 1)), draw(st.integers(0, 4))
        if (parent, token) not in {node[:2] for node in nodes}:
            nodes.append((parent, token, draw(st.floats(0.01, 1.0))))
    return trie(*nodes)


def test_new_continuations_are_added_behind_what_was_grown() -> None:
    growth = grown()
    growth.graft(*trie((-1, 20, 0.5), (0, 21, 0.8), (-1, 22, 0.1)))
    assert growth.tokens.tolist() == [9, 11, 12, 13, 14, 15, 16, 20, 21, 22]
    assert growth.parents.tolist() == [-1, 0, 0, 1, 1, 2, 2, 0, 7, 0]
    assert growth.depths.tolist() == [0, 1, 1, 2, 2, 2, 2, 1, 2, 1]
    assert np.exp(growth.log_values[7:]) == pytest.approx([0.5, 0.4, 0.1])
    assert growth.num_nodes == 9


def test_a_continuation_follows_nodes_that_are_there_and_goes_on_below_them() -> None:
    growth = grown()
    growth.graft(*trie((-1, 12, 0.1), (0, 15, 0.1), (1, 30, 0.5), (0, 31, 0.25)))
    assert growth.tokens.tolist() == [9, 11, 12, 13, 14, 15, 16, 30, 31]
    assert growth.parents[7:].tolist() == [5, 2]
    assert growth.depths[7:].tolist() == [3, 2]
    # The draft gave 12 0.4 and 15 0.9 after it: more than retrieval does, so both stay.
    expected = [1.0, 0.6, 0.4, 0.3, 0.3, 0.36, 0.04, 0.36 * 0.5, 0.4 * 0.25]
    assert np.exp(growth.log_values) == pytest.approx(expected)


def test_a_node_that_retrieval_trusts_more_rises_and_all_below_it_with_it() -> None:
    growth = grown()
    growth.graft(*trie((-1, 12, 0.8), (0, 16, 0.5), (0, 30, 0.25)))
    # 12: 0.4 to 0.8. 15 keeps its 0.9 after 12, 16 rises from 0.1 to 0.5 after 12.
    expected = [1.0, 0.6, 0.8, 0.3, 0.3, 0.72, 0.4, 0.2]
    assert np.exp(growth.log_values) == pytest.approx(expected)
    assert growth.log_values[[0, 1, 3, 4]].tolist() == grown().log_values[[0, 1, 3, 4]].tolist()
    assert growth.parents[7] == 2


def test_the_best_tree_takes_from_both() -> None:
    growth = grown()
    growth.graft(*trie((-1, 20, 0.9), (0, 21, 0.9)))
    tree, kept = growth.best(3)
    assert kept.tolist() == [0, 1, 7, 8]
    assert tree.tokens.tolist() == [9, 11, 20, 21]
    assert tree.parents.tolist() == [-1, 0, 0, 2]
    assert tree.depths.tolist() == [0, 1, 1, 2]
    assert growth.expected_tokens(3) == pytest.approx(1 + 0.6 + 0.9 + 0.81)


def test_grafting_without_any_growth_gives_the_continuations_themselves() -> None:
    growth = TreeGrowth(root_token=9)
    growth.graft(*trie((-1, 1, 0.5), (0, 2, 0.5), (1, 3, 0.5)))
    tree, _ = growth.best(9)
    assert tree.tokens.tolist() == [9, 1, 2, 3]
    assert np.exp(tree.log_probs) == pytest.approx([1, 0.5, 0.25, 0.125])


def test_grafting_nothing_changes_nothing() -> None:
    growth = grown()
    growth.graft(*trie())
    assert growth.tokens.tolist() == grown().tokens.tolist()
    assert growth.log_values.tolist() == grown().log_values.tolist()


def test_depth_and_frontier_stay_those_of_the_level_grown_last() -> None:
    growth = grown()
    growth.graft(*trie((-1, 12, 0.8), (0, 30, 0.9), (1, 31, 1.0), (2, 32, 1.0)))
    assert growth.depth == 2
    assert growth.depths.max() == 4
    assert growth.frontier(100).tolist() == [5, 3, 4, 6]
    assert growth.expected_tokens(99, 1) == pytest.approx(1 + 0.6 + 0.8)


def test_no_level_and_no_second_graft_follow_a_graft() -> None:
    growth = grown()
    growth.graft(*trie((-1, 20, 0.5)))
    with pytest.raises(AssertionError, match="comes last"):
        growth.add_level(np.array([5]), np.array([[1]]), log([0.5]))
    with pytest.raises(AssertionError, match="called once"):
        growth.graft(*trie())


@given(random_growths(), random_tries(), st.integers(0, 80))
def test_a_grafted_tree_keeps_every_rule(growth: TreeGrowth, found: Trie, num_nodes: int) -> None:
    grown_nodes = len(growth.tokens)
    before = growth.log_values.copy()
    growth.graft(*found)
    assert (growth.parents < np.arange(len(growth.tokens))).all()
    assert (growth.log_values[1:] <= growth.log_values[growth.parents[1:]]).all()
    assert (growth.depths[1:] == growth.depths[growth.parents[1:]] + 1).all()
    assert (growth.log_values[:grown_nodes] >= before - 1e-12).all()
    pairs = list(zip(growth.parents.tolist(), growth.tokens.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)
    tree, kept = growth.best(num_nodes)
    assert tree.num_nodes == min(num_nodes, growth.num_nodes)
    assert set(growth.parents[kept[1:]].tolist()) <= set(kept.tolist())
    assert (tree.parents[1:] < np.arange(1, len(kept))).all()
    assert growth.expected_tokens(num_nodes) == pytest.approx(np.exp(tree.log_probs).sum())


@given(random_growths(), random_tries())
def test_every_continuation_is_in_the_tree_and_worth_what_retrieval_says_or_more(
    growth: TreeGrowth, found: Trie
) -> None:
    growth.graft(*found)
    pairs = zip(growth.parents.tolist(), growth.tokens.tolist(), strict=True)
    node_at = {pair: node for node, pair in enumerate(pairs)}
    nodes: list[int] = []
    for parent, token, link in zip(*(column.tolist() for column in found), strict=True):
        above = 0 if parent < 0 else nodes[parent]
        nodes.append(node_at[(above, token)])
        gained = growth.log_values[nodes[-1]] - growth.log_values[above]
        assert gained >= link - 1e-9


Path = tuple[int, ...]


def values_by_path(growth: TreeGrowth) -> dict[Path, float]:
    """The value of every node by its tokens from the root down, in the order of the nodes."""
    paths: list[Path] = [()]
    for parent, token in zip(growth.parents[1:].tolist(), growth.tokens[1:].tolist(), strict=True):
        paths.append((*paths[parent], token))
    return dict(zip(paths, growth.log_values.tolist(), strict=True))


def grafted_by_path(grown: dict[Path, float], found: Trie) -> dict[Path, float]:
    """Graft on dictionaries: the larger link of two, every value the sum of the links above."""
    links = {path: value - grown[path[:-1]] for path, value in grown.items() if path}
    paths: list[Path] = []
    for parent, token, link in zip(*(column.tolist() for column in found), strict=True):
        path = (token,) if parent < 0 else (*paths[parent], token)
        links[path] = max(link, links.get(path, link))
        paths.append(path)
    return {(): 0.0} | {
        path: sum(links[path[: depth + 1]] for depth in range(len(path))) for path in links
    }


@given(random_growths(), random_tries())
def test_a_graft_is_the_graft_on_dictionaries(growth: TreeGrowth, found: Trie) -> None:
    expected = grafted_by_path(values_by_path(growth), found)
    growth.graft(*found)
    grafted = values_by_path(growth)
    assert list(grafted) == list(expected)
    assert list(grafted.values()) == pytest.approx(list(expected.values()))
    assert growth.depths.tolist() == [len(path) for path in grafted]
