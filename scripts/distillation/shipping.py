"""Writing what ships: weights, card and model card of a trained student."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from autodraft.models.prepared import sha256_of
from autodraft.models.shipped_draft import (
    CARD_NAME,
    OUTPUT_IDS,
    WEIGHTS_NAME,
    DraftCard,
    read_card,
)

MODEL_CARD_NAME: Final = "MODEL_CARD.md"


@dataclass(frozen=True)
class TrainingStory:
    """How the weights came about, for the model card.

    Attributes:
        command: The command that trained them.
        hours: Hours of training, writing of chats not included.
        chats: Training chats by their source, each with its number of chats and answer tokens.
        held_out: Held-out figures by their name.
    """

    command: str
    hours: float
    chats: Mapping[str, tuple[int, int]]
    held_out: Mapping[str, float]


def ship(
    folder: Path,
    weights: Mapping[str, torch.Tensor],
    output_ids: npt.NDArray[np.int64],
    target_layers: Sequence[int],
    story: TrainingStory,
) -> DraftCard:
    """Write the files of ``autodraft.models.shipped_draft`` and their model card.

    The version rises where the folder holds an older draft.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.bfloat16().contiguous() for name, tensor in weights.items()}
    tensors[OUTPUT_IDS] = torch.from_numpy(output_ids.astype(np.int32))
    part = folder / f".{WEIGHTS_NAME}.part"
    save_file(tensors, part)
    card = DraftCard(
        version=read_card(folder).version + 1 if (folder / CARD_NAME).exists() else 1,
        sha256=sha256_of(part),
        target_layers=tuple(target_layers),
        output_tokens=len(output_ids),
    )
    part.chmod(0o644)  # safetensors writes for the owner only
    part.replace(folder / WEIGHTS_NAME)
    text: Any = msgspec.json.format(msgspec.json.encode(card), indent=2)
    (folder / CARD_NAME).write_bytes(text + b"\n")
    (folder / MODEL_CARD_NAME).write_text(_model_card(card, story), encoding="utf-8")
    return card


def _model_card(card: DraftCard, story: TrainingStory) -> str:
    layers = ", ".join(map(str, card.target_layers))
    chats = "\n".join(
        f"| {source} | {number:,} | {tokens:,} |"
        for source, (number, tokens) in story.chats.items()
    )
    held_out = "\n".join(f"| {name} | {value:.3f} |" for name, value in story.held_out.items())
    return f"""# Model card: embedded:smollm2-draft, version {card.version}

A draft model for speculative decoding with SmolLM2-135M-Instruct as the target. It is of no use as
a chat model: it says {card.output_tokens:,} of the target's 49,152 tokens and was taught nothing
but to guess what the target says next.

- **Architecture**: a stock Llama model of {len(card.target_layers)} layers, cut from the target's
  layers {layers} and trained; width, heads and tokenizer are the target's. The embedding, frozen
  and shared with the output head, is the target's and is not in this folder: it is joined at
  preparation time. Draft steps score only the rows listed as `{OUTPUT_IDS}`.
- **Files**: `{WEIGHTS_NAME}` (bfloat16), SHA-256 `{card.sha256}`.
- **Licence**: Apache-2.0, as SmolLM2-135M-Instruct, whose weights it was made from and whose own
  words it was trained on.
- **Training**: {story.hours:.1f} hours on 2 CPU cores, bfloat16 products, float32 weights:

  ```bash
  {story.command}
  ```

## Data

Chats written by the target itself, users' turns and answers, each begun with a few words that name
a kind of task (`scripts/distillation/starts.py`). No benchmark question, nor any eight-word run of
one, is among them: the training command checks that and drops what fails.

| chats | number | answer tokens |
| --- | ---: | ---: |
{chats}

## Held-out figures

On chats that were not trained on, against the target's greedy answers. `chain d` is the mean
accepted tokens of a chain of d, bonus token included.

| figure | value |
| --- | ---: |
{held_out}

Figures on the benchmarks are in `docs/log.md`; `benchmarks/draft_quality.py` measures them.
"""
