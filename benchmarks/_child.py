"""A function of a benchmark in a process of its own, joined to it by a channel.

The process ends when its end of the channel says that the other is closed. Knows nothing of what
the function does.
"""

import contextlib
import multiprocessing as mp
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import _common as common

START_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class Child:
    """A running process.

    Attributes:
        pid: Its process id.
        channel: Reaches its function.
    """

    pid: int
    channel: Connection

    def first_word(self) -> Any:
        """Wait for what it has to say first.

        Raises:
            CannotMeasure: If it takes too long.
            EOFError: If it has ended.
        """
        if not self.channel.poll(START_TIMEOUT_S):
            raise common.CannotMeasure(f"The server did not start within {START_TIMEOUT_S:g} s.")
        return self.channel.recv()


@contextlib.contextmanager
def child(function: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    """Run ``function(channel, *arguments)`` meanwhile, with an interpreter lock of its own.

    Raises:
        CannotMeasure: If it ends while something is awaited of it.
    """
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=function, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    assert process.pid is not None
    try:
        yield Child(process.pid, ours)
    except EOFError as error:
        raise common.CannotMeasure("The process ended too early; see above why.") from error
    finally:
        ours.close()
        process.join(STOP_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()
