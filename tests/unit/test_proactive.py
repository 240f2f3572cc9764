"""Drafting ahead: what is remembered, and that the trees are those of a drafter without it."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from autodraft.decoding.retrieval import AcceptanceTable, Retriever
from autodraft.decoding.sampling import Sampling
from autodraft.engine.ahead import MOST_ROWS, AheadDrafter, Reuse
from autodraft.engine.drafter import Draft, Drafter, Guessing
from autodraft.engine.kept import Kept
from autodraft.engine.proactive import Lookahead
from autodraft.engine.rounds import DraftingAhead, Meters, Rounds
from autodraft.engine.session import Speculative
from autodraft.meters import ModelledMeter
from autodraft.models.runner import ModelRunner
from autodraft.policy import FixedTreePolicy, TreeLimits
from autodraft.tree.draft_tree import FloatArray, IntArray
from autodraft.tree.growth import TreeGrowth
from tests.fakes import Answer, answer_by, greedy_reference, prompt_of, tiny_model, tiny_runner

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = prompt_of(12, seed=5)
LIMITS = TreeLimits(width=3, max_depth=3, node_budget=5)
TOKENS = 40
ALL = 99
"""More forwards ahead than there is room for."""


class AheadAlways:
    """Drafts ahead as often as it is asked to, three nodes at a time."""

    width = 3

    def remember(self, replaced: Sequence[tuple[int, int]]) -> float:
        return float(len(replaced))

    def begin(self) -> bool:
        return True

    def pays(self, rows: int, chance: float, elapsed_s: float) -> bool:
        return chance > 0

    def chances(self, depths: IntArray, log_probs: FloatArray) -> FloatArray:
        return log_probs


# ----------------------------------------------------------------------------------- by hand


def lookahead_by_hand(grafted: Sequence[int] = ()) -> Lookahead:
    """A root (0) with children 1 and 2, and children 3 and 4 of node 1; grafts are a chain."""
    growth = TreeGrowth(9)
    growth.add_level(np.array([0]), np.array([[11, 12]]), np.log([[0.6, 0.4]]))
    growth.add_level(np.array([1]), np.array([[13, 14]]), np.log([[0.5, 0.5]]))
    parents = np.arange(len(grafted)) - 1
    growth.graft(parents, np.array(grafted, dtype=np.int64), np.full(len(grafted), np.log(0.1)))
    given = {
        0: (np.array([11, 12]), np.log([0.6, 0.4])),
        1: (np.array([13, 14]), np.log([0.5, 0.5])),
    }
    return Lookahead(growth, given, {1: 0})


def expanded(ahead: Lookahead, node: int, row: int, tokens: list[int], probs: list[float]) -> None:
    """Expand a node that is the likeliest."""
    assert ahead.best(1)[0] == [node]
    given = np.array([tokens]), np.log([probs])
    ahead.expand([node], [row], given, given[1])


SEEN = np.array([[True, False, False], [False, True, False], [False, True, True]])
"""Rows of nodes 1, 2 and a child of 2."""


def test_the_likeliest_nodes_that_were_not_expanded_come_first() -> None:
    nodes, chance = lookahead_by_hand().best(2)
    assert nodes == [2, 3]
    assert chance == pytest.approx(0.4 + 0.3)


def test_children_of_what_was_forwarded_ahead_are_next() -> None:
    ahead = lookahead_by_hand()
    expanded(ahead, 2, 1, [15, 16], [0.9, 0.1])
    nodes, _ = ahead.best(3)
    assert [ahead.tokens[node] for node in nodes] == [15, 13, 14]  # 0.36, 0.3, 0.3
    assert ahead.depths[nodes[0]] == 2
    assert ahead.path(nodes[0]) == [12, 15]
    assert ahead.ahead == {2}
    assert ahead.parent_row(nodes[0]) == 1
    assert ahead.parent_row(1) is None  # the root has no row


def test_excluded_candidates_are_no_nodes() -> None:
    ahead = lookahead_by_hand()
    before = len(ahead.tokens)
    with np.errstate(divide="ignore"):
        expanded(ahead, 2, 1, [15, 16], [1.0, 0.0])
    assert len(ahead.tokens) == before + 1


def test_what_was_grafted_is_reached_when_the_node_above_it_is_expanded() -> None:
    ahead = lookahead_by_hand(grafted=[70, 71])
    first, second = len(ahead.tokens) - 2, len(ahead.tokens) - 1
    everything = ahead.best(99)[0]
    assert first in everything
    assert second not in everything  # nobody has asked what follows the first
    for row, (node, tokens) in enumerate([(2, [1, 2]), (3, [3, 4]), (4, [5, 6])], start=1):
        expanded(ahead, node, row, tokens, [1e-6, 1e-7])
    expanded(ahead, first, 4, [71, 8], [0.5, 1e-9])
    assert ahead.best(1)[0] == [second]
    assert ahead.child(first, 71) == second


def test_a_memory_holds_what_lies_below_the_token_that_came() -> None:
    ahead = lookahead_by_hand()
    expanded(ahead, 2, 1, [15, 16], [0.9, 0.1])
    below = ahead.child(2, 15)
    assert below is not None
    expanded(ahead, below, 2, [17, 18], [0.5, 0.5])
    memory = ahead.memory_at(2, SEEN, context_tokens=14, most=9)
    assert memory is not None
    assert memory.rows_before == [1, 2]
    assert memory.visible.tolist() == [[True]]
    assert memory.context_tokens == 14
    assert memory.root()[0].tolist() == [15, 16]
    growth = TreeGrowth(12)
    growth.add_level(np.array([0]), np.array([[16, 15]]), np.log([[0.5, 0.5]]))
    assert memory.find(growth, 1) is None  # 16 was proposed, and never forwarded
    assert memory.used == 1
    found = memory.find(growth, 2)
    assert found is not None
    assert (found[0], found[1][0].tolist()) == (0, [17, 18])
    assert memory.used == 2


def test_only_what_was_forwarded_ahead_counts_as_used() -> None:
    ahead = lookahead_by_hand()
    expanded(ahead, 2, 1, [15, 16], [0.9, 0.1])
    memory = ahead.memory_at(1, SEEN[:2, :2], context_tokens=14, most=9)
    assert memory is not None
    memory.root()  # expanded before the tree was sent
    assert memory.used == 0


def test_no_more_is_remembered_than_there_is_room_for() -> None:
    ahead = lookahead_by_hand()
    expanded(ahead, 2, 1, [15, 16], [0.9, 0.1])
    below = ahead.child(2, 15)
    assert below is not None
    expanded(ahead, below, 2, [17, 18], [0.5, 0.5])
    memory = ahead.memory_at(2, SEEN, context_tokens=14, most=0)
    assert memory is not None
    assert memory.rows_before == [1]
    assert memory.visible.shape == (0, 0)


def test_another_outcome_is_not_remembered() -> None:
    ahead = lookahead_by_hand()
    assert ahead.memory_at(2, np.zeros((1, 1), dtype=np.bool_), 14, 9) is None  # never expanded
    assert ahead.child(0, 99) is None


# ----------------------------------------------------------------------------- with tiny models


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return ModelRunner(tiny_model(), "tiny")


@cache
def truth(*, slips: bool) -> tuple[int, ...]:
    """The draft's own text, and every fourth token its second choice where there are slips."""
    text: list[int] = []
    one = tiny_runner()
    for place in range(1, TOKENS + 1):
        cache_ = one.new_cache(len(PROMPT) + TOKENS)
        best = one.prefill(cache_, [*PROMPT, *text])[0].topk(2).indices.tolist()
        text.append(best[int(slips and place % 4 == 0)])
    return tuple(text)


def follow(draft: Draft, text: Sequence[int]) -> tuple[IntArray, int]:
    path, node = [], 0
    for token in text:
        found = np.flatnonzero((draft.tree.parents == node) & (draft.tree.tokens == token))
        if not len(found):
            break
        node = int(found[0])
        path.append(node)
    return np.array(path, dtype=np.int64), text[len(path)]


class Run:
    """An answer of a fixed text, drafted round by round; ``steps`` forwards ahead in each."""

    def __init__(
        self,
        runner: ModelRunner,
        text: Sequence[int],
        *,
        steps: int,
        limits: TreeLimits = LIMITS,
        prompt: Sequence[int] = PROMPT,
        **options: Any,
    ) -> None:
        policy = FixedTreePolicy(limits)
        drafter = AheadDrafter(runner, **options) if steps else Drafter(runner, **options)
        drafter.start(prompt, len(text), policy.limits)
        context, done = [*prompt, text[0]], 1
        self.drafts: list[Draft] = []
        self.reuse: list[Reuse] = []
        self.ahead: list[int] = []
        while (left := len(text) - done - 1) > 0:
            draft = drafter.draft(context, policy, left, limits.node_budget)
            path, bonus = follow(draft, text[done:])
            if isinstance(drafter, AheadDrafter):
                clock = iter(np.arange(steps, dtype=np.float64).tolist())
                self.reuse.append(drafter.reuse)
                self.ahead.append(drafter.draft_ahead(AheadAlways(), clock_of(clock)))
                drafter.commit_ahead(path, bonus)
            else:
                drafter.commit(path)
            kept = [*draft.tree.tokens[path].tolist(), bonus]
            context, done = [*context, *kept], done + len(kept)
            self.drafts.append(draft)
        drafter.finish()


def clock_of(times: Any) -> Any:
    return lambda: next(times, None)


def require_equal(one: Run, other: Run) -> None:
    assert len(one.drafts) == len(other.drafts)
    for here, there in zip(one.drafts, other.drafts, strict=True):
        assert there.tree.tokens.tolist() == here.tree.tokens.tolist()
        assert there.tree.parents.tolist() == here.tree.parents.tolist()
        assert there.tree.log_probs == pytest.approx(here.tree.log_probs, abs=1e-4)


@pytest.mark.parametrize("steps", [1, 4, 12, ALL])
@pytest.mark.parametrize("slips", [False, True])
def test_the_trees_are_those_of_a_drafter_without_it(
    runner: ModelRunner, steps: int, slips: bool
) -> None:
    plain, ahead = (Run(runner, truth(slips=slips), steps=count) for count in (0, steps))
    require_equal(plain, ahead)
    assert all(0 < nodes <= min(3 * steps, MOST_ROWS) for nodes in ahead.ahead)
    assert ahead.reuse[0] == Reuse(None, 0, ())
    assert all(one.hit is not None for one in ahead.reuse[1:])
    for one, forwarded in zip(ahead.reuse[1:], ahead.ahead, strict=False):
        assert 0 <= one.used <= forwarded
        assert bool(one.replaced) == one.hit


def test_a_draft_that_is_the_target_itself_begins_every_round_from_memory(
    runner: ModelRunner,
) -> None:
    ahead = Run(runner, truth(slips=False), steps=ALL)
    assert [one.hit for one in ahead.reuse[1:]] == [True] * (len(ahead.reuse) - 1)


def test_an_outcome_that_nobody_proposed_is_a_miss_and_is_forgotten(runner: ModelRunner) -> None:
    own, text = truth(slips=False), list(truth(slips=False))
    for place in range(5, TOKENS, 6):  # a token that the draft has not among its candidates
        text[place] = (own[place] + 57) % 128
    plain, ahead = (Run(runner, text, steps=count) for count in (0, 12))
    require_equal(plain, ahead)
    missed = [one for one in ahead.reuse if one.hit is False]
    assert missed
    assert all(one.used == 0 and one.replaced == () for one in missed)


def test_enough_of_it_spares_whole_rounds_their_forwards(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = truth(slips=True)
    forwards = {"prefill": 0, "forward": 0}
    for name in forwards:
        real = getattr(ModelRunner, name)

        def counted(*args: Any, _name: str = name, _real: Any = real) -> Any:
            forwards[_name] += 1
            return _real(*args)

        monkeypatch.setattr(ModelRunner, name, counted)
    ahead = Run(runner, text, steps=ALL)
    spared = [one for one in ahead.reuse if [rest for _, rest in one.replaced] == [0, 0, 0]]
    assert spared
    misses = sum(not one.hit for one in ahead.reuse)
    assert forwards["prefill"] == 1 + misses  # the prompt, and catching up after each miss
    below = 2 * len(ahead.drafts)  # levels below the root, of at most so many forwards
    saved = sum(rest == 0 for one in ahead.reuse for _, rest in one.replaced[1:])
    steps = sum(-(-nodes // 3) for nodes in ahead.ahead)
    assert forwards["forward"] <= below - saved + steps


def test_off_means_off(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    capacities = []
    real = runner.new_cache

    def measured(capacity: int) -> Any:
        capacities.append(capacity)
        return real(capacity)

    monkeypatch.setattr(runner, "new_cache", measured)
    for steps in (0, 1):
        Run(runner, truth(slips=True), steps=steps)
    assert capacities == [len(PROMPT) + TOKENS + 10, len(PROMPT) + TOKENS + 10 + 2 * MOST_ROWS]


@pytest.mark.parametrize("vocab", [128, 100], ids=["all", "what only the target has"])
def test_retrieved_continuations_do_not_confuse_it(vocab: int) -> None:
    one = tiny_runner(vocab_size=vocab)
    text = ([7, 8, 120, 9, 121, 11] * 12)[:50]
    prompt = [token % 100 for token in PROMPT]
    runs = [
        Run(one, text, steps=steps, prompt=prompt, retriever=Retriever(AcceptanceTable()))
        for steps in (0, 8)
    ]
    require_equal(*runs)
    assert any(draft.tree.tokens.max() >= 100 for draft in runs[1].drafts)


def test_drawn_tokens_are_ranked_at_the_same_positions(runner: ModelRunner) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.9, seed=3, repetition_penalty=1.1)
    guessing = Guessing(sampling, frozenset())
    runs = [Run(runner, truth(slips=True), steps=steps, guessing=guessing) for steps in (0, 12)]
    require_equal(*runs)
    assert sum(bool(one.hit) for one in runs[1].reuse) >= 2
    assert any(len(one.replaced) > 1 for one in runs[1].reuse)  # deeper than the root


def test_a_draft_models_context_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    short = tiny_runner(max_position_embeddings=24)
    furthest, forward = [], short.forward

    def seen(cache_: Any, tokens: IntArray, positions: IntArray, visible: Any) -> Any:
        furthest.append(int(positions.max()))
        return forward(cache_, tokens, positions, visible)

    monkeypatch.setattr(short, "forward", seen)
    runs = [Run(short, truth(slips=False), steps=steps) for steps in (0, ALL)]
    require_equal(*runs)
    assert any(runs[1].ahead)
    assert runs[1].ahead[-1] == 0
    assert max(furthest) == 23


def ahead_by(
    runner: ModelRunner, text: Sequence[int], kept: Kept | None = None
) -> tuple[AheadDrafter, FixedTreePolicy, list[int]]:
    """Return a drafter that remembers something, and the context behind it."""
    policy = FixedTreePolicy(LIMITS)
    drafter = AheadDrafter(runner, kept=kept)
    drafter.start(PROMPT, TOKENS, policy.limits)
    context = [*PROMPT, text[0]]
    draft = drafter.draft(context, policy, 3, 5)
    path, bonus = follow(draft, text[1:])
    assert drafter.draft_ahead(AheadAlways(), lambda: 0.0) > 0
    drafter.commit_ahead(path, bonus)
    context += [*draft.tree.tokens[path].tolist(), bonus]  # the loop's own list, as in the engine
    assert drafter._memory is not None
    return drafter, policy, context


def fresh_tree(runner: ModelRunner, context: Sequence[int]) -> list[int]:
    policy = FixedTreePolicy(LIMITS)
    fresh = Drafter(runner)
    fresh.start(PROMPT, 2 * TOKENS, policy.limits)
    tokens: list[int] = fresh.draft(context, policy, 3, 5).tree.tokens.tolist()
    return tokens


def test_what_the_server_has_decoded_alone_makes_a_memory_void(runner: ModelRunner) -> None:
    drafter, policy, context = ahead_by(runner, truth(slips=False))
    context += [5, 6, 7]
    found = drafter.draft(context, policy, 3, 5)
    assert found.tree.tokens.tolist() == fresh_tree(runner, context)
    assert drafter.reuse == Reuse(False, 0, ())


def test_a_round_that_drafts_nothing_leaves_no_rows_behind(runner: ModelRunner) -> None:
    drafter, policy, context = ahead_by(runner, truth(slips=False))
    assert drafter.draft(context, policy, 0, 0).tree.num_nodes == 0
    assert drafter.reuse == Reuse(False, 0, ())
    drafter.commit_ahead(np.empty(0, dtype=np.int64), 3)
    context.append(3)
    found = drafter.draft(context, policy, 3, 5)
    assert found.tree.tokens.tolist() == fresh_tree(runner, context)


@pytest.mark.parametrize("decoded", [[], [5, 6, 7]], ids=["at once", "after the server alone"])
def test_the_next_answer_is_left_the_context_and_no_more(
    runner: ModelRunner, decoded: list[int]
) -> None:
    kept = Kept()
    drafter, policy, context = ahead_by(runner, truth(slips=False), kept)
    context += decoded
    drafter.finish()
    after = Drafter(runner, kept=kept)
    after.start([*context, 9], TOKENS, policy.limits)
    found = after.draft([*context, 9, 10], policy, 3, 5)
    assert found.tree.tokens.tolist() == fresh_tree(runner, [*context, 9, 10])


# -------------------------------------------------------------------------------- in the rounds


def answered(
    target: ModelRunner,
    draft: ModelRunner,
    *,
    ahead: bool,
    meters: Meters | None = None,
    tokens: int = TOKENS,
) -> Answer:
    """Answer a prompt by fixed trees over a link that lets three forwards be made ahead."""
    policy = FixedTreePolicy(LIMITS)
    if not ahead:
        rounds = Rounds(policy, Drafter(draft))
    else:
        drafter = AheadDrafter(draft)
        rounds = Rounds(policy, drafter, DraftingAhead(drafter, AheadAlways()))
    method = Speculative("test", rounds)
    return answer_by(method, target, PROMPT, tokens, meters=meters or Meters())


def test_the_answer_is_the_targets_and_the_records_add_up() -> None:
    target, draft = tiny_runner(), tiny_runner(num_hidden_layers=1)
    plain, ahead = (answered(target, draft, ahead=each) for each in (False, True))
    assert ahead.tokens == plain.tokens == greedy_reference(tiny_model(), PROMPT, TOKENS)
    assert ahead.accepted == plain.accepted
    record, rounds = ahead.request.record, ahead.request.rounds
    assert record.ahead_nodes == sum(one.ahead_nodes for one in rounds) > 0
    assert record.ahead_s == pytest.approx(sum(one.ahead_s for one in rounds))
    assert record.saved_s == sum(one.saved_s for one in rounds) > 0
    assert record.wasted_s == pytest.approx(sum(one.wasted_s for one in rounds))
    assert record.ahead_hits == sum(one.ahead_hit is True for one in rounds) > 0
    assert record.ahead_rounds == sum(one.ahead_hit is not None for one in rounds)
    assert 0 < record.wasted_s < record.ahead_s
    assert all(0.0 <= one.wasted_s <= one.ahead_s <= one.wait_s for one in rounds)
    for before, one in zip(rounds, rounds[1:], strict=False):
        assert (one.ahead_hit is None) == (before.ahead_nodes == 0)
        assert one.ahead_hit or before.wasted_s == before.ahead_s
    off = plain.request.record
    assert (off.ahead_s, off.ahead_nodes, off.ahead_rounds, off.saved_s, off.wasted_s) == (0,) * 5
    assert all(one.ahead_hit is None for one in plain.request.rounds)


@pytest.mark.parametrize("tokens", [20, 21, 22, 23])
def test_nothing_is_drafted_ahead_in_a_round_that_may_be_the_last(tokens: int) -> None:
    rounds = answered(tiny_runner(), tiny_runner(), ahead=True, tokens=tokens).request.rounds
    left = tokens - 1  # the prompt's forward has made the first
    for one in rounds:
        assert (one.ahead_nodes == 0) == (left <= one.depth + 1)
        left -= one.emitted_tokens
    assert left == 0


def test_a_draft_that_is_the_target_hits_in_every_round() -> None:
    ahead = answered(tiny_runner(), tiny_runner(), ahead=True)
    record = ahead.request.record
    assert record.ahead_hits == record.ahead_rounds == len(ahead.request.rounds) - 1


def test_time_ahead_is_charged_once_and_where_the_device_is_busy() -> None:
    meter = ModelledMeter(65.0, 15.0)
    request = answered(tiny_runner(), tiny_runner(), ahead=True, meters=Meters(meter)).request
    for one in request.rounds:
        busy_s = one.draft_s + one.ahead_s
        assert one.draft_j == pytest.approx(65 * busy_s + 15 * (one.round_s - busy_s))
    record = request.record
    assert record.ahead_s > 0
    busy_s = record.draft_s + record.ahead_s
    assert record.draft_j == pytest.approx(65 * busy_s + 15 * (record.total_s - busy_s))
    assert record.draft_net_j == pytest.approx(50 * busy_s)
