"""Whatever drafts, where and in what shapes: the answer is server-only's, token for token.

Tiny random models in float32; models, prompts, trees and wishes are drawn by hypothesis, the same
ones at each run. Without a socket: every message is encoded and decoded all the same.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autodraft.config import MethodSpec
from autodraft.cost import Powers, Prices
from autodraft.decoding.sampling import Sampling
from autodraft.decoding.stopping import Ending, StopRules, StopText, answer_limit
from autodraft.decoding.text import TextStream
from autodraft.decoding.wish import Wish
from autodraft.engine.colocated import InPlace, LocalTarget
from autodraft.engine.methods import DraftSide, make_method, make_rounds
from autodraft.engine.pair import Money, Pair, Tables
from autodraft.engine.remote import RemoteTarget, TargetWish
from autodraft.engine.rounds import Meters
from autodraft.engine.session import Request
from autodraft.engine.streamed import ServerOnly
from autodraft.engine.survey import MeasuredPowers, Survey
from autodraft.engine.verifier import Verifier
from autodraft.models.runner import ModelRunner
from autodraft.policy.adaptive import AdaptivePolicy
from autodraft.policy.calibration import Calibration
from autodraft.policy.forecast import ChildForecast
from autodraft.policy.handover import HandOver
from autodraft.policy.survey import PairPrior
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.tables import LatencyTable
from autodraft.protocol import messages as msg
from tests.fakes import VOCAB, LoopbackLink, prompt_of, tiny_model

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(900)]

MOST_TOKENS = 24
SHORT_CONTEXT = 44  # a prompt of 40 leaves 4 tokens
CASES = {"trees": 170, "retrieval": 110, "adaptive": 130, "co-located": 90, "conversations": 50}
"""Cases of each kind."""


class Figures(NamedTuple):
    """What must be the same for every method."""

    tokens: list[int]
    finish: str
    count: int
    text: str


@dataclass(frozen=True)
class Models:
    """A target and a draft that may know something of it.

    Attributes:
        family: transformers' model type.
        seed: Seed of the target's weights.
        scale: How sure the target is.
        draft: ``layer`` is the target's first one, ``itself`` all of it, ``cut`` the same with
            rows for half of the tokens, ``stranger`` another model.
        context: Most tokens of the target's context.
        draft_context: The same of the draft.
    """

    family: str = "llama"
    seed: int = 0
    scale: float = 4.0
    draft: str = "layer"
    context: int = 2048
    draft_context: int = 2048


@dataclass(frozen=True)
class Case:
    """One answer that is asked for twice: from a method, and from server-only."""

    models: Models
    spec: MethodSpec
    prompt: list[int]
    sampling: Sampling
    eos_ids: frozenset[int]
    stop: tuple[str, ...]
    max_new_tokens: int

    @property
    def rules(self) -> StopRules:
        limit = answer_limit(self.max_new_tokens, len(self.prompt), self.models.context)
        return StopRules(self.eos_ids, limit, self.stop)

    @property
    def wish(self) -> Wish:
        return Wish(self.sampling)


@dataclass
class Tally:
    """What the cases of one kind have shown, so that none of it can be missing unseen."""

    cases: int = 0
    accepted: int = 0
    alone: int = 0
    finishes: set[str] = field(default_factory=set)


# --------------------------------------------------------------------------------- the two sides


@lru_cache(maxsize=None)
def weights(family: str, seed: int, scale: float, layers: int, context: int) -> ModelRunner:
    options = {"num_hidden_layers": layers, "max_position_embeddings": context}
    return ModelRunner(tiny_model(family, seed, scale=scale, **options), f"tiny {family}")


@lru_cache(maxsize=None)
def cut_head(family: str, seed: int, scale: float, context: int) -> ModelRunner:
    model = tiny_model(family, seed, scale=scale, max_position_embeddings=context)
    return ModelRunner(model, "cut", np.arange(0, VOCAB, 2))


def target_of(models: Models) -> ModelRunner:
    return weights(models.family, models.seed, models.scale, 2, models.context)


def draft_of(models: Models) -> ModelRunner:
    family, seed, scale, context = (
        models.family, models.seed, models.scale, models.draft_context
    )  # fmt: skip
    if models.draft == "cut":
        return cut_head(family, seed, scale, context)
    if models.draft == "stranger":
        return weights("llama", 99, scale, 1, context)
    return weights(family, seed, scale, 1 if models.draft == "layer" else 2, context)


def letters(tokens: Sequence[int]) -> str:
    """Spell tokens with few letters, so that stop strings are hit."""
    return "".join(chr(ord("a") + token % 12) for token in tokens)


class Spells(LoopbackLink):
    """A target that ends its streams after a few tokens, as if it had been told to stop there.

    Streams that end with the answer would never let speculation be tried again.
    """

    spell = 3

    def _stream(self) -> Sequence[msg.Tokens]:
        pieces = list(super()._stream_pieces(self.spell))
        return pieces or [msg.Tokens(b"", msg.Finish.STOP, True, 0, 0)]


def text_of(blocks: Sequence[Sequence[int]], stop: Sequence[str]) -> str:
    """Return the text as it is streamed, block by block."""
    stream, ending = TextStream(letters), StopText(stop)
    pieces = [ending.push(stream.push(block)) for block in blocks]
    return "".join(pieces) + ending.push(stream.flush()) + ending.flush()
