"""Cutting a draft model's output head to the tokens that it is to propose.

A draft need not be able to say everything: its target has the last word. Most of what a target says
takes a small part of the vocabulary, and with a small model the head is a large part of a step. The
ids stand beside the checkpoint, which stays a stock one: without the list it loads all the same.
"""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from autodraft.errors import ModelLoadError

OUTPUT_IDS_NAME: Final = "draft_output_ids.json"

IntArray = npt.NDArray[np.int64]


def read_output_ids(folder: Path) -> IntArray | None:
    """Return the output ids that stand beside a checkpoint, rising, [O]; None where there are none.

    Raises:
        ModelLoadError: If the file is no list of different token ids.
    """
    path = folder / OUTPUT_IDS_NAME
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read ({error}). Fetch the draft again.") from error
    well_formed = isinstance(ids, list) and all(type(token) is int and token >= 0 for token in ids)
    if not ids or not well_formed or len(set(ids)) != len(ids):
        raise ModelLoadError(
            f"{path} must be a list of different token ids, for example [0, 1, 7]. Mend it, or "
            "remove it to draft from the whole vocabulary."
        )
    return np.sort(np.array(ids, dtype=np.int64))


def write_output_ids(folder: Path, output_ids: IntArray) -> None:
    """Write output ids beside a checkpoint."""
    (folder / OUTPUT_IDS_NAME).write_text(json.dumps(output_ids.tolist()) + "\n")


def cut_output_head(model: Any, output_ids: IntArray, name: str) -> None:
    """Replace the head of a stock model by its rows of the output ids, in place.

    Raises:
        ModelLoadError: If an id has no row, or the head is quantised.
    """
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear:
        raise ModelLoadError(
            f"{name}: its head is a {type(head).__name__}, whose rows cannot be chosen. Load it "
            f"without quantisation, or remove {OUTPUT_IDS_NAME}."
        )
    if output_ids[-1] >= len(head.weight):
        raise ModelLoadError(
            f"{name}: {OUTPUT_IDS_NAME} names the token {output_ids[-1]}, but the head has "
            f"{len(head.weight)} rows. The two do not belong together; fetch the draft again."
        )
    rows = torch.from_numpy(output_ids).to(head.weight.device)
    cut = torch.nn.Linear(head.in_features, len(rows), bias=head.bias is not None, device="meta")
    cut.weight = torch.nn.Parameter(head.weight.detach()[rows], requires_grad=False)
    if head.bias is not None:
        cut.bias = torch.nn.Parameter(head.bias.detach()[rows], requires_grad=False)
    model.set_output_embeddings(cut)
