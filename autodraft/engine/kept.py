"""The cache that one answer leaves for the next, so that a chat's next turn forwards what is new.

Keys and values depend on the tokens before them alone: as far as two prompts agree, one's serve the
other. Knows neither drafting nor verifying.
"""

from collections.abc import Sequence

from autodraft.models.kv_cache import KVCache
from autodraft.models.runner import ModelRunner


class Kept:
    """At most one cache, with the tokens that it holds."""

    def __init__(self) -> None:
        self._runner: ModelRunner | None = None
        self._cache: KVCache | None = None
        self._tokens: list[int] = []

    def take(
        self, runner: ModelRunner, tokens: Sequence[int], capacity: int
    ) -> tuple[KVCache, int]:
        """Return a cache for an answer, and how many of its first tokens it holds already.

        Args:
            runner: The model that it is for.
            tokens: The prompt; its last token is never among those held, for its logits are wanted.
            capacity: Tokens that it must have room for.
        """
        cache, self._cache = self._cache, None
        common = 0 if runner is not self._runner else _agreement(self._tokens, tokens[:-1])
        if cache is not None and common and cache.capacity >= capacity:
            cache.trim(common)
            return cache, common
        fresh = runner.new_cache(capacity)
        if cache is not None and self._runner is not None:
            if common:
                fresh.adopt(cache, common)
            self._runner.release(cache)
        return fresh, common if cache is not None else 0

    def keep(self, runner: ModelRunner, cache: KVCache, tokens: Sequence[int]) -> None:
        """Take over a cache whose first slots hold ``tokens``; what was kept before is released."""
        self.drop()
        cache.trim(len(tokens))
        self._runner, self._cache, self._tokens = runner, cache, list(tokens)

    def drop(self) -> None:
        """Release what is kept."""
        cache, self._cache = self._cache, None
        if cache is not None and self._runner is not None:
            self._runner.release(cache)
        self._runner, self._tokens = None, []


def _agreement(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading tokens two sequences have in common."""
    for count, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return count
    return min(len(one), len(other))
