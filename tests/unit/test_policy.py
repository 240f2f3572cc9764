"""What each policy makes of a tree grown as the drafter grows it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.policy import (
    POLICIES,
    ChainPolicy,
    FixedTreePolicy,
    LookupPolicy,
    OptTreePolicy,
    TreeLimits,
)
from autodraft.policy.base import Policy
from autodraft.tree.growth import TreeGrowth


def grow(policy: Policy, links: list[float], max_levels: int = 99) -> TreeGrowth:
    """Grow as the drafter does: ask at every depth, the bare root included.

    Args:
        links: Probabilities of the candidates of every node, best first.
    """
    children = min(policy.limits.width, len(links))
    log_probs, tokens = np.log(links[:children]), np.arange(children)
    growth = TreeGrowth(root_token=0)
    while growth.depth < max_levels:
        expanded = growth.frontier(policy.width(growth))
        if len(expanded) == 0:
            break
        shape = (len(expanded), 1)
        growth.add_level(expanded, np.tile(tokens, shape), np.tile(log_probs, shape))
    return growth


def test_a_chain_is_one_node_wide_and_d_nodes_long() -> None:
    policy = ChainPolicy(TreeLimits(width=8, max_depth=5, node_budget=5))
    growth = grow(policy, [0.5, 0.3])
    assert growth.parents.tolist() == [-1, 0, 1, 2, 3, 4]
    assert policy.num_nodes(growth) == 5
    assert policy.limits == TreeLimits(width=1, max_depth=5, node_budget=5)


@pytest.mark.parametrize(("max_depth", "node_budget"), [(3, 7), (7, 3)])
def test_a_chain_is_as_long_as_the_smaller_of_its_limits(max_depth: int, node_budget: int) -> None:
    policy = ChainPolicy(TreeLimits(1, max_depth, node_budget))
    growth = grow(policy, [0.5])
    assert growth.depth == 3
    assert policy.num_nodes(growth) == 3
    assert policy.limits.node_budget == 3


def test_a_fixed_tree_expands_its_width_on_every_level() -> None:
    policy = FixedTreePolicy(TreeLimits(width=3, max_depth=4, node_budget=12))
    growth = grow(policy, [0.5, 0.3, 0.1])
    assert growth.depth == 4
    assert growth.num_nodes == 3 + 9 + 9 + 9
    assert policy.num_nodes(growth) == 12


def test_a_fixed_tree_sends_all_nodes_where_fewer_grew() -> None:
    policy = FixedTreePolicy(TreeLimits(width=2, max_depth=2, node_budget=100))
    assert policy.num_nodes(grow(policy, [0.5, 0.3])) == 6


def test_an_opt_tree_goes_on_while_levels_pay() -> None:
    policy = OptTreePolicy(TreeLimits(width=4, max_depth=7, node_budget=30))
    assert grow(policy, [0.99, 0.01]).depth == 7


def test_an_opt_tree_stops_where_nothing_is_gained() -> None:
    policy = OptTreePolicy(TreeLimits(width=4, max_depth=7, node_budget=30))
    assert grow(policy, [0.1, 0.05]).depth == 1  # the first level added 0.15 tokens


def test_an_opt_tree_stops_at_the_first_level_that_adds_too_little() -> None:
    # A chain of 0.5: the levels add 0.5, 0.25 and 0.125 tokens; the last is not more than 0.2.
    policy = OptTreePolicy(TreeLimits(width=1, max_depth=9, node_budget=9))
    assert grow(policy, [0.5]).depth == 3


def test_an_opt_tree_counts_only_what_its_node_budget_can_send() -> None:
    # 0.9 and then two of 0.45 in place of nothing: with one node to send, nothing is gained.
    policy = OptTreePolicy(TreeLimits(width=2, max_depth=9, node_budget=1))
    assert grow(policy, [0.9, 0.1]).depth == 2


def test_an_opt_tree_without_nodes_to_send_is_asked_without_harm() -> None:
    policy = OptTreePolicy(TreeLimits(width=2, max_depth=9, node_budget=0))
    growth = grow(policy, [0.9, 0.1])
    assert growth.depth == 1
    assert policy.num_nodes(growth) == 0


def grafted(*chances: float) -> TreeGrowth:
    """A bare root with a chain of these conditional probabilities grafted."""
    growth = TreeGrowth(root_token=0)
    nodes = np.arange(len(chances))
    growth.graft(nodes - 1, nodes, np.log(chances))
    return growth


def test_lookup_expands_nothing_and_sends_what_is_likely_enough() -> None:
    policy = LookupPolicy(TreeLimits(width=8, max_depth=9, node_budget=9))
    assert grow(policy, [0.9, 0.1]).num_nodes == 0
    # The paths are worth 0.9, 0.45, 0.18 and 0.09; a tenth is the least that is sent.
    growth = grafted(0.9, 0.5, 0.4, 0.5)
    assert (policy.width(growth), policy.num_nodes(growth)) == (0, 3)
    assert policy.limits == TreeLimits(width=0, max_depth=9, node_budget=9)


def test_lookup_sends_no_more_than_its_node_budget() -> None:
    policy = LookupPolicy(TreeLimits(width=0, max_depth=9, node_budget=2))
    assert policy.num_nodes(grafted(0.9, 0.9, 0.9)) == 2
    assert policy.num_nodes(grafted(0.05)) == 0


@pytest.mark.parametrize("links", [[0.99, 0.01], [0.6, 0.3], [0.1, 0.05]])
@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_decides_each_round_alike_whatever_the_rounds_before_were(
    name: str, links: list[float]
) -> None:
    limits = TreeLimits(width=4, max_depth=7, node_budget=30)
    used, fresh = POLICIES[name](limits), POLICIES[name](limits)
    grow(used, [0.99, 0.01])
    grow(used, [0.1, 0.05])
    grow(used, [0.99, 0.01], max_levels=2)  # a round that the token limit cut short
    assert grow(used, links).depth == grow(fresh, links).depth


@given(
    name=st.sampled_from(sorted(POLICIES)),
    width=st.integers(1, 5),
    max_depth=st.integers(1, 5),
    node_budget=st.integers(1, 12),
    links=st.sampled_from([[1.0], [0.9, 0.1], [0.4, 0.3, 0.2, 0.1], [0.01]]),
)
def test_ceilings_hold(
    name: str, width: int, max_depth: int, node_budget: int, links: list[float]
) -> None:
    policy = POLICIES[name](TreeLimits(width, max_depth, node_budget))
    growth = grow(policy, links)
    assert growth.depth <= max_depth
    assert policy.num_nodes(growth) <= min(node_budget, growth.num_nodes)
    assert policy.width(growth) <= width
    assert policy.limits.width <= width
    assert policy.limits.max_depth <= max_depth
    assert policy.limits.node_budget <= node_budget


def test_the_policies_are_those_of_the_table() -> None:
    assert set(POLICIES) == {"chain", "fixed_tree", "opt_tree", "lookup"}
