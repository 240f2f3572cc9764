"""A target service in this process, on a real socket, for tests that speak to it frame by frame."""

import asyncio
import threading
from pathlib import Path

from autodraft.config import ServerConfig
from autodraft.engine.service import TargetService
from autodraft.models.loader import LoadedModel, ModelSource, load_model


class LocalServer:
    """A target service on an event loop in a thread of its own."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.loads: list[ModelSource] = []

        def loader(source: ModelSource) -> LoadedModel:
            self.loads.append(source)
            return load_model(source)

        config = ServerConfig(**{"port": 0, "base_model_path": str(folder), **settings})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.service = TargetService(config, None, loader)
        self.port: int = self._call(self.service.start())

    def _call(self, coroutine: object) -> int:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)  # type: ignore[arg-type]

    def stop(self) -> None:
        self._call(self.service.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
