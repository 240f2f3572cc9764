"""What is learned of a draft's candidates, against counts worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.policy.calibration import DEPTH_STARTS, RANKS, Calibration, Reliability, _monotone
from autodraft.tree.draft_tree import FloatArray

BIN_92 = 16
"""The bin from 0.9 to 0.95, with 0.925 in its middle."""


def chance(calibration: Calibration, prob: float, depth: int = 1, rank: int = 0) -> float:
    """Return the chance of a candidate of one rank, its better siblings excluded."""
    row = np.full((1, rank + 1), -np.inf)
    row[0, rank] = np.log(prob)
    return float(np.exp(calibration.log_chances(depth, row))[0, rank])


def over_confident(trials: int = 400) -> Calibration:
    """Return what is known of a draft that says 0.92 at depth 1 and is right every other time."""
    calibration = Calibration()
    for number in range(trials):
        calibration.learn(1, np.log([0.92]), 0 if number % 2 else None)
    return calibration


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 50])
@pytest.mark.parametrize("rank", range(RANKS + 2))
def test_a_new_one_takes_the_drafts_word(depth: int, rank: int) -> None:
    for prob in (0.0005, 0.03, 0.25, 0.5, 0.77, 0.92, 0.99):
        assert chance(Calibration(), prob, depth, rank) == pytest.approx(prob, rel=1e-9)
    # Nothing is certain: the middle of the last bin, 0.995 … 1, is the most.
    assert chance(Calibration(), 1.0, depth, rank) == pytest.approx(0.9975)


def test_one_node_by_hand() -> None:
    calibration = Calibration()
    calibration.learn(1, np.log([0.65, 0.25]), 0)
    # The pool of rank 0: 1 hit in 1 trial and 4 of the draft's word, (1 + 4 · 0.65) / 5 = 0.72;
    # the cell: that one and 24 of the pool's, (1 + 24 · 0.72) / 25.
    assert chance(calibration, 0.65) == pytest.approx(0.7312)
    # Rank 1 missed: (0 + 4 · 0.25) / 5 = 0.2, and (0 + 24 · 0.2) / 25.
    assert chance(calibration, 0.25, rank=1) == pytest.approx(0.192)
    # Depth 2 knows the pools alone.
    assert chance(calibration, 0.65, depth=2) == pytest.approx(0.72)
    assert chance(calibration, 0.25, depth=2, rank=1) == pytest.approx(0.2)
    assert calibration.trials == 2


def test_an_over_confident_draft_is_believed_half_the_time() -> None:
    # The pool (200 + 4 · 0.925) / 404 = 0.50421; the cell 200 + 24 · 0.50421 hits of 424. The
    # bins below it say .85, .75, .65 and .55 by 24 trials each, more than it, and join it:
    # (212.101 + 24 · 2.8) / (424 + 96).
    assert chance(over_confident(), 0.92) == pytest.approx(279.30099 / 520, rel=1e-6)
    assert chance(over_confident(), 0.92) == pytest.approx(0.5, abs=0.04)
    assert chance(over_confident(), 0.3) == pytest.approx(0.3)  # what was never seen stays


def test_a_modest_draft_is_believed_more() -> None:
    calibration = Calibration()
    for number in range(400):
        calibration.learn(1, np.log([0.25]), None if number % 10 == 0 else 0)
    # The pool (360 + 4 · 0.25) / 404; the cell 360 + 24 · 0.89356 hits of 424. The bins above it
    # say .35, .45, .55, .65 and .75 by 24 trials each, less than it, and join it.
    expected = (360 + 24 * 361 / 404 + 24 * 2.75) / (424 + 5 * 24)
    assert chance(calibration, 0.25) == pytest.approx(expected, rel=1e-6)
    assert expected == pytest.approx(0.8225, abs=1e-4)


def test_depths_have_their_own_counts_and_share_a_pool() -> None:
    calibration = over_confident()
    # Depth 2 begins with the pool's 0.50421, drawn up by .85 and .75 below it, 24 trials each.
    pool = 203.7 / 404
    assert chance(calibration, 0.92, depth=2) == pytest.approx((pool + 0.85 + 0.75) / 3, rel=1e-6)
    for _ in range(400):
        calibration.learn(2, np.log([0.92]), 0)
    assert chance(calibration, 0.92, depth=2) > 0.95
    assert chance(calibration, 0.92, depth=1) < 0.6


def test_deep_levels_share_their_counts() -> None:
    assert DEPTH_STARTS == (1, 2, 3, 5)
    calibration = Calibration()
    for _ in range(100):
        calibration.learn(6, np.log([0.92]), None)
    deep = chance(calibration, 0.92, depth=5)
    assert deep == chance(calibration, 0.92, depth=40)
    assert deep < chance(calibration, 0.92, depth=4) == chance(calibration, 0.92, depth=3)


@pytest.mark.parametrize("rank", range(RANKS))
def test_ranks_are_apart(rank: int) -> None:
    calibration = Calibration()
    row = np.full(rank + 1, -np.inf)
    row[rank] = np.log(0.25)
    for _ in range(200):
        calibration.learn(1, row, rank)
    # 200 hits of 200, the pool's 201 of 204, and the bins .35 … .75 above it.
    learned = (200 + 24 * 201 / 204 + 24 * 2.75) / (224 + 5 * 24)
    for other in range(RANKS):
        expected = learned if other == rank else 0.25
        assert chance(calibration, 0.25, rank=other) == pytest.approx(expected, rel=1e-6)


def test_the_last_rank_stands_for_all_further_ones() -> None:
    calibration = Calibration()
    row = np.log([0.3, 0.2, 0.12, 0.05, 0.05, 0.05])
    for _ in range(100):
        calibration.learn(1, row, 5)
    assert calibration.counts[0, 0, RANKS - 1].sum() == 300
    assert calibration.counts[1, 0, RANKS - 1].sum() == 100
    logs = calibration.log_chances(1, row[None])[0]
    assert logs[3] == logs[4] == logs[5]


def test_the_past_is_forgotten_and_ratios_kept() -> None:
    calibration = over_confident(512)
    rival = np.log([0.5])
    calibration.learn(1, rival, 0)
    cell = calibration.counts[:, 0, 0, BIN_92]
    assert cell == pytest.approx([512, 256, 512 * 0.92])
    calibration.learn(1, np.log([0.92]), None)  # one more than is remembered
    cell = calibration.counts[:, 0, 0, BIN_92]
    assert cell == pytest.approx([256.5, 128, 256.5 * 0.92])
    assert calibration.counts[:, 0, 0].sum(axis=1) == pytest.approx(
        [257.5, 129, 256.5 * 0.92 + 0.5]  # the other bin keeps its trial
    )


def test_a_change_is_followed() -> None:
    calibration = over_confident(2000)
    for _ in range(1500):
        calibration.learn(1, np.log([0.92]), 0)
    assert chance(calibration, 0.92) > 0.85


def test_what_is_excluded_stays_excluded() -> None:
    calibration = Calibration()
    row = np.array([np.log(0.6), -np.inf, -np.inf])
    for _ in range(50):
        calibration.learn(1, row, 0)
    logs = calibration.log_chances(1, row[None])[0]
    assert np.isfinite(logs[0])
    assert np.isneginf(logs[1:]).all()


def test_a_chance_is_never_quite_zero() -> None:
    assert chance(Calibration(), 1e-9) == pytest.approx(1e-5)


def test_siblings_share_one_truth() -> None:
    calibration = Calibration()
    for number in range(400):  # each of two siblings is nearly always right by its own counts
        calibration.learn(1, np.log([0.65]), 0)
        calibration.learn(1, np.array([-np.inf, np.log(0.35)]), 1 if number % 10 else None)
    both = np.exp(calibration.log_chances(1, np.log([[0.65, 0.35]])))[0]
    assert both.sum() == pytest.approx(1.0)
    first, second = chance(calibration, 0.65), chance(calibration, 0.35, rank=1)
    assert first + second > 1.5
    assert both[0] / both[1] == pytest.approx(first / second)


def test_counts_of_an_earlier_time_are_copied() -> None:
    earlier = over_confident()
    later = Calibration(earlier.counts)
    assert chance(later, 0.92) == chance(earlier, 0.92)
    later.learn(1, np.log([0.92]), 0)
    assert (earlier.trials, later.trials) == (400, 401)


def test_counts_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4, 4, 7\)"):
        Calibration(np.zeros((3, 4, 4, 7)))


def pool_adjacent_violators(values: list[float], weights: list[float]) -> list[float]:
    """Return the rising values closest to the given ones: neighbours that fall are joined."""
    blocks: list[tuple[float, float, int]] = []  # value, weight, members
    for value, weight in zip(values, weights, strict=True):
        block = (value, weight, 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, mass, members = blocks.pop()
            joined = mass + block[1]
            block = ((mean * mass + block[0] * block[1]) / joined, joined, members + block[2])
        blocks.append(block)
    return [mean for mean, _, members in blocks for _ in range(members)]


_PAIRS = st.lists(st.tuples(st.floats(0, 1), st.floats(0.5, 600)), min_size=1, max_size=24)


@given(_PAIRS)
def test_made_monotone_as_by_joining_neighbours(pairs: list[tuple[float, float]]) -> None:
    values, weights = [value for value, _ in pairs], [weight for _, weight in pairs]
    found = _monotone(np.array(values), np.array(weights))
    assert found.tolist() == pytest.approx(pool_adjacent_violators(values, weights), abs=1e-9)


def random_counts(seed: int, most: int) -> FloatArray:
    """Return counts such as learning could have left them."""
    rng = np.random.default_rng(seed)
    edges = np.concatenate(([0.0], [0.002, 0.005, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3]))
    edges = np.concatenate((edges, [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995, 1.0]))
    shape = (len(DEPTH_STARTS), RANKS, len(edges) - 1)
    trials = rng.integers(0, most + 1, shape)
    hits = rng.integers(0, trials + 1)
    means = edges[:-1] + rng.random(shape) * np.diff(edges)
    return np.stack((trials, hits, trials * means)).astype(np.float64)


@given(seed=st.integers(0, 10**6), most=st.sampled_from([1, 20, 512]))
def test_chances_rise_with_the_probability_and_siblings_sum_to_at_most_one(
    seed: int, most: int
) -> None:
    calibration = Calibration(random_counts(seed, most))
    grid = np.linspace(0.0, 1.0, 101)
    rows = np.random.default_rng(seed).dirichlet(np.ones(RANKS + 1), size=8)
    ordered = np.log(-np.sort(-rows, axis=1))
    for depth in DEPTH_STARTS:
        for rank in range(RANKS):
            alone = np.full((len(grid) - 1, rank + 1), -np.inf)
            alone[:, rank] = np.log(grid[1:])
            chances = calibration.log_chances(depth, alone)[:, rank]
            assert (np.diff(chances) >= -1e-9).all()
        sums = np.exp(calibration.log_chances(depth, ordered)).sum(axis=1)
        assert (sums <= 1 + RANKS * 1e-5).all()


def test_reliability_by_bin() -> None:
    reliability = Reliability()
    reliability.count(np.log([0.55, 0.25, 0.22]), 2)
    reliability.count(np.array([0.0, -np.inf]), 0)  # certainty is in the last bin
    reliability.count(np.log([0.58]), None)
    bins = reliability.bins()
    assert len(bins) == 10
    assert bins[5] == pytest.approx((2, 1.13, 0))
    assert bins[2] == pytest.approx((2, 0.47, 1))
    assert bins[9] == pytest.approx((1, 1.0, 1))
    assert bins[0] == (1, 0.0, 0)
    assert sum(candidates for candidates, _, _ in bins) == 6
