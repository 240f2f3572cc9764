"""The target server of ``profile_round.py``: a process of its own, with timers inside.

Knows no method and no table; what the timers count goes back over a pipe.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final

import _round_parts as timers
from _child import child
from _round_parts import Tally

from autodraft import ServerConfig
from autodraft.engine.service import TargetService
from autodraft.models.embedded import EMBEDDED_TARGET
from autodraft.models.loader import LoadedModel, ModelSource, load_model

HOST: Final = "127.0.0.1"
TOKEN: Final = "profile-round"
DEVICE: Final = "cpu"

ON: Final = "on"
OFF: Final = "off"
UNWRAP: Final = "unwrap"


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
        while True:
            word = await loop.run_in_executor(None, channel.recv)
            if word == UNWRAP:
                probe.unwrap()
            channel.send(probe.take())
            probe.enabled = word == ON
    await service.stop()


def serve(channel: Connection, dtype: str) -> None:
    """Be the server process; every word is answered with what the timers have counted."""
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
    with child(serve, dtype) as process:
        yield Target(process.first_word(), process.pid, process.channel)
