"""Ratios and their intervals, against cases that can be worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.statistics import (
    CONFIDENCE,
    RESAMPLES,
    Estimate,
    Interval,
    Ratio,
    _draws,
    bootstrap,
    estimate,
    percentiles,
)


def test_a_ratio_of_totals_and_a_mean_of_ratios_differ() -> None:
    found = estimate(Ratio([10, 30], [1, 2]))
    assert found.value == pytest.approx(40 / 3)
    assert found.mean_of_questions == pytest.approx((10 + 15) / 2)


def test_a_ratio_against_a_base_divides_totals_and_questions() -> None:
    found = estimate(Ratio([10, 30], [1, 2]), Ratio([10, 30], [2, 3]))
    assert found.value == pytest.approx((40 / 3) / (40 / 5))
    assert found.mean_of_questions == pytest.approx((10 / 5 + 15 / 10) / 2)


def test_questions_with_nothing_to_divide_by_are_left_out_of_the_mean() -> None:
    found = estimate(Ratio([4, 0, 6], [1, 0, 2]))
    assert found.value == pytest.approx(10 / 3)
    assert found.mean_of_questions == pytest.approx((4 + 3) / 2)
    assert found.interval is not None


@pytest.mark.parametrize(
    "ratio",
    [Ratio([], []), Ratio([10.0], [2.0]), Ratio([10.0, 0.0], [2.0, 0.0]), Ratio([0, 0], [0, 0])],
)
def test_fewer_than_two_questions_have_no_interval(ratio: Ratio) -> None:
    assert bootstrap(ratio) is None


def test_nothing_to_divide_by_has_no_interval_and_no_value() -> None:
    assert estimate(Ratio([1, 2], [0, 0])) == Estimate()
    assert estimate(Ratio([1, 2], [1, 1]), Ratio([0, 0], [1, 1])) == Estimate(None, None, None)


def test_the_resamples_draw_as_many_questions_as_there_are() -> None:
    draws = _draws(7)
    assert draws.shape == (RESAMPLES, 7)
    assert (draws.sum(axis=1) == 7).all()
    assert draws.mean(axis=0) == pytest.approx(np.ones(7), abs=0.1)


def test_two_questions_give_the_four_samples_there_are() -> None:
    # (a, a), (a, b), (b, a), (b, b): each end has 25 %, so the outer 2.5 % are the questions.
    assert bootstrap(Ratio([1.0, 3.0], [1.0, 1.0])) == Interval(1.0, 3.0)


def test_a_rare_question_moves_only_one_end() -> None:
    # 10 questions, one of them with 10 instead of 0. It is drawn k times with the chances of a
    # binomial (10, 0.1): P(k ≤ 3) = 0.987, P(k ≤ 2) = 0.930, P(0) = 0.349, so 97.5 % lies at k = 3.
    found = bootstrap(Ratio([10.0] + [0.0] * 9, [1.0] * 10))
    assert found == Interval(0.0, 3.0)


def test_questions_that_are_all_alike_leave_nothing_to_chance() -> None:
    found = bootstrap(Ratio([6.0] * 5, [3.0] * 5))
    assert found is not None
    assert found == pytest.approx((2.0, 2.0), abs=1e-12)


def test_long_questions_weigh_more() -> None:
    # Nearly everything is in the first question; without it (1/e of the resamples) it is 1.
    found = bootstrap(Ratio([1e6, *[1.0] * 9], [1e5, *[1.0] * 9]))
    assert found is not None
    assert found.low == pytest.approx(1.0)
    assert found.high == pytest.approx(10.0, rel=1e-3)


def test_a_unit_changes_the_interval_by_that_unit() -> None:
    parts = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0]
    plain = bootstrap(Ratio(parts, [1.0] * 6))
    scaled = bootstrap(Ratio([part * 1000 for part in parts], [1.0] * 6))
    assert plain is not None
    assert scaled == pytest.approx((plain.low * 1000, plain.high * 1000), rel=1e-12)


def test_the_same_questions_give_the_same_interval() -> None:
    generator = np.random.default_rng(0)
    ratio = Ratio(list(generator.normal(10, 2, 40)), [1.0] * 40)
    first = bootstrap(ratio)
    _draws.cache_clear()
    assert bootstrap(ratio) == first


def test_a_mean_has_the_interval_that_theory_gives_it() -> None:
    values = np.random.default_rng(1).normal(10, 2, 400)
    found = bootstrap(Ratio(list(values), [1.0] * 400))
    assert found is not None
    half = 1.96 * values.std() / 20
    assert found == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)


def test_about_95_of_100_intervals_hold_the_true_ratio() -> None:
    generator = np.random.default_rng(20)
    trials, questions = 600, 60
    tokens = generator.lognormal(5.0, 0.6, (trials, questions))
    pace = generator.lognormal(-3.0, 0.3, (trials, questions))  # seconds a token, by question
    true = 1 / np.exp(-3.0 + 0.3**2 / 2)  # pace and length are independent
    found = [bootstrap(Ratio(list(t), list(t * p))) for t, p in zip(tokens, pace, strict=True)]
    held = sum(interval is not None and interval.low <= true <= interval.high for interval in found)
    assert CONFIDENCE - 0.035 <= held / trials <= CONFIDENCE + 0.025


def test_pairing_makes_the_interval_narrower_where_questions_are_alike_for_both() -> None:
    generator = np.random.default_rng(3)
    tokens = generator.lognormal(5.0, 0.3, 50)
    pace = generator.lognormal(-3.0, 0.5, 50)  # what makes a question slow is slow for both
    slow = Ratio(list(tokens), list(tokens * pace))
    fast = Ratio(list(tokens), list(tokens * pace / 1.5 * generator.normal(1, 0.02, 50)))
    paired = bootstrap(fast, slow)
    apart = [bootstrap(fast), bootstrap(slow)]
    assert paired is not None
    assert None not in apart
    own, base = (interval for interval in apart if interval is not None)
    assert paired.low < 1.5 < paired.high
    unpaired = own.high / base.low - own.low / base.high
    assert paired.high - paired.low < unpaired / 5


def test_a_question_that_is_the_same_for_both_is_drawn_for_both_at_once() -> None:
    ratio = Ratio([1.0, 20.0, 300.0], [3.0, 2.0, 1.0])
    assert bootstrap(ratio, ratio) == Interval(1.0, 1.0)


def test_resamples_with_nothing_to_divide_by_are_left_out() -> None:
    # With two questions, a quarter of the resamples draws the second one alone: 5 / 0.
    assert bootstrap(Ratio([4.0, 5.0], [2.0, 0.0])) == Interval(2.0, 4.5)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(1e-3, 1e6)), min_size=2, max_size=30))
def test_an_interval_lies_between_the_questions_own_ratios(
    parts: list[tuple[float, float]],
) -> None:
    ratio = Ratio([top for top, _ in parts], [bottom for _, bottom in parts])
    values = [value for value in ratio.values if value is not None]
    found = bootstrap(ratio)
    assert found is not None
    assert min(values) * (1 - 1e-9) <= found.low <= found.high <= max(values) * (1 + 1e-9)


def test_percentiles_are_linear_between_neighbours() -> None:
    assert percentiles([4.0, 1.0, 3.0, 2.0], (0, 50, 90, 100)) == pytest.approx([1, 2.5, 3.7, 4])
    assert percentiles([7.0], (50, 99)) == [7.0, 7.0]


def test_without_values_there_are_no_percentiles() -> None:
    assert percentiles([], (50, 90)) == [None, None]
