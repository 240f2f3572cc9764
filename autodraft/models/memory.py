"""Giving memory that is used no more back to the operating system.

What a load or a prefill has freed stays with the C library, which keeps it for later; pages of a
file that was read once stay in the process. This module knows neither models nor requests.
"""

import ctypes
import gc
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, cast

_MAPS: Final = Path("/proc/self/smaps")

_MALLOPT_TRIM_THRESHOLD: Final = -1  # malloc.h names them so
_MALLOPT_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 4 << 20
"""From here on a block is one of its own: caches, not what one layer of a small model needs."""
_KEPT_BYTES: Final = 256 << 20
"""So much freed memory the heap keeps until ``give_back_memory``: a round asks for it again."""


def give_back_memory(collect: bool = True) -> None:
    """Return freed memory to the operating system, where the C library can be asked to: glibc.

    Args:
        collect: Whether to collect garbage first. That takes some 0.2 s in a process with a model,
            the rest about a millisecond: collect after a load, not after a request.
    """
    if collect:
        gc.collect()
    if (trim := _c_function("malloc_trim", ctypes.c_size_t)) is not None:
        trim(0)


def settle_large_blocks() -> None:
    """Let the C library ask the operating system for each large block, and give it back when freed.

    By itself glibc raises the size from which it does so to that of the largest block ever freed:
    caches and activations then come from a heap that small things keep from shrinking. Concerns the
    whole process; other C libraries are left alone.
    """
    if (adjust := _c_function("mallopt", ctypes.c_int, ctypes.c_int)) is not None:
        adjust(_MALLOPT_MMAP_THRESHOLD, _LARGE_BYTES)
        adjust(_MALLOPT_TRIM_THRESHOLD, _KEPT_BYTES)


@dataclass(frozen=True)
class MappedFile:
    """A file that is mapped into this process's memory and that nobody writes to there.

    Attributes:
        addresses: Where it lies.
        owner: Keeps it mapped.
    """

    addresses: range
    owner: object

    @classmethod
    def around(cls, address: int, owner: object) -> "MappedFile | None":
        """Return the mapped file around an address, which is mapped as long as its owner lives.

        None where the memory belongs to no file, or has been written to, or the operating system
        does not tell: all but Linux.
        """
        try:
            lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return None
        found: range | None = None
        for line in lines:
            name, *values = line.split()
            if not name.endswith(":"):  # a mapping begins: range, rights, offset, device, inode
                mapping = range(*(int(end, 16) for end in name.split("-")))
                found = mapping if address in mapping and values[3] != "0" else None
            elif found is not None and name == "Anonymous:":  # pages written to here
                return cls(found, owner) if values[0] == "0" else None
        return None

    def drop_pages(self) -> None:
        """Let go of all pages; one that is read again comes back from the file."""
        advise = _c_function("madvise", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if advise is not None:
            advise(self.addresses.start, len(self.addresses), mmap.MADV_DONTNEED)


@cache
def _c_function(name: str, *arguments: type) -> Callable[..., int] | None:
    """Return a function of the C library; None where that has no such one."""
    try:
        function = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # no such function; Windows has no such handle
        return None
    function.argtypes = arguments
    function.restype = ctypes.c_int
    return cast(Callable[..., int], function)
