"""Decoding in this process, without a link: plain, and in the library's own round loop.

Knows no model families and takes no times.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from autodraft.decoding.stopping import Ending, StopRules
from autodraft.engine.colocated import LocalTarget
from autodraft.engine.drafter import DraftSource
from autodraft.engine.rounds import Progress, Rounds
from autodraft.engine.verifier import Verifier
from autodraft.models.runner import ModelRunner
from autodraft.policy import Policy
from autodraft.records import RoundRecord


class Answer(NamedTuple):
    """An answer that was decoded in rounds.

    Attributes:
        tokens: Its token ids.
        rounds: What was recorded of its rounds.
    """

    tokens: list[int]
    rounds: list[RoundRecord]


def decode_plainly(runner: ModelRunner, prompt: Sequence[int], tokens: int) -> list[int]:
    """Return an answer of so many tokens, decoded one by one as ``server_only`` does."""
    rules = StopRules(frozenset(), tokens)
    verifier = Verifier(runner, np.array(prompt, dtype=np.int64), rules, node_budget=0)
    answer = [verifier.prefill()]
    while verifier.finish is None:
        answer.append(verifier.step())
    return answer


def decode_in_rounds(
    runner: ModelRunner,
    source: DraftSource,
    policy: Policy,
    prompt: Sequence[int],
    tokens: int,
    eos_ids: Iterable[int] = (),
) -> Answer:
    """Return an answer of at most so many tokens, drafted by ``source`` and verified here."""
    rules = StopRules(frozenset(eos_ids), tokens)
    limits = policy.limits
    verifier = Verifier(runner, np.array(prompt, dtype=np.int64), rules, limits.node_budget)
    rounds = Rounds(policy, source)
    progress = Progress(Ending(rules), list(prompt), limits.node_budget)
    progress.commit([verifier.prefill()])
    rounds.start(prompt, tokens)
    for _ in rounds.decode(progress, LocalTarget(verifier, limits.max_depth)):
        pass
    rounds.finish()
    return Answer(progress.output, progress.rounds)
