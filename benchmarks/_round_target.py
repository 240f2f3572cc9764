"""The target server of ``profile_round.py``: a process of its own, with timers inside.

Knows no method and no table; what the timers count goes back over a pipe.
"""

import asyncio
import contextlib
import multiprocessing as mp
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

import _common as common
import _round_parts as timers
from _round_parts import Tally

from autodraft import ServerConfig
from autodraft.engine.service import TargetService
from autodraft.models.embedded import EMBEDDED_TARGET
from autodraft.models.loader import LoadedModel, ModelSource, load_model

HOST: Final = "127.0.0.1"
TOKEN: Final = "profile-round"
DEVICE: Final = "cpu"
START_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 10.0

ON: Final = "on"
OFF: Final = "off"
UNWRAP: Final = "unwrap"
_STOP: Final = "stop"


async def _serve(channel: Connection, dtype: str) -> None:
    probe = timers.Probe()
    timers.watch_target(probe)

    def load(source: ModelSource) -> LoadedModel:
        model = load_model(source)
        timers.watch_runner(probe, model.runner)
        return model

    config = ServerConfig.model_validate(
        {
            "host": HOST,
            "port": 0,
            "base_model_path": EMBEDDED_TARGET,
            "dtype": dtype,
            "device_map": DEVICE,
            "lazy_load": False,
        }
    )
    service = TargetService(config, TOKEN, load)
    channel.send(await service.start())
    loop = asyncio.get_running_loop()
    with contextlib.suppress(EOFError):  # the benchmark is gone
        while (word := await loop.run_in_executor(None, channel.recv)) != _STOP:
            if word == UNWRAP:
                probe.unwrap()
            channel.send(probe.take())
            probe.enabled = word == ON
    await service.stop()


def serve(channel: Connection, dtype: str) -> None:
    """Be the server process; every word but the last is answered with what the timers counted."""
    asyncio.run(_serve(channel, dtype))


@dataclass(frozen=True)
class Target:
    """The server process.

    Attributes:
        port: Where it listens.
        pid: Its process id.
        channel: Reaches its timers.
    """

    port: int
    pid: int
    channel: Connection

    def say(self, word: str) -> dict[str, Tally]:
        """Set its timers; return what they have counted since the last word."""
        self.channel.send(word)
        counted: dict[str, Tally] = self.channel.recv()
        return counted


@contextlib.contextmanager
def target_process(dtype: str) -> Iterator[Target]:
    """Run the server meanwhile.

    Raises:
        CannotMeasure: If it does not come up.
    """
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, dtype), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(START_TIMEOUT_S):
            raise common.CannotMeasure(f"The server did not start within {START_TIMEOUT_S:g} s.")
        yield Target(ours.recv(), process.pid or 0, ours)
    except EOFError as error:
        raise common.CannotMeasure("The server process ended too early; see above why.") from error
    finally:
        with contextlib.suppress(OSError):  # it has ended by itself
            ours.send(_STOP)
        process.join(STOP_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()
