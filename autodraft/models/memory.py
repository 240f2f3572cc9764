"""Giving memory that is used no more back to the operating system.

What a load or a prefill has freed stays with the C library, which keeps it for later. This module
knows neither models nor requests.
"""

import ctypes
import gc
from collections.abc import Callable
from functools import cache


def give_back_memory(collect: bool = True) -> None:
    """Return freed memory to the operating system, where the C library can be asked to: glibc.

    Args:
        collect: Whether to collect garbage first. That takes some 0.2 s in a process with a model,
            the rest about a millisecond: collect after a load, not after a request.
    """
    if collect:
        gc.collect()
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Return glibc's ``malloc_trim``; None in a process with another C library."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # no such function; Windows has no such handle
        return None
    trim.argtypes = (ctypes.c_size_t,)
    trim.restype = ctypes.c_int
    return trim
