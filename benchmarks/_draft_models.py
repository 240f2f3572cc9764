"""The models' part of ``draft_quality``: answers, agreements, growths and the times of a step.

Everything goes through the library's own runner, verifier and drafter. Knows no question, no table.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from _draft_rounds import KnownAnswer

from autodraft.decoding.stopping import Decode, StopRules
from autodraft.engine.drafter import Drafter
from autodraft.engine.verifier import Verifier
from autodraft.models.candidates import best_tokens, top_candidates
from autodraft.models.loader import LoadedModel, ModelSource, load_model
from autodraft.models.runner import ModelRunner
from autodraft.models.tokenizer import require_compatible, unknown_to_target
from autodraft.policy import FixedTreePolicy, TreeLimits
from autodraft.tree.draft_tree import IntArray
from autodraft.tree.growth import TreeGrowth

CANDIDATES: Final = 8
"""Candidates that a timed draft step takes from its logits."""
RANKED: Final = 4
CHUNK: Final = 128
"""Answer tokens per forward when agreements are read: bounds the memory of their logits."""
WARMUP: Final = 3


@dataclass(frozen=True)
class Pair:
    """A target and its draft.

    Attributes:
        target: The model whose answers count.
        draft: The model that guesses them.
        excluded: Token ids that the draft must not propose.
    """

    target: LoadedModel
    draft: LoadedModel
    excluded: Sequence[int] = ()


@dataclass(frozen=True)
class StepTimes:
    """Median seconds of a forward of one token behind the same context.

    Attributes:
        draft_s: The draft's, with its best candidates.
        target_s: The target's, with its arg-max.
    """

    draft_s: float
    target_s: float

    @property
    def ratio(self) -> float:
        """Draft over target."""
        return self.draft_s / self.target_s


def load_pair(target_name: str, draft_name: str, dtype: str) -> Pair:
    """Load both models.

    Raises:
        ModelLoadError: If one of them cannot be loaded.
        TokenizerMismatch: If they do not share their token ids.
    """
    target = load_model(ModelSource(target_name, dtype=dtype))
    draft = load_model(ModelSource(draft_name, dtype=dtype, drafts=True))
    theirs, ours = target.tokenizer.identity, draft.tokenizer.identity
    require_compatible(theirs, ours, target_name=target_name, draft_name=draft_name)
    rows = (target.runner.vocab_size, draft.runner.vocab_size)
    return Pair(target, draft, unknown_to_target(theirs, ours, *rows))


def greedy_answer(
    target: ModelRunner, prompt: Sequence[int], rules: StopRules, decode: Decode | None = None
) -> tuple[KnownAnswer, list[float]]:
    """Answer as a server-only target does, token by token.

    Args:
        target: The target model.
        prompt: Token ids of the prompt.
        rules: When the answer ends.
        decode: Turns token ids into text, where the rules have stop strings.

    Returns:
        The answer, and the seconds of each forward of one token.
    """
    context = np.array(prompt, dtype=np.int64)
    verifier = Verifier(target, context, rules, node_budget=0, decode=decode)
    tokens, seconds = [verifier.prefill()], []
    while verifier.finish is None:
        started = time.perf_counter()
        tokens.append(verifier.step())
        seconds.append(time.perf_counter() - started)
    return KnownAnswer(prompt, tokens, rules.max_new_tokens), seconds


def token_ranks(draft: ModelRunner, answer: KnownAnswer, excluded: Sequence[int]) -> IntArray:
    """Return the rank of each answer token among the draft's best, given the true text before it.

    0 is the draft's first choice and ``RANKED`` means that it is not among the best so many. So is
    the first token, which no round drafts, and what lies beyond the draft's own context.

    Returns:
        [T].
    """
    ranks = np.full(len(answer.tokens), RANKED, dtype=np.int64)
    columns = draft.columns_of(excluded) if excluded else None
    end = min(len(answer.tokens), draft.max_context - len(answer.prompt))
    if end < 2:
        return ranks
    cache = draft.new_cache(len(answer.prompt) + end - 1)
    draft.prefill(cache, answer.prompt)
    for start in range(1, end, CHUNK):
        before = np.array(answer.tokens[start - 1 : min(start + CHUNK, end) - 1], dtype=np.int64)
        truth = np.array(answer.tokens[start : start + len(before)], dtype=np.int64)
        positions = np.arange(cache.length, cache.length + len(before))
        causal = np.tril(np.ones((len(before), len(before)), dtype=np.bool_))
        logits = draft.forward(cache, before, positions, causal)
        best = draft.token_ids(top_candidates(logits, RANKED, columns)[0])
        hits = best == truth[:, None]
        ranks[start : start + len(before)] = np.where(hits.any(1), hits.argmax(1), RANKED)
    return ranks


class _WholeGrowth(FixedTreePolicy):
    """Grows like a fixed tree and keeps all that grew; what to cut out of it is asked later."""

    grown: TreeGrowth | None = None

    def num_nodes(self, growth: TreeGrowth) -> int:
        self.grown = growth
        return growth.num_nodes


class Growths:
    """What the drafter grows before each position of one answer: ``width`` nodes on each level."""

    def __init__(self, drafter: Drafter, answer: KnownAnswer, width: int, depth: int) -> None:
        """Begin an answer; the drafter's cache follows it."""
        self._drafter = drafter
        self._answer = answer
        self._policy = _WholeGrowth(TreeLimits(width, depth, width * width * depth))
        self._position = 0
        self._growth = TreeGrowth(answer.tokens[0])
        drafter.start(answer.prompt, answer.limit, self._policy.limits)

    def at(self, position: int) -> TreeGrowth:
        """Return the growth before ``position``; positions must not fall from call to call.

        Where the round leaves no room for a drafted token, it is a bare root.
        """
        if position != self._position:
            assert position > self._position, "the drafter's cache does not go back"
            self._position, self._growth = position, self._grow(position)
        return self._growth

    def finish(self) -> None:
        """Free the drafter's cache."""
        self._drafter.finish()

    def _grow(self, position: int) -> TreeGrowth:
        context, limits = self._answer.context(position), self._policy.limits
        self._policy.grown = None
        room = self._answer.room(position)
        self._drafter.draft(context, self._policy, room, limits.node_budget)
        self._drafter.commit(np.empty(0, dtype=np.int64))  # the cache keeps the context alone
        return self._policy.grown or TreeGrowth(context[-1])


def step_times(pair: Pair, contexts: Sequence[int], turns: int, seed: int) -> dict[int, StepTimes]:
    """Time one-token forwards of draft and target, which take turns.

    Args:
        pair: The models.
        contexts: Tokens before the forwarded one; at most what both models take.
        turns: Forwards of each model behind each context.
        seed: Seed of the tokens.

    Returns:
        Medians by context.
    """
    draft, target = pair.draft.runner, pair.target.runner
    longest = min(draft.max_context, target.max_context) - 1
    rng = random.Random(seed)
    found = {}
    for context in sorted({min(context, longest) for context in contexts}):
        tokens = [rng.randrange(min(draft.vocab_size, target.vocab_size)) for _ in range(context)]
        steps = (_draft_step(draft, tokens), _target_step(target, tokens))
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(-WARMUP, turns):
            # Who goes first alternates: the second finds what the first left in the CPU's caches.
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                started = time.perf_counter()
                steps[side]()
                if turn >= 0:
                    times[side].append(time.perf_counter() - started)
        found[context] = StepTimes(*map(statistics.median, times))
    return found


def _draft_step(runner: ModelRunner, tokens: Sequence[int]) -> Callable[[], object]:
    step = _one_token(runner, tokens)
    return lambda: top_candidates(step(), CANDIDATES)


def _target_step(runner: ModelRunner, tokens: Sequence[int]) -> Callable[[], object]:
    step = _one_token(runner, tokens)
    return lambda: best_tokens(step())


def _one_token(runner: ModelRunner, tokens: Sequence[int]) -> Callable[[], torch.Tensor]:
    """Return a forward of one token behind these, the cache trimmed to them again."""
    context = len(tokens)
    cache = runner.new_cache(context + 1)
    runner.prefill(cache, tokens)
    last, position = np.array(tokens[-1:], dtype=np.int64), np.array([context])
    alone = np.ones((1, 1), dtype=np.bool_)

    def step() -> torch.Tensor:
        logits = runner.forward(cache, last, position, alone)
        cache.trim(context)
        return logits

    return step
