"""Private memory of a benchmark's two processes, and how it grew.

Private is what no other process maps (USS): a file that several map, such as a library, is left
out. Anonymous is what lies in no file at all: rows of a checkpoint that are read for the first time
do not count there. Knows neither models nor what the processes do.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import _common as common

KIB: Final = 2**10
MIB: Final = 2**20


@dataclass(frozen=True)
class Held:
    """What a process holds at one moment.

    Attributes:
        private_bytes: Memory that no other process maps: what ending the process would free.
        rss_bytes: All of its memory that is resident, pages of libraries included that another
            process maps as well.
    """

    private_bytes: int
    rss_bytes: int

    @classmethod
    def by(cls, pid: int) -> "Held":
        """Look at a process.

        Raises:
            CannotMeasure: If psutil is not installed, or the process has ended or may not be
                looked at.
        """
        try:
            import psutil  # of the development extras only
        except ImportError as error:
            raise common.CannotMeasure("Private memory needs psutil: pip install psutil") from error
        try:
            found = psutil.Process(pid).memory_full_info()
        except psutil.Error as error:
            raise common.CannotMeasure(f"A process cannot be looked at: {error}") from error
        return cls(found.uss, found.rss)


def anonymous_bytes(pid: int) -> int:
    """Return the memory of a process that lies in no file; off Linux its private memory.

    Raises:
        CannotMeasure: If the process has ended or may not be looked at.
    """
    if sys.platform != "linux":
        return Held.by(pid).private_bytes
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
    except OSError as error:
        raise common.CannotMeasure(f"Process {pid} cannot be looked at: {error}") from error
    return int(text.partition("\nAnonymous:")[2].split()[0]) * KIB


class Private(NamedTuple):
    """Bytes of each side: memory in no file, or what a token takes in the cache."""

    client: int
    server: int


class Reading(NamedTuple):
    """Memory in no file at one moment of an answer.

    Attributes:
        tokens: Committed tokens, prompt and output.
        private: Bytes of each side.
    """

    tokens: int
    private: Private


@dataclass(frozen=True)
class Growth:
    """How the memory of one side grew over the rounds of an answer.

    Attributes:
        whole: Bytes, from after the first rounds to after the last one.
        new_tokens: Bytes that keys and values of the tokens in between take in the cache.
    """

    whole: int
    new_tokens: int

    @property
    def unexplained(self) -> int:
        """Bytes beyond those of the new tokens."""
        return max(0, self.whole - self.new_tokens)


def memory_reader(server_pid: int) -> Callable[[], Private]:
    """Return what reads the memory in no file of this process and of the server.

    Both are looked at once here, so that what is missing shows before anything
    is measured; raises as ``anonymous_bytes``.
    """

    def read() -> Private:
        return Private(*(anonymous_bytes(pid) for pid in (os.getpid(), server_pid)))

    read()
    return read
