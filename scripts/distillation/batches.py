"""Chats as training batches: tokens, and at each position what the student should expect next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from distillation.samples import ANSWER, USER, Chat

USER_WEIGHT: Final = 0.3
"""Weight of a position in a user's turn: the student never drafts there, but it is text."""


@dataclass(frozen=True)
class Batch:
    """B chats, padded to the longest, T tokens.

    Attributes:
        tokens: Token ids, [B, T]; 0 behind the end of a chat.
        positions: Flat indices, into B · T, of the P positions that are learned from, [P].
        label_ids: Tokens to expect there, [P, K].
        label_weights: How much to expect each, times the position's weight, [P, K].
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    label_ids: torch.Tensor
    label_weights: torch.Tensor


@dataclass(frozen=True)
class LabelMix:
    """What a position teaches.

    Attributes:
        hard_share: Weight of the target's best token; the rest goes to its distribution.
        count: Labels per position, K.
    """

    hard_share: float = 0.5
    count: int = 16


def labels_of(chat: Chat, mix: LabelMix) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return what to expect after each token of a chat but the last: ids and weights, [T - 1, K].

    Where the target's distribution is unknown, its token stands for it.
    """
    next_tokens = chat.tokens[1:].astype(np.int64)
    ids = np.zeros((len(next_tokens), mix.count), dtype=np.int64)
    weights = np.zeros((len(next_tokens), mix.count), dtype=np.float32)
    if chat.label_ids is None or chat.label_probs is None:
        ids[:, 0], weights[:, 0] = next_tokens, 1.0
    else:
        known = min(mix.count, chat.label_ids.shape[1])
        ids[:, :known] = chat.label_ids[:, :known]
        weights[:, :known] = (1 - mix.hard_share) * chat.label_probs[:, :known]
        weights[:, 0] += mix.hard_share
    roles = chat.roles[1:]
    weights *= np.select([roles == ANSWER, roles == USER], [1.0, USER_WEIGHT], 0.0)[:, None]
    return ids, weights.astype(np.float32)


def make_batch(chats: Sequence[Chat], mix: LabelMix) -> Batch:
    """Pad chats to a batch."""
    longest = max(len(chat.tokens) for chat in chats)
    tokens = np.zeros((len(chats), longest), dtype=np.int64)
    positions, ids, weights = [], [], []
    for row, chat in enumerate(chats):
        tokens[row, : len(chat.tokens)] = chat.tokens
        chat_ids, chat_weights = labels_of(chat, mix)
        taught = np.flatnonzero(chat_weights.any(axis=1))
        positions.append(taught + row * longest)
        ids.append(chat_ids[taught])
        weights.append(chat_weights[taught])
    return Batch(
        torch.from_numpy(tokens),
        torch.from_numpy(np.concatenate(positions)),
        torch.from_numpy(np.concatenate(ids)),
        torch.from_numpy(np.concatenate(weights)),
    )


def epoch(
    chats: Sequence[Chat], tokens_per_batch: int, rng: np.random.Generator
) -> Iterator[list[Chat]]:
    """Yield every chat once, in groups of about equal length and at most so many padded tokens."""
    jitter = rng.random(len(chats))  # equal lengths meet in another order each time
    lengths = np.array([len(chat.tokens) for chat in chats]) * (0.9 + 0.2 * jitter)
    groups: list[list[Chat]] = [[]]
    longest = 0
    for index in np.argsort(lengths):
        chat = chats[int(index)]
        longest = max(longest, len(chat.tokens))
        if groups[-1] and longest * (len(groups[-1]) + 1) > tokens_per_batch:
            groups.append([])
            longest = len(chat.tokens)
        groups[-1].append(chat)
    for index in rng.permutation(len(groups)):
        yield groups[int(index)]
