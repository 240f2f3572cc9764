"""Drawn answers follow the target's own distribution, whatever is drafted.

A target of a few tokens, so that every continuation of two tokens has a probability that can be
worked out: by the stock model, torch's softmax and a plain truncation that shares no code with the
library's. Seeds are fixed.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from autodraft.config import MethodSpec
from autodraft.decoding.sampling import Sampling
from autodraft.decoding.stopping import StopRules
from autodraft.decoding.verification import Choices, walk
from autodraft.decoding.wish import Wish
from autodraft.engine import verifier
from autodraft.engine.methods import DraftSide, make_method
from autodraft.engine.remote import RemoteTarget, TargetWish
from autodraft.engine.rounds import Meters
from autodraft.engine.session import Request
from autodraft.models.runner import ModelRunner
from tests.fakes import LoopbackLink, tiny_model

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(900)]

VOCAB = 8
PROMPT = [3, 1, 4]
ANSWERS = 700
TOKENS = 3
LEAST_EXPECTED = 5.0
REJECTED = 0.001
MODEL = {"seed": 2, "scale": 1.5, "vocab_size": VOCAB}

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CHAIN = MethodSpec(method="chain", width=1, max_depth=2, node_budget=2)
TREE = MethodSpec(method="fixed_tree", width=2, max_depth=2, node_budget=5)
GROWN = MethodSpec(method="opt_tree", width=3, max_depth=2, node_budget=6, retrieval=True)
SPECS = [CHAIN, TREE, GROWN]
SETTINGS: list[dict[str, float]] = [
    {"temperature": 0.3},
    {"temperature": 1.0},
    {"temperature": 1.5},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.5, "top_k": 3},
]


# ---------------------------------------------------------------------------- what is expected


def truncated(logits: Floats, temperature: float, top_k: int = 0, top_p: float = 1.0) -> Floats:
    """Return the distribution that a token is to be drawn from, [V]."""
    probs: Floats = torch.softmax(torch.from_numpy(logits / temperature), dim=0).numpy()
    order = sorted(range(VOCAB), key=lambda token: -probs[token])
    keep = order[: top_k or VOCAB]
    total, held, nucleus = sum(probs[keep]), 0.0, []
    for token in keep:
        nucleus.append(token)
        held += probs[token] / total
        if held >= top_p:
            break
    left = np.zeros(VOCAB)
    left[nucleus] = probs[nucleus]
    return left / left.sum()


@cache
def all_logits() -> Floats:
    """Return the target's logits behind the prompt and any two tokens, [V, V, 3, V], in one go."""
    pairs = [[first, second] for first in range(VOCAB) for second in range(VOCAB)]
    rows = torch.tensor([[*PROMPT, *pair] for pair in pairs])
    with torch.inference_mode():
        logits = tiny_model(**MODEL)(input_ids=rows).logits[:, -3:]
    return logits.double().numpy().reshape(VOCAB, VOCAB, 3, VOCAB)


def expected(settings: dict[str, Any]) -> Floats:
    """Return how likely each pair of second and third token is, [V, V]."""
    logits, pairs = all_logits(), np.zeros((VOCAB, VOCAB))
    firsts = truncated(logits[0, 0, 0], **settings)
    for first in np.flatnonzero(firsts):
        seconds = truncated(logits[first, 0, 1], **settings)
        for second in np.flatnonzero(seconds):
            thirds = truncated(logits[first, second, 2], **settings)
            pairs[second] += firsts[first] * seconds[second] * thirds
    return pairs


def chi_square(counts: Ints, probs: Floats) -> float:
    """Return the p-value of counts under probabilities: Pearson's test, rare cells pooled."""
    assert not counts[probs == 0].any(), "a token was drawn that has no probability"
    wanted = probs.ravel() * counts.sum()
    found = counts.ravel()[order := np.argsort(wanted)]
    wanted = wanted[order]
    rare = int((wanted < LEAST_EXPECTED).sum())
    while rare and wanted[:rare].sum() < LEAST_EXPECTED:
        rare += 1
    if rare:
        wanted = np.array([wanted[:rare].sum(), *wanted[rare:]])
        found = np.array([found[:rare].sum(), *found[rare:]])
    statistic = float(((found - wanted) ** 2 / wanted).sum())
    halves = torch.tensor([(len(wanted) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


# ------------------------------------------------------------------------------- what is found


@dataclass
class Drawn:
    """Many answers to one prompt.

    Attributes:
        pairs: How often each pair of second and third token was drawn, [V, V].
        accepted: Drafted tokens that were right.
        refused: Drafted tokens that were not.
    """

    pairs: Ints
    accepted: int = 0
    refused: int = 0


@cache
def sides() -> tuple[ModelRunner, ModelRunner]:
    """Return the target and its first layer, a draft that is right now and then."""
    draft = tiny_model(**MODEL, num_hidden_layers=1)
    return ModelRunner(tiny_model(**MODEL), "target"), ModelRunner(draft, "draft")


def draw(spec: MethodSpec, settings: dict[str, Any]) -> Drawn:
    """Answer the prompt by many seeds, four choices each; every method has seeds of its own."""
    target, draft = sides()
    side = DraftSide(runner=draft)
    remote = RemoteTarget(LoopbackLink(target), TargetWish("loopback"))
    found = Drawn(np.zeros((VOCAB, VOCAB), dtype=np.int64))
    first_seed = SPECS.index(spec) * ANSWERS
    for number in range(ANSWERS):
        seed, choice = first_seed + number // 4, number % 4
        wish = Wish(Sampling(**settings, seed=seed, choice=choice))
        method = make_method(spec, side, wish)
        rules = StopRules(frozenset(), TOKENS)
        request = Request(remote, method, PROMPT, rules, Meters(), wish=wish)
        _, second, third = (token for block in request for token in block)
        found.pairs[second, third] += 1
        found.accepted += request.record.accepted_tokens
        found.refused += request.record.sent_nodes - request.record.accepted_tokens
    return found


@pytest.mark.parametrize("settings", SETTINGS, ids=repr)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.label)
def test_second_and_third_tokens_are_drawn_as_the_target_has_them(
    spec: MethodSpec, settings: dict[str, float]
) -> None:
    drawn = draw(spec, settings)
    assert drawn.accepted > ANSWERS / 10
    assert drawn.refused > ANSWERS / 10
    assert chi_square(drawn.pairs, expected(settings)) > REJECTED


# ----------------------------------------------------------------------- the test can be failed


def test_the_test_knows_its_own_law() -> None:
    # 60 heads of 100 tosses: 2 · 10² / 50 = 4, and a normal value beyond 2 has 0.0455.
    assert chi_square(np.array([60, 40]), np.array([0.5, 0.5])) == pytest.approx(0.0455, abs=1e-4)
    # With two degrees of freedom the p-value is exp(-statistic / 2).
    statistic = 20**2 / 110 + 0**2 / 110 + 20**2 / 110
    thirds = chi_square(np.array([90, 110, 130]), np.full(3, 1 / 3))
    assert thirds == pytest.approx(np.exp(-statistic / 2))
    # Cells of 2 and 4 expected are one cell of 6.
    pooled = chi_square(np.array([56, 40, 2, 2]), np.array([0.5, 0.44, 0.02, 0.04]))
    statistic = 6**2 / 50 + 4**2 / 44 + 2**2 / 6
    assert pooled == pytest.approx(np.exp(-statistic / 2))


def test_what_cannot_be_drawn_is_noticed() -> None:
    with pytest.raises(AssertionError, match="has no probability"):
        chi_square(np.array([50, 50, 1]), np.array([0.5, 0.5, 0.0]))


@pytest.mark.parametrize("spec", [CHAIN, TREE], ids=lambda spec: spec.label)
def test_a_rule_that_accepts_too_much_is_rejected(
    spec: MethodSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)

    def biased(tokens: Ints, parents: Ints, choices: Choices) -> tuple[Ints, int]:
        path, bonus = walk(tokens, parents, choices)
        children = np.flatnonzero(parents == 0)
        if len(path) or not len(children) or rng.random() > 0.5:
            return path, bonus
        return children[:1], choices[int(children[0])]

    monkeypatch.setattr(verifier, "walk", biased)
    settings = {"temperature": 1.0}
    assert chi_square(draw(spec, settings).pairs, expected(settings)) < REJECTED


def test_a_draw_from_the_drafts_distribution_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = sides()
    monkeypatch.setattr(f"{__name__}.sides", lambda: (draft, target))
    settings = {"temperature": 1.0}
    assert chi_square(draw(CHAIN, settings).pairs, expected(settings)) < REJECTED
