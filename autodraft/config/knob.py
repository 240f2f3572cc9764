"""One knob of a configuration: its tag, the values it takes, its meaning, whether it acts yet.

A *kind* reads a value from text, so that XML, YAML, ``--set`` and Python all follow the same rules
and give the same messages. This module knows no block, no file and no particular tag.
"""

import difflib
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from pydantic import Field
from pydantic.fields import FieldInfo

_WHOLE: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
BLANKS: Final = " \t\r\n"  # those of XML, so that the schema and the loader agree
_SEPARATORS: Final = re.compile(rf"[{BLANKS},]+")
_LONGEST_SHOWN: Final = 60
_EXACT_BELOW: Final = 2.0**53

Raw = str | list[str]


class BadValueError(ValueError):
    """A kind does not take a value.

    Attributes:
        shown: The offending part of the value.
        hint: What the user may have meant, a sentence or nothing.
    """

    def __init__(self, shown: str, hint: str = "") -> None:
        super().__init__(shown)
        self.shown = shown
        self.hint = hint


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of ``names`` that ``name`` is most likely a misspelling of, or None."""
    by_lower = {known.lower(): known for known in names}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a sentence that proposes the nearest of ``names``, or an empty string."""
    match = nearest(name, names)
    return f"Did you mean {match}?" if match else ""


def quoted(text: str) -> str:
    """Return ``text`` in quotes, on one line and of bounded length, for a message."""
    return repr(text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…")


class Kind(Protocol):
    """What values a knob takes."""

    @property
    def allowed(self) -> str:
        """Complete the sentence "use …"."""

    def read(self, raw: Raw) -> Any:
        """Return the value that ``raw`` stands for, or raise `BadValueError`."""

    def plain(self, value: Any) -> Any:
        """Return ``value`` as YAML shows it; reading its text gives ``value`` again."""


def _one(raw: Raw) -> str:
    if isinstance(raw, str):
        return raw.strip(BLANKS)
    raise BadValueError(", ".join(raw), "One value is expected here, not a list.")


@dataclass(frozen=True)
class Whole:
    """An integer from ``low`` to ``high``."""

    low: int = 0
    high: int | None = None

    @property
    def allowed(self) -> str:
        """Complete the sentence "use …"."""
        if self.high is None:
            return f"an integer of at least {self.low}"
        return f"an integer from {self.low} to {self.high}"

    def read(self, raw: Raw) -> int:
        """Return the integer."""
        text = _one(raw)
        if not _WHOLE.fullmatch(text):
            raise BadValueError(text)
        value = int(text)
        if value < self.low or (self.high is not None and value > self.high):
            raise BadValueError(text)
        return value

    def plain(self, value: int) -> int:
        """Return ``value`` itself."""
        return value


@dataclass(frozen=True)
class Number:
    """A finite number from ``low`` to ``high``; ``low`` itself is left out where ``above``."""

    low: float = 0.0
    high: float | None = None
    above: bool = False

    @property
    def allowed(self) -> str:
        """Complete the sentence "use …"."""
        lower = f"above {self.low:g}" if self.above else f"of at least {self.low:g}"
        if self.high is None:
            return f"a number {lower}"
        if self.above:
            return f"a number {lower}, at most {self.high:g}"
        return f"a number from {self.low:g} to {self.high:g}"

    def read(self, raw: Raw) -> float:
        """Return the number."""
        text = _one(raw)
        if not _NUMBER.fullmatch(text):
            raise BadValueError(text)
        value = float(text) + 0.0  # -0.0 becomes 0.0
        too_low = value <= self.low if self.above else value < self.low
        too_high = self.high is not None and value > self.high
        if too_low or too_high or not math.isfinite(value):
            raise BadValueError(text)
        return value

    def plain(self, value: float) -> int | float:
        """Return ``value``, without the point where it is an integer."""
        return int(value) if value.is_integer() and abs(value) < _EXACT_BELOW else value


@dataclass(frozen=True)
class Flag:
    """A switch; true/false, yes/no and on/off are read as well."""

    allowed: str = "1 or 0"

    def read(self, raw: Raw) -> bool:
        """Return whether the switch is on."""
        text = _one(raw)
        if text.lower() in {"1", "true", "yes", "on"}:
            return True
        if text.lower() in {"0", "false", "no", "off"}:
            return False
        raise BadValueError(text)

    def plain(self, value: bool) -> int:
        """Return 1 or 0."""
        return int(value)


@dataclass(frozen=True)
class Choice:
    """One of a few names."""

    names: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """Complete the sentence "use …"."""
        return "one of " + ", ".join(self.names)

    def read(self, raw: Raw) -> str:
        """Return the name."""
        text = _one(raw)
        if text in self.names:
            return text
        raise BadValueError(text, did_you_mean(text, self.names))

    def plain(self, value: str) -> str:
        """Return ``value`` itself."""
        return value


@dataclass(frozen=True)
class Text:
    """Printable text on one line that matches ``pattern`` as a whole."""

    allowed: str
    pattern: str = r".+"

    def read(self, raw: Raw) -> str:
        """Return the text."""
        text = _one(raw)
        if text.isprintable() and re.fullmatch(self.pattern, text):
            return text
        raise BadValueError(text)

    def plain(self, value: str) -> str:
        """Return ``value`` itself."""
        return value


def _parts(raw: Raw) -> list[str]:
    """Return the items of a list, however it was written."""
    return raw if isinstance(raw, list) else [part for part in _SEPARATORS.split(raw) if part]


@dataclass(frozen=True)
class Each:
    """A list of different values of one kind, separated by commas or spaces."""

    item: Kind

    @property
    def allowed(self) -> str:
        """Complete the sentence "use …"."""
        return f"a list (commas or spaces between), each {self.item.allowed}"

    def read(self, raw: Raw) -> tuple[Any, ...]:
        """Return the values in their order."""
        parts = _parts(raw)
        if not parts:
            raise BadValueError("", "The list is empty.")
        values: dict[Any, None] = {}  # ordered, and quick to look up in a long list
        for part in parts:
            value = self.item.read(part)
            if value in values:
                raise BadValueError(part, "It is in the list twice.")
            values[value] = None
        return tuple(values)

    def plain(self, value: tuple[Any, ...]) -> list[Any]:
        """Return the values as a list."""
        return [self.item.plain(part) for part in value]


@dataclass(frozen=True)
class OrWord:
    """A value of another kind, or a word that stands for None."""

    word: str
    kind: Kind

    @property
    def allowed(self) -> str:
        """Complete the sentence "use …"."""
        return f"{self.kind.allowed}, or {self.word}"

    def read(self, raw: Raw) -> Any:
        """Return None for the word, else what the other kind makes of it."""
        parts = raw if isinstance(raw, list) else [raw]
        if [part.strip(BLANKS) for part in parts] == [self.word]:
            return None
        if isinstance(self.kind, Each) and self.word in _parts(raw):
            raise BadValueError(self.word, "It stands alone, not in a list.")
        return self.kind.read(raw)

    def plain(self, value: Any) -> Any:
        """Return the word for None."""
        return self.word if value is None else self.kind.plain(value)


def _none_word(kind: Kind) -> str | None:
    """Return the word that stands for None in values (or list items) of a kind."""
    inner = kind.item if isinstance(kind, Each) else kind
    return inner.word if isinstance(inner, OrWord) else None


def _as_text(value: object, none_word: str | None) -> str:
    """Return a Python value as the text that a file would hold."""
    if value is None and none_word is not None:
        return none_word
    if isinstance(value, str | int | float | os.PathLike):
        return str(value)
    raise BadValueError(repr(value), f"A value of type {type(value).__name__} has no place here.")


@dataclass(frozen=True)
class Knob:
    """All there is to know of one tag.

    Attributes:
        tag: Its name in files.
        kind: The values it takes.
        meaning: What it is and who reads it.
        unit: Unit of its value; empty for a name or a switch.
        acts: Whether it changes anything in this version.
        only: The values it may have while it does not act, because any other would have to change
            the results; empty where any value is harmless.
        same_as: Tag whose value is the default.
        secret: Whether a wrong value must not be repeated in a message.
    """

    tag: str
    kind: Kind
    meaning: str
    unit: str = ""
    acts: bool = True
    only: tuple[Any, ...] = ()
    same_as: str | None = None
    secret: bool = False

    def read(self, value: object) -> Any:
        """Return the checked value for text, a list of texts, or a Python value.

        Raises:
            ValueError: If the knob does not take it; the text is a whole message.
        """
        try:
            found = self._read(value)
        except BadValueError as bad:
            shown = "the value (not shown)" if self.secret else quoted(bad.shown)
            hint = f" {bad.hint}" if bad.hint else ""
            raise ValueError(
                f"{self.tag} does not take {shown}.{hint} Use {self.kind.allowed}."
            ) from None
        if self.only and found not in self.only:
            neutral = " or ".join(self.text(value) for value in self.only)
            raise ValueError(
                f"{self.tag} does not act yet in this version, and {self.text(found)} would change "
                f"the results: leave the tag out or use {neutral}."
            )
        return found

    def _read(self, value: object) -> Any:
        word = _none_word(self.kind)
        if isinstance(value, list | tuple):
            return self.kind.read([_as_text(item, word) for item in value])
        return self.kind.read(_as_text(value, word))

    def text(self, value: Any) -> str:
        """Return a value as one writes it into a file."""
        plain = self.kind.plain(value)
        return ", ".join(map(str, plain)) if isinstance(plain, list) else str(plain)

    def __call__(self, schema: dict[str, Any]) -> None:
        """Add unit, allowed values and state to the field's JSON schema (pydantic calls this)."""
        schema.update(unit=self.unit, allowed=self.kind.allowed, acts=self.acts)


def knob(tag: str, kind: Kind, meaning: str, **details: Any) -> Any:
    """Return the pydantic field annotation of a knob; ``details`` are attributes of `Knob`."""
    return Field(
        alias=tag, description=meaning, json_schema_extra=Knob(tag, kind, meaning, **details)
    )


def knob_of(field: FieldInfo) -> Knob:
    """Return the knob that a field of a block was made with."""
    found = field.json_schema_extra
    assert isinstance(found, Knob), "every field of a block is made with knob()"
    return found
