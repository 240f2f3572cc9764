"""The answers of the identity benchmark in a file: one line each, appended as soon as it is there.

A line says all that its answer depends on, so that a later call takes what it finds and asks for
the rest. Knows no engine and compares nothing.
"""

import os
from pathlib import Path
from typing import Final, NamedTuple

import _common as common
import msgspec

FILE: Final = "answers.jsonl"


class Key(NamedTuple):
    """What an answer depends on.

    Attributes:
        dtype: Of both models.
        exact: Whether close tokens are decided again.
        seed: Of the draws; None is greedy.
        turn: Name of the turn.
        method: Label of the method.
        tokens: Most tokens of the answer.
        prompt_hash: Of the prompt's token ids.
    """

    dtype: str
    exact: bool
    seed: int | None
    turn: str
    method: str
    tokens: int
    prompt_hash: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A finished answer; its first fields are those of ``Key``.

    Attributes:
        output_ids: Its token ids.
        gaps: Of each token the distance of the second best, in logits, noise included; None where
            no second was left. The whole is None where it was not asked for.
        redecided: Tokens that were decided again, by a forward of their own.
        accepted: Drafted tokens that were kept.
    """

    dtype: str
    exact: bool
    seed: int | None
    turn: str
    method: str
    tokens: int
    prompt_hash: str
    output_ids: list[int]
    gaps: list[float | None] | None = None
    redecided: int = 0
    accepted: int = 0

    @property
    def key(self) -> Key:
        """What it depends on."""
        return Key(*(getattr(self, name) for name in Key._fields))


class Answers:
    """The answers in a folder."""

    def __init__(self, folder: Path) -> None:
        """Read what is there; a line that was cut off in the middle of writing is removed.

        Raises:
            CannotMeasure: If a line is not that of an answer.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / FILE
        self._found: dict[Key, Answer] = {}
        text = self._path.read_bytes() if self._path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            os.truncate(self._path, len(whole))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                answer = msgspec.json.decode(line, type=Answer)
            except msgspec.DecodeError as error:
                raise common.CannotMeasure(
                    f"{self._path}:{number} is not an answer of this benchmark ({error}). Delete "
                    "the line, or give another --folder."
                ) from error
            self._found[answer.key] = answer

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Key) -> Answer | None:
        """Return an answer; None where it is not there yet."""
        return self._found.get(key)

    def add(self, answer: Answer) -> None:
        """Keep an answer."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(answer) + b"\n")
        self._found[answer.key] = answer
