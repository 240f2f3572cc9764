"""Private memory of a benchmark's two processes, and how it grew.

Private is what no other process maps (USS): a file that several map, such as a library, is left
out. Knows neither models nor what the processes do.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import _common as common

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


class Private(NamedTuple):
    """Bytes of each side: private memory, or what a token takes in the cache."""

    client: int
    server: int


class Reading(NamedTuple):
    """Private memory at one moment of an answer.

    Attributes:
        tokens: Committed tokens, prompt and output.
        private: Bytes of each side.
    """

    tokens: int
    private: Private


@dataclass(frozen=True)
class Growth:
    """How the private memory of one side grew over the rounds of an answer.

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
    """Return what reads the private memory of this process and of the server; raises as ``Held``.

    Both are looked at once here, so that what is missing shows before anything is measured.
    """

    def read() -> Private:
        return Private(*(Held.by(pid).private_bytes for pid in (os.getpid(), server_pid)))

    read()
    return read
