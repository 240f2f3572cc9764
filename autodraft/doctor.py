"""What this installation has, what it lacks, and the command that gets it.

``diagnose`` looks and changes nothing: no folder is made, no model prepared, nothing downloaded. It
never reads out the access token. Works while packages are missing, torch and transformers among
them. What to do about a report, and where to print it, is the caller's.
"""

import os
import platform
import re
import shutil
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autodraft import __version__, settings
from autodraft.errors import ConfigError
from autodraft.units import BYTES_PER_GB

if TYPE_CHECKING:
    from autodraft.models.hardware import Device

# As in pyproject.toml (a test compares them), here so that they are known without an installation.
REQUIRED: Final = (
    "accelerate>=1.10",
    "filelock>=3.16",
    "gguf>=0.17",
    "jinja2>=3.1",
    "lxml>=5.3",
    "msgspec>=0.19",
    "numpy>=1.26",
    "platformdirs>=4.3",
    "pydantic>=2.10,<3",
    "pyyaml>=6.0.2",
    "safetensors>=0.5",
    "torch>=2.8,<3",
    "transformers>=5.20,<6",
    "websockets>=15",
)
OPTIONAL: Final = {
    "bitsandbytes>=0.48": "8bit and 4bit quantisation",
    "matplotlib>=3.9": "the experiment harness",
    "rich>=13.9": "the experiment harness",
}
_COLUMN: Final = 16


@dataclass(frozen=True)
class PackageState:
    """One package that AutoDraft can use.

    Attributes:
        requirement: Name and allowed versions.
        version: The installed version; None when it is missing.
        purpose: What an optional package is for; None when AutoDraft cannot do without it.
    """

    requirement: str
    version: str | None
    purpose: str | None

    @property
    def name(self) -> str:
        """Its name on the package index."""
        return re.split("[<>=]", self.requirement, maxsplit=1)[0]

    @property
    def fault(self) -> str | None:
        """What is wrong with it, or None."""
        if self.version is None:
            return "missing"
        have = _release(self.version)
        for operator, bound in re.findall(r"(>=|<)([\d.]+)", self.requirement):
            if (have < _release(bound)) == (operator == ">="):
                return f"{self.version} is outside {self.requirement}"
        return None

    @property
    def command(self) -> str:
        """The command that gets it."""
        return f'pip install "{self.requirement}"'


@dataclass(frozen=True)
class EmbeddedState:
    """One embedded model: ``prepared``, ``missing`` (made on first use) or ``damaged``."""

    name: str
    state: str
    folder: Path


@dataclass(frozen=True)
class CacheState:
    """The folder of prepared models.

    Attributes:
        folder: Where it is, or will be.
        writable: Whether files can be made there.
        used_bytes: Size of what it holds.
        free_bytes: Room left on its disk.
    """

    folder: Path
    writable: bool
    used_bytes: int
    free_bytes: int


@dataclass(frozen=True)
class TokenState:
    """The access token, without the token.

    Attributes:
        file: Where a target server keeps it.
        available: Whether a token was found, in that file or in the environment.
        fault: Why it could not be looked up, or None.
    """

    file: Path
    available: bool
    fault: str | None


@dataclass(frozen=True)
class Report:
    """Everything ``diagnose`` found.

    Attributes:
        python: Version of Python.
        system: Operating system and processor family.
        packages: Required packages, then optional ones.
        torch_fault: Why torch, although installed, cannot be used; None when it can.
        torch_threads: Threads of one torch operation on the CPU; None without torch.
        devices: Processors that a model can run on; empty without torch.
        cache: The folder of prepared models.
        embedded: The embedded models; empty while a required package is missing.
        wheel_command: The command that gets the embedded models' wheel; None when it is there.
        token: The access token, without the token.
        bench_dir: Folder of benchmark questions; None when none was named.
    """

    python: str
    system: str
    packages: tuple[PackageState, ...]
    torch_fault: str | None
    torch_threads: int | None
    devices: "tuple[Device, ...]"
    cache: CacheState
    embedded: tuple[EmbeddedState, ...]
    wheel_command: str | None
    token: TokenState
    bench_dir: Path | None

    @property
    def ok(self) -> bool:
        """Whether AutoDraft can run here."""
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """What must be mended, each with the way out."""
        found = [
            f"{package.name}: {package.fault}. Run: {package.command}"
            for package in self.packages
            if package.fault and not package.purpose
        ]
        if self.torch_fault:
            found.append(f"torch cannot be used: {self.torch_fault}. Install it anew.")
        if not self.cache.writable:
            found.append(
                f"The cache folder {self.cache.folder} cannot be written. Set AUTODRAFT_CACHE_DIR "
                "to a writable folder."
            )
        if self.token.fault:
            found.append(self.token.fault)
        if self.bench_dir is not None and not self.bench_dir.is_dir():
            found.append(
                f"AUTODRAFT_BENCH_DIR names {self.bench_dir}, which is no folder. Set it to the "
                "folder of the question files, or unset it."
            )
        return tuple(found)

    @property
    def notes(self) -> tuple[str, ...]:
        """What can be had besides, each with the way to get it."""
        found = [
            f"{package.name}: {package.fault}. For {package.purpose}, run: {package.command}"
            for package in self.packages
            if package.fault and package.purpose
        ]
        not_ready = [model.name for model in self.embedded if model.state != "prepared"]
        if not_ready and self.wheel_command:
            found.append(f"{', '.join(not_ready)} need a wheel. Run: {self.wheel_command}")
        elif not_ready:
            found.append(f"{', '.join(not_ready)} will be prepared at the first use (about 20 s).")
        if not self.token.available and not self.token.fault:
            found.append("There is no access token yet: a target server makes it at its start.")
        if self.bench_dir is None:
            found.append(
                "AUTODRAFT_BENCH_DIR is not set: of the benchmarks only the bundled set quick is "
                "there. Set it to the folder of the question files."
            )
        return tuple(found)


def diagnose() -> Report:
    """Look at this installation and change nothing. Reads every file of the embedded models."""
    packages = tuple(
        PackageState(requirement, _installed_version(requirement), purpose)
        for requirement, purpose in ((dict.fromkeys(REQUIRED) | OPTIONAL).items())
    )
    torch_fault, torch_threads, devices = _torch_state()
    complete = not any(package.version is None and not package.purpose for package in packages)
    embedded, wheel_command = _embedded_state() if complete else ((), None)
    return Report(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        packages=packages,
        torch_fault=torch_fault,
        torch_threads=torch_threads,
        devices=devices,
        cache=_cache_state(settings.cache_dir()),
        embedded=embedded,
        wheel_command=wheel_command,
        token=_token_state(),
        bench_dir=settings.bench_dir(),
    )


def format_report(report: Report) -> str:
    """Return a report as text for a terminal, problems and notes last."""
    cache = report.cache
    lines = [
        f"AutoDraft {__version__}, Python {report.python}, {report.system}",
        "",
        "packages",
        *(_row(p.name, p.version or "missing") for p in report.packages),
        "",
        "devices",
        *(_row(device.name, _device_text(device)) for device in report.devices),
        _row("torch threads", str(report.torch_threads or "unknown")),
        "",
        "files",
        _row("cache", f"{cache.folder}"),
        _row("", f"{_gigabytes(cache.used_bytes)} used, {_gigabytes(cache.free_bytes)} free"),
        *(_row(model.state, model.name) for model in report.embedded),
        _row("access token", _token_text(report.token)),
        _row("benchmarks", str(report.bench_dir or "AUTODRAFT_BENCH_DIR is not set")),
    ]
    for title, texts in (("problems", report.problems), ("notes", report.notes)):
        if texts:
            lines += ["", title, *(f"  - {text}" for text in texts)]
    lines += ["", "Ready." if report.ok else f"Not ready: {len(report.problems)} problem(s)."]
    return "\n".join(lines)


def _installed_version(requirement: str) -> str | None:
    try:
        return metadata.version(PackageState(requirement, None, None).name)
    except metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers a version starts with: ``2.13.0+cpu`` gives (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _torch_state() -> "tuple[str | None, int | None, tuple[Device, ...]]":
    if find_spec("torch") is None:  # already reported as a missing package
        return None, None, ()
    try:
        from autodraft.models import hardware
    except (ImportError, OSError) as error:  # a broken installation, a missing system library
        return " ".join(str(error).split()), None, ()
    return None, hardware.torch_threads(), hardware.devices()


def _embedded_state() -> tuple[tuple[EmbeddedState, ...], str | None]:
    from autodraft.models import embedded

    states = tuple(
        EmbeddedState(name, embedded.embedded_state(name), embedded.embedded_folder(name))
        for name in embedded.embedded_names()
    )
    return states, None if embedded.find_wheel_file() else embedded.WHEEL_COMMAND


def _cache_state(folder: Path) -> CacheState:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    files = (path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else ()
    return CacheState(
        folder=folder,
        writable=existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
        used_bytes=sum(path.stat().st_size for path in files),
        free_bytes=shutil.disk_usage(existing).free,
    )


def _token_state() -> TokenState:
    path = settings.token_path()
    try:
        return TokenState(path, settings.find_token() is not None, None)
    except ConfigError as error:
        return TokenState(path, False, str(error))


def _row(name: str, text: str) -> str:
    return f"  {name:<{_COLUMN}} {text}"


def _device_text(device: "Device") -> str:
    memory = "" if device.memory_bytes is None else f", {_gigabytes(device.memory_bytes)}"
    return f"{device.label}{memory}, bfloat16 {'native' if device.native_bfloat16 else 'emulated'}"


def _token_text(token: TokenState) -> str:
    return "found" if token.available else f"none (would be in {token.file})"


def _gigabytes(size: int) -> str:
    return f"{size / BYTES_PER_GB:.2f} GB"
