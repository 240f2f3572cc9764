"""Latency tables: a forward of so many rows behind so long a context, and a plain memory copy.

Every time is of a call that ends with its result on the host, begun when the device was idle. Rows
of one context take turns. When time runs short repeats go first, then contexts, and the budget
notes which. Knows no model sizes and no link.
"""

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from autodraft.models.candidates import best_tokens, top_candidates
from autodraft.models.runner import ModelRunner
from autodraft.tree.attention import ancestor_mask, node_positions
from autodraft.tree.draft_tree import NO_PARENT, IntArray, node_depths
from gpu_checks.budget import Part

Call = Callable[[int], object]

DEPTH: Final = 8
"""Edges of the longest path of a verified tree."""
GATHERED: Final = 3
"""Accepted nodes whose keys and values are gathered behind a verification."""
WARM_UP: Final = 2
FEWEST_TURNS: Final = 3
_CAUTION: Final = 1.2
_COPY_BYTES: Final = 2**30
_COPY_REPEATS: Final = 10


@dataclass(frozen=True)
class Grid:
    """What a table is measured over.

    Attributes:
        rows: Rows of a forward, the most telling first.
        contexts: Tokens in the cache before it, the most telling first.
        prefills: Lengths of prompts.
        turns: Timed calls of each cell, if time allows.
    """

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    prefills: tuple[int, ...]
    turns: int

    @property
    def slots(self) -> int:
        """Tokens that a cache must hold for all of it."""
        return max((max(self.contexts) + max(self.rows), *self.prefills)) + 1


GRID: Final = Grid(
    rows=(1, 64, 8, 32, 16, 128, 2, 4, 150),
    contexts=(1024, 128, 4096),
    prefills=(128, 512, 1024, 4096),
    turns=20,
)
TINY_GRID: Final = Grid(rows=(1, 64, 8, 150), contexts=(64, 16), prefills=(16, 64), turns=3)


@dataclass
class Cells:
    """The times of one table while it is being measured.

    Attributes:
        name: What it is of, for notes.
        times: Seconds of each call, by (context, rows).
        slowest_s: Seconds of the slowest first call so far: what another may take.
    """

    name: str
    times: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    slowest_s: float = 0.0

    def at(self, context: int) -> str:
        """Return the name of the part of a table that has this context."""
        return f"{self.name}, context {context}" if context else self.name

    def as_rows(self, label: str) -> list[dict[str, Any]]:
        """Return the table, sorted; ``label`` is what the number of rows is called."""
        return [
            {label: rows, "context": context, **figures(times)}
            for (context, rows), times in sorted(self.times.items())
        ]


def figures(times: Sequence[float]) -> dict[str, Any]:
    """Return the median and the least of times in seconds, in ms, and how many there are."""
    return {
        "ms": round(statistics.median(times) * 1e3, 4),
        "least_ms": round(min(times) * 1e3, 4),
        "repeats": len(times),
    }


def synchronise(device: torch.device) -> None:
    """Wait until a device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(device: torch.device, call: Callable[[], object]) -> float:
    """Return the seconds of a call whose result is on the host when it ends."""
    synchronise(device)
    started = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - started


def time_cells(
    cells: Cells, device: torch.device, grid: Grid, prepare: Callable[[int], Call], part: Part
) -> None:
    """Time a call over a grid.

    Args:
        cells: Take the times.
        device: Where it runs.
        grid: Rows and contexts.
        prepare: Fills a cache with a context and returns the call, which takes the rows and leaves
            the cache as it was.
        part: The time there is.
    """
    for number, context in enumerate(grid.contexts):
        if part.left_s <= cells.slowest_s:
            left_out = ", ".join(map(str, grid.contexts[number:]))
            what = f"contexts {left_out}" if number else "all of it"
            part.drop(f"{cells.name}: {what}")
            break
        left_s = part.left_s
        end_s = left_s - left_s / (len(grid.contexts) - number)  # what the later ones are to have
        call = prepare(context)
        rows = _warm_up(cells, context, device, grid.rows, call, part)
        for _ in range(grid.turns):
            turn = {count: timed(device, partial(call, count)) for count in rows}
            for count, seconds in turn.items():
                cells.times.setdefault((context, count), []).append(seconds)
            if part.left_s - sum(turn.values()) < end_s:
                break
        _note_few_turns(cells, context, rows, grid.turns, part)


def _warm_up(
    cells: Cells,
    context: int,
    device: torch.device,
    rows: Sequence[int],
    call: Call,
    part: Part,
) -> tuple[int, ...]:
    """Call each row count until it is warm, compiling where it is compiled; return those done.

    A program takes as long to compile as the slowest before it: what would not end in time is not
    begun, since compiling cannot be stopped.
    """
    for number, count in enumerate(rows):
        if part.left_s <= cells.slowest_s * _CAUTION:
            left_out = ", ".join(map(str, rows[number:]))
            part.drop(f"{cells.at(context)}: {left_out} rows")
            return tuple(rows[:number])
        first_s = timed(device, partial(call, count))
        cells.slowest_s = max(cells.slowest_s, first_s)
        for _ in range(WARM_UP):
            timed(device, partial(call, count))
    return tuple(rows)


def _note_few_turns(
    cells: Cells, context: int, rows: Sequence[int], turns: int, part: Part
) -> None:
    done = min((len(cells.times[context, count]) for count in rows), default=turns)
    if done < min(turns, FEWEST_TURNS):
        part.drop(f"{cells.at(context)}: {turns - done} of {turns} repeats")


class _Model:
    """A model with a cache for the whole grid, and made-up tokens."""

    def __init__(self, runner: ModelRunner, grid: Grid, seed: int) -> None:
        self.runner = runner
        self.device = torch.device(runner.device)
        self.cache = runner.new_cache(grid.slots)
        rng = np.random.default_rng(seed)
        self.tokens = rng.integers(0, runner.vocab_size, grid.slots)

    def fill(self, context: int) -> None:
        self.cache.trim(0)
        self.runner.prefill(self.cache, self.tokens[:context])

    def release(self) -> None:
        self.runner.release(self.cache)


def draft_steps(runner: ModelRunner, grid: Grid, seed: int, part: Part, cells: Cells) -> None:
    """Time a level of drafting: a forward of ``width`` nodes and its best ``width`` candidates."""
    model = _Model(runner, grid, seed)

    def prepare(context: int) -> Call:
        model.fill(context)

        def step(width: int) -> None:
            visible = np.eye(width, dtype=np.bool_)
            positions = np.full(width, context)
            logits = runner.forward(model.cache, model.tokens[:width], positions, visible)
            top_candidates(logits, width)
            model.cache.trim(context)

        return step

    time_cells(cells, model.device, grid, prepare, part)
    model.release()


def verifications(runner: ModelRunner, grid: Grid, seed: int, part: Part, cells: Cells) -> None:
    """Time a verification: a forward of root and nodes, each one's best token, a path gathered."""
    model = _Model(runner, grid, seed)
    trees = {rows: random_parents(random.Random(f"{seed}/{rows}"), rows) for rows in grid.rows}

    def prepare(context: int) -> Call:
        model.fill(context)

        def verify(rows: int) -> None:
            parents = trees[rows]
            positions = node_positions(node_depths(parents), context)
            logits = runner.forward(
                model.cache, model.tokens[:rows], positions, ancestor_mask(parents)
            )
            best_tokens(logits)
            model.cache.keep(context, context + _last_path(parents))
            model.cache.trim(context)

        return verify

    time_cells(cells, model.device, grid, prepare, part)
    model.release()


def prefills(runner: ModelRunner, grid: Grid, seed: int, part: Part, cells: Cells) -> None:
    """Time a prompt's forward and its next token, by the length of the prompt."""
    model = _Model(runner, grid, seed)

    def prepare(_: int) -> Call:
        def prefill(tokens: int) -> None:
            model.cache.trim(0)
            best_tokens(runner.prefill(model.cache, model.tokens[:tokens]))

        return prefill

    lengths = Grid(grid.prefills, (0,), (), max(grid.turns // 4, FEWEST_TURNS))
    time_cells(cells, model.device, lengths, prepare, part)
    model.release()


def random_parents(rng: random.Random, count: int) -> IntArray:
    """Return the parents of a tree of ``count`` nodes, [count], its first ``DEPTH`` + 1 a path."""
    parents = list(range(NO_PARENT, min(DEPTH, count - 1)))
    depths = list(range(len(parents)))
    for node in range(len(parents), count):
        parent = rng.choice([other for other in range(node) if depths[other] < DEPTH])
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return np.array(parents, dtype=np.int64)


def _last_path(parents: IntArray) -> IntArray:
    """Return the root and up to ``GATHERED`` nodes of the path to the last node, [≤ 4]."""
    path = np.flatnonzero(ancestor_mask(parents)[-1])
    return path[: GATHERED + 1]


def copy_gb_per_s(device: torch.device) -> float:
    """Return what a plain copy of memory on a device moves, bytes read and written, in GB/s."""
    size_bytes = _COPY_BYTES if device.type == "cuda" else _COPY_BYTES // 16
    source = torch.ones(size_bytes, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    times = [timed(device, lambda: copy.copy_(source)) for _ in range(_COPY_REPEATS)]
    return round(2 * size_bytes / statistics.median(times[2:]) / 1e9, 2)
