"""What is expected of trees to come, against means and shapes worked out by hand."""

import numpy as np
import pytest

from autodraft.cost import SECONDS
from autodraft.policy.costs import Latencies, RoundCosts, Shapes
from autodraft.policy.forecast import CHILDREN, ChildForecast, GainTable, shape_gains
from autodraft.profiling.correction import CorrectedTable
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.tables import LatencyTable

DEFAULT = [0.6 * 0.25**rank for rank in range(CHILDREN)]


def of(children: ChildForecast, depth: int, link: float) -> list[float]:
    """Return the expected chances of one node's children."""
    found: list[float] = children.of(depth, np.array([link]))[0].tolist()
    return found


@pytest.mark.parametrize("depth", [0, 1, 9])
@pytest.mark.parametrize("link", [0.01, 0.5, 1.0])
def test_children_that_nothing_is_known_of(depth: int, link: float) -> None:
    assert of(ChildForecast(), depth, link) == pytest.approx(DEFAULT)


def test_children_are_learned_by_depth_and_link() -> None:
    children = ChildForecast()
    children.learn(1, np.array([0.5]), np.array([[0.8, 0.1]]))
    # One trial and four of the assumption; a child that was not proposed had no chance.
    assert of(children, 1, 0.6)[:3] == pytest.approx([3.2 / 5, 0.7 / 5, 0.15 / 5])
    for depth, link in ((0, 0.5), (2, 0.5), (1, 0.3), (1, 0.71), (1, 0.95)):
        assert of(children, depth, link) == pytest.approx(DEFAULT)


def test_several_nodes_at_once() -> None:
    children = ChildForecast()
    children.learn(0, np.array([0.95, 0.95, 0.2]), np.array([[0.9], [0.7], [0.1]]))
    both = children.of(0, np.array([0.99, 0.1]))
    assert both[:, 0] == pytest.approx([(1.6 + 2.4) / 6, (0.1 + 2.4) / 5])
    assert both.shape == (2, CHILDREN)


def test_deep_levels_share_what_they_know() -> None:
    children = ChildForecast()
    children.learn(7, np.array([1.0]), np.array([[1.0]]))
    assert of(children, 3, 1.0) == of(children, 50, 1.0)
    assert of(children, 3, 1.0)[0] == pytest.approx(3.4 / 5)
    assert of(children, 2, 1.0) == pytest.approx(DEFAULT)


def test_more_children_than_are_kept_do_no_harm() -> None:
    children = ChildForecast()
    children.learn(0, np.array([1.0]), np.full((1, CHILDREN + 3), 0.05))
    assert of(children, 0, 1.0)[-1] == pytest.approx((0.05 + 4 * DEFAULT[-1]) / 5)


def test_old_nodes_are_forgotten_and_means_kept() -> None:
    children = ChildForecast()
    for _ in range(401):
        children.learn(0, np.array([1.0]), np.array([[0.5]]))
    assert children.trials[0].tolist() == [0, 0, 0, 200.5]
    assert children.sums[0, 3, 0] == pytest.approx(100.25)
    for _ in range(700):
        children.learn(0, np.array([1.0]), np.array([[0.9]]))
    assert of(children, 0, 1.0)[0] > 0.8


def test_sums_of_an_earlier_time() -> None:
    first = ChildForecast()
    first.learn(0, np.array([1.0]), np.array([[0.9]]))
    second = ChildForecast(first.sums, first.trials)
    second.learn(0, np.array([1.0]), np.array([[0.9]]))
    assert of(first, 0, 1.0)[0] == pytest.approx(3.3 / 5)
    assert of(second, 0, 1.0)[0] == pytest.approx(4.2 / 6)
    with pytest.raises(ValueError, match="shape"):
        ChildForecast(np.zeros((2, 2, 2)), first.trials)
    with pytest.raises(ValueError, match="shape"):
        ChildForecast(first.sums, np.zeros((1, 1)))


def test_gains_of_a_tree_of_seven_nodes() -> None:
    # root → a .5, b .4; a → c .3; b → d .35; c → e .2; d → f .3 (path probabilities)
    parents = np.array([-1, 0, 0, 1, 2, 3, 4])
    depths = np.array([0, 1, 1, 2, 2, 3, 3])
    values = np.log([1.0, 0.5, 0.4, 0.3, 0.35, 0.2, 0.3])
    gains = shape_gains(parents, depths, values, np.array([1, 2]), cap=5)
    assert gains.shape == (3, 2, 6)
    expected = [
        [[0, 0.5, 0.9, 0.9, 0.9, 0.9], [0, 0.5, 0.9, 0.9, 0.9, 0.9]],
        # Width 1 expands a alone, and never sees d.
        [[0, 0.5, 0.9, 1.2, 1.2, 1.2], [0, 0.5, 0.9, 1.25, 1.55, 1.55]],
        # Then c alone; width 2 expands c and d, and the cap leaves e out.
        [[0, 0.5, 0.9, 1.2, 1.4, 1.4], [0, 0.5, 0.9, 1.25, 1.55, 1.85]],
    ]
    assert gains == pytest.approx(np.array(expected))


def test_gains_behind_a_cap_below_the_first_level() -> None:
    gains = shape_gains(
        np.array([-1, 0, 0]), np.array([0, 1, 1]), np.log([1, 0.25, 0.5]), np.array([1]), cap=1
    )
    assert gains == pytest.approx(np.array([[[0, 0.5]]]))


@pytest.mark.parametrize("shape", [(2, 3), (1, 3, 4), (0, 2, 4), (1, 2, 0)])
def test_gains_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="for 2 widths"):
        GainTable(np.array([1, 2]), np.zeros(shape))


def test_ease_is_one_factor_a_text() -> None:
    assert GainTable(np.array([1]), np.zeros((1, 1, 2))).ease.tolist() == [1.0]
    with pytest.raises(ValueError, match="ease"):
        GainTable(np.array([1]), np.zeros((1, 1, 2)), np.zeros((2, 2)))


def costs_of(verify: list[float], cap: int = 3) -> RoundCosts:
    """Return costs by time: 0.1 s a draft step of one row, 0.2 s of two; a bare link."""
    draft = LatencyTable([1, 2], [1], [[0.1, 0.2]])
    target = LatencyTable(list(range(1, len(verify) + 1)), [1], [verify])
    latencies = Latencies(CorrectedTable(draft), CorrectedTable(target), LinkEstimate(0.0))
    return RoundCosts(SECONDS, latencies, context_tokens=1, cap=cap)


STEPPED = [1.0, 1.0, 1.0, 2.0]  # three nodes take twice as long as two
GAINS = GainTable(
    np.array([1, 2]),
    np.array(
        [
            [[0, 0.5, 0.6, 0.65], [0, 0.5, 0.6, 0.65]],
            [[0, 0.5, 0.9, 1.0], [0, 0.5, 1.1, 1.2]],
        ]
    ),
)


@pytest.mark.parametrize(
    ("max_depth", "width", "cost", "gain", "drafting"),
    [
        (2, 2, 1.3, 1.1, 0.3),  # 1.3 / 2.1 = 0.619; three nodes: 2.3 / 2.2
        (2, 1, 1.2, 0.9, 0.2),  # 1.2 / 1.9 = 0.632; depth 1: 1.1 / 1.6 = 0.688
        (1, 2, 1.1, 0.6, 0.1),  # the root's step has one row, whatever the width
        (9, 9, 1.3, 1.1, 0.3),  # what the table does not know is not promised
    ],
)
def test_the_best_fixed_shape(
    max_depth: int, width: int, cost: float, gain: float, drafting: float
) -> None:
    found = Shapes(costs_of(STEPPED), GAINS, max_depth, width).cheapest()
    assert found.cost == pytest.approx(cost)
    assert found.gain == pytest.approx(gain)
    assert found.drafting == pytest.approx(drafting)
    assert found.ratio == pytest.approx(cost / (1 + gain))


def test_the_best_fixed_shape_within_a_smaller_budget() -> None:
    found = Shapes(costs_of(STEPPED, cap=1), GAINS, 2, 2).cheapest()
    assert (found.cost, found.gain) == pytest.approx((1.1, 0.5))


def test_a_bare_root_where_drafting_never_pays() -> None:
    nothing = GainTable(np.array([1]), np.full((2, 1, 4), 0.05))
    found = Shapes(costs_of(STEPPED), nothing, 2, 2).cheapest()  # 1.1 / 1.05 > 1
    assert (found.ratio, found.cost, found.gain, found.drafting) == (1.0, 1.0, 0.0, 0.0)
    assert Shapes(costs_of(STEPPED), GAINS, 0, 2).cheapest().gain == 0.0


def test_each_text_has_its_own_best_shape() -> None:
    gains = GainTable(GAINS.widths, GAINS.gains, np.array([0.0, 0.5, 2.0]))
    found = Shapes(costs_of(STEPPED), gains, 2, 2).by_text()
    # A bare root; 1.3 / 1.55, or one level and two nodes less: 1.2 / 1.45; 1.3 / 3.2.
    assert found == pytest.approx([1.0, 1.2 / 1.45, 1.3 / 3.2])
    assert Shapes(costs_of(STEPPED), gains, 0, 2).by_text() == pytest.approx([1.0] * 3)


def test_what_sending_costs_behind_a_link() -> None:
    draft = LatencyTable([1], [1], [[0.1]])
    target = LatencyTable([1, 2, 3], [1], [[1.0, 1.5, 2.0]])
    link = LinkEstimate(0.5, uplink_bytes_per_s=4.0, downlink_bytes_per_s=7.0)
    latencies = Latencies(CorrectedTable(draft), CorrectedTable(target), link, queue_s=0.25)
    costs = RoundCosts(SECONDS, latencies, context_tokens=1, cap=2)
    # 0.5 s of delay, 14 bytes at 4 and 14 at 7 a second, 0.25 s of queue; 4 bytes a node.
    assert costs.wait_s == pytest.approx([6.25, 7.25, 8.25])
    assert costs.sending == pytest.approx([7.25, 8.75, 10.25])
    assert costs.plain == pytest.approx(1.25)  # streamed: the queue, and no link
