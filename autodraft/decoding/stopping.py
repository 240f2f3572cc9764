"""When an answer ends, decided alike on both sides of the link and for every method.

A block of new tokens is cut behind its first EOS, behind the token that completes a stop string,
and at the token limit, so that a speculative round ends with the same tokens as single-token
decoding. Nothing here knows a model; text comes from the decoder that is handed in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from autodraft.decoding.text import TextStream

FinishReason = Literal["stop", "length"]
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class StopRules:
    """The end of one answer.

    Attributes:
        eos_ids: Token ids that end the answer; the one that ends it is part of it.
        max_new_tokens: Most tokens of the answer.
        stop: Strings that end the answer. The token that completes one is part of the answer, its
            text is cut before the string.
    """

    eos_ids: frozenset[int]
    max_new_tokens: int
    stop: tuple[str, ...] = ()

    def cut(self, emitted: int, block: Sequence[int]) -> tuple[list[int], FinishReason | None]:
        """Cut a block of new tokens at an EOS or the limit; stop strings are `Ending`'s business.

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


class Ending:
    """Follows one answer to its end.

    Whether a token completes a stop string depends on the tokens before it alone, so that the
    answer ends at the same token however it is cut into blocks.

    Attributes:
        rules: When it ends.
        emitted: Tokens of the answer so far.
        finish: Why it has ended; None while it goes on.
    """

    def __init__(self, rules: StopRules, decode: Decode | None = None) -> None:
        """Begin an answer.

        Args:
            rules: When it ends.
            decode: Turns token ids into text; needed for stop strings only.
        """
        self.rules = rules
        self.emitted = 0
        self.finish: FinishReason | None = None
        self._text: TextStream | None = None
        if rules.stop:
            assert decode is not None, "stop strings need a decoder"
            self._text = TextStream(decode)
            self._window = max(map(len, rules.stop)) - 1
        self._tail = ""

    def cut(self, block: Sequence[int]) -> list[int]:
        """Take new tokens and return those that belong to the answer."""
        kept, self.finish = self.rules.cut(self.emitted, block)
        if self._text is not None:
            for number, token in enumerate(kept, start=1):
                if self._completes_stop(self._text, token):
                    kept, self.finish = kept[:number], "stop"
                    break
        self.emitted += len(kept)
        return kept

    def _completes_stop(self, text: TextStream, token: int) -> bool:
        seen = self._tail + text.push([token])
        self._tail = seen[-self._window :] if self._window else ""
        return any(stop in seen for stop in self.rules.stop)


class StopText:
    """Takes the text of an answer piece by piece and ends it before the first stop string.

    What may be the beginning of a stop string is held back until it is known not to be one.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(stop)
        self._held = ""
        self._ended = False

    def push(self, piece: str) -> str:
        """Return the text that is certain to stay."""
        if self._ended:
            return ""
        text = self._held + piece
        found = self._first(text)
        begun = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        if found is not None and found <= begun:
            self._held, self._ended = "", True
            return text[:found]
        # What has begun before a stop string that is there would end the text still earlier.
        self._held = text[begun:]
        return text[:begun]

    def flush(self) -> str:
        """Return what is left at the end of the answer."""
        rest, self._held = self._held, ""
        return rest[: self._first(rest)]

    def _first(self, text: str) -> int | None:
        """Return where the first stop string begins; None where there is none."""
        places = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        return min(places, default=None)


def _overlap(text: str, stop: str) -> int:
    """Return how many letters at the end of ``text`` are the beginning of ``stop``."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)


def answer_limit(max_new_tokens: int, prompt_tokens: int, max_context: int) -> int:
    """Return the most tokens an answer can have: its own limit or the room the context leaves."""
    return min(max_new_tokens, max_context - prompt_tokens)
