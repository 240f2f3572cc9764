"""Which target model the server runs, and who may change it.

The server's flags are the defaults. A model that a client names wins under lazy load, when no
other client is using the present one; otherwise it is refused and both are named, never silently
replaced. The host does not know sessions or messages.
"""

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autodraft.config import ServerConfig
from autodraft.engine.refusal import Refusal
from autodraft.engine.worker import ModelWorker
from autodraft.errors import ModelLoadError
from autodraft.models.loader import LoadedModel, ModelSource, load_model
from autodraft.protocol.messages import ErrorCode

logger = logging.getLogger(__name__)

Loader = Callable[[ModelSource], LoadedModel]


class ModelHost:
    """Holds the loaded target model and lends it to connections."""

    def __init__(
        self, config: ServerConfig, worker: ModelWorker, loader: Loader = load_model
    ) -> None:
        self._config = config
        self._worker = worker
        self._loader = loader
        self._loaded: LoadedModel | None = None
        self._users = 0
        self._lock = asyncio.Lock()

    async def load_default(self) -> LoadedModel:
        """Load the model of the server's flags now (eager load).

        Raises:
            ModelLoadError: If it cannot be loaded.
        """
        async with self._lock:
            return await self._load(self._wanted(None, None, None))

    async def acquire(
        self, model: str | None, quantization: str | None, dtype: str | None
    ) -> LoadedModel:
        """Return the model a client wants, loading or switching where that is allowed.

        Raises:
            Refusal: If the server does not run it for this client.
        """
        async with self._lock:
            wanted = self._wanted(model, quantization, dtype)
            if self._loaded is None or not _serves(self._loaded, wanted):
                self._require_allowed(wanted)
                try:
                    await self._load(wanted)
                except ModelLoadError as error:
                    raise Refusal(ErrorCode.MODEL_FAILED, str(error)) from error
            assert self._loaded is not None
            self._users += 1
            return self._loaded

    def release(self) -> None:
        """Give back what ``acquire`` lent."""
        self._users -= 1

    def _wanted(
        self, model: str | None, quantization: str | None, dtype: str | None
    ) -> ModelSource:
        config = self._config
        name = model or config.base_model_path
        if name is None:
            raise Refusal(
                ErrorCode.MODEL_REFUSED,
                "No target model was named, neither by the client (BASE_MODEL_PATH) nor by the "
                "server (--base-model-path).",
            )
        return ModelSource(
            name=name,
            quantization=quantization or config.quantization,
            dtype=config.dtype if dtype in (None, "auto") else str(dtype),
            device_map=config.device_map,
            hf_token=config.hf_token,
            allow_pickle=config.allow_pickle,
        )

    def _require_allowed(self, wanted: ModelSource) -> None:
        running = _describe(self._loaded) if self._loaded else "no model yet"
        if not self._config.lazy_load:
            raise Refusal(
                ErrorCode.MODEL_REFUSED,
                f"The client wants {_words(wanted)}, this server runs {running} and does not load "
                "others. Ask for that one, or start the server with --lazy-load.",
            )
        if wanted.name != self._config.base_model_path and _is_local(wanted.name):
            raise Refusal(
                ErrorCode.MODEL_REFUSED,
                f"The client wants the local path {wanted.name!r}. A server loads only its own "
                "--base-model-path, Hugging Face ids and embedded models.",
            )
        if self._loaded is not None and self._users:
            raise Refusal(
                ErrorCode.BUSY,
                f"The client wants {_words(wanted)}, but {self._users} other client(s) are using "
                f"{running}. Try again when they are done.",
            )

    async def _load(self, source: ModelSource) -> LoadedModel:
        self._loaded = None  # frees the old model before the new one takes its memory
        gc.collect()
        logger.info("loading %s", _words(source))
        timed = await self._worker.run(self._loader, source)
        self._loaded = timed.value
        logger.info("loaded %s in %.1f s", _describe(timed.value), timed.run_s)
        return timed.value


def _serves(loaded: LoadedModel, wanted: ModelSource) -> bool:
    """Tell whether the loaded model is the one wanted; ``auto`` takes the dtype it got."""
    if wanted.dtype == loaded.runner.dtype:
        wanted = replace(wanted, dtype=loaded.source.dtype)
    return wanted == loaded.source


def _is_local(name: str) -> bool:
    return name.startswith(("/", ".", "~", "\\")) or Path(name).exists()


def _words(source: ModelSource) -> str:
    return f"{source.name} (quantisation {source.quantization}, dtype {source.dtype})"


def _describe(loaded: LoadedModel) -> str:
    source = replace(loaded.source, dtype=loaded.runner.dtype)
    return _words(source)
