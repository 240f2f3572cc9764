"""Gathering the chats to train on: written now, written earlier, and from sample files.

Chats that share an eight-word run with a benchmark question are dropped here.
"""

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM

from distillation.chat_writer import ChatWriter, WriterSettings
from distillation.overlap import overlapping, question_runs
from distillation.samples import Chat, load_chats, save_chats

BENCH_DIR_VARIABLE: Final = "AUTODRAFT_BENCH_DIR"
CHATS_PER_FILE: Final = 400
PROGRESS_S: Final = 30.0
WRITTEN: Final = "written by this script"

Sources = dict[str, list[Chat]]
"""Chats by where they come from."""


def write_chats(
    folder: Path, target: Path, tokenizer: Any, settings: WriterSettings, minutes: float, seed: int
) -> None:
    """Let the target write chats into files of a folder for some minutes.

    Args:
        folder: Where the files go, beside those of earlier calls; a later call writes other chats.
        target: The target's checkpoint.
        tokenizer: Its tokenizer.
        settings: How to write.
        minutes: For how long.
        seed: Of the chats.
    """
    known = len(list(folder.glob("*.npz")))
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    started = told = time.perf_counter()
    pending: list[Chat] = []
    written = tokens = 0
    for chat in ChatWriter(model, tokenizer, settings, seed + known):
        pending.append(chat)
        written, tokens = written + 1, tokens + chat.num_answer_tokens
        now = time.perf_counter()
        over = now - started > 60 * minutes
        if now - told > PROGRESS_S:
            told = now
            rate = tokens / (now - started)
            print(f"writing: {written} chats, {tokens} answer tokens, {rate:.0f}/s", flush=True)
        if over or len(pending) == CHATS_PER_FILE:
            save_chats(folder / f"chats_{known:04d}.npz", pending)
            known, pending = known + 1, []
        if over:
            break
    print(f"written: {written} chats, {tokens} answer tokens")


def load_sources(sample_files: Sequence[Path], folder: Path) -> Sources:
    """Return all chats of the sample files and of the folder that chats are written to.

    Raises:
        ValueError: If there are none.
        SampleFileError: If a file cannot be read.
    """
    sources = {path.name: load_chats(path) for path in sample_files}
    written = [chat for path in sorted(folder.glob("*.npz")) for chat in load_chats(path)]
    if written:
        sources[WRITTEN] = written
    if not sources:
        raise ValueError("there are no chats: add --write-minutes 10, or --samples FILE")
    return sources


def without_questions(sources: Sources, tokenizer: Any, required: bool) -> Sources:
    """Drop chats that share a run with a benchmark question, and print how many are left: none.

    Args:
        sources: All chats.
        tokenizer: Turns them into text.
        required: Whether the benchmarks' question files must be there.

    Raises:
        ValueError: If they must be there and are not.
        FileNotFoundError: If their folder holds none.
    """
    folder = os.environ.get(BENCH_DIR_VARIABLE)
    if not folder:
        if required:
            raise ValueError(
                "--ship needs the benchmarks' question files, to keep them out of the training "
                f"chats. Set {BENCH_DIR_VARIABLE} to their folder."
            )
        print(f"{BENCH_DIR_VARIABLE} is not set: chats are not compared with benchmark questions")
        return sources
    runs = question_runs(Path(folder))
    clean: Sources = {}
    for name, chats in sources.items():
        found = set(overlapping(chats, runs, tokenizer.decode))
        clean[name] = [chat for index, chat in enumerate(chats) if index not in found]
        print(f"{name}: {len(found)} chats dropped for a run of words of a benchmark question")
    every = [chat for chats in clean.values() for chat in chats]
    count = len(overlapping(every, runs, tokenizer.decode))
    print(f"training chats that share an eight-word run with a benchmark question: {count}")
    return clean


def describe(sources: Sources) -> str:
    """Return a line for each source: how many chats of which kinds."""
    lines = []
    for name, chats in sources.items():
        kinds = Counter(chat.category for chat in chats)
        counts = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
        tokens = sum(chat.num_answer_tokens for chat in chats)
        lines.append(f"{name}: {len(chats)} chats, {tokens} answer tokens ({counts})")
    return "\n".join(lines)
