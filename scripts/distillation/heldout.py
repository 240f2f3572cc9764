"""What a student achieves on chats that it was not trained on.

With the target's own greedy answers at hand no target is needed: while every drafted token is
accepted, the draft stands on the very text of the answer, so the agreement at each position tells
how far a chain would have come.
"""

import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from distillation.samples import ANSWER, Chat
from distillation.student import OutputHead

_ONE_IN: Final = 40
_COVERAGE: Final = 4


def split_held_out(chats: Sequence[Chat]) -> tuple[list[Chat], list[Chat]]:
    """Divide chats into training and held-out ones, by their content: the same in every run."""
    parts: tuple[list[Chat], list[Chat]] = ([], [])
    for chat in chats:
        parts[zlib.crc32(chat.tokens.tobytes()) % _ONE_IN == 0].append(chat)
    return parts


@dataclass(frozen=True)
class HeldOutReport:
    """Agreement with the target's greedy answers.

    Attributes:
        tokens: Answer tokens compared.
        top1: Share of them that were the student's best guess.
        top4: Share among its four best.
        chain_mat: Mean accepted tokens of a chain of d, for d = 1, 2, …
        top1_of: ``top1`` by category.
    """

    tokens: int
    top1: float
    top4: float
    chain_mat: tuple[float, ...]
    top1_of: dict[str, float]


@torch.inference_mode()
def report_held_out(
    student: Any, head: OutputHead, chats: Sequence[Chat], max_chain: int = 8
) -> HeldOutReport:
    """Compare a student with the greedy answers among some chats.

    Raises:
        ValueError: If there is no greedy answer among them.
    """
    hits: dict[str, list[npt.NDArray[np.bool_]]] = defaultdict(list)
    covered: list[npt.NDArray[np.bool_]] = []
    runs: list[npt.NDArray[np.bool_]] = []
    for chat in chats:
        answered = np.flatnonzero(chat.roles[1:] == ANSWER)
        if not chat.greedy or len(answered) == 0:
            continue
        tokens = torch.from_numpy(chat.tokens.astype(np.int64))
        hidden = student.model(input_ids=tokens[None, :-1], use_cache=False).last_hidden_state[0]
        best = head.logits(hidden[torch.from_numpy(answered)]).topk(_COVERAGE).indices
        matches = (head.ids[best] == tokens[answered + 1][:, None]).numpy()
        hits[chat.category].append(matches[:, 0])
        covered.append(matches.any(axis=1))
        runs += np.split(matches[:, 0], np.flatnonzero(np.diff(answered) > 1) + 1)
    if not covered:
        raise ValueError("no held-out chat has a greedy answer; write more chats")
    every = np.concatenate([hit for of_category in hits.values() for hit in of_category])
    return HeldOutReport(
        tokens=len(every),
        top1=float(every.mean()),
        top4=float(np.concatenate(covered).mean()),
        chain_mat=tuple(chain_mat(runs, depth) for depth in range(1, max_chain + 1)),
        top1_of={name: float(np.concatenate(hits[name]).mean()) for name in sorted(hits)},
    )


def chain_mat(agreements: Sequence[npt.NDArray[np.bool_]], depth: int) -> float:
    """Return the mean accepted tokens of a chain of ``depth`` over texts, bonus included.

    Args:
        agreements: For each text, whether the draft's guess of each token was right, [T].
        depth: Tokens drafted in a round, at least 1.
    """
    rounds = tokens = 0
    for agreement in agreements:
        place = 0
        while place < len(agreement):
            window = agreement[place : place + depth]
            accepted = len(window) if window.all() else int(window.argmin())
            place += min(accepted + 1, len(agreement) - place)
            rounds += 1
        tokens += len(agreement)
    return tokens / rounds
