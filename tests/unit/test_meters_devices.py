"""The counters of GPUs and CPU packages, and the choice among them, on fakes of both."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autodraft.meters import Energy, choose_meter
from autodraft.meters.counter import CounterMeter, Unavailable
from autodraft.meters.nvml import PowerCounter, nvml_meter, nvml_power_meter
from autodraft.meters.rapl import RaplCounter, rapl_meter


class NvmlFault(Exception):
    """The fake's own error."""


class FakeNvml:
    """The driver's library for some GPUs, whose counters and powers a test sets."""

    NVMLError = NvmlFault

    def __init__(self, *uuids: str) -> None:
        self.energy_mj: dict[str, int | None] = dict.fromkeys(uuids, 0)  # None: has no counter
        self.power_mw: dict[str, int | None] = dict.fromkeys(uuids, 0)
        self.starts = True
        self.open = 0
        self.asked: set[str] = set()
        self.power_readings = 0
        self.many_readings = threading.Event()

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.starts:
            raise NvmlFault("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid not in self.energy_mj:
            raise NvmlFault("Not Found")
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: str) -> int:  # noqa: N802
        return self._tell(gpu, self.energy_mj)

    def nvmlDeviceGetPowerUsage(self, gpu: str) -> int:  # noqa: N802
        self.power_readings += 1
        if self.power_readings >= 5:
            self.many_readings.set()
        return self._tell(gpu, self.power_mw)

    def _tell(self, gpu: str, values: dict[str, int | None]) -> int:
        self.asked.add(gpu)
        value = values[gpu]
        if value is None:
            raise NvmlFault("Not Supported")
        return value


def opened(found: CounterMeter | Unavailable) -> CounterMeter:
    assert isinstance(found, CounterMeter), found
    return found


def test_the_counters_of_the_gpus_in_use_are_added_and_no_other() -> None:
    nvml = FakeNvml("GPU-a", "GPU-b", "GPU-c")
    meter = opened(nvml_meter(["GPU-a", "GPU-c"], nvml))
    nvml.energy_mj = {"GPU-a": 5_000, "GPU-b": 70_000, "GPU-c": 1_000}
    window = meter.begin()
    nvml.energy_mj = {"GPU-a": 8_500, "GPU-b": 99_000, "GPU-c": 1_250}
    assert window.end(busy_s=0.1, total_s=2.0) == Energy(3.5 + 0.25, None)
    assert nvml.asked == {"GPU-a", "GPU-c"}
    assert meter.method == "nvml"


def test_idle_power_of_gpus_is_taken_off() -> None:
    nvml = FakeNvml("GPU-a")
    seconds = [0.0]

    def sleep(duration_s: float) -> None:
        seconds[0] += duration_s
        nvml.energy_mj["GPU-a"] = round(seconds[0] * 40_000)  # 40 W

    meter = opened(nvml_meter(["GPU-a"], nvml))
    meter._clock, meter._sleep = lambda: seconds[0], sleep
    assert meter.measure_idle(1.0) == pytest.approx(40.0)
    nvml.energy_mj["GPU-a"] = 0
    window = meter.begin()
    nvml.energy_mj["GPU-a"] = 500_000
    energy = window.end(1.0, total_s=3.0)
    assert energy.gross_j == pytest.approx(500.0)
    assert energy.net_j == pytest.approx(500.0 - 3 * 40.0)


def test_a_gpu_that_stops_answering_leaves_a_hole_and_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nvml = FakeNvml("GPU-a")
    meter = opened(nvml_meter(["GPU-a"], nvml))
    window = meter.begin()
    nvml.energy_mj["GPU-a"] = None
    assert window.end(1.0, 1.0) == Energy(None, None)
    assert "Not Supported" in caplog.text


@pytest.mark.parametrize("kind", [nvml_meter, nvml_power_meter])
def test_what_was_opened_is_closed(
    kind: Callable[[list[str], Any], CounterMeter | Unavailable],
) -> None:
    nvml = FakeNvml("GPU-a")
    meter = opened(kind(["GPU-a"], nvml))
    assert nvml.open == 1
    meter.close()
    assert nvml.open == 0
    assert isinstance(kind(["GPU-of-another-machine"], nvml), Unavailable)
    assert nvml.open == 0


def power_counter(nvml: FakeNvml, seconds: list[float], *gpus: str) -> PowerCounter:
    """A counter that reads when the test does: its own next reading is an hour away."""
    return PowerCounter(nvml, gpus, poll_s=3600.0, clock=lambda: seconds[0])


def test_power_is_integrated_in_trapezoids_over_the_gpus_in_use() -> None:
    nvml, seconds = FakeNvml("GPU-a", "GPU-b", "GPU-c"), [10.0]
    nvml.power_mw = {"GPU-a": 50_000, "GPU-b": 30_000, "GPU-c": 300_000}
    counter = power_counter(nvml, seconds, "GPU-a", "GPU-b")
    seconds[0], nvml.power_mw["GPU-a"] = 12.0, 70_000
    assert counter.read() == pytest.approx((80 + 100) / 2 * 2)
    seconds[0], nvml.power_mw["GPU-b"] = 12.5, 10_000
    assert counter.read() == pytest.approx(180 + (100 + 80) / 2 * 0.5)
    counter.close()


def test_after_a_failed_reading_of_power_no_sum_is_known(caplog: pytest.LogCaptureFixture) -> None:
    nvml, seconds = FakeNvml("GPU-a"), [0.0]
    counter = power_counter(nvml, seconds, "GPU-a")
    nvml.power_mw["GPU-a"] = None
    assert counter.read() is None
    nvml.power_mw["GPU-a"] = 50_000
    assert counter.read() is None
    assert caplog.text.count("no energy from now on") == 1
    counter.close()


def test_power_is_read_in_the_background() -> None:
    nvml = FakeNvml("GPU-a")
    counter = PowerCounter(nvml, ["GPU-a"], poll_s=0.001)
    assert nvml.many_readings.wait(timeout=30.0)
    counter.close()
    readings = nvml.power_readings
    assert not counter._poller._thread.is_alive()
    assert nvml.power_readings == readings


class Powercap:
    """A folder like ``/sys/class/powercap``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def zone(self, zone: str, name: str, energy_uj: int, range_uj: int = 1_000_000_000) -> Path:
        folder = self.root / zone
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n")
        (folder / "energy_uj").write_text(f"{energy_uj}\n")
        (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
        return folder

    def set(self, zone: str, energy_uj: int) -> None:
        (self.root / zone / "energy_uj").write_text(f"{energy_uj}\n")


@pytest.fixture
def powercap(tmp_path: Path) -> Powercap:
    return Powercap(tmp_path)


@pytest.fixture
def laptop(powercap: Powercap) -> Powercap:
    """One package with its parts, the platform, and the package once more."""
    (powercap.root / "intel-rapl").mkdir()  # the control, which has no name
    powercap.zone("intel-rapl:0", "package-0", 5_000_000)
    powercap.zone("intel-rapl:0:0", "core", 4_000_000)
    powercap.zone("intel-rapl:0:1", "uncore", 100_000)
    powercap.zone("intel-rapl:0:2", "dram", 200_000)
    powercap.zone("intel-rapl:1", "psys", 9_000_000)
    powercap.zone("intel-rapl-mmio:0", "package-0", 5_000_000)
    return powercap


def test_a_package_is_counted_once_and_without_its_parts_or_the_platform(
    laptop: Powercap,
) -> None:
    meter = opened(rapl_meter(laptop.root))
    window = meter.begin()
    for zone in laptop.root.glob("*:*"):
        laptop.set(zone.name, 99_000_000)
    laptop.set("intel-rapl:0", 17_500_000)
    assert window.end(busy_s=1.0, total_s=1.0) == Energy(12.5, None)
    assert meter.method == "rapl"
    meter.close()


def test_packages_are_added(powercap: Powercap) -> None:
    powercap.zone("intel-rapl:0", "package-0", 0)
    powercap.zone("intel-rapl:1", "package-1-die-0", 500_000)
    meter = opened(rapl_meter(powercap.root))
    window = meter.begin()
    powercap.set("intel-rapl:0", 2_000_000)
    powercap.set("intel-rapl:1", 4_000_000)
    assert window.end(1.0, 1.0) == Energy(5.5, None)
    meter.close()


def test_each_wrap_is_made_up_for_by_its_own_range(powercap: Powercap) -> None:
    folders = [
        powercap.zone("intel-rapl:0", "package-0", 9_000_000, range_uj=10_000_000),
        powercap.zone("intel-rapl:1", "package-1", 6_000_000, range_uj=7_000_000),
    ]
    counter = RaplCounter(folders, poll_s=3600.0)
    powercap.set("intel-rapl:0", 3_000_000)  # 1 J to the end and 3 J from the beginning
    powercap.set("intel-rapl:1", 6_500_000)  # 0.5 J
    assert counter.read() == pytest.approx(4.5)
    powercap.set("intel-rapl:0", 2_000_000)  # 9 J
    powercap.set("intel-rapl:1", 1_000_000)  # 1.5 J
    assert counter.read() == pytest.approx(4.5 + 10.5)
    counter.close()


def test_a_long_window_misses_no_wrap_as_the_counter_is_read_in_the_background(
    powercap: Powercap,
) -> None:
    """Five wraps in one window, each past the reading of the background alone."""
    zone = powercap.zone("intel-rapl:0", "package-0", 0, range_uj=10_000_000)
    counter = RaplCounter([zone], poll_s=0.001)
    package = counter._packages[0]
    at_uj, read = 0, threading.Event()
    advance = package.advance

    def noticed() -> int:
        total_uj = advance()
        read.set()
        return total_uj

    package.advance = noticed  # type: ignore[method-assign]
    for _ in range(10):
        at_uj = (at_uj + 6_000_000) % 10_000_000
        with counter._lock:  # a file is not read half written, as sysfs never is
            powercap.set("intel-rapl:0", at_uj)
            read.clear()
        assert read.wait(timeout=30.0)
    assert counter.read() == pytest.approx(60.0)
    counter.close()


@pytest.mark.parametrize(
    ("range_uj", "poll_s"), [(262_143_328_850, 131.07), (65_532_610_987, 32.77)]
)
def test_the_background_reads_twice_as_often_as_a_package_of_1_kw_wraps(
    powercap: Powercap, range_uj: int, poll_s: float
) -> None:
    powercap.zone("intel-rapl:0", "package-0", 0, range_uj=262_143_328_850)
    powercap.zone("intel-rapl:1", "package-1", 0, range_uj=range_uj)
    counter = RaplCounter(sorted(powercap.root.glob("*:*")))
    assert counter._poller._every_s == pytest.approx(poll_s, abs=0.01)
    counter.close()


def test_a_package_that_cannot_be_read_for_a_while_leaves_a_hole_in_that_window_alone(
    powercap: Powercap, caplog: pytest.LogCaptureFixture
) -> None:
    zone = powercap.zone("intel-rapl:0", "package-0", 0)
    meter = opened(rapl_meter(powercap.root))
    window = meter.begin()
    (zone / "energy_uj").unlink()
    assert window.end(1.0, 1.0) == Energy(None, None)
    assert "energy_uj" in caplog.text
    powercap.set("intel-rapl:0", 1_000_000)
    window = meter.begin()
    powercap.set("intel-rapl:0", 4_000_000)
    assert window.end(1.0, 1.0) == Energy(3.0, None)
    meter.close()


@pytest.fixture
def locked(laptop: Powercap, monkeypatch: pytest.MonkeyPatch) -> Powercap:
    """Counters that only root may read, for a test that may itself be root."""
    read_text = Path.read_text

    def refuse(path: Path, *args: Any, **options: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    return laptop


def test_counters_that_may_not_be_read_say_how_to_allow_it(locked: Powercap) -> None:
    found = rapl_meter(locked.root)
    assert isinstance(found, Unavailable)
    assert found.reason == (
        f"{locked.root}/intel-rapl:0/energy_uj may not be read (ask an administrator to run: "
        f"chmod a+r {locked.root}/intel-rapl:*/energy_uj)"
    )


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("energy_uj", "much", "invalid literal for int"),
        ("max_energy_range_uj", "0", "max_energy_range_uj is not above 0"),
        ("max_energy_range_uj", None, "No such file"),
    ],
)
def test_counters_that_make_no_sense_are_not_used(
    powercap: Powercap, file: str, text: str | None, told: str
) -> None:
    folder = powercap.zone("intel-rapl:0", "package-0", 0)
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    found = rapl_meter(powercap.root)
    assert isinstance(found, Unavailable)
    assert told in found.reason


def test_a_cpu_with_a_counter_gets_rapl(laptop: Powercap) -> None:
    chosen = choose_meter((), 65.0, 15.0, rapl_root=laptop.root)
    assert chosen.meter.method == "rapl"
    assert chosen.reason == ("The RAPL counters of the CPU packages, as no NVIDIA GPU is in use.")
    chosen.meter.close()


def test_a_cpu_without_a_counter_is_modelled(tmp_path: Path) -> None:
    chosen = choose_meter((), 65.0, 15.0, rapl_root=tmp_path / "powercap")
    assert chosen.meter.method == "modelled"
    assert chosen.meter.begin().end(1.0, 2.0) == Energy(80.0, 50.0)
    assert chosen.reason == (
        "Compute time by configured watts, because there is no RAPL counter under "
        f"{tmp_path}/powercap."
    )


def test_a_gpu_with_a_counter_gets_nvml_even_beside_rapl(laptop: Powercap) -> None:
    chosen = choose_meter(["GPU-a"], 65.0, 15.0, rapl_root=laptop.root, nvml=FakeNvml("GPU-a"))
    assert chosen.meter.method == "nvml"
    assert chosen.reason == "The energy counter of GPU-a."
    chosen.meter.close()


def test_one_gpu_without_a_counter_has_the_power_of_all_polled(laptop: Powercap) -> None:
    nvml = FakeNvml("GPU-new", "GPU-old")
    nvml.energy_mj["GPU-old"] = None
    chosen = choose_meter(["GPU-new", "GPU-old"], 65.0, 15.0, rapl_root=laptop.root, nvml=nvml)
    assert chosen.meter.method == "nvml_power"
    assert chosen.reason == (
        "The power of GPU-new, GPU-old, read every 50 ms and integrated, because the energy "
        "counter of GPU-new, GPU-old cannot be read (Not Supported)."
    )
    assert nvml.open == 1
    chosen.meter.close()
    assert nvml.open == 0


def test_a_gpu_that_tells_nothing_is_modelled_not_charged_as_a_cpu(laptop: Powercap) -> None:
    nvml = FakeNvml("GPU-a")
    nvml.energy_mj["GPU-a"] = nvml.power_mw["GPU-a"] = None
    chosen = choose_meter(["GPU-a"], 300.0, 60.0, rapl_root=laptop.root, nvml=nvml)
    assert chosen.meter.method == "modelled"
    assert chosen.reason == (
        "Compute time by configured watts, because the energy counter of GPU-a cannot be read "
        "(Not Supported), and the power of GPU-a cannot be read (Not Supported)."
    )
    assert nvml.open == 0


def test_a_driver_that_does_not_answer_is_named_once() -> None:
    nvml = FakeNvml("GPU-a")
    nvml.starts = False
    chosen = choose_meter(["GPU-a"], 300.0, 60.0, nvml=nvml)
    assert chosen.meter.method == "modelled"
    assert chosen.reason == (
        "Compute time by configured watts, because the NVIDIA driver does not answer "
        "(Driver Not Loaded)."
    )


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # makes its import fail
    chosen = choose_meter(["GPU-a"], 300.0, 60.0)
    assert chosen.meter.method == "modelled"
    assert "pip install 'autodraft-sd[energy]'" in chosen.reason


def test_the_drivers_library_is_left_alone_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    choose_meter((), 65.0, 15.0, rapl_root=tmp_path)
    assert "pynvml" not in sys.modules


def test_the_real_library_has_the_functions_that_the_meters_call() -> None:
    pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    called = [name for name in vars(FakeNvml) if name.lower().startswith("nvml")]
    assert len(called) == 6
    assert [name for name in called if not hasattr(pynvml, name)] == []
    assert issubclass(pynvml.NVMLError, Exception)
