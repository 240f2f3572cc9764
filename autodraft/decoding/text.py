"""Token ids to text, piece by piece, without ever showing half a character.

A multi-byte character can be split over several tokens, and a token's text can depend on the one
before it. Text is therefore released only when decoding further tokens can no longer change it.
"""

from collections.abc import Callable, Sequence
from typing import Final

_INCOMPLETE: Final = "�"


class TextStream:
    """Turns blocks of token ids into pieces of text; the pieces joined are the whole text."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._context_start = 0
        self._released = 0

    def push(self, block: Sequence[int]) -> str:
        """Take new tokens and return the text that has become certain."""
        self._ids += block
        return self._release(final=False)

    def flush(self) -> str:
        """Return what is left at the end of the answer, incomplete characters included."""
        return self._release(final=True)

    def _release(self, *, final: bool) -> str:
        # Decode from a few tokens back: a word's leading space depends on what stands before it.
        known = self._decode(self._ids[self._context_start : self._released])
        text = self._decode(self._ids[self._context_start :])
        if len(text) <= len(known) or (text.endswith(_INCOMPLETE) and not final):
            return ""  # the tokens wait: the next one's text may depend on them
        self._context_start = self._released
        self._released = len(self._ids)
        return text[len(known) :]
