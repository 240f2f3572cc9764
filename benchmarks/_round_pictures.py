"""Pictures of where a round's time goes: a stacked bar, and flame graphs by py-spy.

Both need an optional package; ``require_plot`` and ``require_flame`` say so before anything is
measured. Knows parts by name and processes by their id.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from signal import SIGINT
from typing import Final

import _common as common

_SAMPLES_PER_S: Final = 200
_BEGUN: Final = "Sampling process"
"""What py-spy prints when it has found its way about a process."""
_BACKTRACE: Final = "Stack backtrace:"
_WRITE_TIMEOUT_S: Final = 120.0
_NARROW: Final = 0.02
"""Parts below this share of a round get no name in the bar, only in the legend."""
_NO_RIGHT: Final = (
    "py-spy needs the right to trace other processes. Run the benchmark as root, or allow it: "
    "`sudo sysctl kernel.yama.ptrace_scope=0`; in a container start that with "
    "`--cap-add SYS_PTRACE`."
)


def require_plot() -> None:
    """Do nothing if a bar can be drawn.

    Raises:
        CannotMeasure: If matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401 - optional
    except ImportError as error:
        raise common.CannotMeasure(
            "--plot draws with matplotlib, which is not installed: pip install matplotlib, or "
            "leave --plot out."
        ) from error


def plot(file: Path, parts_ms: Mapping[str, float], title: str) -> None:
    """Draw the parts of a round as one stacked bar.

    Args:
        file: Where to; the ending decides the format.
        parts_ms: Milliseconds of each part, in the order of the bar.
        title: What stands above it.

    Raises:
        CannotMeasure: If the file cannot be written.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = figure.add_subplot()
    total, start = sum(parts_ms.values()), 0.0
    for number, (name, ms) in enumerate(parts_ms.items()):
        words = f"{name.replace('_', ' ')}: {ms:.2f} ms, {ms / total:.1%}"
        axes.barh([0], [ms], left=start, label=words, color=colormaps["tab20"](number))
        if ms > _NARROW * total:
            axes.text(start + ms / 2, 0, name.replace("_", "\n"), ha="center", va="center", size=8)
        start += ms
    axes.set(title=title, xlabel="ms of a round", yticks=[], xlim=(0, total))
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:
        raise common.CannotMeasure(f"--plot: {file} cannot be written ({error}).") from error


def require_flame() -> str:
    """Return the program that samples.

    Raises:
        CannotMeasure: If py-spy is not installed.
    """
    program = shutil.which("py-spy")
    if program is None:
        raise common.CannotMeasure(
            "--flame samples with py-spy, which is not on the PATH: pip install py-spy, or leave "
            "--flame out."
        )
    return program


def flame_file(file: Path, side: str) -> Path:
    """Return where one side's flame graph goes, ``x.svg`` → ``x-client.svg``."""
    return file.with_name(f"{file.stem}-{side}{file.suffix or '.svg'}")


@contextlib.contextmanager
def flames(file: Path, processes: Mapping[str, int], *, native: bool) -> Iterator[None]:
    """Let py-spy sample processes meanwhile and write a flame graph of each at the end.

    Args:
        file: Where to, the side's name added.
        processes: Process id of each side.
        native: Whether frames of compiled code are shown too.

    Raises:
        CannotMeasure: If it is not installed, may not look into a process, or cannot write.
    """
    program = require_flame()
    samplers = []
    try:
        for side, pid in processes.items():
            command = [program, "record", "--pid", str(pid), "--threads"]
            command += ["--rate", str(_SAMPLES_PER_S), "--output", str(flame_file(file, side))]
            command += ["--native"] if native else []
            samplers.append(_started(command))
        yield
    finally:
        for sampler in samplers:
            sampler.send_signal(SIGINT)  # it writes its graph and ends
        said = [_ended(sampler) for sampler in samplers]
    failed = [words for words, sampler in zip(said, samplers, strict=True) if sampler.returncode]
    if failed:
        raise common.CannotMeasure(f"py-spy could not write its graph: {' '.join(failed)}")


def _started(command: list[str]) -> "subprocess.Popen[str]":
    """Start a sampler and wait until it samples."""
    sampler = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert sampler.stdout is not None
    said = []
    for line in sampler.stdout:
        said.append(line.strip())
        if _BEGUN in line:
            return sampler
    sampler.communicate()
    raise common.CannotMeasure(
        f"py-spy could not sample: {' '.join(filter(None, said))} {_NO_RIGHT}"
    )


def _ended(sampler: "subprocess.Popen[str]") -> str:
    """Wait for a sampler's end and return what it said, in one line without its backtrace."""
    try:
        said = sampler.communicate(timeout=_WRITE_TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        sampler.kill()
        said = sampler.communicate()[0]
    return " ".join(said.partition(_BACKTRACE)[0].split())
