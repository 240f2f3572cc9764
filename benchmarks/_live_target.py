"""A real ``autodraft target`` in a process of its own, and the settings of a client of it.

Knows the command, the line in which the server says where it listens, and the embedded pair.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import _common as common

from autodraft.config import AlgorithmsConfig, ExperimentConfig, ModelsConfig, RuntimeConfig
from autodraft.config.setup import DEFAULT_PORT
from autodraft.models.embedded import EMBEDDED_DRAFT, EMBEDDED_TARGET

HOST: Final = "127.0.0.1"
TOKEN: Final = "benchmark"
START_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.05
CHECKOUT: Final = Path(__file__).resolve().parents[1]

_LISTENING: Final = re.compile(r"listening on \S+:(\d+) ")


@dataclass(frozen=True)
class LiveTarget:
    """A running server on this machine, which lets in who shows ``TOKEN``.

    Attributes:
        port: Where it listens.
        pid: Its process id.
    """

    port: int
    pid: int


@contextlib.contextmanager
def live_target(*options: str) -> Iterator[LiveTarget]:
    """Run a server meanwhile, on a free port.

    Args:
        options: Further options of ``autodraft target``.

    Raises:
        CannotMeasure: If it does not come up.
    """
    command = [sys.executable, "-m", "autodraft", "target", "--host", HOST, "--port", "0"]
    paths = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"AUTODRAFT_TOKEN": TOKEN, "PYTHONPATH": paths}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "target.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [*command, *options], env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield LiveTarget(_port(process, path), process.pid)
        finally:
            end(process)


def pair_config(dtype: str, methods: Sequence[str], port: int = DEFAULT_PORT) -> ExperimentConfig:
    """Return the settings of a client with the embedded pair, for a server at ``port``.

    Args:
        dtype: Of both models.
        methods: Ids of the methods that it is to run.
        port: Where the server listens.
    """
    return ExperimentConfig(
        runtime=RuntimeConfig(target_host=HOST, target_port=port),
        models=ModelsConfig(
            base_model_path=EMBEDDED_TARGET,
            draft_model_path=EMBEDDED_DRAFT,
            dtype=dtype,
            target_dtype=dtype,
        ),
        algorithms=AlgorithmsConfig(method_names=tuple(methods)),
    )


def end(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """Ask a process to end, and end it where it does not."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    """Wait until the server says where it listens."""
    deadline = time.perf_counter() + START_TIMEOUT_S
    while time.perf_counter() < deadline and process.poll() is None:
        if found := _LISTENING.search(log.read_text()):
            return int(found.group(1))
        time.sleep(POLL_S)
    raise common.CannotMeasure(f"The server did not come up:\n{log.read_text().rstrip()}")
