"""Keeping benchmark questions out of the training chats: no common run of eight words."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from distillation.samples import Chat

RUN_WORDS: Final = 8
_WORD: Final = re.compile(r"\w+")
_KEPT_FIELDS: Final = ("turns", "question", "prompt")


def word_runs(text: str) -> Iterator[tuple[str, ...]]:
    """Yield every run of eight words; case and punctuation don't count."""
    words = _WORD.findall(text.lower())
    for start in range(len(words) - RUN_WORDS + 1):
        yield tuple(words[start : start + RUN_WORDS])


def question_runs(folder: Path) -> set[tuple[str, ...]]:
    """Return all runs of all questions in a folder of benchmark files (``*.jsonl``).

    Raises:
        FileNotFoundError: If there is none.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise FileNotFoundError(
            f"{folder} holds no *.jsonl question file. Set AUTODRAFT_BENCH_DIR to the folder of "
            "the benchmarks' question files."
        )
    runs: set[tuple[str, ...]] = set()
    for file in files:
        for line in file.read_text(encoding="utf-8").splitlines():
            for text in _texts(msgspec.json.decode(line)):
                runs.update(word_runs(text))
    return runs


def _texts(row: dict[str, Any]) -> Iterator[str]:
    for name in _KEPT_FIELDS:
        value = row.get(name, [])
        yield from [value] if isinstance(value, str) else value


def overlapping(
    chats: Sequence[Chat], runs: set[tuple[str, ...]], decode: Callable[[Iterable[int]], str]
) -> list[int]:
    """Return the indices of the chats that share a run of eight words with a question."""
    return [
        index
        for index, chat in enumerate(chats)
        if any(run in runs for run in word_runs(decode(chat.tokens)))
    ]
