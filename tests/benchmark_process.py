"""Runs a benchmark as its users do: a script in a process of its own."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the benchmarks to its end and return its output and exit code."""
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
