"""What the benchmarks share: arguments, a table, the closing JSON line, what machine it was.

Import this module before torch: it imports AutoDraft, which settles how long idle OpenMP threads
spin. Knows no benchmark.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

# The checkout that this file belongs to is measured, not another installed release.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import autodraft  # noqa: F401

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
WAIT_VARIABLES: Final = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""What says how long an idle OpenMP thread spins."""


class CannotMeasure(Exception):
    """The benchmark has no figures to show; its message says why."""


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has: ``--quick`` and ``--seed``."""
    made = argparse.ArgumentParser(
        description=description,
        epilog="Standard output ends with one JSON line that holds every figure.",
    )
    made.add_argument(
        "--quick", action="store_true", help="fewer repetitions: under 3 minutes on 2 cores"
    )
    made.add_argument("--seed", type=int, default=0, help="seed of tokens and trees (default 0)")
    return made


def positive(text: str) -> int:
    """Read a whole number of at least 1; the type of an ``argparse`` option."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


@contextlib.contextmanager
def working_folder(given: Path | None) -> Iterator[Path]:
    """Within this context, have a folder to work in: the given one, or one that is removed."""
    if given is not None:
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def stopped(name: str, error: BaseException, *, kept: bool) -> int:
    """Say on standard error why a benchmark has stopped; return its exit code.

    Args:
        name: The benchmark's.
        error: What stopped it.
        kept: Whether a later call can go on in its folder.
    """
    if not isinstance(error, KeyboardInterrupt):
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_FAILED
    said = "The same command goes on." if kept else "Nothing is kept: no --folder."
    print(f"{name}: interrupted. {said}", file=sys.stderr)
    return EXIT_INTERRUPTED


def machine() -> dict[str, Any]:
    """Return what figures depend on: processor, torch's threads, versions."""
    import torch  # not at the top: the environment is set first

    from autodraft.models.hardware import device_label, torch_threads

    return {
        "device": device_label("cpu"),
        "threads": torch_threads(),
        "idle_threads": idle_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def idle_threads() -> str:
    """Say what was set of how long an idle OpenMP thread spins."""
    return " ".join(f"{name}={os.environ[name]}" for name in WAIT_VARIABLES if name in os.environ)


def machine_words() -> str:
    """Return ``machine()`` as one line for people."""
    found = machine()
    return (
        f"{found['device']}, {found['threads']} torch threads "
        f"({found['idle_threads']}), torch {found['torch']}, Python {found['python']}"
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` (above 0, up to 1) of the values do not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table for people: the first column to the left, the others to the right."""
    table = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for number, (first, *others) in enumerate(table):
        cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def print_json(benchmark: str, figures: Mapping[str, Any]) -> None:
    """Print the closing line. A figure that is not a finite number is an error, not ``NaN``."""
    print(json.dumps({"benchmark": benchmark, **figures}, allow_nan=False), flush=True)
