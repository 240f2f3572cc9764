"""What a tree costs over plain tokens: our forward of N nodes beside the stock forward of N tokens.

Ours is what the target does in a round: mask and positions from the parents, the forward, the
accepted path gathered, the rest forgotten. Stock is the same model as transformers loads it, with
its own growing cache: a causal forward behind the same context, cropped back afterwards. Both leave
the context as it was, both under ``inference_mode``, and they take turns. Knows no link and no
draft model.
"""

import argparse
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import _common as common
import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging as transformers_logging

from autodraft.errors import AutodraftError
from autodraft.models.embedded import EMBEDDED_TARGET, resolve_embedded
from autodraft.models.hardware import native_bfloat16
from autodraft.models.loader import DTYPES
from autodraft.models.runner import ModelRunner
from autodraft.tree.attention import ancestor_mask, node_positions
from autodraft.tree.draft_tree import NO_PARENT, IntArray, node_depths

SIZES: Final = (1, 8, 32, 64)
CONTEXTS: Final = (128, 512)
DEPTH: Final = 8
WARMUP: Final = 3
REPEATS: Final = 150
QUICK_REPEATS: Final = 40
BUDGET_S: Final = 900.0
QUICK_BUDGET_S: Final = 100.0
PARTS: Final = 5
"""Consecutive parts of a run whose ratios are shown as its spread."""


@dataclass(frozen=True)
class Case:
    """One pair of things to time, ready to run.

    Attributes:
        context: Tokens in the cache.
        nodes: Tokens or nodes forwarded.
        ours: One tree forward and its clean-up.
        stock: One plain forward and its clean-up.
    """

    context: int
    nodes: int
    ours: Callable[[], object]
    stock: Callable[[], object]


class Span(NamedTuple):
    """One timed call.

    Attributes:
        wall_s: Seconds by the clock.
        cpu_s: Seconds of processor time, all threads together: neighbours do not show in it.
    """

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Timing:
    """Times of one case; calls of the same index were made in the same turn.

    Attributes:
        case: What was timed.
        ours: Our forwards.
        stock: The stock forwards.
    """

    case: Case
    ours: list[Span]
    stock: list[Span]

    @property
    def medians(self) -> tuple[Span, Span]:
        """Medians of ours and of stock."""
        return _medians(self.ours), _medians(self.stock)

    @property
    def spread(self) -> tuple[float, float]:
        """Least and greatest ratio of wall medians among consecutive parts of the run."""
        parts = min(PARTS, len(self.ours))
        cuts = [len(self.ours) * number // parts for number in range(parts + 1)]
        ratios = [
            _medians(self.ours[start:end]).wall_s / _medians(self.stock[start:end]).wall_s
            for start, end in itertools.pairwise(cuts)
        ]
        return min(ratios), max(ratios)


def _medians(spans: Sequence[Span]) -> Span:
    return Span(*map(statistics.median, zip(*spans, strict=True)))


def random_parents(rng: random.Random, count: int) -> IntArray:
    """Return the parents of a tree of ``count`` nodes, root included, [count].

    Its first nodes are a path as deep as ``DEPTH`` and ``count`` allow, the others hang anywhere.
    """
    parents = list(range(NO_PARENT, min(DEPTH, count - 1)))
    depths = list(range(len(parents)))
    for node in range(len(parents), count):
        parent = rng.choice([other for other in range(node) if depths[other] < DEPTH])
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return _shuffled(rng, parents)


def _shuffled(rng: random.Random, parents: list[int]) -> IntArray:
    """Renumber a tree level by level, at random inside a level, as growth leaves it."""
    depths = node_depths(np.array(parents))
    order = sorted(range(len(parents)), key=lambda node: (depths[node], rng.random()))
    place = {node: number for number, node in enumerate(order)} | {NO_PARENT: NO_PARENT}
    return np.array([place[parents[node]] for node in order], dtype=np.int64)


def deepest_path(parents: IntArray) -> IntArray:
    """Return the nodes from the root (included) to a deepest one, the longest path to gather."""
    node = int(node_depths(parents).argmax())
    path = [node]
    while (node := int(parents[node])) != NO_PARENT:
        path.append(node)
    return np.array(path[::-1], dtype=np.int64)


def make_case(model: Any, runner: ModelRunner, nodes: int, context: int, seed: int) -> Case:
    """Prepare both sides of one comparison: their caches hold the same context."""
    rng = random.Random(f"{seed}/{nodes}/{context}")
    prompt = np.array([rng.randrange(runner.vocab_size) for _ in range(context)])
    tokens = np.array([rng.randrange(runner.vocab_size) for _ in range(nodes)])
    parents = random_parents(rng, nodes)
    slots, depths = context + deepest_path(parents), node_depths(parents)
    cache = runner.new_cache(context + nodes)
    runner.prefill(cache, prompt)
    stock_cache = DynamicCache(config=model.config)

    def ours() -> torch.Tensor:
        logits = runner.forward(
            cache, tokens, node_positions(depths, context), ancestor_mask(parents)
        )
        cache.keep(context, slots)
        cache.trim(context)
        return logits

    @torch.inference_mode()
    def stock() -> torch.Tensor:
        output = model(
            input_ids=torch.from_numpy(tokens)[None].to(model.device),
            cache=stock_cache,
            use_cache=True,
        )
        stock_cache.crop(-nodes)
        logits: torch.Tensor = output.logits[0]
        return logits

    with torch.inference_mode():
        ids = torch.from_numpy(prompt)[None].to(model.device)
        model(input_ids=ids, cache=stock_cache, use_cache=True, logits_to_keep=1)
    return Case(context, nodes, ours, stock)


def _span(function: Callable[[], object]) -> Span:
    wall, cpu = time.perf_counter(), time.process_time()
    function()
    return Span(time.perf_counter() - wall, time.process_time() - cpu)


def measure(cases: Sequence[Case], repeats: int, budget_s: float) -> list[Timing]:
    """Time every case; all cases take turns, and in each turn both sides do.

    Args:
        cases: What to time.
        repeats: Turns.
        budget_s: Seconds after which no further turn begins.
    """
    for case, _ in itertools.product(cases, range(WARMUP)):
        case.ours()
        case.stock()
    timings = [Timing(case, [], []) for case in cases]
    deadline = time.perf_counter() + budget_s
    for turn in range(repeats):
        for timing in timings:
            sides = [(timing.case.ours, timing.ours), (timing.case.stock, timing.stock)]
            # Who goes first alternates: the second finds what the first left in the CPU's caches.
            for function, spans in sides if turn % 2 == 0 else reversed(sides):
                spans.append(_span(function))
        if time.perf_counter() > deadline:
            break
    return timings


def load(dtype: str) -> tuple[Any, ModelRunner]:
    """Return the embedded target as the stock class, and our runner around weights of its own.

    The runner replaces modules of the model that it is given.
    """
    if dtype == "auto":
        dtype = "bfloat16" if native_bfloat16() else "float32"
    folder = resolve_embedded(EMBEDDED_TARGET)
    transformers_logging.disable_progress_bar()
    stock, ours = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype]).eval() for _ in range(2)
    )
    return stock, ModelRunner(ours, EMBEDDED_TARGET)


def _figures(timing: Timing) -> dict[str, float]:
    ours, stock = timing.medians
    least, greatest = timing.spread
    return {
        "ours_ms": round(ours.wall_s * 1e3, 3),
        "stock_ms": round(stock.wall_s * 1e3, 3),
        "ratio": round(ours.wall_s / stock.wall_s, 4),
        "least_ratio": round(least, 4),
        "greatest_ratio": round(greatest, 4),
        "cpu_ratio": round(ours.cpu_s / stock.cpu_s, 4),
    }


def report(timings: Sequence[Timing], settings: Mapping[str, Any]) -> None:
    """Print the table and the closing JSON line."""
    header = ["medians", "ours ms", "stock ms", "ratio", f"in {PARTS} parts of the run", "CPU time"]
    rows: list[list[str]] = []
    cases: dict[str, dict[str, float]] = {}
    by_nodes: dict[str, float] = {}
    for timing in timings:
        case, found = timing.case, _figures(timing)
        cases[f"{case.nodes}@{case.context}"] = found
        by_nodes[str(case.nodes)] = max(by_nodes.get(str(case.nodes), 0.0), found["ratio"])
        spread = f"{found['least_ratio']:.3f} - {found['greatest_ratio']:.3f}"
        times = [f"{found['ours_ms']:.2f}", f"{found['stock_ms']:.2f}", f"{found['ratio']:.3f}"]
        name = f"N={case.nodes}, context {case.context}"
        rows.append([name, *times, spread, f"{found['cpu_ratio']:.3f}"])
    common.print_table(header, rows)
    figures = {
        "worst_ratio": max(by_nodes.values()),
        "worst_cpu_ratio": max(found["cpu_ratio"] for found in cases.values()),
        "worst_by_nodes": by_nodes,
        "cases": cases,
        "turns": len(timings[0].ours),
    }
    print(
        f"worst ratio {figures['worst_ratio']:.3f} (of CPU time {figures['worst_cpu_ratio']:.3f}), "
        f"{figures['turns']} turns"
    )
    common.print_json("forward", figures | dict(settings) | common.machine())


def _arguments() -> argparse.Namespace:
    parser = common.parser("Compare our tree forward with the stock class's plain forward.")
    parser.add_argument(
        "--dtype", choices=("auto", *DTYPES), default="auto", help="of the weights (default auto)"
    )
    parser.add_argument("--repeats", type=common.positive, help="turns per case")
    parser.add_argument(
        "--sizes", type=common.positive, nargs="+", default=SIZES, help="tokens per forward"
    )
    parser.add_argument(
        "--contexts", type=common.positive, nargs="+", default=CONTEXTS, help="tokens before them"
    )
    return parser.parse_args()


def main() -> int:
    """Run the benchmark; the exit code is 0 unless it could not measure."""
    arguments = _arguments()
    repeats = arguments.repeats or (QUICK_REPEATS if arguments.quick else REPEATS)
    try:
        model, runner = load(arguments.dtype)
    except AutodraftError as error:
        print(f"forward: {error}", file=sys.stderr)
        return 1
    settings = {"model": EMBEDDED_TARGET, "dtype": runner.dtype, "seed": arguments.seed}
    print(", ".join(f"{name} {value}" for name, value in settings.items()))
    print(common.machine_words())
    cases = [
        make_case(model, runner, nodes, context, arguments.seed)
        for nodes, context in itertools.product(arguments.sizes, arguments.contexts)
    ]
    timings = measure(cases, repeats, QUICK_BUDGET_S if arguments.quick else BUDGET_S)
    report(timings, settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
