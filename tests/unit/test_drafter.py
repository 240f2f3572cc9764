"""Drafting with tiny models: what is proposed, and that the cache never goes stale."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autodraft.engine.drafter import Draft, Drafter
from autodraft.engine.levels import Levels
from autodraft.models.kv_cache import KVCache
from autodraft.models.runner import ModelRunner
from autodraft.policy import (
    POLICIES,
    ChainPolicy,
    FixedTreePolicy,
    OptTreePolicy,
    Policy,
    TreeLimits,
)
from autodraft.tree.draft_tree import DraftTree
from autodraft.tree.growth import TreeGrowth
from tests.fakes import SHARP, greedy_reference, prompt_of, tiny_model, tiny_runner

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = prompt_of(12, seed=5)
LIMITS = TreeLimits(width=3, max_depth=4, node_budget=12)
WITH_MODEL = ("chain", "fixed_tree", "opt_tree")


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def runner(model: Any) -> ModelRunner:
    return ModelRunner(model, "tiny")


def started(runner: ModelRunner, policy: Policy, excluded: tuple[int, ...] = ()) -> Drafter:
    drafter = Drafter(runner, excluded)
    drafter.start(PROMPT, 60, policy.limits)
    return drafter


def draft_once(drafter: Drafter, policy: Policy, context: list[int]) -> Draft:
    return drafter.draft(context, policy, max_depth=99, node_budget=99)


def fresh_draft(runner: ModelRunner, make: Any, context: list[int]) -> Draft:
    """Draft behind a context by a drafter that has seen nothing else."""
    policy = make(LIMITS)
    return draft_once(started(runner, policy), policy, context)


def path_log_prob(model: Any, context: list[int], path: list[int]) -> float:
    """Log-probability of a continuation by the stock class, without a cache."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([context + path])).logits[0]
    rows = logits.double().log_softmax(-1)[len(context) - 1 : -1]
    return float(rows[torch.arange(len(path)), path].sum())


def path_tokens(tree: DraftTree, node: int) -> list[int]:
    tokens: list[int] = []
    while node:
        tokens.insert(0, int(tree.tokens[node]))
        node = int(tree.parents[node])
    return tokens


def test_a_chain_is_the_drafts_own_greedy_continuation(model: Any, runner: ModelRunner) -> None:
    policy = ChainPolicy(TreeLimits(1, 6, 6))
    draft = draft_once(started(runner, policy), policy, [*PROMPT, 7])
    assert draft.tree.tokens.tolist() == [7, *greedy_reference(model, [*PROMPT, 7], 6)]
    assert draft.tree.parents.tolist() == [-1, 0, 1, 2, 3, 4, 5]
    assert draft.width == 1
    assert draft.drafted_nodes == 6


@pytest.mark.parametrize("make", [FixedTreePolicy, OptTreePolicy])
def test_every_node_is_worth_the_probability_of_its_path(
    model: Any, runner: ModelRunner, make: type[FixedTreePolicy] | type[OptTreePolicy]
) -> None:
    policy = make(LIMITS)
    tree = draft_once(started(runner, policy), policy, [*PROMPT, 7]).tree
    assert tree.depth >= 2
    expected = [
        path_log_prob(model, [*PROMPT, 7], path_tokens(tree, node))
        for node in range(1, tree.num_nodes + 1)
    ]
    assert tree.log_probs[1:] == pytest.approx(expected, abs=1e-4)
    assert tree.tokens[0] == 7


def test_the_children_of_the_root_are_its_likeliest_continuations(
    model: Any, runner: ModelRunner
) -> None:
    policy = FixedTreePolicy(TreeLimits(width=5, max_depth=1, node_budget=5))
    tree = draft_once(started(runner, policy), policy, [*PROMPT, 7]).tree
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*PROMPT, 7]])).logits[0, -1]
    assert tree.tokens[1:].tolist() == logits.topk(5).indices.tolist()
    assert tree.parents[1:].tolist() == [0] * 5


def test_no_two_siblings_carry_the_same_token(runner: ModelRunner) -> None:
    policy = FixedTreePolicy(TreeLimits(width=6, max_depth=4, node_budget=80))
    tree = draft_once(started(runner, policy), policy, [*PROMPT, 7]).tree
    pairs = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs) > 60


@pytest.mark.parametrize("name", WITH_MODEL)
def test_after_any_accepted_path_the_drafter_proposes_what_a_fresh_one_proposes(
    name: str, runner: ModelRunner
) -> None:
    rng = np.random.default_rng(0)
    policy, context = POLICIES[name](LIMITS), [*PROMPT, 7]
    drafter = started(runner, policy)
    lengths = set()
    for _ in range(10):
        tree = draft_once(drafter, policy, context).tree
        fresh = fresh_draft(runner, POLICIES[name], context).tree
        assert tree.tokens.tolist() == fresh.tokens.tolist()
        assert tree.parents.tolist() == fresh.parents.tolist()
        assert tree.log_probs == pytest.approx(fresh.log_probs, abs=1e-4)
        node = int(rng.integers(0, tree.num_nodes + 1))
        path: list[int] = []
        while node:
            path.insert(0, node)
            node = int(tree.parents[node])
        drafter.commit(np.array(path, dtype=np.int64))
        context = context + tree.tokens[path].tolist() + [int(rng.integers(0, 100))]
        lengths.add(len(path))
    assert len(lengths) >= 3


@pytest.mark.parametrize(
    ("accepted", "forwarded"), [(0, 1), (1, 1), (3, 1), (4, 2)], ids=["0", "1", "3", "the leaf too"]
)
def test_what_the_cache_holds_of_an_accepted_path_is_not_forwarded_again(
    model: Any, accepted: int, forwarded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, policy = ModelRunner(model, "tiny"), ChainPolicy(TreeLimits(1, 4, 4))
    drafter, context = started(runner, policy), [*PROMPT, 7]
    tree = draft_once(drafter, policy, context).tree
    drafter.commit(np.arange(1, accepted + 1))
    context += [*tree.tokens[1 : accepted + 1].tolist(), 8]

    counts: list[int] = []
    prefill = runner.prefill

    def counting(cache: KVCache, tokens: Sequence[int]) -> torch.Tensor:
        counts.append(len(tokens))
        return prefill(cache, tokens)

    monkeypatch.setattr(runner, "prefill", counting)
    draft_once(drafter, policy, context)
    assert counts == [forwarded]


def test_a_drafter_serves_one_request_after_another(runner: ModelRunner) -> None:
    policy = FixedTreePolicy(LIMITS)
    drafter = started(runner, policy)
    draft_once(drafter, policy, [*PROMPT, 7])
    drafter.finish()
    drafter.start(PROMPT[:5], 20, LIMITS)
    tree = draft_once(drafter, policy, [*PROMPT[:5], 9]).tree
    fresh = Drafter(runner)
    fresh.start(PROMPT[:5], 20, LIMITS)
    assert tree.tokens.tolist() == draft_once(fresh, policy, [*PROMPT[:5], 9]).tree.tokens.tolist()


def test_excluded_tokens_are_never_proposed(runner: ModelRunner) -> None:
    policy = FixedTreePolicy(TreeLimits(width=4, max_depth=3, node_budget=40))
    free = draft_once(started(runner, policy), policy, [*PROMPT, 7]).tree
    excluded = tuple(set(free.tokens[1:].tolist()))
    held = draft_once(started(runner, policy, excluded), policy, [*PROMPT, 7]).tree
    assert held.num_nodes == free.num_nodes
    assert not set(held.tokens[1:].tolist()) & set(excluded)


def test_where_only_one_token_is_allowed_the_tree_is_a_chain_of_it() -> None:
    runner = tiny_runner(vocab_size=6)
    policy = FixedTreePolicy(LIMITS)
    drafter = Drafter(runner, excluded=(0, 1, 2, 4, 5))
    drafter.start([1, 2], 20, LIMITS)
    tree = draft_once(drafter, policy, [1, 2, 0]).tree
    assert tree.tokens.tolist() == [0, 3, 3, 3, 3]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(POLICIES)),
    width=st.integers(1, 4),
    policy_depth=st.integers(1, 5),
    policy_nodes=st.integers(1, 9),
    max_depth=st.integers(0, 6),
    node_budget=st.integers(0, 10),
)
def test_the_limits_of_the_policy_and_of_the_round_hold(
    runner: ModelRunner,
    name: str,
    width: int,
    policy_depth: int,
    policy_nodes: int,
    max_depth: int,
    node_budget: int,
) -> None:
    policy = POLICIES[name](TreeLimits(width, policy_depth, policy_nodes))
    draft = started(runner, policy).draft([*PROMPT, 7], policy, max_depth, node_budget)
    assert draft.tree.depth <= min(policy_depth, max_depth)
    assert draft.tree.num_nodes <= min(policy_nodes, node_budget)
    assert draft.width <= width
    assert draft.tree.num_nodes <= draft.drafted_nodes


@pytest.mark.parametrize(("max_depth", "node_budget"), [(0, 9), (9, 0), (-1, 9)])
def test_a_round_without_room_drafts_nothing_and_the_next_one_goes_on(
    runner: ModelRunner, max_depth: int, node_budget: int
) -> None:
    policy = FixedTreePolicy(LIMITS)
    drafter = started(runner, policy)
    context = [*PROMPT, 7]
    draft = drafter.draft(context, policy, max_depth, node_budget)
    assert draft.tree.tokens.tolist() == [7]
    assert (draft.width, draft.drafted_nodes) == (0, 0)
    drafter.commit(np.empty(0, dtype=np.int64))
    context.append(8)
    tree = draft_once(drafter, policy, context).tree
    fresh = fresh_draft(runner, FixedTreePolicy, context).tree
    assert tree.tokens.tolist() == fresh.tokens.tolist()


def test_a_tree_ends_where_the_draft_models_context_ends() -> None:
    runner = tiny_runner(max_position_embeddings=16)
    policy = ChainPolicy(TreeLimits(1, 6, 6))
    depths = []
    for length in (10, 11, 15, 16, 17, 30):
        drafter = Drafter(runner)
        prompt = prompt_of(length - 1)
        drafter.start(prompt, 60, policy.limits)
        depths.append(draft_once(drafter, policy, [*prompt, 7]).tree.depth)
    assert depths == [6, 5, 1, 0, 0, 0]


def test_a_sure_draft_proposes_its_greedy_continuation_first() -> None:
    model = tiny_model(scale=SHARP)
    policy = OptTreePolicy(TreeLimits(width=4, max_depth=8, node_budget=8))
    drafter = started(ModelRunner(model, "tiny"), policy)
    tree = draft_once(drafter, policy, [*PROMPT, 7]).tree
    assert tree.depth == 8
    assert tree.tokens[1:].tolist() == greedy_reference(model, [*PROMPT, 7], 8)


@given(
    width=st.integers(1, 4),
    expanded=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    kept=st.integers(0, 90),
    grafted=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_a_level_sees_its_ancestors_and_every_node_is_found_in_its_slot(
    width: int, expanded: list[int], kept: int, grafted: int, seed: int
) -> None:
    rng, root_slot = np.random.default_rng(seed), 17
    growth = TreeGrowth(root_token=0)
    levels = Levels(root_slot, TreeLimits(width, len(expanded), 1))
    slots: dict[int, int] = {}  # of the nodes expanded so far, in the order of their slots
    for count in expanded:
        nodes = growth.frontier(min(count, width))
        if growth.depth:
            visible = levels.add(nodes, growth.parents[nodes])
            slots |= {node: root_slot + 1 + len(slots) + i for i, node in enumerate(nodes.tolist())}
            for node, row in zip(nodes.tolist(), visible, strict=True):
                seen = {number for number, sees in zip(slots, row, strict=True) if sees}
                assert seen == path_of(growth, node)
        shape = (len(nodes), width)
        growth.add_level(nodes, np.tile(np.arange(width), (len(nodes), 1)), -rng.random(shape))
    behind = np.arange(grafted)
    growth.graft(behind - 1, behind + 50, np.full(grafted, -0.1))
    _, nodes = growth.best(kept)
    assert levels.slots(nodes).tolist() == [slots.get(node, -1) for node in nodes.tolist()]


def path_of(growth: TreeGrowth, node: int) -> set[int]:
    """A node and its ancestors, without the root."""
    path = set()
    while node:
        path.add(node)
        node = int(growth.parents[node])
    return path
