"""One forward of either model, made to be timed: a level of drafting, or a target's verification.

The tokens are random, but the same ones every time. How often each is made, and what becomes of the
times, is decided elsewhere.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from autodraft.decoding.stopping import StopRules
from autodraft.engine.remote import RemoteTarget
from autodraft.engine.verifier import Verifier
from autodraft.errors import ProfileError
from autodraft.models.candidates import top_candidates
from autodraft.models.runner import ModelRunner
from autodraft.profiling.measure import contexts_within
from autodraft.tree.draft_tree import received_tree

_DRIFT: Final = 32
"""Tokens by which a session's context grows, half of them beyond its nominal length, before the
timing goes on in another."""
MAX_NEW_TOKENS: Final = _DRIFT + 4  # the last round of a session may add two
"""Tokens of the answer of a session; the prompt takes one at least."""
ROOM: Final = MAX_NEW_TOKENS - _DRIFT // 2
"""Tokens that a session needs behind its nominal context."""
_ATTEMPTS: Final = 20
"""Prompts that are tried for an answer that does not end with its first token."""
_LABEL: Final = "profile"

IntArray = npt.NDArray[np.int64]


class DraftStep:
    """Times the expansion of nodes that are all children of the root."""

    def __init__(self, runner: ModelRunner, children: int, most: int) -> None:
        self._runner = runner
        self._children = children
        self._cache = runner.new_cache(max(contexts_within(runner.max_context, 1)) + most)
        self._rng = np.random.default_rng(0)

    def __call__(self, rows: int, context: int) -> float:
        """Return the seconds of one step."""
        if self._cache.length != context:
            self._cache.trim(0)
            self._runner.prefill(self._cache, self._tokens(context))
        tokens, positions = self._tokens(rows), np.full(rows, context)
        visible = np.eye(rows, dtype=np.bool_)
        started = time.perf_counter()
        logits = self._runner.forward(self._cache, tokens, positions, visible)
        top_candidates(logits, self._children)
        seconds = time.perf_counter() - started
        self._cache.trim(context)
        return seconds

    def close(self) -> None:
        """Give the cache back."""
        self._runner.release(self._cache)

    def _tokens(self, count: int) -> IntArray:
        return self._rng.integers(0, self._runner.vocab_size, count)


class TargetTimer(ABC):
    """Times verifications of a star of nodes below the root, and plain steps for one row.

    The context grows with every verification; a session is left for another before that matters.
    """

    def __init__(self, alphabet: IntArray, most_nodes: int) -> None:
        """Prepare.

        Args:
            alphabet: Token ids of prompts and nodes.
            most_nodes: Most nodes of a verification.
        """
        self._alphabet = alphabet
        self._most_nodes = most_nodes
        self._rng = np.random.default_rng(0)
        self._context = -1
        self._grown = 0
        self._over = True

    def __call__(self, rows: int, context: int) -> float:
        """Return the seconds of one forward."""
        if self._over or context != self._context or self._grown >= _DRIFT:
            self._begin(context)
        seconds, block = self._forward(self._rng.choice(self._alphabet, rows - 1, replace=False))
        self._grown += len(block)
        self._over = self._ends(block)
        return seconds

    def close(self) -> None:
        """Leave the session, if one is open."""
        if self._context >= 0:
            self._leave()
        self._context = -1

    def _begin(self, context: int) -> None:
        length = max(1, context - _DRIFT // 2)
        for _ in range(_ATTEMPTS):
            self.close()
            self._context, self._grown = context, 1
            self._over = self._ends([self._open(self._rng.choice(self._alphabet, length))])
            if not self._over:
                return
        raise ProfileError(
            f"The target ended its answer with the first token behind {_ATTEMPTS} random prompts, "
            "so its forwards cannot be timed from here. Start the server with "
            "--enable-auto-target-profile."
        )

    def _ends(self, block: Iterable[int]) -> bool:
        """Tell whether the answer has ended with these tokens."""
        return False

    @abstractmethod
    def _open(self, prompt: IntArray) -> int:
        """Begin an answer and return its first token."""

    @abstractmethod
    def _forward(self, tokens: IntArray) -> tuple[float, list[int]]:
        """Verify a star and return the seconds that took, and the new tokens."""

    @abstractmethod
    def _leave(self) -> None:
        """End the answer."""


class OwnTarget(TargetTimer):
    """A target in this process."""

    def __init__(self, runner: ModelRunner, alphabet: IntArray, most_nodes: int) -> None:
        super().__init__(alphabet, most_nodes)
        self._runner = runner
        self._verifier: Verifier | None = None

    def _open(self, prompt: IntArray) -> int:
        rules = StopRules(frozenset(), MAX_NEW_TOKENS)
        self._verifier = Verifier(self._runner, prompt, rules, self._most_nodes)
        return self._verifier.prefill()

    def _forward(self, tokens: IntArray) -> tuple[float, list[int]]:
        assert self._verifier is not None
        started = time.perf_counter()
        if not len(tokens):
            block = [self._verifier.step()]
            return time.perf_counter() - started, block
        path, bonus = self._verifier.verify(tokens, np.zeros_like(tokens))
        return time.perf_counter() - started, [*tokens[path - 1].tolist(), bonus]

    def _leave(self) -> None:
        assert self._verifier is not None
        self._verifier.release()


class FarTarget(TargetTimer):
    """A target behind a link, timed by its own clock."""

    def __init__(self, target: RemoteTarget, alphabet: IntArray, most_nodes: int) -> None:
        super().__init__(alphabet, most_nodes)
        self._target = target
        self._rules = StopRules(frozenset(target.welcome.eos_ids), MAX_NEW_TOKENS)
        self._root = -1

    def _ends(self, block: Iterable[int]) -> bool:
        return not self._rules.eos_ids.isdisjoint(block)

    def _open(self, prompt: IntArray) -> int:
        self._target.open(self._rules, self._most_nodes, _LABEL)
        self._target.send_prompt(prompt.tolist())
        (self._root,) = self._target.first_token().tokens
        return self._root

    def _forward(self, tokens: IntArray) -> tuple[float, list[int]]:
        tree = received_tree(self._root, tokens, np.zeros_like(tokens))
        verdict = self._target.verify(tree)
        self._root = verdict.bonus
        return verdict.verify_s, [*tree.tokens[verdict.path].tolist(), verdict.bonus]

    def _leave(self) -> None:
        self._target.close_session()
