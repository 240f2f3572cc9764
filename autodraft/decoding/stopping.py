"""When an answer ends, decided alike on both sides of the link and for every method.

A block of new tokens is cut behind its first EOS and at the token limit, so that a speculative
round ends with the same tokens as single-token decoding. Nothing here knows text or models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class StopRules:
    """The end of one answer.

    Attributes:
        eos_ids: Token ids that end the answer; the one that ends it is part of it.
        max_new_tokens: Most tokens of the answer.
    """

    eos_ids: frozenset[int]
    max_new_tokens: int

    def cut(self, emitted: int, block: Sequence[int]) -> tuple[list[int], FinishReason | None]:
        """Cut a block of new tokens to what belongs to the answer.

        Args:
            emitted: Tokens of the answer before this block.
            block: New tokens, in order.

        Returns:
            The tokens kept, and why the answer ends with them (None: it goes on).
        """
        kept: list[int] = []
        for token in block[: self.max_new_tokens - emitted]:
            kept.append(token)
            if token in self.eos_ids:
                return kept, "stop"
        return kept, "length" if emitted + len(kept) >= self.max_new_tokens else None


def answer_limit(max_new_tokens: int, prompt_tokens: int, max_context: int) -> int:
    """Return the most tokens an answer can have: its own limit or the room the context leaves."""
    return min(max_new_tokens, max_context - prompt_tokens)
