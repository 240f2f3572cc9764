"""The controller's pieces against optima worked out by hand."""

import numpy as np
import pytest

from autodraft.cost import Powers, Prices, blend, phase_units
from autodraft.errors import ConfigError
from autodraft.policy import TreeLimits
from autodraft.policy.adaptive import Ablation, AdaptivePolicy, PairKnowledge
from autodraft.policy.calibration import Calibration, Reliability
from autodraft.policy.costs import Latencies
from autodraft.policy.forecast import CHILDREN, ChildForecast, GainTable, shape_gains
from autodraft.profiling.correction import CorrectedTable
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.tables import LatencyTable
from autodraft.tree.growth import TreeGrowth

PRICES = Prices(
    target_per_hour_usd=3600.0,  # a dollar a second
    electricity_usd_per_kwh=0.0,
    uplink_usd_per_gb=1e9,  # a dollar a byte
    downlink_usd_per_gb=0.0,
)
POWERS = Powers(draft_watts=50, draft_idle_watts=10, target_watts=300, target_idle_watts=100)
LIMITS = TreeLimits(4, 4, 40)
SPEED = blend(phase_units("api_cost", PRICES, "busy", POWERS), 0.0, tau_s=1.0, kappa=1.0)


# ---------------------------------------------------------------------------------- the blend


@pytest.mark.parametrize(
    ("objective", "billing", "draft", "verify", "wait", "server_only"),
    [
        ("api_cost", "busy", 0, 1, 0, 1),
        ("api_cost", "held", 1, 1, 1, 1),
        ("draft_energy", "busy", 50, 10, 10, 0),
        ("target_energy", "busy", 100, 300, 100, 300),
    ],
)
def test_what_a_second_of_each_phase_costs(
    objective: str, billing: str, draft: float, verify: float, wait: float, server_only: float
) -> None:
    phases = phase_units(objective, PRICES, billing, POWERS)
    found = (phases.draft_s, phases.verify_s, phases.wait_s, phases.server_only_s)
    assert found == pytest.approx((draft, verify, wait, server_only))


@pytest.mark.parametrize("cs", [0.0, 0.3, 1.0])
def test_server_only_costs_one_a_token_at_every_sensitivity(cs: float) -> None:
    units = phase_units("target_energy", PRICES, "busy", POWERS)
    tau_s = 0.04
    weighed = blend(units, cs, tau_s, kappa=300 * tau_s)
    assert weighed.server_only_s * tau_s == pytest.approx(1.0)
    # 1 s of drafting: (1 − cs)/0.04 by time, cs · 100 J / 12 J by energy.
    assert weighed.draft_s == pytest.approx((1 - cs) / 0.04 + cs * 100 / 12)


def test_an_unknown_power_is_an_error_where_it_matters() -> None:
    unknown = Powers(draft_watts=None, draft_idle_watts=10, target_watts=1, target_idle_watts=1)
    with pytest.raises(ConfigError, match="DRAFT_WATTS"):
        phase_units("draft_energy", PRICES, "busy", unknown)
    assert phase_units("api_cost", PRICES, "busy", unknown).verify_s == 1


# -------------------------------------------------------------------------------- calibration


def test_a_draft_that_is_too_sure_is_believed_less() -> None:
    calibration = Calibration()
    row = np.log([0.9, 0.05])
    before = np.exp(calibration.log_chances(1, row[None]))[0]
    assert before[0] == pytest.approx(0.9, abs=0.06)
    for number in range(400):
        calibration.learn(1, row, 0 if number % 2 else None)
    after = np.exp(calibration.log_chances(1, row[None]))[0]
    assert after[0] == pytest.approx(0.5, abs=0.04)


def test_chances_rise_with_the_drafts_probability_and_siblings_sum_to_at_most_one() -> None:
    rng = np.random.default_rng(0)
    calibration = Calibration()
    for _ in range(500):
        row = np.sort(rng.dirichlet(np.ones(4)))[::-1]
        hit = int(rng.integers(0, 5))
        calibration.learn(int(rng.integers(1, 6)), np.log(row), hit if hit < 4 else None)
    grid = np.linspace(0.01, 0.99, 60)
    for depth in (1, 2, 4, 9):
        alone = np.exp(calibration.log_chances(depth, np.log(grid)[:, None]))[:, 0]
        assert (np.diff(alone) >= -1e-12).all()
        rows = np.log(np.tile([0.4, 0.35, 0.2, 0.05], (3, 1)))
        assert (np.exp(calibration.log_chances(depth, rows)).sum(axis=1) <= 1 + 1e-9).all()


def test_what_the_draft_excludes_stays_excluded() -> None:
    logs = Calibration().log_chances(1, np.array([[np.log(0.5), -np.inf]]))
    assert np.isfinite(logs[0, 0])
    assert np.isneginf(logs[0, 1])


def test_reliability_counts_predictions_and_what_came_true() -> None:
    reliability = Reliability()
    reliability.count(np.log([0.85, 0.05]), 0)
    reliability.count(np.log([0.82, 0.08]), None)
    bins = reliability.bins()
    assert bins[8] == (2, pytest.approx(1.67), 1)
    assert bins[0] == (2, pytest.approx(0.13), 0)


# ------------------------------------------------------------------------------- gains by shape


def test_gains_of_shapes_of_a_small_tree() -> None:
    # root → a .6, b .3; a → c .3, d .1; b → e .2
    parents = np.array([-1, 0, 0, 1, 1, 2])
    depths = np.array([0, 1, 1, 2, 2, 2])
    values = np.log([1.0, 0.6, 0.3, 0.3, 0.1, 0.2])
    gains = shape_gains(parents, depths, values, np.array([1, 2]), cap=4)
    assert gains[0, 0] == pytest.approx([0, 0.6, 0.9, 0.9, 0.9])
    assert gains[1, 0] == pytest.approx([0, 0.6, 0.9, 1.2, 1.3])  # width 1 expands a alone
    assert gains[1, 1] == pytest.approx([0, 0.6, 0.9, 1.2, 1.4])


# ---------------------------------------------------------------------------------- the policy


def policy_of(
    verify: LatencyTable,
    *,
    limits: TreeLimits = LIMITS,
    step_s: float = 0.05,
    rtt_s: float = 0.0,
    chance: float = 0.5,
    gain: float = 1.0,
    ablation: Ablation | None = None,
) -> AdaptivePolicy:
    """Return a policy whose θ is worked out below; every unseen first child has ``chance``."""
    children = ChildForecast()
    children.sums[..., 0] = chance * 1e9
    children.trials[:] = 1e9
    assert children.sums.shape[-1] == CHILDREN
    draft = LatencyTable([1, 2, 4], [1], [[step_s] * 3])
    latencies = Latencies(CorrectedTable(draft), CorrectedTable(verify), LinkEstimate(rtt_s))
    gains = GainTable(np.array([1]), np.full((1, 1, 2), gain))
    pair = PairKnowledge(latencies, Calibration(), children, gains)
    policy = AdaptivePolicy(limits, SPEED, pair, ablation)
    policy.start(10, 64)
    policy.begin(10, np.empty(0))
    return policy


def grown(*levels: list[float]) -> TreeGrowth:
    """Grow levels of children of the root's best chain, with the given conditional chances."""
    growth = TreeGrowth(1)
    for chances in levels:
        tokens = np.arange(len(chances))[None] + 10
        growth.add_level(growth.frontier(1), tokens, np.log([chances]))
    return growth


FLAT = LatencyTable([1, 64], [1], [[1.0, 1.0]])


def test_theta_begins_with_the_forecast() -> None:
    # One step of 0.05 s and a forward of 1 s for 1 + 1 tokens.
    assert policy_of(FLAT).worth.value == pytest.approx(1.05 / 2)


def test_the_best_size_may_lie_behind_a_loss() -> None:
    # Up to 8 rows 1 s, then 1.5 s up to 64: node 8 alone loses, all 32 together gain.
    stepped = LatencyTable([8, 64], [1], [[1.0, 1.5]], padding=[8, 64])
    policy = policy_of(stepped)
    theta = policy.worth.value
    few = grown([0.05] * 16)
    many = grown([0.03] * 33)
    # 7 nodes gain 0.35, 16 gain 0.8: worth θ·0.45 more for 0.5 s, which is not enough.
    assert theta * 0.45 < 0.5
    assert policy.num_nodes(few) == 7
    rich = policy_of(stepped, gain=0.0)  # θ = 1, a bare root's: a token is worth more
    assert rich.worth.value == pytest.approx(1.0)
    # 33 nodes of .03: 26 more than 7 add 0.78 · θ for 0.5 s.
    assert rich.num_nodes(many) == 33


def test_levels_are_drafted_while_they_pay() -> None:
    growth = grown([0.8])
    assert policy_of(FLAT, chance=0.5).width(growth) == 1  # 0.4 · θ > 0.05
    assert policy_of(FLAT, chance=0.05).width(growth) == 0  # 0.04 · θ < 0.05


def test_a_draft_that_is_always_right_goes_to_its_ceiling() -> None:
    policy = policy_of(FLAT, chance=1.0, limits=TreeLimits(4, 7, 40))
    growth = TreeGrowth(1)
    while width := policy.width(growth):
        growth.add_level(growth.frontier(width), np.array([[5]]), np.zeros((1, 1)))
    assert growth.depth == 7


def test_no_ceiling_is_exceeded() -> None:
    policy = policy_of(FLAT, limits=TreeLimits(2, 1, 3))
    growth = TreeGrowth(1)
    assert 0 < policy.width(growth) <= 2
    growth.add_level(np.array([0]), np.arange(8)[None], np.log(np.full((1, 8), 0.1)))
    assert policy.width(growth) == 0
    assert policy.num_nodes(growth) == 3


def test_held_parts_are_held() -> None:
    growth = grown([0.5, 0.3], [0.5, 0.3])
    assert policy_of(FLAT, ablation=Ablation(nodes=2)).num_nodes(growth) == 2
    assert policy_of(FLAT, ablation=Ablation(depth=2)).width(growth) == 0
    assert policy_of(FLAT, chance=0.0, ablation=Ablation(depth=3)).width(growth) > 0


def test_a_link_without_end_and_a_price_of_nothing() -> None:
    assert policy_of(FLAT).opening_cost == pytest.approx(0.525)  # a token, against 1
    assert policy_of(FLAT, rtt_s=1e6).opening_cost > 1e3
