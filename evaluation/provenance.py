"""Where a run comes from: code version, command line, package versions, machine.

This module knows no configuration and no engine. It starts ``git``, and nothing else.
"""

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Final

_REPOSITORY: Final = Path(__file__).resolve().parent.parent
_PACKAGES: Final = (
    "autodraft-sd",
    "torch",
    "transformers",
    "bitsandbytes",
    "gguf",
    "safetensors",
    "websockets",
    "msgspec",
    "pydantic",
    "numpy",
    "matplotlib",
)


def _git(repository: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(repository), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a machine without git
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def git_state(repository: Path = _REPOSITORY) -> dict[str, Any]:
    """Return the commit and whether files differ from it; both None without a git checkout."""
    commit = _git(repository, "rev-parse", "--verify", "HEAD")
    changes = _git(repository, "status", "--porcelain")
    return {
        "commit": commit,
        "dirty": None if commit is None or changes is None else bool(changes),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def now() -> str:
    """Return the wall-clock time in UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def provenance(argv: Sequence[str]) -> dict[str, Any]:
    """Return what makes a run traceable, as JSON values.

    Args:
        argv: The command line.
    """
    return {
        "argv": list(argv),
        **git_state(),
        "versions": {
            "python": platform.python_version(),
            **{package: _version(package) for package in _PACKAGES},
        },
        "host": {
            "platform": platform.platform(),
            "machine": platform.machine(),
            "cpu_count": os.cpu_count(),
        },
    }
