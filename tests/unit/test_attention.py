"""THE TRAP: a tree mask that misses an ancestor, and the comparisons that must catch it.

Such a mask was seen in a published system: it missed an ancestor at the deepest level only, so the
output went wrong after a fully accepted round and looked right otherwise.
"""

from collections.abc import Callable

import numpy as np
import pytest

from autodraft.engine.drafter import Drafter
from autodraft.models.runner import ModelRunner
from autodraft.policy import FixedTreePolicy, TreeLimits
from autodraft.tree.attention import ancestor_mask, node_positions
from autodraft.tree.draft_tree import BoolArray, IntArray, node_depths
from tests.fakes import SHARP, greedy_reference, prompt_of, speculate, tiny_model, tiny_runner
from tests.unit.test_runner import TREE, path_error

pytestmark = pytest.mark.usefixtures("one_thread")

Mask = Callable[[IntArray], BoolArray]


def missing_at_the_deepest_level(steps_up: int) -> Mask:
    """Return ``ancestor_mask`` with a fault: the deepest nodes miss one ancestor."""

    def broken(parents: IntArray) -> BoolArray:
        visible, depths = ancestor_mask(parents), node_depths(parents)
        for node in np.flatnonzero((depths == depths.max()) & (depths >= steps_up)):
            ancestor = node
            for _ in range(steps_up):
                ancestor = parents[ancestor]
            visible[node, ancestor] = False
        return visible

    return broken


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return tiny_runner(scale=1.0)


@pytest.mark.parametrize("steps_up", [1, 2, 4], ids=["parent", "grandparent", "root"])
def test_a_mask_without_one_ancestor_of_the_deepest_node_fails_the_comparison_of_logits(
    runner: ModelRunner, steps_up: int
) -> None:
    assert node_depths(TREE).max() == 4
    model = tiny_model(scale=1.0)
    errors = path_error(runner, model, missing_at_the_deepest_level(steps_up)(TREE))
    deepest = node_depths(TREE) == 4
    assert errors[deepest].max() > 1e-3
    assert errors[~deepest].max() < 1e-5
    assert path_error(runner, model, ancestor_mask(TREE)).max() < 1e-5


@pytest.mark.parametrize("steps_up", [1, 2, 3], ids=["parent", "grandparent", "root"])
def test_a_verifier_with_such_a_mask_fails_the_comparison_of_texts(
    steps_up: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, prompt = tiny_runner(scale=SHARP), prompt_of(10)
    reference = greedy_reference(tiny_model(scale=SHARP), prompt, 40)

    def text() -> list[int]:
        policy = FixedTreePolicy(TreeLimits(width=3, max_depth=3, node_budget=10))
        return speculate(target, Drafter(target), policy, prompt, 40).tokens

    assert text() == reference
    monkeypatch.setattr(
        "autodraft.engine.verifier.ancestor_mask", missing_at_the_deepest_level(steps_up)
    )
    assert text() != reference


def test_positions_that_do_not_follow_the_depth_fail_the_comparison_of_logits(
    runner: ModelRunner,
) -> None:
    depths = node_depths(TREE)
    slots = np.arange(len(TREE))
    model = tiny_model(scale=1.0)
    right = path_error(runner, model, ancestor_mask(TREE), node_positions(depths, 20))
    wrong = path_error(runner, model, ancestor_mask(TREE), node_positions(slots, 20))
    assert right.max() < 1e-5
    assert wrong.max() > 1e-3
