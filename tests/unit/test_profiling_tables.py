"""Latency tables and what corrects them: every expectation is worked out by hand."""

import numpy as np
import pytest

from autodraft.profiling.correction import CorrectedTable, Factor
from autodraft.profiling.tables import LatencyTable, padded

ROWS = (1, 4, 8)
PADDED = LatencyTable((1, 8, 32), (100,), [[1.0, 2.0, 4.0]], padding=(1, 8, 32))


def table() -> LatencyTable:
    return LatencyTable(ROWS, (100, 300), [[1.0, 4.0, 8.0], [3.0, 6.0, 10.0]])


@pytest.mark.parametrize(
    ("rows", "context", "seconds"),
    [
        (4, 100, 4.0),  # measured
        (2, 100, 2.0),  # a third of the way from 1 to 4
        (6, 300, 8.0),
        (4, 200, 5.0),  # half-way between the contexts
        (2, 200, 3.0),
        (1, 10, 1.0),  # below the first context: as at the first
        (12, 100, 12.0),  # beyond the last size: one second a row, as between the last two
        (4, 500, 8.0),  # beyond the last context: one second for each 100 tokens
    ],
)
def test_times_between_and_beyond_what_was_measured(
    rows: int, context: int, seconds: float
) -> None:
    assert table().at(rows, context) == pytest.approx(seconds)


def test_a_time_beyond_never_falls_below_what_was_measured() -> None:
    falling = LatencyTable((1, 2), (100, 200), [[5.0, 4.0], [4.0, 3.0]])
    assert falling.at(1, 10_000) == 4.0
    assert falling.at(1000, 100) == 4.0


def test_rows_that_are_padded_take_what_they_are_padded_to() -> None:
    rows = np.array([1, 2, 8, 9, 32, 33, 64, 65])
    assert PADDED.computed(rows).tolist() == [1, 8, 8, 32, 32, 64, 64, 96]
    # 2 seconds for each 24 rows beyond the last size: 32 more take 8/3 longer
    assert [PADDED.at(size, 100) for size in rows.tolist()] == pytest.approx(
        [1, 2, 2, 4, 4, 4 + 8 / 3, 4 + 8 / 3, 4 + 16 / 3]
    )
    assert padded(rows, np.array([], dtype=np.int64)).tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("rows", "contexts", "seconds", "told"),
    [
        ((1, 2), (100,), [[1.0]], "2 sizes"),
        ((1, 2), (100,), [[1.0, 0.0]], "positive"),
        ((1, 2), (100,), [[1.0, float("nan")]], "positive"),
        ((2, 1), (100,), [[1.0, 1.0]], "do not rise"),
        ((1,), (100, 100), [[1.0], [1.0]], "do not rise"),
        ((), (100,), [[]], "0 sizes"),
    ],
)
def test_what_is_no_table_is_refused(
    rows: tuple[int, ...], contexts: tuple[int, ...], seconds: list[list[float]], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        LatencyTable(rows, contexts, seconds)


def test_a_lasting_change_is_followed_and_kept() -> None:
    corrected = CorrectedTable(table())
    for _ in range(5):
        corrected.observe(4, 100, 3 * 4.0)
    assert corrected.factor.value == pytest.approx(3.0)
    for _ in range(15):
        corrected.observe(4, 100, 3 * 4.0)
        assert corrected.at(4, 100) == pytest.approx(12.0, rel=0.05)
    assert corrected.at(8, 300) == pytest.approx(30.0, rel=0.05)  # never seen, but slower as well


def test_a_change_after_long_calm_is_followed_within_twenty_rounds() -> None:
    corrected = CorrectedTable(table())
    for _ in range(50):
        corrected.observe(4, 100, 4.0)
    for _ in range(20):
        corrected.observe(4, 100, 12.0)
    assert corrected.at(4, 100) == pytest.approx(12.0, rel=0.05)


@pytest.mark.parametrize("times", [10.0, 0.1])
def test_one_outlier_is_ignored(times: float) -> None:
    corrected = CorrectedTable(table())
    for _ in range(10):
        corrected.observe(4, 100, 4.0)
    corrected.observe(4, 100, times * 4.0)
    assert corrected.factor.value == 1.0
    assert corrected.at(4, 100) == pytest.approx(4.0, rel=0.06)
    assert corrected.at(8, 100) == 8.0


def test_one_size_that_was_measured_wrongly_is_corrected_alone() -> None:
    corrected = CorrectedTable(table())
    for _ in range(100):
        corrected.observe(1, 100, 1.0)
        corrected.observe(4, 100, 8.0)  # twice what was measured
        corrected.observe(8, 100, 8.0)
    assert corrected.at(1, 100) == pytest.approx(1.0, rel=0.05)
    assert corrected.at(4, 100) == pytest.approx(8.0, rel=0.05)
    assert corrected.at(8, 100) == pytest.approx(8.0, rel=0.05)


def test_sizes_that_are_padded_alike_are_corrected_together() -> None:
    corrected = CorrectedTable(PADDED)
    for _ in range(100):
        corrected.observe(1, 100, 1.0)
        corrected.observe(32, 100, 4.0)
        corrected.observe(5, 100, 3.0)
    assert corrected.at(8, 100) == corrected.at(2, 100) == pytest.approx(3.0, rel=0.05)


def test_what_is_fixed_never_learns() -> None:
    corrected, factor = CorrectedTable(table(), fixed=True), Factor(fixed=True)
    for _ in range(20):
        corrected.observe(4, 100, 12.0)
        factor.observe(1.0, 3.0)
    assert corrected.at(4, 100) == 4.0
    assert factor.value == 1.0


def test_a_factor_stays_within_its_limits_and_skips_what_is_no_time() -> None:
    factor = Factor()
    factor.observe(0.0, 1.0)
    factor.observe(1.0, 0.0)
    assert factor.value == 1.0
    factor.observe(1.0, 1e9)
    assert factor.value == 20.0


def test_a_step_of_all_sizes_is_not_taken_for_one_of_the_size_that_is_seen() -> None:
    corrected = CorrectedTable(LatencyTable([1, 8], [128], [[1.0, 2.0]]))
    for _ in range(9):
        corrected.observe(8, 128, 2.0)
    for _ in range(9):
        corrected.observe(8, 128, 6.0)  # three times as slow
    assert corrected.at(8, 128) == pytest.approx(6.0)
    assert corrected.at(1, 128) == pytest.approx(3.0)  # and so is what was not seen


def test_all_sizes_up_to_one_are_those_of_each() -> None:
    table = CorrectedTable(PADDED)
    for _ in range(20):
        table.observe(5, 100, 3 * PADDED.at(5, 100))
    for context in (50, 100, 5_000):
        each = [table.at(size, context) for size in range(1, 41)]
        assert table.up_to(40, context).tolist() == pytest.approx(each)
