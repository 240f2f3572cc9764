"""Plain decoding over the loopback link beside transformers' own ``generate``, in tokens/s.

The embedded target, greedy. Ours is ``server_only``: a real ``autodraft target`` process, this
process its client. Stock is ``generate`` with a cache, same folder, same type, in processes of its
own that do nothing while ours runs, and the other way round:

* ``generate``, the baseline of every ratio: in an environment without ``OMP_WAIT_POLICY`` and
  ``GOMP_SPINCOUNT``, which is what a user of transformers has;
* ``generate_set``: with these as AutoDraft sets them.

All take turns on one prompt after another; only prompts count whose answer reaches the limit on
every side. **Figure of merit**: the bytes of weights read per second of decoding, beside a plain
copy and a plain read of memory in the same run. The key-value cache is not counted.
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import _bandwidth as bandwidth
import _common as common
import _live_target as live
from _bandwidth import Bandwidth

from autodraft import Autodraft
from autodraft.errors import AutodraftError
from autodraft.models.embedded import EMBEDDED_TARGET, resolve_embedded
from autodraft.models.hardware import native_bfloat16
from autodraft.units import MS_PER_S

WORKER: Final = Path(__file__).with_name("_stock_generate.py")
SIDES: Final = ("server_only", "generate", "generate_set")
OURS, STOCK, STOCK_SET = SIDES
DTYPES: Final = ("auto", "bfloat16", "float32")

FULL: Final = (96, 6, 4)
"""Tokens of an answer, prompts, turns of each."""
QUICK: Final = (48, 3, 2)
QUESTIONS: Final = (
    "Write a long story about a lighthouse keeper who finds a map.",
    "Explain in detail how a bicycle stays upright.",
    "Describe a week's holiday in Rome, day by day.",
    "What is the difference between weather and climate? Give many examples.",
    "Write a letter to a friend about a rainy week in the mountains.",
    "Explain to a child what a computer program is, step by step.",
    "Tell the history of the printing press.",
    "Give me a recipe for vegetable soup with all its steps.",
    "Write an essay about the advantages and disadvantages of living in a city.",
    "Describe how bread is made, from the field to the table.",
    "What should I know before I adopt a dog?",
    "Write a dialogue between two astronauts who are waiting for the launch.",
)

DRAWS: Final = 2000
CONFIDENCE: Final = 0.95
DIGITS: Final = 4


@dataclass(frozen=True)
class Answer:
    """One answer, timed from submitting the prompt.

    Attributes:
        token_ids: The answer.
        ttft_s: To its first token.
        total_s: To its last token.
    """

    token_ids: tuple[int, ...]
    ttft_s: float
    total_s: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens over the whole time, prefill included."""
        return len(self.token_ids) / self.total_s

    @property
    def tpot_s(self) -> float:
        """Seconds of a token after the first."""
        return (self.total_s - self.ttft_s) / (len(self.token_ids) - 1)


Ask = Callable[[Sequence[int], int], Answer]
Turn = dict[str, Answer]
"""The answers of all sides to one prompt."""


@contextlib.contextmanager
def stock_generate(
    folder: Path, dtype: str, environment: Mapping[str, str]
) -> Iterator[tuple[Ask, int]]:
    """Run ``generate`` in a process of its own; yield how to ask it, and its weights' bytes.

    Raises:
        CannotMeasure: If it ends before it has answered.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, str(WORKER), str(folder), dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=dict(environment),
        )
        requests, replies = process.stdin, process.stdout
        assert requests is not None
        assert replies is not None

        def reply() -> dict[str, Any]:
            if not (line := replies.readline()):
                log.seek(0)
                raise common.CannotMeasure(f"generate's process has ended:\n{log.read().rstrip()}")
            found: dict[str, Any] = json.loads(line)
            return found

        def ask(prompt: Sequence[int], tokens: int) -> Answer:
            line = json.dumps({"prompt": list(prompt), "tokens": tokens})
            with contextlib.suppress(BrokenPipeError):  # the missing reply says why
                print(line, file=requests, flush=True)
            found = reply()
            return Answer(tuple(found["token_ids"]), found["ttft_s"], found["total_s"])

        try:
            yield ask, reply()["weights_bytes"]
        finally:
            live.end(process)
            with contextlib.suppress(BrokenPipeError):  # it had ended by itself
                requests.close()
            replies.close()


def engine_for(port: int, dtype: str) -> Autodraft:
    """Return an engine for the server at ``port``; ``server_only`` alone needs no draft here."""
    return Autodraft.from_config(live.pair_config(dtype, (OURS,), port), token=live.TOKEN)


def ask_engine(engine: Autodraft, prompt: Sequence[int], tokens: int) -> Answer:
    """Answer a prompt by ``server_only``."""
    result = engine.run(prompt_ids=prompt, method=OURS, max_new_tokens=tokens, reuse_prefix=False)
    return Answer(tuple(result.token_ids), result.request.ttft_s, result.request.total_s)


def chosen_prompts(
    sides: Mapping[str, Ask], candidates: Sequence[list[int]], count: int, tokens: int
) -> list[list[int]]:
    """Return the first prompts whose answers reach the limit on every side; warms all sides up.

    Raises:
        CannotMeasure: If there are too few.
    """
    chosen: list[list[int]] = []
    for prompt in candidates:
        if all(len(ask(prompt, tokens).token_ids) == tokens for ask in sides.values()):
            chosen.append(prompt)
        if len(chosen) == count:
            return chosen
    raise common.CannotMeasure(
        f"Only {len(chosen)} of {len(candidates)} prompts are answered with {tokens} tokens, and "
        f"{count} are wanted. Ask for fewer with --prompts or --tokens."
    )


def measure(
    sides: Mapping[str, Ask], prompts: Sequence[list[int]], repeats: int, tokens: int
) -> Iterator[Turn]:
    """Yield the turns of every prompt; who goes first changes with each.

    Raises:
        CannotMeasure: If an answer ends too early.
    """
    names = list(sides)
    for prompt in prompts:
        for number in range(repeats):
            first = number % len(names)
            turn = {name: sides[name](prompt, tokens) for name in names[first:] + names[:first]}
            for name, answer in turn.items():
                if len(answer.token_ids) != tokens:
                    raise common.CannotMeasure(
                        f"{name} answered with {len(answer.token_ids)} tokens instead of {tokens}, "
                        "which it had reached before."
                    )
            yield turn


def require_equal(turns: Sequence[Turn]) -> None:
    """Do nothing if all sides gave the same tokens in each turn.

    Raises:
        CannotMeasure: If not.
    """
    for turn in turns:
        for name, answer in turn.items():
            if answer.token_ids != turn[STOCK].token_ids:
                raise common.CannotMeasure(f"{name} does not answer as {STOCK} does.")


def identical_share(turns: Sequence[Turn], name: str) -> float:
    """Return the share of turns in which a side gave the tokens that ``generate`` gave."""
    return statistics.fmean(turn[name].token_ids == turn[STOCK].token_ids for turn in turns)


def interval(values: Sequence[float], seed: int) -> tuple[float, float]:
    """Return the bootstrap interval of the median, at ``CONFIDENCE``."""
    draw = random.Random(seed)
    medians = [statistics.median(draw.choices(values, k=len(values))) for _ in range(DRAWS)]
    tail = (1 - CONFIDENCE) / 2
    return common.percentile(medians, tail), common.percentile(medians, 1 - tail)


def side_figures(turns: Sequence[Turn], name: str) -> dict[str, float]:
    """Return the medians of one side over all turns."""
    answers = [turn[name] for turn in turns]
    return {
        f"{name}_tokens_per_s": statistics.median(one.tokens_per_s for one in answers),
        f"{name}_decode_tokens_per_s": statistics.median(1 / one.tpot_s for one in answers),
        f"{name}_tpot_ms": statistics.median(one.tpot_s for one in answers) * MS_PER_S,
        f"{name}_ttft_ms": statistics.median(one.ttft_s for one in answers) * MS_PER_S,
    }


def ratio_figures(turns: Sequence[Turn], name: str, prefix: str, seed: int) -> dict[str, float]:
    """Return ours over another side's speed: medians over turns, their intervals beside them."""
    found: dict[str, float] = {}
    pairs = [(turn[OURS], turn[name]) for turn in turns]
    for kind, ratios in (
        ("", [ours.tokens_per_s / other.tokens_per_s for ours, other in pairs]),
        ("decode_", [other.tpot_s / ours.tpot_s for ours, other in pairs]),
    ):
        low, high = interval(ratios, seed)
        key = f"{prefix}{kind}ratio"
        found |= {key: statistics.median(ratios), f"{key}_low": low, f"{key}_high": high}
    return found


def figures(
    turns: Sequence[Turn], memory: Bandwidth, weights_bytes: int, seed: int
) -> dict[str, float]:
    """Return every figure that was measured."""
    found: dict[str, float] = {}
    for name in SIDES:
        found |= side_figures(turns, name)
    found |= ratio_figures(turns, STOCK, "", seed)
    found |= ratio_figures(turns, STOCK_SET, "set_", seed)
    found |= bandwidth.merit(memory, weights_bytes, found[f"{OURS}_decode_tokens_per_s"])
    found["identical_share"] = identical_share(turns, OURS)
    found["generate_set_identical_share"] = identical_share(turns, STOCK_SET)
    return {name: round(value, DIGITS) for name, value in found.items()}


def report(found: Mapping[str, float]) -> None:
    """Print the tables for people."""
    columns = ("tokens_per_s", "decode_tokens_per_s", "tpot_ms", "ttft_ms")
    common.print_table(
        ["medians", "tokens/s", "decode only", "TPOT ms", "TTFT ms"],
        [[name, *(f"{found[f'{name}_{column}']:.2f}" for column in columns)] for name in SIDES],
    )
    print()
    common.print_table(
        ["ours over it (median, 95 %)", "tokens/s", "decode only", "equal answers"],
        [
            [
                name,
                *(_ratio(found, f"{prefix}{kind}ratio") for kind in ("", "decode_")),
                f"{found[share]:.0%}",
            ]
            for name, prefix, share in (
                (STOCK, "", "identical_share"),
                (f"{STOCK_SET} (equal: to {STOCK})", "set_", "generate_set_identical_share"),
            )
        ],
    )
    print()
    rows = [["weights read by server_only's decoding", f"{found['weights_gb_per_s']:.2f}", ""]]
    for name, words in (
        ("copy", "plain copy (read and written)"),
        ("read", "plain read"),
        ("read_again", "read of as much as the weights, again and again"),
    ):
        share = f"{found[f'share_of_{name}']:.1%}"
        rows.append([words, f"{found[f'{name}_gb_per_s']:.2f}", share])
    common.print_table(["memory", "GB/s", "decoding's share of it"], rows)
    print(f"a plain read allows {found['limit_tokens_per_s']:.1f} tokens/s\n")


def _ratio(found: Mapping[str, float], key: str) -> str:
    return f"{found[key]:.3f} ({found[f'{key}_low']:.3f} - {found[f'{key}_high']:.3f})"


def run(settings: Mapping[str, Any]) -> dict[str, float]:
    """Start everything, let the sides take turns, and return the figures.

    Raises:
        CannotMeasure: If there is nothing to compare, or float32 answers differ.
    """
    dtype, tokens, seed = settings["dtype"], settings["tokens"], settings["seed"]
    plain = {name: value for name, value in os.environ.items() if name not in common.WAIT_VARIABLES}
    folder = resolve_embedded(EMBEDDED_TARGET)
    turns: list[Turn] = []
    memory = Bandwidth()
    with contextlib.ExitStack() as stack:
        stock, weights_bytes = stack.enter_context(stock_generate(folder, dtype, plain))
        stock_set, _ = stack.enter_context(stock_generate(folder, dtype, os.environ))
        options = ("--base-model-path", EMBEDDED_TARGET, "--dtype", dtype, "--device-map", "cpu")
        target = stack.enter_context(live.live_target(*options))
        engine = stack.enter_context(engine_for(target.port, dtype))
        sides: dict[str, Ask] = {
            OURS: lambda prompt, most: ask_engine(engine, prompt, most),
            STOCK: stock,
            STOCK_SET: stock_set,
        }
        questions = random.Random(seed).sample(QUESTIONS, len(QUESTIONS))
        candidates = [engine.encode_chat([{"role": "user", "content": one}]) for one in questions]
        prompts = chosen_prompts(sides, candidates, settings["prompts"], tokens)
        for number, turn in enumerate(measure(sides, prompts, settings["repeats"], tokens)):
            turns.append(turn)
            if number % settings["repeats"] == 0:
                bandwidth.measure(memory, weights_bytes)
    if dtype == "float32":
        require_equal(turns)
    return figures(turns, memory, weights_bytes, seed)


def _arguments() -> argparse.Namespace:
    parser = common.parser("Compare server_only over loopback with transformers' generate.")
    parser.add_argument(
        "--dtype", choices=DTYPES, default="auto", help="of the weights (default %(default)s)"
    )
    parser.add_argument("--tokens", type=_two_or_more, help=f"of an answer (default {FULL[0]})")
    parser.add_argument("--prompts", type=common.positive, help=f"default {FULL[1]}")
    parser.add_argument(
        "--repeats", type=common.positive, help=f"turns of a prompt (default {FULL[2]})"
    )
    return parser.parse_args()


def _two_or_more(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"{value} is not at least 2: later tokens are timed")
    return value


def settings_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what is to be run, ``auto`` and everything left open decided."""
    tokens, prompts, repeats = QUICK if arguments.quick else FULL
    dtype = arguments.dtype
    if dtype == "auto":
        dtype = "bfloat16" if native_bfloat16() else "float32"
    return {
        "model": EMBEDDED_TARGET,
        "dtype": dtype,
        "tokens": arguments.tokens or tokens,
        "prompts": arguments.prompts or prompts,
        "repeats": arguments.repeats or repeats,
        "seed": arguments.seed,
    }


def main() -> int:
    """Run the benchmark; the exit code is 0 unless it could not measure or answers differ."""
    settings = settings_of(_arguments())
    print(", ".join(f"{name} {value}" for name, value in settings.items()))
    print(common.machine_words())
    try:
        found = run(settings)
    except (AutodraftError, common.CannotMeasure) as error:
        print(f"server_decode: {error}", file=sys.stderr)
        return 1
    report(found)
    common.print_json("server_decode", found | settings | common.machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
