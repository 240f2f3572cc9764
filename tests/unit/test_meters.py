"""Energy meters: what they say about a window, and which one a machine gets."""

import time

import pytest

from autodraft.errors import DataError
from autodraft.meters import Energy, Meter, ModelledMeter, replay_meter
from autodraft.meters.counter import CounterMeter
from autodraft.meters.replay import ReplayCounter


class Clock:
    """A clock that only sleeping, or a test, moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Steps:
    """A counter of a constant power that shows a new value every ``period_s`` only."""

    def __init__(self, clock: Clock, watts: float, period_s: float) -> None:
        self.clock = clock
        self.watts = watts
        self.period_s = period_s
        self.closed = 0

    def read(self) -> float | None:
        return (self.clock.now_s + 1e-9) // self.period_s * self.period_s * self.watts

    def close(self) -> None:
        self.closed += 1


class Readings:
    """A counter that says what it is told."""

    def __init__(self, *joules: float | None) -> None:
        self.joules = list(joules)

    def read(self) -> float | None:
        return self.joules.pop(0)

    def close(self) -> None:
        pass


def test_a_modelled_meter_charges_both_powers_for_their_own_time() -> None:
    energy = ModelledMeter(watts=65.0, idle_watts=15.0).begin().end(busy_s=2.0, total_s=6.0)
    assert energy.gross_j == pytest.approx(2 * 65 + 4 * 15)
    assert energy.net_j == pytest.approx(2 * (65 - 15))


def test_no_time_costs_no_energy() -> None:
    assert ModelledMeter(watts=65.0, idle_watts=15.0).begin().end(0.0, 0.0) == Energy(0.0, 0.0)


def test_a_modelled_window_is_never_busier_than_it_is_long() -> None:
    energy = ModelledMeter(watts=65.0, idle_watts=15.0).begin().end(busy_s=3.0, total_s=2.0)
    assert energy == Energy(130.0, 100.0)


def test_a_modelled_meter_says_that_its_figures_are_modelled() -> None:
    meter: Meter = ModelledMeter(watts=1.0, idle_watts=0.5)
    assert (meter.method, meter.shortest_s, meter.measure_idle(1.0)) == ("modelled", 0.0, 0.5)


# A recording: 10 W for two seconds, then 60 W for three.
RECORDING = ((0.0, 100.0), (2.0, 120.0), (5.0, 300.0))


def test_a_replayed_window_has_the_joules_between_its_ends() -> None:
    clock = Clock()
    meter = replay_meter(RECORDING, clock, clock.sleep)
    clock.now_s = 1.0  # 110 J
    window = meter.begin()
    clock.now_s = 4.0  # 240 J
    assert meter.method == "replay"
    assert window.end(busy_s=2.0, total_s=3.0) == Energy(130.0, None)


def test_net_is_gross_less_the_idle_power_over_the_whole_window() -> None:
    clock = Clock()
    meter = replay_meter(RECORDING, clock, clock.sleep)
    assert meter.measure_idle(2.0) == pytest.approx(10.0)
    window = meter.begin()
    clock.now_s = 5.0
    energy = window.end(busy_s=0.1, total_s=3.0)
    assert energy.gross_j == pytest.approx(180.0)
    assert energy.net_j == pytest.approx(180.0 - 3 * 10.0)


def test_windows_of_one_meter_may_overlap() -> None:
    clock = Clock()
    meter = replay_meter(RECORDING, clock)
    first = meter.begin()
    clock.now_s = 1.0
    second = meter.begin()
    clock.now_s = 2.0
    assert first.end(0.0, 2.0).gross_j == pytest.approx(20.0)
    assert second.end(0.0, 1.0).gross_j == pytest.approx(10.0)


@pytest.mark.parametrize("end_s", [-0.1, 5.1])
def test_outside_a_recording_nothing_is_known(end_s: float) -> None:
    clock = Clock()
    window = replay_meter(RECORDING, clock).begin()
    clock.now_s = end_s
    assert window.end(0.0, 1.0) == Energy(None, None)


def test_a_recording_reaches_to_its_last_sample() -> None:
    clock = Clock()
    clock.now_s = 5.0
    assert ReplayCounter(RECORDING, clock).read() == 300.0


def test_a_recording_replays_in_real_time_by_itself() -> None:
    before_s = time.perf_counter()
    counter = ReplayCounter([(0.0, 0.0), (3600.0, 3600.0)])  # 1 W for an hour
    time.sleep(0.01)
    joules = counter.read()
    assert joules is not None
    assert 0.01 <= joules <= time.perf_counter() - before_s


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ([], "has 0 samples"),
        ([(0.0, 1.0)], "has 1 samples"),
        ([(0.0, 1.0), (0.0, 2.0)], "from 1.0 J at 0.0 s to 2.0 J at 0.0 s"),
        ([(0.0, 1.0), (1.0, 0.5)], "joules must not decrease"),
        ([(0.0, 1.0), (1.0, float("nan"))], "to nan J"),
    ],
)
def test_a_recording_out_of_order_is_refused(samples: list[tuple[float, float]], told: str) -> None:
    with pytest.raises(DataError, match=told):
        replay_meter(samples)


def test_a_window_shorter_than_the_counter_can_tell_has_no_figure() -> None:
    meter = CounterMeter("some", 0.5, Readings(0.0, 7.0, 0.0, 7.0))
    assert meter.begin().end(busy_s=0.4, total_s=0.49) == Energy(None, None)
    assert meter.begin().end(busy_s=0.4, total_s=0.5) == Energy(7.0, None)


@pytest.mark.parametrize(
    "readings", [(None, 7.0), (1.0, None), (7.0, 1.0)], ids=["begin", "end", "reset"]
)
def test_a_reading_that_failed_or_went_back_leaves_no_figure(
    readings: tuple[float | None, float | None],
) -> None:
    assert CounterMeter("some", 0.0, Readings(*readings)).begin().end(1.0, 1.0) == Energy(
        None, None
    )


def test_idle_power_is_exact_on_a_coarse_counter_as_it_is_timed_from_step_to_step() -> None:
    clock = Clock()
    clock.now_s = 0.17  # amid a step: from here for 1.05 s it would show 10 or 11 steps of 0.1 s
    meter = CounterMeter("some", 0.5, Steps(clock, watts=80.0, period_s=0.1), clock, clock.sleep)
    assert meter.measure_idle(1.05) == pytest.approx(80.0, rel=0.002)
    assert 1.05 < clock.now_s - 0.17 < 1.05 + 0.3


def test_idle_power_is_measured_over_the_shortest_window_at_least() -> None:
    clock = Clock()
    meter = CounterMeter("some", 0.5, Steps(clock, watts=80.0, period_s=0.1), clock, clock.sleep)
    assert meter.measure_idle(0.0) == pytest.approx(80.0, rel=0.005)
    assert clock.now_s > 0.5


def test_a_counter_that_stands_still_is_not_waited_for_without_end() -> None:
    clock = Clock()
    meter = CounterMeter("some", 0.5, Steps(clock, watts=0.0, period_s=0.1), clock, clock.sleep)
    assert meter.measure_idle(1.0) == 0.0
    assert clock.now_s == pytest.approx(0.5 + 1.0 + 0.5, abs=0.01)


def test_an_idle_power_that_cannot_be_read_leaves_net_unknown() -> None:
    clock = Clock()
    meter = CounterMeter("some", 0.0, Readings(None, None, 1.0, 4.0), clock, clock.sleep)
    assert meter.measure_idle(1.0) is None
    assert meter.begin().end(1.0, 1.0) == Energy(3.0, None)


def test_net_below_zero_is_kept() -> None:
    clock = Clock()
    meter = CounterMeter("some", 0.0, Readings(0.0, 10.0, 10.0, 19.0), clock, clock.sleep)
    assert meter.measure_idle(1.0) == 10.0
    assert meter.begin().end(0.0, 1.0) == Energy(9.0, -1.0)


def test_a_closed_meter_ends_its_windows_without_a_figure_and_closes_its_counter_once() -> None:
    clock = Clock()
    counter = Steps(clock, watts=80.0, period_s=0.1)
    meter = CounterMeter("some", 0.0, counter, clock, clock.sleep)
    window = meter.begin()
    clock.now_s = 2.0
    meter.close()
    meter.close()
    assert window.end(1.0, 2.0) == Energy(None, None)
    assert counter.closed == 1
