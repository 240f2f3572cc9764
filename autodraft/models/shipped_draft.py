"""The embedded draft's weights, which ship with this package, made into a stock checkpoint.

Shipped are the trained layers, the last norm and the ids of the tokens that the draft may say; the
embedding, the configuration and the tokenizer are its target's. How the weights came about is in
``smollm2_draft/MODEL_CARD.md``. This module knows files; it loads no model.
"""

import shutil
from pathlib import Path
from typing import Final

import msgspec

from autodraft.errors import ModelLoadError
from autodraft.models.output_head import write_output_ids
from autodraft.models.prepared import MANIFEST_NAME, edit_json, sha256_of

FOLDER: Final = Path(__file__).with_name("smollm2_draft")
WEIGHTS_NAME: Final = "weights.safetensors"
CARD_NAME: Final = "card.json"
OUTPUT_IDS: Final = "output_ids"
EMBEDDING: Final = "model.embed_tokens.weight"
LAYER_PREFIX: Final = "model.layers."

CHECKPOINT_WEIGHTS: Final = "model.safetensors"


class DraftCard(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies the shipped weights.

    Attributes:
        version: Rises with every training whose weights are shipped.
        sha256: Checksum of the weights file.
        target_layers: The target's layers that the draft's were cut from, in order.
        output_tokens: Tokens that it may say.
    """

    version: int
    sha256: str
    target_layers: tuple[int, ...]
    output_tokens: int


def read_card(folder: Path = FOLDER) -> DraftCard:
    """Return the card of the shipped weights.

    Raises:
        OSError: If it cannot be read.
        msgspec.DecodeError: If it is malformed.
    """
    return msgspec.json.decode((folder / CARD_NAME).read_bytes(), type=DraftCard)


def write_checkpoint(target: Path, folder: Path, shipped: Path = FOLDER) -> None:
    """Write the draft as a checkpoint that stock ``from_pretrained`` loads, output ids beside it.

    Args:
        target: The prepared checkpoint of its target, in one safetensors file.
        folder: Where to write; exists and is empty.
        shipped: The folder of weights and card.

    Raises:
        ModelLoadError: If the weights are not those of the card.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    card, file = read_card(shipped), shipped / WEIGHTS_NAME
    if not file.is_file() or sha256_of(file) != card.sha256:
        raise ModelLoadError(
            f"{file} is missing or not the file that this version of AutoDraft ships (its SHA-256 "
            "differs). Install autodraft-sd again."
        )
    weights = load_file(file)
    output_ids = weights.pop(OUTPUT_IDS).numpy().astype("int64")
    with safe_open(target / CHECKPOINT_WEIGHTS, framework="pt") as theirs:
        weights[EMBEDDING] = theirs.get_tensor(EMBEDDING)
    save_file(weights, folder / CHECKPOINT_WEIGHTS, metadata={"format": "pt"})
    for path in target.iterdir():
        if path.name not in {CHECKPOINT_WEIGHTS, MANIFEST_NAME}:
            shutil.copyfile(path, folder / path.name)
    edit_json(folder / "config.json", change={"num_hidden_layers": len(card.target_layers)})
    write_output_ids(folder, output_ids)
