"""Stock models with random weights, made on the device that runs them.

The weights are drawn so that a model is as decided as a trained one (its best token has about half
of the probability), that its layers, not its embedding, decide, and that low precision does not
drown it: trees grow deep, ties are rare. What a model says means nothing.
"""

import gc
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from gpu_checks.shapes import CannotCheck, Shape

SHARPNESS: Final = 8.0
"""Standard deviation of the logits."""
_BIAS: Final = 0.1
_MEMINFO: Final = Path("/proc/meminfo")


def random_model(shape: Shape, device: torch.device, dtype: torch.dtype, seed: int) -> Any:
    """Build a model in evaluation mode.

    A weight is drawn from its name and the seed alone: a shape with fewer layers and the same seed
    is the same model cut short.
    """
    transformers_logging.set_verbosity_error()
    config = AutoConfig.for_model(shape.family, **shape.config())
    with device:  # nothing is made on the CPU first, and nothing in float32
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            _draw(name, weight, shape, seed)
    return model.eval().requires_grad_(False)


def _draw(name: str, weight: torch.Tensor, shape: Shape, seed: int) -> None:
    generator = torch.Generator(weight.device)
    generator.manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    if name.endswith("bias"):
        weight.normal_(0.0, _BIAS, generator=generator)
    elif weight.dim() < 2:
        weight.fill_(1.0)
    elif name.startswith("lm_head") or (shape.tied and "embed" in name):
        weight.normal_(0.0, SHARPNESS / shape.hidden**0.5, generator=generator)
    elif "embed" in name:
        weight.normal_(0.0, 1.0, generator=generator)
    else:
        weight.normal_(0.0, weight.shape[-1] ** -0.5, generator=generator)


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device.

    Raises:
        CannotCheck: If this system does not say.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    lines = _MEMINFO.read_text(encoding="utf-8").splitlines() if _MEMINFO.is_file() else []
    for line in lines:
        name, _, size = line.partition(":")
        if name == "MemAvailable":
            return int(size.split()[0]) * 1024
    raise CannotCheck(
        f"There is no {_MEMINFO} that says what memory is free; --device cpu needs it."
    )


def release_memory() -> None:
    """Give back what models that are gone have held."""
    torch._dynamo.reset()  # compiled forwards hold their model
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class NoTokenizer:
    """Stands in for the tokenizer of a model that has none; ids are never turned into text."""

    eos_ids: frozenset[int] = frozenset()

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the ids as text; only stop strings would need it, and there are none."""
        return " ".join(map(str, token_ids))

    def fingerprint(self) -> str:
        """Return the fingerprint of no vocabulary."""
        return "0" * 64

    def added_tokens(self) -> dict[int, str]:
        """Return no added token."""
        return {}
