"""Which packages this Python lacks for the check, and how to fetch their wheels elsewhere.

Runs as a file, before anything of AutoDraft can be imported: standard library only. Knows the names
of packages, their ranges from pyproject.toml and their pins from requirements.txt; asks no network.
"""

import importlib.metadata
import platform
import re
import shlex
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BASE: Final = ("torch", "transformers", "numpy", "safetensors")
"""What the machine's Python must have by itself; what these need comes with them."""
GIVEN: Final = (
    "msgspec",
    "websockets",
    "platformdirs",
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
)
"""What the check needs beyond those."""
TOGETHER: Final = ("pydantic", "pydantic-core", "annotated-types", "typing-inspection")
"""A pydantic works with one version of its core only: these are given together."""


def minimums(pyproject: str) -> dict[str, str]:
    """Return the least version of each dependency that pyproject.toml names."""
    return dict(re.findall(r'^ +"([a-z0-9-]+)>=([0-9.]+)', pyproject, re.MULTILINE))


def pins(requirements: str) -> dict[str, str]:
    """Return the version of each package that requirements.txt names."""
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", requirements, re.MULTILINE))


def as_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: ``2.11.0+cu130`` is (2, 11, 0)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def installed(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that this Python has."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def lacking(
    names: Sequence[str], have: Mapping[str, str], least: Mapping[str, str]
) -> tuple[str, ...]:
    """Return those of the packages that are not there, or too old."""
    found = {
        name
        for name in names
        if name not in have or as_numbers(have[name]) < as_numbers(least.get(name, ""))
    }
    if "pydantic" in found:
        found |= set(TOGETHER)
    return tuple(name for name in names if name in found)


def platforms(system: str, machine: str, glibc: str) -> list[str]:
    """Return the platform tags whose wheels run here; pip matches each of them exactly.

    Args:
        system: As ``sysconfig.get_platform()`` gives it.
        machine: Processor, as ``platform.machine()`` gives it.
        glibc: Version of the C library, empty where it is not glibc.
    """
    if not system.startswith("linux"):
        return [re.sub(r"[-.]", "_", system)]
    newest = as_numbers(glibc)
    tags = [f"manylinux_2_{minor}_{machine}" for minor in (34, 28, 27, 17) if (2, minor) <= newest]
    return [*tags, f"manylinux2014_{machine}"]


def download_command(wanted: Sequence[str], tags: Sequence[str], version: tuple[int, ...]) -> str:
    """Return the command that fetches wheels for this Python on another machine."""
    words = ["python3", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    words += ["--implementation", "cp", "--python-version", ".".join(map(str, version[:2]))]
    for tag in tags:
        words += ["--platform", tag]
    return shlex.join([*words, "--dest", "wheels", *wanted])


def explanation(names: Sequence[str]) -> str:
    """Say which wheels to fetch for this Python, and how."""
    pinned = pins((ROOT / "requirements.txt").read_text(encoding="utf-8"))
    wanted = [f"{name}=={pinned[name]}" if name in pinned else name for name in names]
    tags = platforms(sysconfig.get_platform(), platform.machine(), platform.libc_ver()[1])
    lines = [
        f"{sys.executable} (Python {platform.python_version()}) lacks, or has too old,",
        *(f"  {requirement}" for requirement in wanted),
        "Fetch their wheels on a machine with a network:",
        f"  {download_command(wanted, tags, sys.version_info[:2])}",
        "bring the folder here and run",
        "  bash scripts/gpu_check.sh --wheels wheels",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Print what is lacking, a requirement a line; with ``explain``, print what to do instead.

    Returns:
        0, or 2 where the machine's Python lacks what it must have by itself.
    """
    least = minimums((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    have = installed((*BASE, *GIVEN))
    if absent := [name for name in BASE if name not in have]:
        print(
            f"error: {sys.executable} has no {', '.join(absent)}. Name a Python that has "
            f"{', '.join(BASE)} with --python.",
            file=sys.stderr,
        )
        return 2
    names = lacking(GIVEN, have, least)
    if list(arguments) == ["explain"]:
        print(explanation(names))
        return 0
    for name in lacking(BASE, have, least):
        print(
            f"note: {name} {have[name]} is older than the {least[name]} that AutoDraft asks for; "
            "the check goes on with it",
            file=sys.stderr,
        )
    for name in names:
        print(f"{name}>={least[name]}" if name in least else name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
