"""When a frame is out at the other end of a shaped link; every time is worked out by hand."""

import random
import threading
import time

import pytest

from autodraft.config import NetworkSetting
from autodraft.transport.shaping import DelayLine, LineShut, LinkShape, Way


def way(delay_s: float = 0.0, spread_s: float = 0.0, bytes_per_s: float | None = None) -> Way:
    return Way(delay_s, spread_s, bytes_per_s, random.Random(1))


def test_a_delay_moves_every_frame_by_as_much_whatever_its_size() -> None:
    slow = way(delay_s=0.5)
    assert [slow.due(now, size) for now, size in ((10.0, 1), (10.25, 10**6), (12.0, 0))] == [
        10.5,
        10.75,
        12.5,
    ]


def test_a_frame_takes_up_the_way_for_its_bytes_behind_the_frames_before_it() -> None:
    narrow = way(bytes_per_s=100.0)
    assert narrow.due(0.0, 50) == 0.5
    assert narrow.due(0.25, 100) == 1.5  # begins at 0.5, when the first is through
    assert narrow.due(4.0, 25) == 4.25  # the way has long been free
    assert narrow.due(4.25, 0) == 4.25


def test_the_delay_comes_behind_the_bandwidth_and_does_not_hold_up_the_next_frame() -> None:
    both = way(delay_s=2.0, bytes_per_s=100.0)
    assert both.due(0.0, 100) == 3.0  # 1 s to get in, 2 s under way
    assert both.due(0.0, 100) == 4.0  # gets in from 1 to 2


def test_jitter_is_uniform_around_the_delay() -> None:
    jittery = way(delay_s=1.0, spread_s=0.5)
    delays = [jittery.due(now, 0) - now for now in map(float, range(0, 20_000, 10))]
    assert min(delays) >= 0.5
    assert max(delays) <= 1.5
    assert min(delays) < 0.51
    assert max(delays) > 1.49
    # The standard error of the mean of 2,000 draws is 0.0065.
    assert sum(delays) / len(delays) == pytest.approx(1.0, abs=0.03)


def test_jitter_never_makes_a_delay_negative() -> None:
    jittery = way(delay_s=0.25, spread_s=0.75)
    delays = [jittery.due(now, 0) - now for now in map(float, range(0, 20_000, 10))]
    assert min(delays) == 0.0
    # Uniform over -0.5 … 1: a third of the draws lies below 0.
    assert sum(delay == 0.0 for delay in delays) / len(delays) == pytest.approx(1 / 3, abs=0.04)


def test_frames_never_overtake_each_other() -> None:
    jittery = way(delay_s=1.0, spread_s=1.0)
    due = [jittery.due(number * 1e-3, 0) for number in range(1_000)]
    assert due == sorted(due)
    assert all(out >= number * 1e-3 for number, out in enumerate(due))


def test_jitter_is_a_function_of_the_seed_and_differs_between_the_ways() -> None:
    def delays(one: Way) -> list[float]:
        return [one.due(now, 0) - now for now in map(float, range(0, 100, 10))]

    shape = LinkShape(rtt_s=1.0, jitter_s=0.5, seed=3)
    assert delays(shape.uplink) == delays(shape.uplink)
    assert delays(shape.uplink) != delays(shape.downlink)
    assert delays(shape.uplink) != delays(LinkShape(rtt_s=1.0, jitter_s=0.5, seed=4).uplink)


def test_each_way_has_half_the_round_trip_half_the_jitter_and_its_own_bandwidth() -> None:
    shape = LinkShape(rtt_s=1.0, uplink_bytes_per_s=10.0, downlink_bytes_per_s=40.0)
    assert shape.uplink.due(0.0, 20) == 2.5
    assert shape.downlink.due(0.0, 20) == 1.0
    delays = [LinkShape(1.0, 0.5, seed=seed).uplink.due(0.0, 0) for seed in range(500)]
    assert 0.25 <= min(delays) < 0.26
    assert 0.74 < max(delays) <= 0.75


def test_a_network_setting_becomes_a_shape_in_seconds_and_bytes() -> None:
    setting = NetworkSetting(rtt_ms=20, jitter_ms=5, uplink_mbps=8, downlink_mbps=100)
    assert LinkShape.from_setting(setting, 7) == LinkShape(0.02, 0.005, 1e6, 12.5e6, 7)
    assert LinkShape.from_setting(NetworkSetting(), 7) == LinkShape(seed=7)


@pytest.mark.parametrize(
    ("shape", "nothing"),
    [
        (LinkShape(seed=9), True),
        (LinkShape(rtt_s=0.001), False),
        (LinkShape(jitter_s=0.001), False),
        (LinkShape(uplink_bytes_per_s=1e12), False),
        (LinkShape(downlink_bytes_per_s=1e12), False),
    ],
)
def test_only_a_shape_without_delay_and_bandwidth_adds_nothing(
    shape: LinkShape, nothing: bool
) -> None:
    assert shape.adds_nothing is nothing


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rtt_s", -0.1),
        ("rtt_s", float("nan")),
        ("rtt_s", float("inf")),
        ("jitter_s", -0.1),
        ("uplink_bytes_per_s", 0.0),
        ("downlink_bytes_per_s", float("nan")),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{field} is {value}; give "):
        LinkShape(**{field: value})


def test_frames_come_out_in_order_and_not_before_they_are_due() -> None:
    line: DelayLine[str] = DelayLine(way(delay_s=0.05))
    started = time.perf_counter()
    due = [line.put(name, 0) for name in "abc"]
    assert [line.take() for _ in due] == ["a", "b", "c"]
    assert time.perf_counter() >= due[-1] >= started + 0.05


def test_who_comes_late_waits_only_for_the_rest() -> None:
    line: DelayLine[str] = DelayLine(way(delay_s=0.05))
    due = line.put("frame", 0)
    with pytest.raises(TimeoutError):
        line.take(timeout_s=0)
    time.sleep(max(0.0, due - time.perf_counter()))
    assert line.take(timeout_s=0) == "frame"  # it was under way while nobody asked


def test_a_timeout_counts_from_the_call_and_leaves_the_frame() -> None:
    line: DelayLine[str] = DelayLine(way(delay_s=0.3))
    line.put("frame", 0)
    started = time.perf_counter()
    with pytest.raises(TimeoutError, match=r"timed out in 0\.1s"):
        line.take(timeout_s=0.1)
    assert time.perf_counter() - started >= 0.1
    assert line.take(timeout_s=60) == "frame"


def test_who_waits_on_an_empty_line_gets_a_frame_put_in_later() -> None:
    line: DelayLine[str] = DelayLine(way(delay_s=0.01))
    taken: list[str] = []
    taker = threading.Thread(target=lambda: taken.append(line.take()))
    taker.start()
    line.put("frame", 0)
    taker.join(10)
    assert taken == ["frame"]


@pytest.mark.parametrize("frames", [[], ["far away"]])
def test_shutting_wakes_who_waits_and_drops_what_is_under_way(frames: list[str]) -> None:
    line: DelayLine[str] = DelayLine(way(delay_s=3600))
    for frame in frames:
        line.put(frame, 0)
    woken = threading.Event()

    def wait() -> None:
        with pytest.raises(LineShut):
            line.take()
        woken.set()

    taker = threading.Thread(target=wait)
    taker.start()
    line.shut()
    assert woken.wait(10)
    taker.join()
    line.shut()
    assert line.put("lost", 0) <= time.perf_counter()
    with pytest.raises(LineShut):
        line.take(timeout_s=60)
