"""When speculation is begun with, given up and tried again, against sums worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.policy.handover import HandOver, Weighed, Worth
from autodraft.policy.opening import TRIAL_SHARE, Opening, Trials, opening_cost

LOSES, PAYS = 1.2, 0.8


def begun(forecast: float = PAYS, confidence: float = 0.0, loss: float = 1.0) -> HandOver:
    handover = HandOver(Opening(), Trials(), enabled=True, confidence=confidence)
    handover.begin(forecast, loss)
    return handover


def rounds_until_alone(handover: HandOver, cost: float, tokens: float, most: int = 100) -> int:
    """Return after how many rounds of 2 units the server decodes alone, at 1 unit a token."""
    for number in range(1, most + 1):
        handover.observe_round(Weighed(cost, tokens, round(tokens), 1.0, 2.0), transfer=0.0)
        if handover.alone:
            return number
    return most + 1


# ----------------------------------------------------------------------------------------- theta


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


# -------------------------------------------------------------------------------------- giving up


@pytest.mark.parametrize(("accepted", "alone"), [(0, True), (2, False)])
def test_given_up_before_round_three_or_never(accepted: int, alone: bool) -> None:
    worth, handover = Worth(2.0, 1.5, 0.0), begun()
    for _ in range(200 if accepted else 2):
        tokens = worth.observe(2.0, 1.5, accepted)
        weighed = Weighed(2.0, tokens, 1 + accepted, 1.0, worth.round_cost)
        handover.observe_round(weighed, transfer=0.0)
    assert handover.alone == alone


def test_a_round_may_be_lost_where_the_chances_are_known() -> None:
    # A token for 2 units loses 1 a round; half a round or a whole one, 1 or 2, may be lost.
    assert rounds_until_alone(begun(), 2.0, 1.0) == 2
    assert rounds_until_alone(begun(confidence=1.0), 2.0, 1.0) == 3
    assert rounds_until_alone(begun(), 3.5, 1.0) == 1


def test_what_breaks_even_goes_on() -> None:
    assert rounds_until_alone(begun(), 2.0, 2.0) == 101


def test_one_round_of_credit_is_kept_and_no_more() -> None:
    handover = begun()
    assert rounds_until_alone(handover, 2.0, 4.0) == 101  # 2 units won each time
    assert rounds_until_alone(handover, 2.0, 1.0) == 4  # −2, then −1, 0, 1, and 2 is too much


def test_bad_luck_is_borne_for_two_rounds() -> None:
    # Worth 3 tokens each time, and one comes: 1 unit is lost of 2, 4 may be.
    handover = begun(confidence=1.0)
    for number in range(1, 6):
        handover.observe_round(Weighed(2.0, 3.0, 1, 1.0, 2.0), transfer=0.0)
        assert handover.alone == (number == 5)
    trial = begun(LOSES, confidence=1.0)
    trial.begin_probe()
    for number in range(1, 4):
        trial.observe_round(Weighed(2.0, 3.0, 1, 1.0, 2.0), transfer=0.0)
        assert trial.alone == (number == 3)


def test_it_can_be_forbidden() -> None:
    handover = HandOver(Opening(), Trials(), enabled=False)
    handover.begin(100.0, loss=1.0)
    assert not handover.alone
    assert rounds_until_alone(handover, 100.0, 1.0) == 101


# -------------------------------------------------------------------------------------- beginning


def test_rounds_begin_where_they_are_expected_to_pay() -> None:
    assert not begun(PAYS).alone
    assert begun(LOSES).alone


def test_an_answer_costs_its_rounds_or_plain_decoding_and_what_was_lost() -> None:
    # Two texts by rounds at 0.5 and 3 units a token; the second one is given up: 2 + 10 / 50.
    by_text = np.array([0.5, 3.0])
    found = opening_cost(by_text, plain=2.0, loss=10.0, tokens=50)
    assert found == pytest.approx((0.5 + 2.2) / 2 / 2.0)
    assert opening_cost(by_text, plain=2.0, loss=1e9, tokens=50) == pytest.approx(3.5 / 2 / 2)


def test_answers_correct_the_forecast() -> None:
    opening = Opening()
    assert opening.expected(0.9) == pytest.approx(0.9)
    opening.learn(cost=1.35, forecast=0.9)  # half as much again
    assert opening.expected(0.9) == pytest.approx(0.9 * (1.5 + 5) / 6)
    for _ in range(100):
        opening.learn(cost=1.35, forecast=0.9)
    assert opening.expected(0.9) == pytest.approx(0.9 * (20 * 1.5 + 5) / 25, rel=0.01)
    assert not opening.pays(0.9)
    assert opening.pays(0.6)  # another link: what is learned is how far forecasts come true


def test_a_blend_begins_with_what_all_say_and_goes_by_its_own_answers() -> None:
    of_all = Opening()
    fast, cheap = Opening(of_all), Opening(of_all)
    for _ in range(4):
        cheap.learn(cost=0.5, forecast=1.0)
    weight = 1 - 0.95**4  # of four answers, over 1 − 0.95
    usual = (0.5 * weight / 0.05 + 5) / (weight / 0.05 + 5)
    assert fast.expected(1.0) == of_all.expected(1.0) == pytest.approx(usual)
    fast.learn(cost=1.5, forecast=1.0)
    fast.learn(cost=1.5, forecast=1.0)
    assert of_all.expected(1.0) < 1.0 < fast.expected(1.0)
    assert cheap.expected(1.0) < of_all.expected(1.0)


def test_an_answer_teaches_what_its_rounds_have_cost() -> None:
    opening = Opening()
    won = HandOver(opening, Trials(), enabled=True)
    won.begin(0.8, loss=1.0)
    # 5 rounds of 2 units for 4 tokens each: 10 units where plain decoding takes 20.
    rounds_until_alone(won, 2.0, 4.0, most=5)
    won.end()
    assert opening.expected(1.0) == pytest.approx((0.5 / 0.8 + 5) / 6)


def test_what_handing_over_takes_counts() -> None:
    opening = Opening()
    lost = HandOver(opening, Trials(), enabled=True)
    lost.begin(1.0 - 1e-9, loss=1.0)
    # 4 units for one token, 1 for handing over, 7 for as many tokens alone: 12 instead of 8.
    lost.observe_round(Weighed(4.0, 1.0, 1, 1.0, 2.0), transfer=1.0)
    assert lost.alone
    lost.observe_alone(7.0)
    lost.end()
    assert opening.expected(1.0) == pytest.approx((1.5 + 5) / 6)


def test_an_answer_of_the_server_alone_teaches_nothing() -> None:
    opening = Opening()
    handover = HandOver(opening, Trials(), enabled=True)
    handover.begin(LOSES, loss=1.0)
    handover.observe_alone(50.0)
    handover.end()
    assert opening.expected(0.7) == 0.7


# ----------------------------------------------------------------------------------------- trials


def test_a_trial_is_paid_for_and_each_one_that_fails_moves_the_next_one_away() -> None:
    trials, waits = Trials(), []
    for _ in range(5):
        paid = 0.0
        while not trials.due(0.25):
            trials.pay_in(1.0)
            paid += 1.0
        waits.append(paid)
        trials.settle(excess=0.25)
    # 50 units pay for a loss of 0.25 twice; then twice as much is wanted, and so on up to 8 times.
    assert waits == pytest.approx([50, 100, 200, 400, 400], abs=1)
    trials.pay_in(1e6)
    trials.settle(excess=-1.0)  # it has won
    trials.pay_in(50.0)
    assert trials.due(0.25)


def test_what_a_trial_costs_beyond_what_was_paid_is_owed() -> None:
    trials = Trials()
    trials.pay_in(100.0)
    trials.settle(excess=3.0)
    trials.pay_in(200.0)
    assert not trials.due(1e-9)
    trials.pay_in(0.001)
    assert trials.due(1e-9 / 2)


def test_an_answer_may_be_a_trial() -> None:
    opening, trials = Opening(), Trials()
    for _ in range(5):
        handover = HandOver(opening, trials, enabled=True)
        handover.begin(LOSES, loss=1.0)
        assert handover.alone
        handover.observe_alone(40.0)
        handover.end()
    trial = HandOver(opening, trials, enabled=True)
    trial.begin(LOSES, loss=1.0)  # 200 units have paid for 1 twice
    assert not trial.alone
    assert rounds_until_alone(trial, 3.5, 1.0) == 1
    trial.end()
    assert opening.expected(1.0) > 1.0
    again = HandOver(opening, trials, enabled=True)
    again.begin(LOSES, loss=1.0)
    assert again.alone


def test_a_trial_within_an_answer_needs_time_to_win_back_what_it_may_lose() -> None:
    handover = begun(LOSES)
    handover.observe_alone(200.0)
    assert not handover.probe_is_due(loss=1.01, left=1e6)
    assert not handover.probe_is_due(loss=1.0, left=99.0)
    assert handover.probe_is_due(loss=1.0, left=100.0)
    handover.begin_probe()
    assert not handover.alone
    assert rounds_until_alone(handover, 2.0, 1.0) == 2  # given up as rounds are


@given(loss=st.floats(0.1, 5), cost=st.floats(1.1, 4), tokens=st.integers(1, 3))
def test_trials_take_no_more_than_their_share(loss: float, cost: float, tokens: int) -> None:
    handover, plain, lost = begun(LOSES), 0.0, 0.0
    usual = cost * tokens
    while plain < 3000:
        handover.observe_alone(1.0)
        plain += 1.0
        if handover.probe_is_due(loss, left=1e9):
            handover.begin_probe()
            while not handover.alone:
                weighed = Weighed(usual, tokens, tokens, 1.0, usual)
                handover.observe_round(weighed, transfer=0.0)
                lost += usual - tokens
    most = usual * 0.5 + usual  # of one trial: patience, and the round that exceeds it
    assert 0 < lost <= TRIAL_SHARE * plain + most
