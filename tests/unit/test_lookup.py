"""Retrieval in the round loop: alone and grafted, it changes how fast a text comes and never which.

Tiny models in float32 over a loopback link. The target that sees only the last token soon repeats
itself, so that retrieval must be right from then on.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autodraft.config import MethodSpec
from autodraft.decoding.retrieval import AcceptanceTable, Continuations, Retriever
from autodraft.decoding.sampling import GREEDY
from autodraft.engine.drafter import Draft, Drafter
from autodraft.engine.lookup import LookupDrafter
from autodraft.engine.methods import METHODS, DraftSide, make_method
from autodraft.models.runner import ModelRunner
from autodraft.policy import POLICIES, FixedTreePolicy, LookupPolicy, TreeLimits
from autodraft.protocol import messages as msg
from tests.fakes import (
    Answer,
    answer_by,
    greedy_reference,
    memoryless_model,
    prompt_of,
    tiny_model,
    tiny_runner,
)

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = prompt_of(12, seed=6)
TOKENS = 80
LIMITS = TreeLimits(width=3, max_depth=4, node_budget=12)
SPECS = [
    MethodSpec(method="lookup", width=0, max_depth=6, node_budget=16),
    MethodSpec(method="chain", width=1, max_depth=4, node_budget=4, retrieval=True),
    MethodSpec(method="fixed_tree", width=3, max_depth=4, node_budget=12, retrieval=True),
    MethodSpec(method="opt_tree", width=4, max_depth=6, node_budget=16, retrieval=True),
]


def label(spec: MethodSpec) -> str:
    return spec.label


@pytest.fixture(scope="module")
def circling() -> Any:
    """A target whose answers soon go in a circle."""
    return memoryless_model(seed=1)


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return tiny_runner()


@pytest.fixture(scope="module")
def stranger() -> ModelRunner:
    """A draft model that knows nothing of its target."""
    return tiny_runner(seed=8)


class Scripted(Retriever):
    """Proposes continuations drawn from the context's length, the same for every table."""

    def __init__(self, sure: bool = False) -> None:
        super().__init__(AcceptanceTable())
        self._sure = sure

    def propose(self, context: Sequence[int], max_depth: int) -> Continuations:
        rng = np.random.default_rng(len(context))
        size = 3 * max_depth
        tokens = np.tile(rng.choice(128, 3, replace=False), max_depth)
        parents = np.arange(size) - 3  # three chains
        parents[:3] = -1
        chances = rng.uniform(0.9, 1, size) if self._sure else rng.uniform(0.2, 0.7, size)
        return Continuations(tokens, parents, np.log(chances))


def draft_once(drafter: Drafter | LookupDrafter, policy: Any, context: list[int]) -> Draft:
    return drafter.draft(context, policy, max_depth=99, node_budget=99)


# ---------------------------------------------------------------------------- the whole request


@pytest.mark.parametrize("spec", SPECS, ids=label)
def test_the_text_is_the_targets_whatever_is_retrieved(
    spec: MethodSpec, circling: Any, stranger: ModelRunner
) -> None:
    target = ModelRunner(circling, "circling")
    method = make_method(spec, DraftSide(runner=stranger))
    answer = answer_by(method, target, PROMPT, TOKENS)
    assert answer.tokens == greedy_reference(circling, PROMPT, TOKENS)
    assert answer.request.record.method == spec.label
    # The circle was seen once: from then on every round is accepted to the method's full depth.
    assert answer.accepted[-3:-1] == [spec.max_depth] * 2
    assert answer.accepted[0] == 0


@pytest.mark.parametrize("spec", SPECS, ids=label)
def test_a_text_without_repetition_is_the_targets_as_well(
    spec: MethodSpec, runner: ModelRunner, stranger: ModelRunner
) -> None:
    answer = answer_by(make_method(spec, DraftSide(runner=stranger)), runner, PROMPT, 40)
    assert answer.tokens == greedy_reference(tiny_model(), PROMPT, 40)


@pytest.mark.parametrize("spec", SPECS, ids=label)
@pytest.mark.parametrize("limit", [1, 2, 3, 30, 31, 32])
def test_a_token_limit_ends_the_answer_there(
    spec: MethodSpec, limit: int, circling: Any, stranger: ModelRunner
) -> None:
    method = make_method(spec, DraftSide(runner=stranger))
    answer = answer_by(method, ModelRunner(circling, "circling"), PROMPT, limit)
    assert answer.tokens == greedy_reference(circling, PROMPT, limit)


def test_lookup_drafts_without_a_model_and_is_measured_all_the_same(circling: Any) -> None:
    answer = answer_by(
        make_method(SPECS[0], DraftSide()), ModelRunner(circling, "circling"), PROMPT, TOKENS
    )
    record, rounds = answer.request.record, answer.request.rounds
    assert {round_.width for round_ in rounds} == {0}
    assert record.draft_s is not None
    assert record.draft_s >= sum(round_.draft_s for round_ in rounds) > 0
    assert record.rounds == len(rounds) < TOKENS / 2
    assert all(round_.num_nodes <= round_.drafted_nodes for round_ in rounds)
    assert record.accepted_tokens > TOKENS / 2


def test_one_table_learns_from_all_requests_of_an_engine(circling: Any) -> None:
    side, target = DraftSide(), ModelRunner(circling, "circling")
    table = side.acceptance.setdefault(GREEDY.kind, AcceptanceTable())
    before = table.probability(16, 0)

    def ask() -> Answer:
        return answer_by(make_method(SPECS[0], side), target, PROMPT, TOKENS)

    ask()
    learned = table.probability(16, 0)
    assert learned > before
    ask()
    assert table.probability(16, 0) > learned


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[2]], ids=label)
def test_the_servers_limits_hold_for_what_was_retrieved(
    spec: MethodSpec, circling: Any, stranger: ModelRunner
) -> None:
    method = make_method(spec, DraftSide(runner=stranger))
    target = ModelRunner(circling, "circling")
    answer = answer_by(method, target, PROMPT, TOKENS, max_depth=2, max_nodes=3)
    assert answer.tokens == greedy_reference(circling, PROMPT, TOKENS)
    assert max(answer.depths) == 2
    assert max(round_.num_nodes for round_ in answer.request.rounds) <= 3
    assert max(answer.accepted) == 2


def test_retrieval_goes_on_where_the_draft_models_context_ends(circling: Any) -> None:
    short = tiny_runner(seed=8, max_position_embeddings=30)
    method = make_method(SPECS[2], DraftSide(runner=short))
    answer = answer_by(method, ModelRunner(circling, "circling"), PROMPT, TOKENS)
    assert answer.tokens == greedy_reference(circling, PROMPT, TOKENS)
    beyond = [round_ for round_ in answer.request.rounds if round_.context_tokens >= 30]
    assert {round_.width for round_ in beyond} == {0}
    assert max(round_.accepted_length for round_ in beyond) == SPECS[2].max_depth


def test_every_policy_has_its_method() -> None:
    at_server = {f"{name}@server" for name in POLICIES}
    assert set(METHODS) == {"server_only", "autodraft", *POLICIES, *at_server}


def test_a_method_that_needs_a_draft_model_is_not_made_without_one() -> None:
    with pytest.raises(AssertionError, match="the draft model is loaded before"):
        make_method(SPECS[1], DraftSide())
    assert make_method(SPECS[0], DraftSide()).label == "lookup"


def test_only_a_spec_that_says_so_is_grafted(circling: Any, stranger: ModelRunner) -> None:
    plain = MethodSpec(method="fixed_tree", width=3, max_depth=4, node_budget=12)
    sent = []
    for spec in (plain, SPECS[2]):
        method = make_method(spec, DraftSide(runner=stranger))
        answer = answer_by(method, ModelRunner(circling, "circling"), PROMPT, TOKENS)
        sent.append([item for item in answer.link.sent if isinstance(item, msg.Verify)])
    assert len(sent[1]) < len(sent[0]) / 2


# ---------------------------------------------------------------------------- one round


def test_lookup_proposes_what_followed_before() -> None:
    drafter, policy = LookupDrafter(Retriever(AcceptanceTable())), LookupPolicy(LIMITS)
    drafter.start([1, 2, 3, 4, 5, 6, 7, 1], 20, policy.limits)
    draft = draft_once(drafter, policy, [1, 2, 3, 4, 5, 6, 7, 1, 2])
    # 2/5, 2/5 · 3/6 and 2/5 · 3/6 · 4/7 are at least a tenth; the next one, 0.07, is not.
    assert draft.tree.tokens.tolist() == [2, 3, 4, 5]
    assert np.exp(draft.tree.log_probs) == pytest.approx([1, 0.4, 0.2, 0.8 / 7])
    assert (draft.width, draft.drafted_nodes) == (0, 4)


@pytest.mark.parametrize(("max_depth", "node_budget"), [(0, 9), (9, 0), (-1, 9)])
def test_lookup_proposes_nothing_in_a_round_without_room(max_depth: int, node_budget: int) -> None:
    drafter, policy = LookupDrafter(Retriever(AcceptanceTable())), LookupPolicy(LIMITS)
    drafter.start([1, 2, 1], 20, policy.limits)
    draft = drafter.draft([1, 2, 1, 2], policy, max_depth, node_budget)
    assert draft.tree.tokens.tolist() == [2]
    assert draft.drafted_nodes == 0


def test_a_finished_lookup_has_forgotten_the_text() -> None:
    drafter, policy = LookupDrafter(Retriever(AcceptanceTable())), LookupPolicy(LIMITS)
    drafter.start([1, 2, 1], 20, policy.limits)
    drafter.finish()
    drafter.start([8, 9], 20, policy.limits)
    assert draft_once(drafter, policy, [8, 9, 1]).drafted_nodes == 0


def test_a_grafted_tree_holds_the_models_nodes_and_the_retrieved_ones(runner: ModelRunner) -> None:
    context = [*PROMPT, 7, *PROMPT]
    policy = FixedTreePolicy(TreeLimits(width=2, max_depth=2, node_budget=99))
    trees = []
    for retriever in (None, Retriever(AcceptanceTable())):
        drafter = Drafter(runner, retriever=retriever)
        drafter.start(context[:-1], 20, policy.limits)
        trees.append(draft_once(drafter, policy, context).tree)
    plain, grafted = trees
    nodes = range(plain.num_nodes + 1)
    assert grafted.tokens[nodes].tolist() == plain.tokens.tolist()
    assert grafted.parents[nodes].tolist() == plain.parents.tolist()
    assert grafted.tokens[-2:].tolist() == [7, PROMPT[0]]  # what followed the prompt before
    assert grafted.depths[-2:].tolist() == [1, 2]
    assert grafted.num_nodes == plain.num_nodes + 2


@pytest.mark.parametrize("sure", [False, True], ids=["as good as the draft", "sure"])
def test_after_any_accepted_path_the_cache_is_that_of_a_fresh_drafter(
    sure: bool, runner: ModelRunner
) -> None:
    rng = np.random.default_rng(0)
    policy, context = FixedTreePolicy(LIMITS), [*PROMPT, 7]
    drafter = Drafter(runner, retriever=Scripted(sure))
    drafter.start(PROMPT, 90, policy.limits)
    grafted = 0
    for _ in range(12):
        tree = draft_once(drafter, policy, context).tree
        fresh = Drafter(runner, retriever=Scripted(sure))
        fresh.start(PROMPT, 90, policy.limits)
        expected = draft_once(fresh, policy, context).tree
        assert tree.tokens.tolist() == expected.tokens.tolist()
        assert tree.parents.tolist() == expected.parents.tolist()
        assert tree.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
        bare = Drafter(runner)
        bare.start(PROMPT, 90, policy.limits)
        own = set(draft_once(bare, policy, context).tree.tokens.tolist())
        path: list[int] = []
        node = int(rng.integers(0, tree.num_nodes + 1))
        while node:
            path.insert(0, node)
            grafted += int(tree.tokens[node]) not in own
            node = int(tree.parents[node])
        drafter.commit(np.array(path, dtype=np.int64))
        context = context + tree.tokens[path].tolist() + [int(rng.integers(0, 100))]
    assert grafted >= 3


def test_a_path_beyond_the_draft_models_context_leaves_its_cache_alone() -> None:
    policy = FixedTreePolicy(LIMITS)
    drafter = Drafter(tiny_runner(max_position_embeddings=16), retriever=Scripted(sure=True))
    drafter.start(PROMPT, 60, policy.limits)
    context = [*PROMPT, 7, 8, 9]
    assert drafter.draft(context, policy, max_depth=1, node_budget=1).tree.num_nodes == 1
    drafter.commit(np.array([1]))
    context += [1, 2]
    tree = draft_once(drafter, policy, context).tree
    assert (len(context), tree.depth) == (17, 4)
    path = [int(np.flatnonzero(tree.depths == 4)[0])]
    while tree.parents[path[0]]:
        path.insert(0, int(tree.parents[path[0]]))
    drafter.commit(np.array(path))
    assert draft_once(drafter, policy, [*context, 3]).width == 0


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(POLICIES)),
    width=st.integers(1, 4),
    policy_depth=st.integers(1, 5),
    policy_nodes=st.integers(1, 9),
    max_depth=st.integers(0, 6),
    node_budget=st.integers(0, 10),
)
def test_all_limits_hold_for_grafted_nodes(
    runner: ModelRunner,
    name: str,
    width: int,
    policy_depth: int,
    policy_nodes: int,
    max_depth: int,
    node_budget: int,
) -> None:
    policy = POLICIES[name](TreeLimits(width, policy_depth, policy_nodes))
    drafter = Drafter(runner, retriever=Scripted(sure=True))
    drafter.start(PROMPT, 60, policy.limits)
    draft = drafter.draft([*PROMPT, 7], policy, max_depth, node_budget)
    assert draft.tree.depth <= min(policy_depth, max_depth)
    assert draft.tree.num_nodes <= min(policy_nodes, node_budget)
    assert draft.width <= width
    assert draft.tree.num_nodes <= draft.drafted_nodes
    if min(max_depth, node_budget) > 0:
        assert draft.tree.num_nodes > 0
