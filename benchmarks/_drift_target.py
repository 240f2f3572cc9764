"""The target server of ``drift.py``: a process of its own whose model can be slowed down.

A slowed forward takes its own time and sleeps for the rest, inside the model's call, as if another
program had a share of the machine: the server's own clock sees it. Knows no method and no score.
"""

import asyncio
import contextlib
import multiprocessing as mp
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, Protocol

import _live_target as live
from _child import child

from autodraft.config import ServerConfig
from autodraft.engine.service import TargetService
from autodraft.models.embedded import EMBEDDED_TARGET
from autodraft.models.loader import LoadedModel, ModelSource, load_model

DEVICE: Final = "cpu"
SLOWED: Final = ("prefill", "forward")


class Slowdown(Protocol):
    """How many times as long a forward takes, 1 being its own time; seen by both processes."""

    value: float


def slowed(
    call: Callable[..., Any],
    slowdown: Slowdown,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Callable[..., Any]:
    """Return a call that takes ``slowdown.value`` times as long."""

    def run(*args: Any, **kwargs: Any) -> Any:
        started = clock()
        result = call(*args, **kwargs)
        if (more := slowdown.value - 1.0) > 0:
            sleep(more * (clock() - started))
        return result

    return run


async def _serve(channel: Connection, dtype: str, slowdown: Slowdown) -> None:
    def load(source: ModelSource) -> LoadedModel:
        model = load_model(source)
        for name in SLOWED:
            setattr(model.runner, name, slowed(getattr(model.runner, name), slowdown))
        return model

    config = ServerConfig.model_validate(
        {
            "host": live.HOST,
            "port": 0,
            "base_model_path": EMBEDDED_TARGET,
            "dtype": dtype,
            "device_map": DEVICE,
            "lazy_load": False,
        }
    )
    service = TargetService(config, live.TOKEN, load)
    channel.send(await service.start())
    with contextlib.suppress(EOFError):  # the benchmark is gone
        await asyncio.get_running_loop().run_in_executor(None, channel.recv)
    await service.stop()


def serve(channel: Connection, dtype: str, slowdown: Slowdown) -> None:
    """Be the server process until the channel is closed."""
    asyncio.run(_serve(channel, dtype, slowdown))


@dataclass(frozen=True)
class Target:
    """The server process.

    Attributes:
        port: Where it listens.
        slowdown: Of its forwards; to be set.
    """

    port: int
    slowdown: Slowdown


@contextlib.contextmanager
def target_process(dtype: str) -> Iterator[Target]:
    """Run the server meanwhile, at its own speed until told otherwise.

    Raises:
        CannotMeasure: If it does not come up.
    """
    slowdown = mp.get_context("spawn").Value("d", 1.0)
    with child(serve, dtype, slowdown) as process:
        yield Target(process.first_word(), slowdown)
