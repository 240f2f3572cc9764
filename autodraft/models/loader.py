"""Loading a model and its tokenizer from a hub id, a folder, a GGUF file or an embedded name.

The only home of quantisation and of every choice made at load time. Weights come as safetensors or
GGUF; pickled ones are refused unless the caller allows them, and a model's own code never runs.
"""

import logging
import pickle
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers import __version__ as transformers_version
from transformers.utils import logging as transformers_logging

from autodraft import __version__
from autodraft.errors import ModelLoadError
from autodraft.models.embedded import is_embedded, resolve_embedded, weights_checksum
from autodraft.models.exclusive import LOADING
from autodraft.models.hardware import device_label, native_bfloat16, torch_threads
from autodraft.models.memory import give_back_memory
from autodraft.models.output_head import read_output_ids
from autodraft.models.runner import ModelRunner
from autodraft.models.tokenizer import Tokenizer

DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

_LOAD_FAULTS: Final = (
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    SafetensorError,
    ValueError,
    pickle.UnpicklingError,
    struct.error,
)
"""What transformers lets through of malformed files, missing packages and unknown names."""


@dataclass(frozen=True)
class ModelSource:
    """Which model to load, and how.

    Attributes:
        name: Hub id, folder, ``.gguf`` file, or ``embedded:…``.
        quantization: ``none``, ``8bit`` or ``4bit``.
        dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        device_map: ``auto``, ``cpu``, ``cuda:0``, … as in transformers.
        revision: Hub revision; None takes the default branch.
        hf_token: Hugging Face token for gated models.
        allow_pickle: Whether pickled weights may be loaded.
        drafts: Whether it only drafts; then its head is cut to the output ids that come with it.
        compile: Whether to compile its forwards.
    """

    name: str
    quantization: str = "none"
    dtype: str = "auto"
    device_map: str = "auto"
    revision: str | None = None
    hf_token: str | None = field(default=None, repr=False)
    allow_pickle: bool = False
    drafts: bool = False
    compile: bool = False


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
        source: What was asked for.
        runner: Its forwards.
        tokenizer: Its tokenizer.
        revision: Hub commit, or the checksum of an embedded model; empty when unknown.
    """

    source: ModelSource
    runner: ModelRunner
    tokenizer: Tokenizer
    revision: str

    @property
    def profile_key(self) -> str:
        """What the speed of this model depends on, in words: the key of its latency profile."""
        runner, source = self.runner, self.source
        compiled = ", compiled" if source.compile else ""
        return (
            f"{device_label(runner.device)}, {torch_threads()} threads: {source.name} "
            f"{self.revision[:16] or 'unknown'}, {runner.dtype}, quantisation "
            f"{source.quantization}{compiled}; torch {torch.__version__}, transformers "
            f"{transformers_version}, autodraft {__version__}"
        )


def load_model(source: ModelSource) -> LoadedModel:
    """Load a model and its tokenizer.

    Raises:
        ModelLoadError: If it cannot be found, is of an unsupported kind, or its quantisation is
            not available here.
    """
    embedded = is_embedded(source.name)
    location = str(resolve_embedded(source.name)) if embedded else source.name
    path, options = _location_options(location, source)
    device = _device_map(source.device_map)
    options |= {"dtype": _torch_dtype(source.dtype, device), "device_map": device}
    if source.quantization != "none":
        options["quantization_config"] = _quantization(source.quantization, options["dtype"])
    model = _from_pretrained(source, path, options)
    tokenizer = Tokenizer.load(location, revision=source.revision, hf_token=source.hf_token)
    revision = _revision(model, source.name, location)
    output_ids = read_output_ids(Path(location)) if source.drafts else None
    runner = ModelRunner(model, source.name, output_ids, source.compile)
    give_back_memory()
    return LoadedModel(source, runner, tokenizer, revision)


def _location_options(location: str, source: ModelSource) -> tuple[str, dict[str, Any]]:
    """Return what ``from_pretrained`` needs to find the weights."""
    options: dict[str, Any] = {
        "revision": source.revision,
        "token": source.hf_token,
        "trust_remote_code": False,
        "use_safetensors": None if source.allow_pickle else True,
    }
    if location.endswith(".gguf"):
        file = Path(location)
        options |= {"gguf_file": file.name, "use_safetensors": None}
        return str(file.parent), options
    return location, options


def _from_pretrained(source: ModelSource, path: str, options: dict[str, Any]) -> Any:
    transformers_logging.disable_progress_bar()
    try:
        with LOADING:
            model, info = AutoModelForCausalLM.from_pretrained(
                path, output_loading_info=True, **options
            )
    except _LOAD_FAULTS as error:
        raise ModelLoadError(_explain(source, str(error), path)) from error
    if missing := sorted(info["missing_keys"]):
        raise ModelLoadError(
            f"The model {source.name!r} lacks {len(missing)} of its weights, {missing[0]} among "
            "them: its config.json and its weights do not belong together. Fetch it again."
        )
    return model


def _explain(source: ModelSource, reason: str, path: str) -> str:
    text = f"The model {source.name!r} cannot be loaded: {' '.join(reason.split())} "
    if not source.allow_pickle and any(Path(path).glob("pytorch_model*.bin")):
        return text + (
            "Its weights are pickled, which can run code when they are read; only safetensors are "
            "taken. Convert them, or pass --allow-pickle (allow_pickle) if you trust their origin."
        )
    return text + (
        "Name a hub id that this machine can download or has cached (HF_TOKEN for gated ones), a "
        "folder with config.json and safetensors, a .gguf file, or embedded:smollm2-135m-instruct."
    )


def _device_map(wanted: str) -> str:
    """Return the device map to use; ``auto`` without an accelerator is the CPU."""
    if wanted == "auto" and not torch.accelerator.is_available():
        return "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ModelLoadError(
            f"Device {wanted!r} was asked for, but torch finds no CUDA device here. Use "
            "DEVICE_MAP cpu or auto, or install a CUDA build of torch."
        )
    return wanted


def _torch_dtype(wanted: str, device: str) -> torch.dtype | str:
    """Return the dtype to load in (DESIGN §3): on a CPU the one it multiplies natively."""
    if wanted in DTYPES:
        return DTYPES[wanted]
    if wanted != "auto":
        allowed = ", ".join(["auto", *DTYPES])
        raise ModelLoadError(f"Unknown dtype {wanted!r}; allowed: {allowed}.")
    if device != "cpu":
        return "auto"
    return torch.bfloat16 if native_bfloat16() else torch.float32


def _quantization(wanted: str, dtype: torch.dtype | str) -> BitsAndBytesConfig:
    compute = dtype if isinstance(dtype, torch.dtype) else torch.bfloat16
    if wanted == "8bit":
        config = BitsAndBytesConfig(load_in_8bit=True)
    elif wanted == "4bit":
        config = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute
        )
    else:
        raise ModelLoadError(f"Unknown quantisation {wanted!r}; allowed: none, 8bit, 4bit.")
    try:
        import bitsandbytes  # noqa: F401  # optional; transformers' own message hides the way out
    except ImportError as error:
        raise ModelLoadError(
            f"Quantisation {wanted} needs bitsandbytes: pip install 'autodraft-sd[quant]'."
        ) from error
    # On a CPU it warns of a cast at every single matrix product.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    return config


def _revision(model: Any, name: str, location: str) -> str:
    """Return what identifies the weights, as far as it is known."""
    if is_embedded(name):
        return weights_checksum(Path(location))
    return getattr(model.config, "_commit_hash", None) or ""
