"""Limits beside the blend, on systems whose right mixture is known by hand."""

from collections.abc import Sequence

import pytest

from autodraft.config import SloConfig
from autodraft.cost import SECONDS, CurvePoint, Phases, weighted
from autodraft.errors import ConfigError
from autodraft.policy.limits import (
    GAIN,
    MARGIN,
    MOST,
    Rates,
    Steering,
    Usage,
    aim_at,
    bounds_of,
    multipliers_at,
)

# A dollar for a second of the target's forward, and nothing else costs anything.
DOLLARS = Phases(
    draft_s=0.0,
    verify_s=1.0,
    wait_s=0.0,
    uplink_byte=0.0,
    downlink_byte=0.0,
    plain_s=1.0,
    server_only_s=1.0,
)
RATES = Rates(tau_s=1.0, kappa_usd=1.0, dollars=DOLLARS)
FAST = Usage(0.0, 0.5, 0.0)  # half a second and half a dollar
CHEAP = Usage(0.0, 0.125, 1.875)  # two seconds and an eighth of a dollar


def steering(nominal: Phases = DOLLARS, **limits: float) -> Steering:
    return Steering(nominal, RATES, SloConfig(**limits))


def decode(steered: Steering, tokens: int, modes: Sequence[Usage] = (FAST, CHEAP)) -> list[Usage]:
    """Make tokens one by one, each by the mode that is cheapest at present weights."""
    made = []
    for _ in range(tokens):
        mode = min(modes, key=lambda used: steered.phases.of_round(*used))
        steered.observe(mode, 1, later=1)
        made.append(mode)
    return made


def mean_s(made: Sequence[Usage]) -> float:
    return sum(SECONDS.of_round(*used) for used in made) / len(made)


def mean_usd(made: Sequence[Usage]) -> float:
    return sum(DOLLARS.of_round(*used) for used in made) / len(made)


def test_without_debt_the_blend_is_what_was_asked_for() -> None:
    assert steering(min_tokens_per_s=1.0).phases == DOLLARS
    assert steering(SECONDS, max_cost_per_1m_tokens=1.0).phases == SECONDS


def test_a_multiplier_follows_what_is_used_beyond_the_allowance() -> None:
    steered = steering(min_tokens_per_s=1.0)
    steered.observe(CHEAP, 1, later=0)  # two seconds where one was allowed
    wanted = GAIN * (2.0 - (1.0 - MARGIN))
    assert steered.multipliers == (pytest.approx(wanted), 0.0)
    parts = [(1 / (1 + wanted), DOLLARS), (wanted / (1 + wanted), SECONDS)]
    assert steered.phases.wait_s == pytest.approx(weighted(parts).wait_s)
    assert steered.phases.verify_s == pytest.approx(1.0)  # a plain token still costs 1


def test_tokens_within_the_allowance_take_it_back_to_zero_and_no_further() -> None:
    steered = steering(min_tokens_per_s=1.0)
    steered.observe(CHEAP, 1, later=0)
    for _ in range(20):
        steered.observe(FAST, 1, later=1)
    assert steered.multipliers == (0.0, 0.0)
    assert steered.phases == DOLLARS


def test_the_average_meets_a_speed_that_neither_mode_has() -> None:
    made = decode(steering(min_tokens_per_s=1.0), 1_000)
    # x · 0.5 + (1 − x) · 2 = 0.98
    assert made.count(FAST) / len(made) == pytest.approx(0.68, abs=0.03)
    assert mean_s(made) == pytest.approx(0.98, rel=0.05)


def test_the_average_meets_a_price_that_neither_mode_has() -> None:
    # Fast costs 0.5 + 0.5 λ and cheap 2 + 0.125 λ: alike at λ = 4, where a forecast would begin.
    steered = steering(SECONDS, max_cost_per_1m_tokens=0.25e6)
    steered.start_at(0.0, 4.0)
    made = decode(steered, 1_000)
    assert mean_usd(made) == pytest.approx(0.25 * (1 - MARGIN), rel=0.05)
    assert 0 < made.count(FAST) < len(made)


def test_ten_short_answers_are_enough() -> None:
    for limits in ({"min_tokens_per_s": 1.0}, {"max_tpot_ms": 1000.0}):
        assert mean_s(decode(steering(**limits), 480)) <= 1.05


def test_a_limit_on_later_tokens_leaves_the_first_ones_out() -> None:
    steered = steering(max_tpot_ms=1000.0)
    steered.observe(Usage(0.0, 0.0, 100.0), 1, later=0)
    assert steered.multipliers == (0.0, 0.0)
    steered.observe(Usage(0.0, 0.0, 100.0), 1, later=1)
    assert steered.multipliers[0] > 0


def test_what_cannot_be_met_ends_at_the_extreme_and_recovers() -> None:
    steered = steering(min_tokens_per_s=10.0)
    made = decode(steered, 3_000)
    assert steered.multipliers == (MOST, 0.0)
    assert made[-100:] == [FAST] * 100
    quick = Usage(0.0, 0.001, 0.0)
    for _ in range(int(MOST / (GAIN * 0.09)) + 1):
        steered.observe(quick, 1, later=1)
    assert steered.multipliers == (0.0, 0.0)


def test_limits_on_both_may_pull_apart() -> None:
    steered = steering(weighted([(0.5, SECONDS), (0.5, DOLLARS)]), min_tokens_per_s=2.0)
    both = Steering(DOLLARS, RATES, SloConfig(min_tokens_per_s=4.0, max_cost_per_1m_tokens=0.01e6))
    decode(both, 200)
    time, money = both.multipliers
    assert time > 1
    assert money > 1
    assert steered.multipliers == (0.0, 0.0)


def test_a_forecast_is_where_multipliers_begin() -> None:
    steered = steering(min_tokens_per_s=1.0)
    steered.start_at(1.0, 7.0)
    assert steered.multipliers == (1.0, 0.0)  # money is not limited
    assert steered.phases.wait_s == pytest.approx(0.5)
    steered.start_at(1e9, 0.0)
    assert steered.multipliers == (MOST, 0.0)


# ------------------------------------------------------------------------------- what to expect


def point(cs: float, speed: float, dollars: float) -> CurvePoint:
    return CurvePoint(cs, speed, dollars, dollars, ttft_s=0.2, tpot_s=1 / speed)


CURVE = [point(0.0, 50.0, 9.0), point(0.5, 40.0, 6.0), point(1.0, 20.0, 4.0)]


def test_the_nearest_cost_sensitivity_that_meets_the_limit_is_aimed_at() -> None:
    aim = aim_at(CURVE, SloConfig(min_tokens_per_s=30.0), cs=1.0)
    assert (aim.cs, aim.together) == (0.5, True)
    (found,) = aim.forecasts
    assert found == ("MIN_TOKENS_PER_S", 30.0, 50.0, True)
    assert aim_at(CURVE, SloConfig(max_cost_per_1m_tokens=7.0), cs=0.0).cs == 0.5
    assert aim_at(CURVE, SloConfig(min_tokens_per_s=10.0), cs=1.0).cs == 1.0


def test_what_no_point_meets_is_said_with_the_best_that_one_has() -> None:
    aim = aim_at(CURVE, SloConfig(min_tokens_per_s=60.0, max_ttft_ms=300.0), cs=1.0)
    assert (aim.cs, aim.together) == (0.0, False)
    speed, first = aim.forecasts
    assert speed == ("MIN_TOKENS_PER_S", 60.0, 50.0, False)
    assert first == ("MAX_TTFT_MS", 300.0, pytest.approx(200.0), True)


def test_limits_that_exclude_each_other_are_each_feasible_and_not_together() -> None:
    slo = SloConfig(min_tokens_per_s=45.0, max_cost_per_1m_tokens=5.0)
    aim = aim_at(CURVE, slo, cs=0.5)
    assert not aim.together
    assert all(each.feasible for each in aim.forecasts)


def test_multipliers_move_the_blend_to_another_cost_sensitivity() -> None:
    # (1 − cs + λ) and cs as parts of 1 + λ
    time, money = multipliers_at(1.0, 0.5)
    assert (time, money) == (1.0, 0.0)
    time, money = multipliers_at(0.0, 0.75)
    assert (time, money) == (0.0, pytest.approx(3.0))
    assert multipliers_at(0.5, 0.5) == (0.0, 0.0)
    assert multipliers_at(0.5, 0.0) == (MOST, 0.0)
    assert multipliers_at(0.5, 1.0) == (0.0, MOST)


@pytest.mark.parametrize("name", list(SloConfig.model_fields))
def test_every_limit_bounds_a_figure_in_its_own_unit(name: str) -> None:
    (bound,) = bounds_of(SloConfig(**{name: 100.0}))
    assert bound.tag == name.upper()
    figure = bound.figure(CurvePoint(0.5, 20.0, 7.0, 8.0, ttft_s=0.3, tpot_s=0.05))
    assert figure == pytest.approx(
        {
            "min_tokens_per_s": 20.0,
            "max_cost_per_1m_tokens": 8.0,
            "max_tpot_ms": 50.0,
            "max_ttft_ms": 300.0,
        }[name]
    )
    assert bound.shortfall(50.0) == pytest.approx(1.0 if bound.least else -0.5)


def test_a_limit_is_a_positive_number() -> None:
    for wrong in (0.0, -1.0):
        with pytest.raises(ConfigError):
            SloConfig(min_tokens_per_s=wrong)
