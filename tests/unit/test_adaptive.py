"""The adaptive policy on trees, tables and links whose best answer is worked out by hand.

Time alone counts, and τ is 1 s, so that a cost is a number of seconds. Where no fixed shape gains
anything, θ begins with a bare root's cost: 1 a token on tables whose first time is 1 s.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.cost import Phases, Powers, Prices, blend, phase_units
from autodraft.policy import TreeLimits
from autodraft.policy.adaptive import Ablation, AdaptivePolicy, PairKnowledge
from autodraft.policy.base import Outcome
from autodraft.policy.calibration import Calibration
from autodraft.policy.costs import Latencies
from autodraft.policy.forecast import ChildForecast, GainTable
from autodraft.profiling.correction import CorrectedTable
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.tables import LatencyTable
from autodraft.tree.growth import TreeGrowth

FREE = Prices(
    target_per_hour_usd=0.0,
    electricity_usd_per_kwh=0.0,
    uplink_usd_per_gb=0.0,
    downlink_usd_per_gb=0.0,
)
PAID = Prices(
    target_per_hour_usd=3600.0,  # a dollar a second
    electricity_usd_per_kwh=0.0,
    uplink_usd_per_gb=0.0,
    downlink_usd_per_gb=0.0,
)
POWERS = Powers(draft_watts=1, draft_idle_watts=1, target_watts=1, target_idle_watts=1)
SPEED = blend(phase_units("total_cost", FREE, "busy", POWERS), 0.0, tau_s=1.0, kappa=0.0)
TARGETS_TIME = blend(phase_units("api_cost", PAID, "busy", POWERS), 1.0, tau_s=1.0, kappa=1.0)
LIMITS = TreeLimits(4, 4, 40)
FLAT = LatencyTable([1, 64], [1], [[1.0, 1.0]])
NOTHING = GainTable(np.array([1]), np.zeros((1, 1, 2)))
ONE_TOKEN = GainTable(np.array([1]), np.array([[[0.0, 1.0]]]))


def always(chance: float) -> ChildForecast:
    """Return the forecast that a node has one child, of this chance, and is sure of it."""
    children = ChildForecast()
    children.sums[..., 0] = chance * 1e12
    children.trials[:] = 1e12
    return children


def pair_of(
    verify: LatencyTable = FLAT,
    steps: Sequence[float] = (0.05, 0.05, 0.05),
    children: ChildForecast | None = None,
    gains: GainTable = NOTHING,
    rtt_s: float = 0.0,
) -> PairKnowledge:
    """Return a pair; ``steps`` are the draft's times of 1, 2 and 4 rows."""
    draft = CorrectedTable(LatencyTable([1, 2, 4], [1], [steps]))
    latencies = Latencies(draft, CorrectedTable(verify), LinkEstimate(rtt_s))
    return PairKnowledge(latencies, Calibration(), children or always(0.5), gains)


def begun(
    pair: PairKnowledge,
    limits: TreeLimits = LIMITS,
    ablation: Ablation | None = None,
    retrieved: Sequence[float] = (),
    phases: Phases = SPEED,
) -> AdaptivePolicy:
    """Return a policy in its first round."""
    policy = AdaptivePolicy(limits, phases, pair, ablation)
    policy.start(10, 64)
    policy.begin(10, np.log(retrieved))
    return policy


def one_level(chances: Sequence[float]) -> TreeGrowth:
    """Return a root with children of these chances."""
    growth = TreeGrowth(1)
    tokens = np.arange(len(chances))[None] + 10
    growth.add_level(np.array([0]), tokens, np.log([list(chances)]))
    return growth


def grow(policy: AdaptivePolicy, chances: Sequence[float]) -> TreeGrowth:
    """Grow as the drafter does; every node has children of these probabilities."""
    growth = TreeGrowth(1)
    kept = list(chances)[: policy.limits.most_children]
    tokens, log_probs = np.arange(len(kept))[None] + 10, np.log([kept])
    while len(expanded := growth.frontier(policy.width(growth))):
        shape = (len(expanded), 1)
        rows = np.tile(tokens, shape), np.tile(log_probs, shape)
        values = policy.value(growth, expanded, *rows)
        growth.add_level(expanded, rows[0], values)
    return growth


def outcome_of(
    growth: TreeGrowth, reached: list[int], truths: list[int], slower: float = 1.0
) -> Outcome:
    """Return a round of one node: 0.05 s of drafting, 1 s of the target, times ``slower``."""
    return Outcome(
        growth=growth,
        reached=np.array(reached),
        truths=truths,
        context_tokens=10,
        num_nodes=1,
        draft_s=0.05 * slower,
        wait_s=1.0 * slower,
        queue_s=0.0,
        verify_s=1.0 * slower,
        round_s=1.05 * slower,
        uplink_bytes=18,
        downlink_bytes=14,
    )


# ------------------------------------------------------------------------------ how many nodes


@pytest.mark.parametrize(
    ("nodes", "best"),
    [
        (63, 63),  # 1.26 − 1.6 = −0.34, though 15 of them, 0.30 − 1.4 = −1.10, are a loss
        (30, 7),  # 0.60 − 1.6 = −1.00 against 0.14 − 1.0 = −0.86
    ],
)
def test_the_best_size_is_found_behind_losses(nodes: int, best: int) -> None:
    stepped = LatencyTable([8, 16, 64], [1], [[1.0, 1.4, 1.6]], padding=[8, 16, 64])
    policy = begun(pair_of(stepped), TreeLimits(4, 4, 63))
    assert policy.worth.value == pytest.approx(1.0)
    assert policy.num_nodes(one_level([0.02] * nodes)) == best


_TIMES = st.lists(st.floats(0.1, 5), min_size=13, max_size=13)
_CHANCES = st.lists(st.floats(0.001, 1), min_size=1, max_size=16)


@given(seconds=_TIMES, chances=_CHANCES)
def test_no_size_is_worth_more(seconds: list[float], chances: list[float]) -> None:
    table = LatencyTable(list(range(1, 14)), [1], [seconds])
    policy = begun(pair_of(table), TreeLimits(4, 4, 12))
    theta, ordered = policy.worth.value, sorted(chances, reverse=True)
    worths = [
        theta * sum(ordered[:nodes]) - seconds[nodes] for nodes in range(min(12, len(chances)) + 1)
    ]
    found = policy.num_nodes(one_level(chances))
    assert worths[found] == pytest.approx(max(worths), abs=1e-9)


# --------------------------------------------------------------------------- how wide and deep


@pytest.mark.parametrize(
    ("steps", "width"),
    [
        ((0.1, 0.2, 0.2), 2),  # 0.9 − 0.2 against 0.5 − 0.1
        ((0.1, 0.6, 0.6), 1),  # 0.9 − 0.6 against 0.5 − 0.1
        ((0.6, 0.7, 0.7), 2),  # one alone would lose 0.1
        ((0.6, 1.0, 1.0), 0),  # both lose
    ],
)
def test_the_width_that_pays_most(steps: tuple[float, ...], width: int) -> None:
    # Two nodes of .5 and .4, each with a child that is certain; no level can follow that.
    policy = begun(pair_of(steps=steps, children=always(1.0)), TreeLimits(4, 2, 40))
    assert policy.width(one_level([0.5, 0.4])) == width


def test_a_narrow_frontier_is_expanded_whole() -> None:
    policy = begun(pair_of(children=always(1.0)), TreeLimits(4, 2, 40))
    assert policy.width(one_level([0.4, 0.3, 0.3])) == 3  # 4 rows cost what 1 costs


@pytest.mark.parametrize(("step_s", "depth"), [(0.3, 1), (0.2, 2), (0.1, 3), (0.6, 0)])
def test_levels_are_drafted_while_they_pay(step_s: float, depth: int) -> None:
    # A chain of .5: the levels add .5, .25, .125 and .0625 tokens, each for one step.
    pair = pair_of(steps=[step_s] * 3)
    assert grow(begun(pair, TreeLimits(1, 9, 40)), [0.5]).depth == depth


def test_two_levels_may_pay_where_one_does_not() -> None:
    # More than one row takes 2.5 s: 1 − 2.55 and 2 − 2.6 against a bare root's −1.
    dear = LatencyTable([1, 2, 64], [1], [[1.0, 2.5, 2.5]])
    assert begun(pair_of(dear, children=always(1.0))).width(TreeGrowth(1)) == 1
    shallow = TreeLimits(4, 1, 40)
    assert begun(pair_of(dear, children=always(1.0)), shallow).width(TreeGrowth(1)) == 0


def test_what_is_retrieved_can_make_drafting_useless() -> None:
    limits = TreeLimits(4, 4, 3)
    assert begun(pair_of(), limits).width(TreeGrowth(1)) == 1
    # All that can be sent is there already, and better than .5 and .25.
    full = begun(pair_of(), limits, retrieved=[0.95, 0.9, 0.85])
    assert full.width(TreeGrowth(1)) == 0
    poor = begun(pair_of(), limits, retrieved=[0.1, 0.05, 0.01])
    assert poor.width(TreeGrowth(1)) == 1


def test_a_draft_that_is_always_right_is_learned_and_goes_to_its_ceiling() -> None:
    # Nothing is known: children are expected at .6, .15, .0375 …; of those of a node at depth 3
    # the budget leaves three, and .985³ · .7875 is less than a step. One level up four are left,
    # and .985² · .7969 is more.
    pair = pair_of(steps=[0.76] * 3, children=ChildForecast())
    limits = TreeLimits(1, 6, 6)
    assert grow(begun(pair, limits), [0.985]).depth == 3
    for _ in range(30):
        policy = begun(pair, limits)
        growth = grow(policy, [0.985])
        policy.observe(outcome_of(growth, list(range(growth.depth + 1)), [10] * growth.depth + [5]))
        pair.latencies = pair_of(steps=[0.76] * 3).latencies  # the machines stay as they are
    assert grow(begun(pair, limits), [0.985]).depth == 6


def test_time_alone_counts_where_nothing_has_a_price() -> None:
    assert SPEED.draft_s == 1.0
    policy = begun(pair_of(gains=ONE_TOKEN))
    assert policy.opening_cost == pytest.approx(0.525)
    assert policy.width(TreeGrowth(1)) == 1


# --------------------------------------------------------------------------------- ceilings


@given(
    limits=st.builds(
        TreeLimits,
        width=st.integers(1, 5),
        max_depth=st.integers(0, 4),
        node_budget=st.integers(0, 9),
    ),
    links=st.sampled_from([[1.0], [0.9, 0.1], [0.4, 0.3, 0.2, 0.1], [0.01]]),
    ablation=st.builds(
        Ablation,
        width=st.none() | st.integers(1, 9),
        depth=st.none() | st.integers(1, 9),
        nodes=st.none() | st.integers(0, 20),
        calibrated=st.booleans(),
    ),
)
def test_ceilings_hold(limits: TreeLimits, links: list[float], ablation: Ablation) -> None:
    policy = begun(pair_of(steps=[1e-6] * 3, children=always(1.0)), limits, ablation)
    growth = grow(policy, links)
    assert growth.depth <= limits.max_depth
    assert policy.num_nodes(growth) <= min(limits.node_budget, growth.num_nodes)
    expanded = np.unique(growth.parents[1:])
    assert np.bincount(growth.depths[expanded], minlength=1).max() <= limits.width
    assert policy.limits.most_children <= max(1, limits.node_budget)


# ---------------------------------------------------------------------------------- ablations


def test_a_width_that_is_held() -> None:
    held = Ablation(width=2)
    cheap = pair_of(children=always(1.0))
    assert begun(cheap, ablation=held).width(one_level([0.4, 0.3, 0.2])) == 2
    assert begun(cheap, ablation=Ablation(width=9)).width(one_level([0.2] * 5)) == 4
    # Whether to draft at all is still decided.
    dear = pair_of(steps=[5.0] * 3)
    assert begun(dear, ablation=held).width(one_level([0.4, 0.3, 0.2])) == 0


@pytest.mark.parametrize(("chance", "step_s"), [(0.0, 5.0), (1.0, 1e-6)])
@pytest.mark.parametrize(("held", "depth"), [(1, 1), (3, 3), (9, 4)])
def test_a_depth_that_is_held(chance: float, step_s: float, held: int, depth: int) -> None:
    policy = begun(
        pair_of(steps=[step_s] * 3, children=always(chance)), ablation=Ablation(depth=held)
    )
    assert grow(policy, [0.5]).depth == depth


@pytest.mark.parametrize(("held", "nodes"), [(0, 0), (2, 2), (9, 3)])
def test_nodes_that_are_held(held: int, nodes: int) -> None:
    policy = begun(pair_of(), ablation=Ablation(nodes=held))
    assert policy.num_nodes(one_level([0.5, 0.2, 0.001])) == nodes
    expected = 1.0 + sum([0.5, 0.2, 0.001][:nodes])
    assert policy.prediction().tokens == pytest.approx(expected)


def test_without_calibration_the_draft_is_taken_at_its_word() -> None:
    pair = pair_of()
    for _ in range(400):
        pair.calibration.learn(1, np.log([0.92]), None)
    asked = (TreeGrowth(1), np.array([0]), np.array([[10]]), np.log([[0.92]]))
    assert np.exp(begun(pair).value(*asked))[0, 0] < 0.6
    plain = begun(pair, ablation=Ablation(calibrated=False))
    assert np.exp(plain.value(*asked))[0, 0] == pytest.approx(0.92)
    growth = one_level([0.92])
    plain.observe(outcome_of(growth, [0], [10]))
    assert pair.calibration.trials == 400  # nothing is learned
    assert plain.draft_reliability.bins()[9] == pytest.approx((1, 0.92, 1))


# -------------------------------------------------------------------------- whether it pays


@pytest.mark.parametrize(
    ("rtt_s", "pays"),
    [(0.0, True), (0.94, True), (0.96, False), (1e6, False)],  # (1.05 + RTT) / 2 against 1
)
def test_a_long_way_to_the_target(rtt_s: float, pays: bool) -> None:
    policy = begun(pair_of(gains=ONE_TOKEN, rtt_s=rtt_s))
    assert policy.opening.pays(policy.opening_cost) == pays


def test_the_way_is_free_where_only_the_targets_time_costs() -> None:
    pair = pair_of(gains=ONE_TOKEN, rtt_s=1e6)
    policy = begun(pair, phases=TARGETS_TIME)
    assert policy.worth.value == pytest.approx(0.5)  # a second of the target for two tokens
    assert policy.opening_cost == pytest.approx(0.5)


def test_what_gains_nothing_does_not_pay() -> None:
    policy = begun(pair_of())
    assert policy.opening_cost == pytest.approx(1.0)
    assert not policy.opening.pays(policy.opening_cost)


def test_an_easy_text_may_be_worth_the_others() -> None:
    # Gains of 0.2 and 5 tokens for 1.05 s a round: one text loses, the other wins much.
    gains = GainTable(np.array([1]), np.array([[[0.0, 2.6]]]), np.array([0.2 / 2.6, 5 / 2.6]))
    policy = begun(pair_of(gains=gains, rtt_s=0.5))
    assert policy.loss == pytest.approx(0.5 * 1.55 + 0.5)  # half a round, and handing over
    handed_over = 1 + policy.loss / 64
    assert policy.opening_cost == pytest.approx((1.55 / 6 + handed_over) / 2)


def test_a_blend_pays_for_its_own_trials_and_learns_from_the_others_until_it_knows() -> None:
    pair = pair_of(gains=ONE_TOKEN)
    mine, others = begun(pair), begun(pair, phases=TARGETS_TIME)
    assert begun(pair).trials is mine.trials
    assert mine.trials is not others.trials
    others.opening.learn(cost=0.4, forecast=1.0)
    assert mine.opening.expected(1.0) == pytest.approx((5 * 1.0 + 0.4) / 6)


def test_openings_are_forgotten_with_the_link_that_they_were_learned_over() -> None:
    pair = pair_of(gains=ONE_TOKEN)
    begun(pair).opening.learn(cost=0.4, forecast=1.0)
    assert begun(pair).opening.expected(1.0) < 1.0
    pair.forget_openings()
    assert begun(pair).opening.expected(1.0) == 1.0


# ----------------------------------------------------------------------- predicting, learning


def test_a_round_is_predicted() -> None:
    pair = pair_of(steps=(0.1, 0.2, 0.2), children=always(1.0), rtt_s=0.5)
    policy = begun(pair, TreeLimits(4, 2, 40))
    growth = grow(policy, [0.5, 0.4])
    # Steps of one and of two rows, a forward and the link; .5 and .4, and .45 below each.
    assert policy.num_nodes(growth) == 6
    assert policy.prediction().round_s == pytest.approx(0.1 + 0.2 + 1.0 + 0.5)
    assert policy.prediction().tokens == pytest.approx(1 + 0.9 + 0.9 * 0.9)


def test_tokens_are_predicted_by_what_came_true_in_this_request() -> None:
    policy = begun(pair_of())
    growth = one_level([0.5])
    policy.num_nodes(growth)
    policy.weigh(outcome_of(growth, [0], [11]))  # half a token was promised, and none came
    policy.begin(10, np.empty(0))
    policy.num_nodes(growth)
    assert policy.prediction().tokens == pytest.approx(1 + 0.5 * 1 / 1.5)


def test_plain_decoding_is_priced_at_the_pace_of_the_round() -> None:
    policy = begun(pair_of())
    policy.num_nodes(one_level([0.5]))
    slow = policy.weigh(outcome_of(one_level([0.5]), [0], [11], slower=3.0))
    assert slow.plain == pytest.approx(3.0)
    assert policy.weigh(outcome_of(one_level([0.5]), [0], [11], slower=90)).plain == 5.0


def test_candidates_below_reached_nodes_are_judged() -> None:
    pair = pair_of(children=always(1.0))
    policy = begun(pair, TreeLimits(1, 2, 40))
    growth = grow(policy, [0.65])
    policy.observe(outcome_of(growth, [0, 1], [10, 99]))
    assert growth.depth == 2
    assert pair.calibration.trials == 2
    assert pair.confidence == pytest.approx(2 / 402)
    assert policy.draft_reliability.bins()[6] == pytest.approx((2, 1.3, 1))
    assert policy.reliability.bins()[6] == pytest.approx((2, 1.3, 1))


def test_candidates_below_other_nodes_are_not() -> None:
    pair = pair_of(children=always(1.0))
    policy = begun(pair, TreeLimits(1, 2, 40))
    growth = grow(policy, [0.65, 0.25])
    # Two children of the root, the first one expanded; the target took the second one.
    policy.observe(outcome_of(growth, [0, 2], [11, 7]))
    assert pair.calibration.trials == 2
    assert policy.draft_reliability.bins()[2] == pytest.approx((1, 0.25, 1))
    assert policy.draft_reliability.bins()[6] == pytest.approx((1, 0.65, 0))


def test_slower_machines_show() -> None:
    pair = pair_of()
    policy = begun(pair)
    growth = TreeGrowth(1)
    assert policy.width(growth) == 1
    policy.observe(outcome_of(growth, [0], [10], slower=3.0))
    policy.begin(10, np.empty(0))
    assert policy.costs.step_s(1) == pytest.approx(0.15)
    assert policy.costs.verify_s[1] == pytest.approx(3.0)
    assert policy.plain == pytest.approx(3.0)


def test_a_round_is_weighed() -> None:
    policy = begun(pair_of(gains=ONE_TOKEN))
    growth = one_level([0.5])
    assert policy.num_nodes(growth) == 1
    weighed = policy.weigh(outcome_of(growth, [0], [11]))
    assert weighed.cost == pytest.approx(1.05)
    assert weighed.tokens == 1
    assert weighed.plain == pytest.approx(1.0)
    # Half a token was promised and none came: truth 1 / 1.5.
    assert weighed.worth == pytest.approx(1 + 0.5 / 1.5)
    assert policy.worth.round_cost == pytest.approx(1.05)


# ------------------------------------------------------------------------------- drafting ahead


def test_time_ahead_weighs_what_drafting_costs_beyond_waiting() -> None:
    watts = Phases(
        draft_s=65.0,
        verify_s=15.0,
        wait_s=15.0,
        uplink_byte=0.0,
        downlink_byte=0.0,
        plain_s=15.0,
        server_only_s=0.0,
    )
    policy = begun(pair_of(), phases=watts)
    plain = outcome_of(one_level([0.5]), [0], [3])
    ahead = replace(plain, ahead_s=0.2)
    assert policy.cost_of(ahead) - policy.cost_of(plain) == pytest.approx(50 * 0.2)
    assert begun(pair_of()).cost_of(ahead) == pytest.approx(begun(pair_of()).cost_of(plain))


def test_what_a_round_was_spared_is_no_sign_of_a_quicker_draft() -> None:
    pair = pair_of(children=always(0.9))
    policy = begun(pair, ablation=Ablation(depth=2, width=1))
    ahead = policy.draft_ahead()
    growth = grow(policy, [0.9])
    expected = policy.prediction().round_s
    policy.num_nodes(growth)
    assert ahead.remember([(1, 0)]) == pytest.approx(0.05)  # one of two steps
    assert policy.prediction().round_s == pytest.approx(expected - 0.05)
    policy.observe(outcome_of(growth, [0], [3]))  # 0.05 s of drafting
    assert pair.latencies.draft.factor.value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("steps", "width"),
    [((0.05, 0.05, 0.05), 4), ((0.05, 0.06, 0.07), 2), ((0.05, 0.07, 0.09), 1)],
)
def test_a_forward_ahead_has_as_many_nodes_as_cost_little_more_than_one(
    steps: tuple[float, float, float], width: int
) -> None:
    assert begun(pair_of(steps=steps)).draft_ahead().width == width


def test_chances_ahead_are_those_of_the_depth_and_teach_nothing() -> None:
    pair = pair_of()
    for _ in range(300):  # second guesses of depth 2 are always right
        pair.calibration.learn(2, np.log([0.6, 0.3]), 1)
    policy = begun(pair)
    before = pair.calibration.counts.copy(), pair.children.sums.copy()
    logs = np.log([[0.6, 0.3], [0.6, 0.3]])
    found = policy.draft_ahead().chances(np.array([2, 1]), logs)
    for row, depth in enumerate((2, 1)):
        expected = pair.calibration.log_chances(depth, logs[row : row + 1])[0]
        assert found[row] == pytest.approx(expected)
    assert found[0, 1] > found[1, 1]
    assert (pair.calibration.counts == before[0]).all()
    assert (pair.children.sums == before[1]).all()
    plain = begun(pair, ablation=Ablation(calibrated=False)).draft_ahead()
    assert plain.chances(np.array([2, 1]), logs) is logs


def test_a_target_that_drafting_ahead_slows_down_does_not_slow_down_the_server_alone() -> None:
    pair = pair_of()
    for _ in range(20):
        pair.ahead.observe_forward(2.0, ahead=True)
        pair.ahead.observe_forward(1.0, ahead=False)
    policy = begun(pair)
    policy.draft_ahead()
    growth = one_level([0.5])
    policy.num_nodes(growth)
    slowed = replace(outcome_of(growth, [0], [3]), verify_s=2.0, wait_s=2.0, round_s=2.05)
    policy.observe(replace(slowed, ahead_s=0.5))
    assert pair.latencies.target.factor.value == pytest.approx(1.0, rel=0.02)
    assert policy.weigh(replace(slowed, ahead_s=0.5)).plain == pytest.approx(1.0, rel=0.02)
    assert policy.weigh(slowed).plain == pytest.approx(2.0, rel=0.02)
