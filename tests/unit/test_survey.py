"""What a survey learns of trees that are made up, against counts worked out by hand."""

from collections.abc import Sequence

import numpy as np
import pytest

from autodraft.policy.base import Outcome
from autodraft.policy.forecast import CHILDREN
from autodraft.policy.survey import MOST_NODES, SurveyPolicy
from autodraft.tree.growth import TreeGrowth

FIRST = (0.65, 0.25)
SECOND = (0.45, 0.35)
TOKENS = np.array([10, 11])


def surveyed(
    policy: SurveyPolicy, reached: list[int], truths: list[int], levels: Sequence[Sequence[float]]
) -> TreeGrowth:
    """Play a round: every node of each level has children of the level's probabilities."""
    policy.begin(10, np.empty(0))
    growth = TreeGrowth(1)
    for chances in levels:
        expanded = growth.frontier(policy.width(growth))
        shape = (len(expanded), 1)
        with np.errstate(divide="ignore"):
            log_probs = np.tile(np.log(chances), shape)
        tokens = np.tile(TOKENS, shape)
        values = policy.value(growth, expanded, tokens, log_probs)
        growth.add_level(expanded, tokens, values)
    policy.observe(
        Outcome(
            growth=growth,
            reached=np.array(reached),
            truths=truths,
            context_tokens=10,
            num_nodes=growth.num_nodes,
            draft_s=1.0,
            wait_s=1.0,
            queue_s=0.0,
            verify_s=1.0,
            round_s=2.0,
            uplink_bytes=1,
            downlink_bytes=1,
        )
    )
    return growth


def test_the_trees_of_a_survey_are_wide_and_deep() -> None:
    policy = SurveyPolicy(node_budget=255)
    assert policy.limits.width == 8
    assert policy.limits.max_depth == 8
    assert policy.limits.node_budget == MOST_NODES
    assert policy.limits.most_children == CHILDREN
    small = SurveyPolicy(node_budget=9, max_depth=2)
    growth = surveyed(small, [0], [99], (FIRST, SECOND))
    assert small.width(growth) == 0
    assert small.num_nodes(growth) == 6
    assert SurveyPolicy(node_budget=5).num_nodes(growth) == 5


def test_a_survey_without_rounds_teaches_nothing() -> None:
    policy = SurveyPolicy(node_budget=9)
    surveyed(policy, [0], [10], ())  # nothing was drafted
    assert policy.rounds == 0
    with pytest.raises(ValueError, match="without rounds"):
        policy.prior()


def test_candidates_below_reached_nodes_are_counted() -> None:
    policy = SurveyPolicy(node_budget=5, max_depth=2)
    # The first child was right; the target's token after it, 99, was not among its children.
    surveyed(policy, [0, 1], [10, 99], (FIRST, SECOND))
    trials, hits, sums = policy.prior().calibration
    assert trials.sum(axis=-1)[:2].tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]
    assert trials[2:].sum() == 0
    assert hits.sum(axis=-1).tolist() == [[1, 0, 0, 0]] + [[0] * 4] * 3
    assert sums.sum(axis=-1)[:2] == pytest.approx(
        np.array([[0.65, 0.25, 0, 0], [0.45, 0.35, 0, 0]])
    )


def test_gains_and_children_by_the_final_calibration() -> None:
    policy = SurveyPolicy(node_budget=5, max_depth=2)
    surveyed(policy, [0, 1], [10, 99], (FIRST, SECOND))
    prior = policy.prior()
    # Depth 1: (1 + 24 · (1 + 4 · 0.65) / 5) / 25 and 24 · (4 · 0.25 / 5) / 25.
    first, second = 0.7312, 0.192
    # Depth 2: 24 · (4 · 0.45 / 5) / 25 = 0.3456 of 25 trials, joined by the bin below, which says
    # 0.35 by 24; and 24 · (4 · 0.35 / 5) / 25.
    third, fourth = (0.3456 * 25 + 0.35 * 24) / 49, 0.2688
    ones = np.array([0.0, first, second, 0.0, 0.0, 0.0]).cumsum()
    narrow = np.array([0.0, first, first * third, first * fourth, second, 0.0]).cumsum()
    wide = np.array([0.0, first, first * third, first * fourth, second, second * third]).cumsum()
    assert prior.gains.shape == (2, 4, 6)
    assert prior.gains[0] == pytest.approx(np.tile(ones, (4, 1)))
    assert prior.gains[1, 0] == pytest.approx(narrow)
    assert prior.gains[1, 1:] == pytest.approx(np.tile(wide, (3, 1)))
    # The root's children; then those of its two children, whose links are .7312 and .192.
    assert prior.child_trials[0].tolist() == [0, 0, 0, 1]
    assert prior.child_trials[1].tolist() == [1, 0, 1, 0]
    assert prior.child_sums[0, 3, :2] == pytest.approx([first, second])
    assert prior.child_sums[1, 2, :2] == pytest.approx([third, fourth])
    assert prior.child_sums[1, 0, :2] == pytest.approx([third, fourth])


def test_gains_are_means_over_rounds_and_a_short_tree_gains_no_more_below() -> None:
    policy = SurveyPolicy(node_budget=5, max_depth=2)
    surveyed(policy, [], [], (FIRST, SECOND))  # nothing is judged: the draft's own word
    surveyed(policy, [], [], (FIRST,))
    prior = policy.prior()
    assert prior.rounds == 2
    assert prior.gains[0, 0] == pytest.approx([0, 0.65, 0.9, 0.9, 0.9, 0.9])
    # .65 .2925 .25 .2275 .1125 of the deep one, .65 .25 of the short one.
    deep = np.array([0, 0.65, 0.9425, 1.1925, 1.42, 1.5325])
    short = np.array([0, 0.65, 0.9, 0.9, 0.9, 0.9])
    assert prior.gains[1, 1] == pytest.approx((deep + short) / 2)


def test_how_much_easier_each_text_is_than_the_others() -> None:
    policy = SurveyPolicy(node_budget=5, max_depth=1)
    for chances in (FIRST, SECOND):  # 0.9 and 0.8 in sum
        policy.begin_text()
        for _ in range(2):
            surveyed(policy, [], [], (chances,))
    assert policy.prior().ease == pytest.approx([0.9 / 0.85, 0.8 / 0.85])
    hopeless = SurveyPolicy(node_budget=5, max_depth=1)
    surveyed(hopeless, [], [], ((0.0, 0.0),))
    assert hopeless.prior().ease == pytest.approx([1.0])


def test_what_the_draft_excludes_is_no_node() -> None:
    policy = SurveyPolicy(node_budget=5, max_depth=2)
    growth = surveyed(policy, [], [], ((0.65, 0.0), SECOND))
    assert growth.num_nodes == 3
    gains = policy.prior().gains
    assert gains[0, 0] == pytest.approx([0] + [0.65] * 5)
    assert gains[1, 3, -1] == pytest.approx(0.65 * 1.8)


def test_what_was_learned_is_handed_on_anew_each_time() -> None:
    policy = SurveyPolicy(node_budget=5, max_depth=2)
    surveyed(policy, [0, 1], [10, 99], (FIRST, SECOND))
    prior = policy.prior()
    calibration, children, gains = prior.knowledge()
    calibration.learn(1, np.log([0.5]), 0)
    children.learn(0, np.array([1.0]), np.array([[0.5]]))
    again, children_again, _ = prior.knowledge()
    assert (calibration.trials, again.trials) == (5, 4)
    assert children_again.trials.sum() == 3
    assert gains.depth == 2
    assert gains.widths.tolist() == [1, 2, 4, 8]
