"""A real target server in a process of its own, for tests that need one."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S = 60.0
TOKEN = "token-of-the-tests"

_LISTENING = re.compile(r"listening on \S+?:(\d+) ")


class TargetProcess:
    """A running ``autodraft target``; ``port`` is the one it chose."""

    def __init__(self, folder: Path, *arguments: str, token: str = TOKEN) -> None:
        self.log_path = folder / "target.log"
        environment = os.environ | {"AUTODRAFT_TOKEN": token, "PYTHONUNBUFFERED": "1"}
        with self.log_path.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "autodraft", "target", "--port", "0", *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        self.port = self._wait_for_port()

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def kill(self) -> None:
        """End it the hard way, as ``kill -9`` does."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """Ask it to end and return its exit code."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def _wait_for_port(self) -> int:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if found := _LISTENING.search(self.log):
                return int(found.group(1))
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        self.kill()
        raise AssertionError(f"the target server did not start:\n{self.log}")


@contextmanager
def target_process(folder: Path, *arguments: str, token: str = TOKEN) -> Iterator[TargetProcess]:
    """Run a target server for the length of a ``with`` block."""
    server = TargetProcess(folder, *arguments, token=token)
    try:
        yield server
    finally:
        if server._process.poll() is None:
            server.stop()
