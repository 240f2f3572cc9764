"""Chats as arrays: on disk, checked, divided into training and held-out ones.

A sample file is an ``.npz`` with all sequences one after another: ``tokens`` (uint16, [T]),
``lengths`` (int32, [C]), ``category`` (str, [C]), ``greedy`` (bool, [C]), and for whose words a
token is either ``roles`` (uint8, [T]) or ``answer_start`` (int32, [C], one turn only). Where the
target's view of each position is known, ``label_ids`` (uint16, [T, K]) and ``label_probs``
(float16, [T, K]) hold its K most probable next tokens; row i speaks of token i + 1 of its chat.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

FORCED: Final = 0
USER: Final = 1
ANSWER: Final = 2


@dataclass(frozen=True)
class Chat:
    """One chat of T tokens.

    Attributes:
        category: Kind of task.
        greedy: Whether its answers are the target's greedy ones.
        tokens: Token ids, [T].
        roles: Whose words each token is: FORCED, USER or ANSWER, [T].
        label_ids: The target's K most probable tokens after each position, [T - 1, K]; or None.
        label_probs: Their probabilities, [T - 1, K]; or None.
    """

    category: str
    greedy: bool
    tokens: npt.NDArray[np.uint16]
    roles: npt.NDArray[np.uint8]
    label_ids: npt.NDArray[np.uint16] | None = None
    label_probs: npt.NDArray[np.float16] | None = None

    @property
    def num_answer_tokens(self) -> int:
        """Tokens that the target answered with."""
        return int((self.roles == ANSWER).sum())


class SampleFileError(Exception):
    """A sample file cannot be read; the message says why and what is expected."""


def load_chats(path: Path) -> list[Chat]:
    """Read a sample file.

    Raises:
        SampleFileError: If it cannot be read or its arrays do not fit together.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        lengths = arrays["lengths"].astype(np.int64)
        ends = np.cumsum(lengths)
        if ends[-1] != len(arrays["tokens"]):
            raise SampleFileError(
                f"{path}: lengths add up to {ends[-1]}, but there are {len(arrays['tokens'])} "
                "tokens. The file is damaged; write or fetch it again."
            )
        return [
            _chat(arrays, index, end - size, end)
            for index, (end, size) in enumerate(zip(ends, lengths, strict=True))
        ]
    except (OSError, KeyError, ValueError, IndexError) as error:
        raise SampleFileError(
            f"{path} cannot be read as chats ({error}). Expected is an .npz with tokens, lengths, "
            "category, greedy and roles or answer_start."
        ) from error


def _chat(arrays: dict[str, npt.NDArray[np.generic]], index: int, start: int, end: int) -> Chat:
    if "roles" in arrays:
        roles = arrays["roles"][start:end].astype(np.uint8)
    else:
        roles = np.full(end - start, USER, dtype=np.uint8)
        roles[int(arrays["answer_start"][index]) :] = ANSWER  # type: ignore[call-overload]
    labelled = "label_ids" in arrays
    return Chat(
        category=str(arrays["category"][index]),
        greedy=bool(arrays["greedy"][index]),
        tokens=arrays["tokens"][start:end].astype(np.uint16),
        roles=roles,
        label_ids=arrays["label_ids"][start : end - 1].astype(np.uint16) if labelled else None,
        label_probs=(
            arrays["label_probs"][start : end - 1].astype(np.float16) if labelled else None
        ),
    )


def save_chats(path: Path, chats: Sequence[Chat]) -> None:
    """Write a sample file, complete or not at all. All chats must have labels, or none."""
    arrays = {
        "tokens": np.concatenate([chat.tokens for chat in chats]),
        "lengths": np.array([len(chat.tokens) for chat in chats], dtype=np.int32),
        "category": np.array([chat.category for chat in chats]),
        "greedy": np.array([chat.greedy for chat in chats]),
        "roles": np.concatenate([chat.roles for chat in chats]),
    }
    if all(chat.label_ids is not None for chat in chats):
        arrays["label_ids"] = np.concatenate([_padded(chat.label_ids) for chat in chats])
        arrays["label_probs"] = np.concatenate([_padded(chat.label_probs) for chat in chats])
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as file:
        np.savez_compressed(file, **arrays)
    part.replace(path)


def _padded(rows: npt.NDArray[np.generic] | None) -> npt.NDArray[np.generic]:
    """Add a row of zeros for the last token, after which nothing comes."""
    assert rows is not None
    return np.concatenate([rows, np.zeros_like(rows[:1])])
