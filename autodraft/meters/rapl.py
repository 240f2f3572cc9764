"""Energy of CPU packages, from the counters that Linux shows under ``/sys/class/powercap``.

RAPL counts whole packages: every process on them, and no GPU, disk or screen. This module knows the
layout of that folder and no processor.
"""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autodraft.meters.counter import CounterMeter, Poller, Unavailable

logger = logging.getLogger(__name__)

RAPL_ROOT: Final = Path("/sys/class/powercap")

# Kernels since 2020 show the counters to root alone, as they can betray what other users compute.
_WAY_OUT: Final = "ask an administrator to run: chmod a+r {root}/intel-rapl:*/energy_uj"

_UJ_PER_J: Final = 1e6
_SHORTEST_S: Final = 0.05  # the counters step about every millisecond

# A counter starts again at 0 when it is full, after a minute at the earliest (65 kJ at 1 kW, more
# than a package draws). Twice as many readings as that takes miss no such wrap.
_MOST_WATTS: Final = 1000.0
_READS_PER_WRAP: Final = 2


class RaplCounter:
    """Joules of all packages since the counter was made, whatever wraps meanwhile."""

    def __init__(self, folders: Sequence[Path], poll_s: float | None = None) -> None:
        """Read all packages once and go on in the background, so that no wrap is missed.

        Args:
            folders: One for each package.
            poll_s: Seconds between two readings; None for as many as the counters allow.

        Raises:
            OSError: A counter cannot be read.
            ValueError: A file holds no positive whole number.
        """
        self._packages = [_Package(folder) for folder in folders]
        self._lock = threading.Lock()
        fullest_j = min(package.range_uj for package in self._packages) / _UJ_PER_J
        self._poller = Poller(self.read, poll_s or fullest_j / _MOST_WATTS / _READS_PER_WRAP)

    def read(self) -> float | None:
        """Return the joules so far; None when a package cannot be read now."""
        with self._lock:
            try:
                return sum(package.advance() for package in self._packages) / _UJ_PER_J
            except (OSError, ValueError) as error:
                logger.warning("the RAPL counters cannot be read: %s", error)
                return None

    def close(self) -> None:
        """End the reading."""
        self._poller.close()


class _Package:
    """The counter of one package, unwrapped.

    Attributes:
        range_uj: Where the counter starts again at 0, in microjoules.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "energy_uj"
        self.range_uj = _whole(folder / "max_energy_range_uj")
        if self.range_uj <= 0:
            raise ValueError(f"{folder / 'max_energy_range_uj'} is not above 0")
        self._last_uj = _whole(self._file)
        self._total_uj = 0

    def advance(self) -> int:
        """Return the microjoules since the beginning."""
        now_uj = _whole(self._file)
        self._total_uj += (now_uj - self._last_uj) % self.range_uj
        self._last_uj = now_uj
        return self._total_uj


def rapl_meter(root: Path = RAPL_ROOT) -> CounterMeter | Unavailable:
    """Return a meter over the packages of this machine.

    Args:
        root: The powercap folder.
    """
    folders = _packages(root)
    if not folders:
        return Unavailable(f"there is no RAPL counter under {root}")
    try:
        counter = RaplCounter(folders)
    except PermissionError as error:
        return Unavailable(f"{error.filename} may not be read ({_WAY_OUT.format(root=root)})")
    except (OSError, ValueError) as error:
        return Unavailable(f"the RAPL counters cannot be read ({error})")
    return CounterMeter("rapl", _SHORTEST_S, counter)


def _packages(root: Path) -> list[Path]:
    """Return the folders of the packages, and of nothing that a package holds or that holds it.

    Listed beside them are ``core`` and ``uncore``, parts of a package, ``dram``, a part on some
    processors only, and ``psys``, the whole platform. ``intel-rapl-mmio`` shows the same packages
    once more.
    """
    zones = sorted(root.glob("intel-rapl:*"))
    return [zone for zone in zones if _name(zone).startswith("package-")]


def _name(zone: Path) -> str:
    try:
        return (zone / "name").read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # a control without a name is no zone
        return ""


def _whole(path: Path) -> int:
    return int(path.read_text(encoding="ascii", errors="replace"))
