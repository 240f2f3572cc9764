"""The student: a stock model made of some of the target's layers, sharing its embedding.

The embedding is frozen: it doubles as the output head, so a shipped student is only its layers, its
last norm and the list of token ids that it may say. The rows come from the target.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from autodraft.models.shipped_draft import EMBEDDING, LAYER_PREFIX
from distillation.samples import ANSWER, Chat


def cut_student(target: Any, layers: Sequence[int]) -> Any:
    """Return a new stock model, fp32, whose layers are copies of some of the target's.

    Args:
        target: A stock decoder-only model with a tied output head.
        layers: Indices of the target's layers to copy, in order.

    Raises:
        ValueError: If the target has no such layer.
    """
    known = target.config.num_hidden_layers
    if not layers or not all(0 <= layer < known for layer in layers):
        raise ValueError(f"layers {list(layers)}: the target has layers 0 to {known - 1}")
    config = type(target.config)(**{**target.config.to_dict(), "num_hidden_layers": len(layers)})
    config._attn_implementation = "sdpa"
    student = type(target)(config).float()
    weights = {}
    for name, tensor in target.state_dict().items():
        if not name.startswith(LAYER_PREFIX):
            weights[name] = tensor
            continue
        index, rest = name.removeprefix(LAYER_PREFIX).split(".", 1)
        for place, layer in enumerate(layers):
            if int(index) == layer:
                weights[f"{LAYER_PREFIX}{place}.{rest}"] = tensor
    student.load_state_dict(weights)
    student.get_input_embeddings().weight.requires_grad_(False)
    return student


def trained_weights(student: Any) -> dict[str, torch.Tensor]:
    """Return what training changed: everything but the shared embedding."""
    shared = {EMBEDDING, "lm_head.weight"}
    return {name: tensor for name, tensor in student.state_dict().items() if name not in shared}


def choose_output_ids(
    chats: Iterable[Chat], vocab_size: int, count: int, required: Iterable[int] = ()
) -> npt.NDArray[np.int64]:
    """Return the ids of the ``count`` tokens that the target says most often, rising.

    Args:
        chats: What it said; only answers count.
        vocab_size: Rows of the target's head.
        count: Size of the student's output vocabulary.
        required: Ids that must be among them, such as the end of a turn.
    """
    frequency = np.zeros(vocab_size, dtype=np.int64)
    for chat in chats:
        frequency += np.bincount(chat.tokens[chat.roles == ANSWER], minlength=vocab_size)
    frequency[list(required)] = np.iinfo(np.int64).max
    best_first = np.argsort(-frequency, kind="stable")
    return np.sort(best_first[: min(count, vocab_size)])


class OutputHead:
    """The rows of the shared embedding that the student can say."""

    def __init__(self, student: Any, output_ids: npt.NDArray[np.int64]) -> None:
        embedding = student.get_input_embeddings().weight.detach()
        self.rows = embedding[torch.from_numpy(output_ids)].clone()
        column = np.full(len(embedding), -1, dtype=np.int64)
        column[output_ids] = np.arange(len(output_ids))
        self.column_of = torch.from_numpy(column)
        self.ids = torch.from_numpy(output_ids)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the scores of the output vocabulary, [N, O], of hidden states [N, H]."""
        return torch.nn.functional.linear(hidden, self.rows)
