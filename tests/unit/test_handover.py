"""When speculation is given up and tried again, round by round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.policy.handover import PROBE_SHARE, HandOver, Worth


def rounds_until_alone(handover: HandOver, cost: float, tokens: float, most: int = 100) -> int:
    """Return after how many rounds of 2 units the server decodes alone, at 1 unit a token."""
    for number in range(1, most + 1):
        handover.observe_round(cost, tokens, plain=1.0, round_cost=2.0)
        if handover.alone:
            return number
    return most + 1


def test_theta_begins_with_the_forecast() -> None:
    assert Worth(3.0, 2.0, 0.0).value == pytest.approx(1.0)
    assert Worth(3.0, 2.0, 1.0).value == pytest.approx(1.0)
    assert Worth(3.0, 0.0, 0.0).value == pytest.approx(3.0)


def test_theta_after_one_round_by_hand() -> None:
    worth = Worth(cost=2.0, gain=1.0, confidence=0.0)
    tokens = worth.observe(4.0, promised=3.0, accepted=1)
    # A quarter of the way: cost 2.5, gain 1.5; truth (1 + 1) / (3 + 1).
    assert worth.round_cost == pytest.approx(2.5)
    assert worth.truth == pytest.approx(0.5)
    assert worth.value == pytest.approx(2.5 / 1.75)
    assert tokens == pytest.approx(2.5)
    known = Worth(cost=2.0, gain=1.0, confidence=1.0)  # trusted by 9 tokens, not by 1
    known.observe(4.0, promised=3.0, accepted=1)
    assert known.truth == pytest.approx(10 / 12)


@given(
    start=st.floats(0.1, 10),
    cost=st.floats(0.1, 10),
    promised=st.floats(0.5, 8),
    accepted=st.integers(0, 8),
)
def test_theta_converges_to_the_true_ratio(
    start: float, cost: float, promised: float, accepted: int
) -> None:
    # A tree cannot promise much less than it gives, or the other way, for long.
    accepted = min(max(accepted, round(promised / 3)), round(promised * 3))
    worth = Worth(start, promised, confidence=0.0)
    for _ in range(40):
        worth.observe(cost, promised, accepted)
    assert worth.value == pytest.approx(cost / (1 + accepted), rel=0.05)


def test_theta_follows_a_step_of_the_cost() -> None:
    worth = Worth(1.0, 2.0, confidence=1.0)
    for _ in range(12):
        worth.observe(3.0, 2.0, 2)
    assert worth.value == pytest.approx(1.0, rel=0.05)  # 3 units for 3 tokens


@pytest.mark.parametrize(("accepted", "alone"), [(0, True), (2, False)])
def test_given_up_before_round_three_or_never(accepted: int, alone: bool) -> None:
    worth, handover = Worth(2.0, 1.5, 0.0), HandOver(enabled=True)
    for _ in range(200 if accepted else 2):
        tokens = worth.observe(2.0, 1.5, accepted)
        handover.observe_round(2.0, tokens, plain=1.0, round_cost=worth.round_cost)
    assert handover.alone == alone


def test_a_round_may_be_lost_where_the_chances_are_known() -> None:
    # A token for 2 units loses 1 a round; half a round or a whole one, 1 or 2, may be lost.
    assert rounds_until_alone(HandOver(enabled=True), 2.0, 1.0) == 2
    assert rounds_until_alone(HandOver(enabled=True, confidence=1.0), 2.0, 1.0) == 3
    assert rounds_until_alone(HandOver(enabled=True), 3.5, 1.0) == 1


def test_what_breaks_even_goes_on() -> None:
    assert rounds_until_alone(HandOver(enabled=True), 2.0, 2.0) == 101


def test_one_round_of_credit_is_kept_and_no_more() -> None:
    handover = HandOver(enabled=True)
    assert rounds_until_alone(handover, 2.0, 4.0) == 101  # 2 units won each time
    assert rounds_until_alone(handover, 2.0, 1.0) == 4  # −2, then −1, 0, 1, and 2 is too much


def test_it_can_be_forbidden() -> None:
    handover = HandOver(enabled=False, alone=True)
    assert not handover.alone
    assert rounds_until_alone(handover, 100.0, 1.0) == 101


def test_it_can_begin_alone() -> None:
    assert HandOver(enabled=True, alone=True).alone
    assert not HandOver(enabled=True).alone


def test_waits_double_and_each_begins_anew() -> None:
    handover, now_s = HandOver(enabled=True, alone=True), 7.0
    for wait_s in (50.0, 100.0, 200.0, 400.0):
        handover.begin_alone(now_s)
        assert not handover.probe_is_due(now_s + wait_s - 0.01, probe_s=0.5, left_s=1e6)
        assert handover.probe_is_due(now_s + wait_s, probe_s=0.5, left_s=1e6)
        handover.begin_probe()
        assert not handover.alone
        now_s += wait_s + 0.5


def test_nothing_is_tried_where_too_little_is_left() -> None:
    handover = HandOver(enabled=True, alone=True)
    handover.begin_alone(0.0)
    assert not handover.probe_is_due(80.0, probe_s=0.5, left_s=49.9)
    assert handover.probe_is_due(80.0, probe_s=0.5, left_s=50.0)


def test_a_trial_is_given_up_as_speculation_was() -> None:
    handover = HandOver(enabled=True)
    rounds_until_alone(handover, 2.0, 1.0)
    handover.begin_alone(0.0)
    handover.begin_probe()
    assert rounds_until_alone(handover, 2.0, 1.0) == 2  # what was lost before is forgotten


@given(probe_s=st.floats(0.01, 3), step_s=st.floats(0.01, 1))
def test_trials_take_no_more_than_their_share(probe_s: float, step_s: float) -> None:
    handover, now_s, trials_s = HandOver(enabled=True, alone=True), 0.0, 0.0
    handover.begin_alone(now_s)
    while now_s < 2000 * probe_s:
        now_s += step_s
        if handover.probe_is_due(now_s, probe_s, left_s=1e9):
            handover.begin_probe()
            now_s += probe_s
            trials_s += probe_s
            handover.begin_alone(now_s)
        assert trials_s <= PROBE_SHARE * now_s + 1e-9
    assert trials_s > 0
