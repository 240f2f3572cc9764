"""Which target and draft model the server runs, and who may change them.

The server's flags are the defaults. A model that a client names wins under lazy load, when no
other client is using the present one; otherwise it is refused and both are named, never silently
replaced. A draft model is loaded for clients of co-located methods only. The host does not know
sessions or messages.
"""

import asyncio
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from autodraft.config import ServerConfig
from autodraft.engine.energy import MachineMeter, machine_meter
from autodraft.engine.profiler import served_table
from autodraft.engine.refusal import Refusal
from autodraft.engine.worker import ModelWorker
from autodraft.errors import ModelLoadError, ProfileError
from autodraft.meters import Meter
from autodraft.models.loader import LoadedModel, ModelSource, load_model
from autodraft.models.tokenizer import require_compatible
from autodraft.profiling.tables import LatencyTable
from autodraft.protocol.messages import DraftWish, ErrorCode

logger = logging.getLogger(__name__)

Loader = Callable[[ModelSource], LoadedModel]


class Loan(NamedTuple):
    """The models of one connection.

    Attributes:
        target: The target model.
        draft: The draft model; None where the client did not want one.
        latencies: What the target's forwards take; None where the server does not measure.
    """

    target: LoadedModel
    draft: LoadedModel | None
    latencies: LatencyTable | None


@dataclass
class _Slot:
    """Room for one model, and the rule for what may be in it.

    Attributes:
        role: ``target`` or ``draft``, for messages.
        option: Server option that names the model.
        tag: Tag of a configuration by which a client names one.
        default: What the server's flags say; its name is empty where they name none.
        lazy: Whether a client's wish may be loaded.
        loaded: The model in it.
        latencies: What its forwards take; None where that is not measured.
    """

    role: str
    option: str
    tag: str
    default: ModelSource
    lazy: bool
    loaded: LoadedModel | None = None
    latencies: LatencyTable | None = None

    def wanted(self, model: str | None, quantization: str | None, dtype: str | None) -> ModelSource:
        """Return what a client wants, in full: the flags fill what it leaves open.

        Raises:
            Refusal: If neither names a model.
        """
        if not (name := model or self.default.name):
            raise Refusal(
                ErrorCode.MODEL_REFUSED,
                f"No {self.role} model was named, neither by the client ({self.tag}) nor by the "
                f"server ({self.option}).",
            )
        return replace(
            self.default,
            name=name,
            quantization=quantization or self.default.quantization,
            dtype=self.default.dtype if dtype in (None, "auto") else str(dtype),
        )

    def serves(self, wanted: ModelSource) -> bool:
        """Tell whether the loaded model is the one wanted; ``auto`` takes the dtype it got."""
        if self.loaded is None:
            return False
        if wanted.dtype == self.loaded.runner.dtype:
            wanted = replace(wanted, dtype=self.loaded.source.dtype)
        return wanted == self.loaded.source

    def require_allowed(self, wanted: ModelSource, users: int) -> None:
        """Do nothing if the model may be loaded now, for a client that came with ``users`` others.

        Raises:
            Refusal: If it may not.
        """
        running = _describe(self.loaded) if self.loaded else f"no {self.role} model"
        if not self.lazy:
            raise Refusal(
                ErrorCode.MODEL_REFUSED,
                f"The client wants the {self.role} {_words(wanted)}, this server runs {running} "
                "and does not load others. Ask for that one, or start the server with "
                f"{self.option} or --lazy-load.",
            )
        if wanted.name != self.default.name and _is_local(wanted.name):
            raise Refusal(
                ErrorCode.MODEL_REFUSED,
                f"The client wants the local path {wanted.name!r}. A server loads only its own "
                f"{self.option}, Hugging Face ids and embedded models.",
            )
        if self.loaded is not None and users:
            raise Refusal(
                ErrorCode.BUSY,
                f"The client wants the {self.role} {_words(wanted)}, but {users} other client(s) "
                f"are using {running}. Try again when they are done.",
            )


class ModelHost:
    """Holds the loaded models and lends them to connections."""

    def __init__(
        self, config: ServerConfig, worker: ModelWorker, loader: Loader = load_model
    ) -> None:
        self._config = config
        self._worker = worker
        self._loader = loader
        self._users = 0
        self._meter: MachineMeter | None = None
        self._lock = asyncio.Lock()
        shared = ModelSource(
            name=config.base_model_path or "",
            quantization=config.quantization,
            dtype=config.dtype,
            device_map=config.device_map,
            hf_token=config.hf_token,
            allow_pickle=config.allow_pickle,
            compile=config.compile,
        )
        own_draft = replace(
            shared,
            name=config.draft_model_path or "",
            quantization=config.draft_quantization,
            dtype=config.draft_dtype,
            drafts=True,
        )
        lazy = config.lazy_load
        self._target = _Slot("target", "--base-model-path", "BASE_MODEL_PATH", shared, lazy)
        self._draft = _Slot("draft", "--draft-model-path", "DRAFT_MODEL_PATH", own_draft, lazy)

    @property
    def meter(self) -> Meter | None:
        """The energy meter of this machine; None as long as no model is loaded."""
        return self._meter.meter if self._meter else None

    async def load_default(self) -> None:
        """Load the models of the server's flags now (eager load).

        Raises:
            ModelLoadError: If one cannot be loaded, or they do not share a tokenizer.
            ProfileError: If the target's latency profile is damaged or cannot be written.
        """
        async with self._lock:
            await self._load(self._target, self._target.wanted(None, None, None))
            if self._draft.default.name:
                await self._load(self._draft, self._draft.wanted(None, None, None))
                self._require_compatible()
            await self._ensure_meter()

    async def acquire(
        self,
        model: str | None,
        quantization: str | None,
        dtype: str | None,
        draft: DraftWish | None = None,
    ) -> Loan:
        """Return the models a client wants, loading or switching where that is allowed.

        Raises:
            Refusal: If the server does not run them for this client.
        """
        async with self._lock:
            target = self._target.wanted(model, quantization, dtype)
            try:
                loaded = await self._provide(self._target, target)
                drafting = None
                if draft is not None:
                    wish = self._draft.wanted(draft.model, draft.quantization, draft.dtype)
                    drafting = await self._provide(self._draft, wish)
                    self._require_compatible()
            except (ModelLoadError, ProfileError) as error:
                raise Refusal(ErrorCode.MODEL_FAILED, str(error)) from error
            await self._ensure_meter()
            self._users += 1
            return Loan(loaded, drafting, self._target.latencies)

    def release(self) -> None:
        """Give back what ``acquire`` lent."""
        self._users -= 1

    def close(self) -> None:
        """Close the energy meter."""
        used, self._meter = self._meter, None
        if used is not None:
            used.meter.close()

    async def _provide(self, slot: _Slot, wanted: ModelSource) -> LoadedModel:
        if not slot.serves(wanted):
            slot.require_allowed(wanted, self._users)
            await self._load(slot, wanted)
        assert slot.loaded is not None
        return slot.loaded

    def _require_compatible(self) -> None:
        target, draft = self._target.loaded, self._draft.loaded
        assert target is not None
        assert draft is not None
        names = {"target_name": target.source.name, "draft_name": draft.source.name}
        require_compatible(target.tokenizer.identity, draft.tokenizer.identity, **names)

    async def _load(self, slot: _Slot, source: ModelSource) -> None:
        self.close()  # the devices in use are others now
        slot.loaded = slot.latencies = None  # frees the old model before the new one's memory
        gc.collect()
        logger.info("loading the %s %s", slot.role, _words(source))
        timed = await self._worker.run(self._loader, source)
        logger.info("loaded %s in %.1f s", _describe(timed.value), timed.run_s)
        if slot is self._target and self._config.auto_target_profile:
            slot.latencies = await self._profiled(timed.value)
        slot.loaded = timed.value

    async def _profiled(self, target: LoadedModel) -> LatencyTable:
        """Return what a target's forwards take, from disk or measured now; nobody uses it yet."""
        timed = await self._worker.run(served_table, target, self._config)
        logger.info("profile of the target: ready after %.1f s", timed.run_s)
        return timed.value

    async def _ensure_meter(self) -> None:
        """Choose the meter of the devices in use and measure what they draw idle, once for both."""
        if self._meter is not None:
            return
        loaded = [slot.loaded for slot in (self._target, self._draft) if slot.loaded is not None]
        self._meter = (await self._worker.run(machine_meter, loaded)).value
        logger.info("energy: %s", self._meter.reason)


def _is_local(name: str) -> bool:
    return name.startswith(("/", ".", "~", "\\")) or Path(name).exists()


def _words(source: ModelSource) -> str:
    return f"{source.name} (quantisation {source.quantization}, dtype {source.dtype})"


def _describe(loaded: LoadedModel) -> str:
    source = replace(loaded.source, dtype=loaded.runner.dtype)
    return _words(source)
