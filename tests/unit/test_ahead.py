"""Whether drafting ahead pays, by numbers worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from autodraft.cost import SECONDS, Phases
from autodraft.policy.ahead import (
    CONTROL_EVERY,
    LEAST_ROUNDS,
    RETRY_EVERY,
    Ahead,
    AheadKnowledge,
    spared,
    step_pays,
)
from autodraft.policy.base import Outcome
from autodraft.policy.costs import Latencies, RoundCosts
from autodraft.profiling.correction import CorrectedTable
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.tables import LatencyTable
from autodraft.tree.growth import TreeGrowth

WATTS = replace(SECONDS, draft_s=65.0, wait_s=15.0, verify_s=15.0)
"""The user's device: 65 W at work, 15 W while it waits."""
FORWARD_S, STEP_S, RTT_S = 0.03, 0.004, 0.02

# ----------------------------------------------------------------------------------- one forward


def test_where_only_time_counts_any_chance_pays_while_there_is_time() -> None:
    assert step_pays(0.01, SECONDS, 0.01, overrun_s=0.0)
    assert not step_pays(0.0, SECONDS, 0.01, overrun_s=0.0)


@pytest.mark.parametrize(("chance", "pays"), [(0.76, False), (0.78, True)])
def test_energy_must_be_worth_the_chance(chance: float, pays: bool) -> None:
    # 50 W more than waiting are paid for 65 W · chance: from 0.769 on.
    assert step_pays(chance, WATTS, 0.01, overrun_s=0.0) is pays


@pytest.mark.parametrize(("chance", "pays"), [(0.49, False), (0.51, True)])
def test_a_reply_that_is_kept_waiting_must_be_worth_the_chance(chance: float, pays: bool) -> None:
    assert step_pays(chance, SECONDS, 0.02, overrun_s=0.01) is pays  # half of the forward


@pytest.mark.parametrize(("chance", "pays"), [(0.88, False), (0.89, True)])
def test_energy_and_delay_add_up(chance: float, pays: bool) -> None:
    # Half in place of waiting, 50 a second, half on top, 65: 57.5 of 65 are 0.8846.
    assert step_pays(chance, WATTS, 0.02, overrun_s=0.01) is pays


def test_a_level_spares_what_its_rows_take_less_than_all() -> None:
    step_s = {1: 4.0, 3: 5.0, 8: 6.0}
    assert spared([(1, 0), (8, 3), (8, 0)], step_s.__getitem__) == 4.0 + 1.0 + 6.0
    assert spared([], step_s.__getitem__) == 0.0


# --------------------------------------------------------------------------- what a pair learns


def rounds_with(known: AheadKnowledge, worth: float, count: int) -> list[int]:
    """Return the numbers, from 1, of the rounds that draft ahead."""
    return [number for number in range(1, count + 1) if known.next_round(worth)[0]]


def taught(*, slower: float = 1.0, saved_s: float, spent_s: float = 0.01) -> AheadKnowledge:
    """Return what 400 rounds teach: each promises 10 ms, every eighth is the control."""
    known = AheadKnowledge()
    for number in range(400):
        ahead = number % CONTROL_EVERY > 0
        known.observe_forward(slower if ahead else 1.0, ahead=ahead)
        if ahead:
            known.observe_saving(0.01, saved_s, spent_s)
    return known


def test_every_eighth_round_is_the_control() -> None:
    found = rounds_with(AheadKnowledge(), 0.0, 24)
    assert [number for number in range(1, 25) if number not in found] == [8, 16, 24]


def test_where_it_loses_one_round_in_32_tries_again_and_takes_promises_in_full() -> None:
    known = taught(saved_s=0.0)
    asked = [known.next_round(-1.0) for _ in range(3 * RETRY_EVERY)]
    assert asked.count((True, True)) == 3
    assert asked.count((False, False)) == 3 * RETRY_EVERY - 3


def test_it_is_not_given_up_before_it_was_tried() -> None:
    known = AheadKnowledge()
    for _ in range(LEAST_ROUNDS - 1):
        known.observe_saving(0.01, 0.0, 0.01)
    assert known.next_round(-1.0) == (True, False)
    known.observe_saving(0.01, 0.0, 0.01)
    assert known.next_round(-1.0) == (False, False)


def test_a_slower_target_shows_against_the_control_whatever_the_table_says() -> None:
    assert taught(slower=1.3, saved_s=0.0).slowed == pytest.approx(0.3)
    followed = AheadKnowledge()  # the table took the slowness for its own: the control is quick
    for number in range(400):
        ahead = number % CONTROL_EVERY > 0
        followed.observe_forward(1.0 if ahead else 1 / 1.3, ahead=ahead)
    assert followed.slowed == pytest.approx(0.3)


def test_a_target_elsewhere_is_not_taken_for_slower() -> None:
    assert taught(slower=0.9, saved_s=0.0).slowed == 0.0
    once = AheadKnowledge()
    for _ in range(50):
        once.observe_forward(2.0, ahead=True)
    once.observe_forward(1.0, ahead=False)  # one control says nothing yet
    assert once.slowed == 0.0


def test_a_stray_forward_counts_no_more_than_four_times() -> None:
    known = AheadKnowledge()
    for _ in range(2):
        known.observe_forward(1000.0, ahead=True)
        known.observe_forward(1.0, ahead=False)
    assert known.slowed == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("saved_s", "truth"), [(0.004, 0.4), (0.015, 1.5), (0.0, 0.25), (0.05, 2.0)]
)
def test_promises_are_worth_what_came_of_them_within_bounds(saved_s: float, truth: float) -> None:
    assert taught(saved_s=saved_s).truth == pytest.approx(truth)
    assert AheadKnowledge().truth == 1.0


def test_a_round_with_it_is_worth_its_saving_less_slowness_and_energy() -> None:
    # 4 ms saved against 10 % of 30 ms.
    assert taught(slower=1.1, saved_s=0.004).worth(SECONDS, 0.03) == pytest.approx(0.001)
    assert taught(slower=1.2, saved_s=0.004).worth(SECONDS, 0.03) == pytest.approx(-0.002)
    # 65 W · 4 ms against 50 W · 10 ms.
    assert taught(saved_s=0.004).worth(WATTS, 0.03) == pytest.approx(0.26 - 0.5)


# --------------------------------------------------------------------------------- one request


def request(
    known: AheadKnowledge | None = None, phases: Phases = SECONDS, nodes: int = 4
) -> tuple[Ahead, Latencies]:
    """Return what decides in a request's first round: flat tables, a link of 20 ms."""
    draft = CorrectedTable(LatencyTable([1, 64], [1], [[STEP_S, STEP_S]]))
    target = CorrectedTable(LatencyTable([1, 64], [1], [[FORWARD_S, FORWARD_S]]))
    latencies = Latencies(draft, target, LinkEstimate(RTT_S))
    ahead = Ahead(known or AheadKnowledge(), latencies, 8, lambda depths, logs: logs)
    cut(ahead, latencies, phases, nodes)
    return ahead, latencies


def cut(ahead: Ahead, latencies: Latencies, phases: Phases = SECONDS, nodes: int = 4) -> None:
    ahead.cut(phases, RoundCosts(phases, latencies, 10, 8), nodes)


def outcome(**times: float) -> Outcome:
    given = {"verify_s": FORWARD_S, "wait_s": FORWARD_S + RTT_S, **times}
    given = {"round_s": given["wait_s"] + 0.01, **given}
    return Outcome(
        growth=TreeGrowth(1),
        reached=np.array([0]),
        truths=[3],
        context_tokens=10,
        num_nodes=4,
        draft_s=0.01,
        queue_s=0.0,
        uplink_bytes=0,
        downlink_bytes=0,
        **given,
    )


def test_forwards_end_when_the_reply_is_due() -> None:
    ahead, _ = request()
    assert ahead.pays(8, 0.5, elapsed_s=0.045)  # 45 + 4 ms of 50
    assert ahead.pays(8, 0.5, elapsed_s=0.047)  # 1 ms late of 4
    assert not ahead.pays(8, 0.5, elapsed_s=0.049)  # 3 ms late
    assert not ahead.pays(8, 0.99, elapsed_s=0.9)


def test_a_slowed_target_is_given_the_time_it_takes() -> None:
    ahead, _ = request(taught(slower=2.0, saved_s=0.01))
    assert ahead.pays(8, 0.5, elapsed_s=0.07)  # due at 80 ms


def test_chances_count_as_far_as_they_came_true() -> None:
    for saved_s, pays in ((0.004, False), (0.009, True)):
        ahead, _ = request(taught(saved_s=saved_s))
        assert ahead.pays(8, 0.8, elapsed_s=0.048) is pays  # half late; 0.32, 0.72


def test_a_bare_root_has_nothing_ahead() -> None:
    ahead, _ = request(nodes=0)
    assert not ahead.begin()
    assert request()[0].begin()


def test_what_a_round_was_spared_is_charged_to_the_one_that_drafted_ahead() -> None:
    known = AheadKnowledge()
    ahead, latencies = request(known)
    for _ in range(LEAST_ROUNDS):
        assert ahead.pays(8, 0.5, elapsed_s=0.0)
        assert ahead.pays(8, 0.25, elapsed_s=0.01)
        ahead.observe(outcome(ahead_s=0.01))  # has promised 3 ms
        cut(ahead, latencies)
        assert ahead.remember([(8, 0)]) == STEP_S
        ahead.observe(outcome())
        cut(ahead, latencies)
    assert known.truth == pytest.approx(4 / 3)
    assert known.worth(SECONDS, FORWARD_S) == pytest.approx(STEP_S)


def test_a_round_without_it_is_handed_on_as_it_was() -> None:
    ahead, _ = request(taught(slower=1.5, saved_s=0.01))
    plain = outcome()
    assert ahead.observe(plain) == plain


def test_the_slowness_it_causes_is_taken_off_a_round() -> None:
    ahead, _ = request(taught(slower=1.5, saved_s=0.01))
    seen = ahead.observe(outcome(verify_s=0.045, wait_s=0.065, ahead_s=0.02))
    assert seen.verify_s == pytest.approx(0.03)
    assert seen.wait_s == pytest.approx(0.05)
    assert seen.round_s == pytest.approx(0.06)


@pytest.mark.parametrize(("wait_s", "seen_s"), [(0.054, 0.05), (0.045, 0.045)])
def test_a_reply_that_lay_there_says_nothing_of_the_link(wait_s: float, seen_s: float) -> None:
    """It may have come earlier than it is due, never later: then it would be the link."""
    ahead, latencies = request()
    seen = ahead.observe(outcome(wait_s=wait_s, ahead_s=0.01, overdue=True))
    assert seen.wait_s == pytest.approx(seen_s)
    latencies.observe(seen, 0.0)
    assert latencies.link.rtt_s <= RTT_S + 1e-9


def test_a_reply_that_was_awaited_to_the_end_does() -> None:
    ahead, _ = request()
    assert ahead.observe(outcome(wait_s=0.09, ahead_s=0.01)).wait_s == pytest.approx(0.09)


def test_the_logarithm_is_bounded() -> None:
    known = AheadKnowledge()
    known.observe_forward(0.0, ahead=True)  # a clock that stood still
    assert math.isfinite(known.slowed)
