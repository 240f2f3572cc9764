"""How often an entry is timed, which sizes are, and what pings say of a link; no clock is real."""

from collections.abc import Callable, Iterator
from itertools import cycle, repeat

import pytest

from autodraft.profiling.link import LinkEstimate, measure
from autodraft.profiling.measure import contexts_within, measure_table, sizes_to_time, time_entry

SIZES = (1, 8, 32, 40, 64, 128, 256, 512)


class Calls:
    """A call whose times are read out of an iterator, and that counts itself."""

    def __init__(self, seconds: Iterator[float]) -> None:
        self.count = 0
        self._seconds = seconds

    def __call__(self) -> float:
        self.count += 1
        return next(self._seconds)


def test_steady_times_are_taken_as_often_as_was_asked_for() -> None:
    calls = Calls(repeat(2.0))
    assert time_entry(calls, 10) == 2.0
    assert calls.count == 2 + 10


def test_the_first_two_calls_do_not_count() -> None:
    assert time_entry(Calls(iter([100.0, 100.0, 2.0])), 1) == 2.0


def test_times_that_scatter_are_taken_until_the_limit() -> None:
    calls = Calls(cycle([1.0, 10.0]))
    assert time_entry(calls, 10) == 5.5
    assert calls.count == 2 + 50


def test_times_that_calm_down_are_taken_until_they_are_known() -> None:
    # Ten that scatter, then calm ones: their quartiles are 2 as soon as three in four are calm.
    calls = Calls(iter([0.0, 0.0, *[1.0, 9.0] * 5, *repeat(2.0, 40)]))
    assert time_entry(calls, 10) == 2.0
    assert 2 + 10 < calls.count < 2 + 50


def test_a_few_outliers_make_no_entry_uncertain() -> None:
    calls = Calls(iter([0.0, 0.0, *[2.0] * 8, 50.0, 50.0]))
    assert time_entry(calls, 10) == 2.0


def test_every_size_wanted_is_timed_where_nothing_is_padded() -> None:
    assert sizes_to_time((4, 1, 4, 150)) == [1, 4, 150]


@pytest.mark.parametrize(
    ("wanted", "sizes"),
    [
        ((1, 2, 4, 8, 16, 32), [1, 8, 32]),
        ((1, 150), [1, 8, 32, 40, 64, 128, 256]),  # the steps between are timed too
        ((3,), [1, 8]),
        ((513,), [*SIZES, 1024]),
    ],
)
def test_a_model_that_pads_is_timed_at_its_steps(wanted: tuple[int, ...], sizes: list[int]) -> None:
    assert sizes_to_time(wanted, SIZES) == sizes


def test_a_table_is_made_of_one_entry_for_each_size_and_context() -> None:
    asked: list[tuple[int, int]] = []

    def timer(rows: int, context: int) -> float:
        asked.append((rows, context))
        return rows + context

    table = measure_table(timer, (1, 20), (100, 200), padding=(1, 8, 32), calls=1)
    assert table.rows.tolist() == [1, 8, 32]
    assert table.padding.tolist() == [1, 8, 32]
    # Nothing above 20 rows is asked for: these are padded to 32 by the model itself.
    assert table.seconds.tolist() == [[101, 108, 120], [201, 208, 220]]
    assert len(asked) == 3 * 2 * 3
    assert [context for _, context in asked] == [100] * 9 + [200] * 9


@pytest.mark.parametrize(
    ("max_context", "contexts"),
    [(2048, (128, 768)), (788, (128, 768)), (787, (128,)), (100, (80,)), (10, (1,))],
)
def test_contexts_leave_room(max_context: int, contexts: tuple[int, ...]) -> None:
    assert contexts_within(max_context, room=20) == contexts


def test_a_jump_of_the_delay_is_followed_within_five_rounds() -> None:
    link = LinkEstimate(0.005)
    for _ in range(5):
        link.observe(0.1, 1000, 50)
    assert link.rtt_s == 0.1


def test_one_slow_round_does_not_move_the_delay() -> None:
    link = LinkEstimate(0.005)
    for _ in range(3):
        link.observe(0.005, 0, 0)
    link.observe(3.0, 0, 0)
    assert link.rtt_s == 0.005


def test_the_time_of_the_bytes_is_not_delay() -> None:
    link = LinkEstimate(0.0, uplink_bytes_per_s=1000, downlink_bytes_per_s=500)
    assert link.seconds(100, 50) == pytest.approx(0.2)
    for _ in range(5):
        link.observe(0.5, 100, 50)
    assert link.rtt_s == pytest.approx(0.3)


class FakeLink:
    """Pings that take what a link of this shape takes, and what is added to one after the other."""

    def __init__(
        self, rtt_s: float, up: float, down: float, noise: Callable[[int], float] = lambda _: 0.0
    ) -> None:
        self.pings: list[float] = []
        self._shape = rtt_s, up, down
        self._noise = noise

    def __call__(self, up: int, down: int) -> float:
        rtt_s, up_speed, down_speed = self._shape
        seconds = rtt_s + up / up_speed + down / down_speed + self._noise(len(self.pings))
        self.pings.append(seconds)
        return seconds


@pytest.mark.parametrize("mbps", [0.1, 1.0, 10.0, 50.0])
def test_a_bandwidth_is_found_in_little_time(mbps: float) -> None:
    link = FakeLink(0.02, mbps * 1e6 / 8, mbps * 2e6 / 8)
    found = measure(link)
    assert found.rtt_s == 0.02
    assert found.uplink_bytes_per_s == pytest.approx(mbps * 1e6 / 8)
    assert found.downlink_bytes_per_s == pytest.approx(mbps * 2e6 / 8)
    assert sum(link.pings) - 0.02 * len(link.pings) < 1.0
    assert len(link.pings) == 14


def test_noise_is_no_bandwidth() -> None:
    def noise(place: int) -> float:
        return (0.0, 0.0004, 0.0001, 0.02)[place % 4]  # every fourth ping meets other work

    found = measure(FakeLink(0.0003, 1e9, 1e9, noise))
    assert found.uplink_bytes_per_s == found.downlink_bytes_per_s == float("inf")
    assert found.rtt_s < 0.001


def test_pings_that_other_work_delays_hide_no_bandwidth() -> None:
    found = measure(FakeLink(0.01, 1.25e6, 1.25e6, lambda place: 0.1 * (place % 4 == 1)))
    assert found.uplink_bytes_per_s == pytest.approx(1.25e6)


def test_a_bandwidth_that_no_round_would_notice_is_none() -> None:
    # 64 KiB take 52 ms; a round trip of 1 s hides the millisecond of a round's kilobyte.
    assert measure(FakeLink(1.0, 1.25e6, 1.25e6)).uplink_bytes_per_s == float("inf")
