"""Where the time of a speculative round goes, stacked to 100 %.

The embedded pair over a loopback link without delay, on the CPU, the server in a process of its
own; nothing is stubbed or left out. Timers sit around the pieces of both processes
(``_round_parts.py``).

* A **round** lasts from one commit to the next: draft, link, verification, commit, the record, and
  the block turned into text, as ``Autodraft.stream`` does it. Prefill is no round.
* **Link**: what is left of the wait for a reply when all that was timed at the server is taken out:
  socket, event loop, the operating system waking the other process.
* **Overhead** (``overhead_share``): all but the forwards of the two models (their heads are part of
  them) and the link. The hand-over to the model's thread and back counts, and so do the candidates
  of the draft, the arg-max of the target and ``other``, which no timer explains.
  ``with_link_share`` counts the link too.

Answers with and without timers take turns, and must be equal. ``slowdown_share`` is what the timers
cost by that comparison, ``probe_share`` by their number and the price of an empty one. Neither is
taken off the parts. With ``--flame`` further answers are sampled afterwards, without timers.
"""

import argparse
import os
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import _common as common
import _round_parts as timers
import _round_pictures as pictures
import _round_target as server
from _round_parts import Tally

from autodraft import Autodraft, ExperimentConfig, MethodSpec, ServerConfig
from autodraft.errors import AutodraftError
from autodraft.models.embedded import EMBEDDED_DRAFT, EMBEDDED_TARGET
from autodraft.models.loader import DTYPES
from autodraft.records import GenerationResult
from autodraft.units import MS_PER_S, US_PER_S

METHODS: Final = ("chain", "fixed_tree", "opt_tree")
SHAPE_OPTIONS: Final = {"width": "width", "depth": "max_depth", "nodes": "node_budget"}
PROMPTS: Final = (
    "Why is the sky blue?",
    "Write a Python function that reverses a list.",
    "Name three rivers of Europe and the seas that they reach.",
    "A train leaves at nine and travels for two hours at 80 km/h. How far does it get?",
    "Write a short letter to a friend about a rainy holiday.",
    "Explain to a child what a computer program is.",
)
ANSWERS: Final = 24
QUICK_ANSWERS: Final = 6
TOKENS: Final = 96
WARMUP_TOKENS: Final = 32
PIECES_SHOWN: Final = 12
DIGITS: Final = 4


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
        spec: Method and shape.
        dtype: Of both models; ``auto`` leaves it to the loader.
        answers: With timers, and as many without.
        tokens: Of an answer.
        seed: Of the prompts' order.
    """

    spec: MethodSpec
    dtype: str
    answers: int
    tokens: int
    seed: int

    @property
    def shape(self) -> dict[str, int]:
        """Limits of a round's tree."""
        return {name: getattr(self.spec, field) for name, field in SHAPE_OPTIONS.items()}


@dataclass(frozen=True)
class Sample:
    """One prompt answered twice.

    Attributes:
        draft: What the user's pieces took in the answer with timers.
        target: What the target's took.
        probed: The answer with timers.
        plain: The one without.
    """

    draft: dict[str, Tally]
    target: dict[str, Tally]
    probed: GenerationResult
    plain: GenerationResult

    @property
    def slowdown(self) -> float:
        """How much longer a round takes with timers, as a share."""
        probed, plain = (
            statistics.fmean(one.round_s for one in result.rounds)
            for result in (self.probed, self.plain)
        )
        return probed / plain - 1


def prompts(setting: Setting) -> list[str]:
    """Draw a prompt for each answer."""
    return random.Random(setting.seed).choices(PROMPTS, k=setting.answers)


def answer(engine: Autodraft, prompt: str, spec: MethodSpec, tokens: int) -> GenerationResult:
    """Stream one answer to its end."""
    ended: list[GenerationResult] = []
    for _ in engine.stream(
        prompt, method=spec, max_new_tokens=tokens, on_end=ended.append, reuse_prefix=False
    ):
        pass
    return ended[0]


def measure(
    engine: Autodraft, target: server.Target, probe: timers.Probe, setting: Setting
) -> list[Sample]:
    """Answer every prompt with and without timers; the two take turns at going first.

    Raises:
        CannotMeasure: If the timers change an answer, or one ends without a round.
    """
    samples = []
    for number, prompt in enumerate(prompts(setting)):
        results = {}
        for timed in (True, False) if number % 2 == 0 else (False, True):
            target.say(server.ON if timed else server.OFF)
            probe.enabled = timed
            results[timed] = answer(engine, prompt, setting.spec, setting.tokens)
            probe.enabled = False
            counted = target.say(server.OFF), probe.take()
            if timed:
                theirs, ours = counted
        if results[True].token_ids != results[False].token_ids:
            raise common.CannotMeasure(f"With timers the answer to {prompt!r} is another one.")
        if not results[True].rounds:
            raise common.CannotMeasure(f"The answer to {prompt!r} took no round; raise --tokens.")
        samples.append(Sample(ours, theirs, results[True], results[False]))
    return samples


def total(tallies: Sequence[Mapping[str, Tally]]) -> dict[str, Tally]:
    """Add up tallies, piece by piece."""
    names = dict.fromkeys(name for one in tallies for name in one)
    found = {name: [one[name] for one in tallies if name in one] for name in names}
    return {
        name: Tally(sum(t.seconds for t in many), sum(t.calls for t in many))
        for name, many in found.items()
    }


def figures(samples: Sequence[Sample], timer_cost_s: float) -> dict[str, Any]:
    """Return every figure: parts of a mean round, shares, what the timers cost.

    Args:
        samples: All answers; means are over all their rounds together.
        timer_cost_s: Seconds that one timer adds.
    """
    draft, target = (total([getattr(one, side) for one in samples]) for side in ("draft", "target"))
    parts = timers.stack(draft, target)
    seconds = sum(parts.values())
    rounds = [record for one in samples for record in one.probed.rounds]
    plain = [record for one in samples for record in one.plain.rounds]
    plain_s = [record.round_s for record in plain]
    shares = [timers.overhead_share(timers.stack(one.draft, one.target)) for one in samples]
    slowdowns = [one.slowdown for one in samples]
    calls = sum(tally.calls for side in (draft, target) for tally in side.values())
    emitted = statistics.fmean(record.emitted_tokens for record in rounds)
    return {
        "overhead_share": round(timers.overhead_share(parts), DIGITS),
        "overhead_share_spread": [round(min(shares), DIGITS), round(max(shares), DIGITS)],
        "with_link_share": round(timers.overhead_share(parts, with_link=True), DIGITS),
        "other_share": round(parts["other"] / seconds, DIGITS),
        "round_ms": _ms(seconds / len(rounds)),
        "median_round_ms": _median_ms([record.round_s for record in rounds]),
        "plain_median_round_ms": _median_ms(plain_s),
        "plain_round_spread_ms": [_ms(min(plain_s)), _ms(common.percentile(plain_s, 0.95))],
        "slowdown_share": round(statistics.median(slowdowns), DIGITS),
        "slowdown_spread": [round(min(slowdowns), DIGITS), round(max(slowdowns), DIGITS)],
        "probe_share": round(calls * timer_cost_s / seconds, DIGITS),
        "timer_cost_us": round(timer_cost_s * US_PER_S, DIGITS),
        "rounds": len(rounds),
        "tokens_per_round": round(emitted, DIGITS),
        "nodes_per_round": round(statistics.fmean(record.num_nodes for record in rounds), DIGITS),
        "parts": {
            name: {
                "ms": _ms(spent / len(rounds)),
                "share": round(spent / seconds, 2 + DIGITS),
            }
            for name, spent in parts.items()
        },
        "pieces": _pieces("draft", draft, len(rounds)) | _pieces("target", target, len(rounds)),
    }


def _ms(seconds: float) -> float:
    return round(seconds * MS_PER_S, DIGITS)


def _median_ms(seconds: Sequence[float]) -> float:
    return _ms(statistics.median(seconds))


def _pieces(side: str, tallies: Mapping[str, Tally], rounds: int) -> dict[str, dict[str, float]]:
    return {
        f"{side} {name}": {
            "ms": _ms(tally.seconds / rounds),
            "calls": round(tally.calls / rounds, DIGITS),
            "us_per_call": round(tally.seconds / tally.calls * US_PER_S, DIGITS),
        }
        for name, tally in tallies.items()
    }


def report(found: Mapping[str, Any]) -> None:
    """Print the tables for people."""
    common.print_table(
        ["part of a round", "ms", "share"],
        [
            [timers.PARTS[name], f"{part['ms']:.3f}", f"{part['share']:.1%}"]
            for name, part in found["parts"].items()
        ]
        + [["all", f"{found['round_ms']:.3f}", "100.0%"]],
    )
    print()
    # The wait is no work of the client: what it is made of stands in the table above.
    left_out = (f"draft {timers.MODEL}", f"target {timers.MODEL}", "draft Link.request")
    pieces = {name: one for name, one in found["pieces"].items() if name not in left_out}
    costliest = sorted(pieces.items(), key=lambda item: -item[1]["ms"])[:PIECES_SHOWN]
    common.print_table(
        ["costliest pieces beside forwards and link", "calls/round", "us/call", "ms/round"],
        [
            [name, f"{one['calls']:.1f}", f"{one['us_per_call']:.1f}", f"{one['ms']:.3f}"]
            for name, one in costliest
        ],
    )
    low, high = found["overhead_share_spread"]
    slow_low, slow_high = found["slowdown_spread"]
    quickest, slow = found["plain_round_spread_ms"]
    print(
        f"\n{found['rounds']} rounds, {found['tokens_per_round']:.2f} tokens and "
        f"{found['nodes_per_round']:.1f} nodes each. Overhead (neither forward nor link): "
        f"{found['overhead_share']:.1%} of a round ({low:.1%} to {high:.1%} by answer); with the "
        f"link {found['with_link_share']:.1%}.\nWith timers a round takes "
        f"{found['slowdown_share']:+.1%} ({slow_low:+.1%} to {slow_high:+.1%}); by their number "
        f"they cost {found['probe_share']:.2%}. Without, the median round takes "
        f"{found['plain_median_round_ms']:.1f} ms, the quickest {quickest:.1f}, the 95th of 100 "
        f"{slow:.1f}: far apart where other programs share the machine.\n"
    )


def method_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> MethodSpec:
    """Return the method with the shape that the options ask for; ends the program if it cannot."""
    wanted = {
        field: value
        for option, field in SHAPE_OPTIONS.items()
        if (value := getattr(arguments, option)) is not None
    }
    if arguments.method == "chain":
        if wanted.keys() - {"max_depth"}:
            parser.error("a chain has width 1 and as many nodes as levels: give --depth alone")
        if wanted:
            wanted["node_budget"] = wanted["max_depth"]
    default = ExperimentConfig.model_validate(
        {"models": {"base_model_path": EMBEDDED_TARGET, "draft_model_path": EMBEDDED_DRAFT}}
    ).method(arguments.method)
    spec, most = default.model_copy(update={**wanted, "tuned": False}), ServerConfig()
    if spec.max_depth > most.max_depth or spec.node_budget > most.max_nodes:
        parser.error(f"a server takes at most depth {most.max_depth} and {most.max_nodes} nodes")
    return spec


def _parser() -> argparse.ArgumentParser:
    parser = common.parser("Show where the time of a speculative round goes.")
    add = parser.add_argument
    add("--method", choices=METHODS, default="fixed_tree", help="of the rounds (%(default)s)")
    add("--width", type=common.positive, help="nodes expanded in a level (default the method's)")
    add("--depth", type=common.positive, help="levels of a tree, or length of a chain (likewise)")
    add("--nodes", type=common.positive, help="nodes sent in a round (likewise)")
    add("--dtype", choices=("auto", *DTYPES), default="auto", help="of both models (%(default)s)")
    add("--answers", type=common.positive, help="answers with timers, and as many without")
    add("--tokens", type=common.positive, default=TOKENS, help="of an answer (%(default)s)")
    add("--plot", type=Path, metavar="FILE.png", help="draw the parts as one bar (matplotlib)")
    add("--flame", type=Path, metavar="FILE.svg", help="flame graphs of both processes (py-spy)")
    add("--native", action="store_true", help="show compiled code in the flame graphs too")
    return parser


def run(setting: Setting, flame: Path | None, *, native: bool) -> dict[str, Any]:
    """Start what is needed, measure, and return every figure."""
    probe = timers.Probe()
    pair = (EMBEDDED_DRAFT, EMBEDDED_TARGET)
    with (
        server.target_process(setting.dtype) as target,
        Autodraft(
            *pair,
            target_port=target.port,
            token=server.TOKEN,
            dtype=setting.dtype,
            device_map=server.DEVICE,
        ) as engine,
    ):
        try:
            timers.watch_draft(probe)
            runner = engine._user.side.runner
            assert runner is not None  # the method drafts here, so connecting has loaded it
            timers.watch_runner(probe, runner)
            answer(engine, PROMPTS[0], setting.spec, WARMUP_TOKENS)
            samples = measure(engine, target, probe, setting)
        finally:
            probe.unwrap()
        if flame is not None:
            target.say(server.UNWRAP)
            processes = {"client": os.getpid(), "server": target.pid}
            with pictures.flames(flame, processes, native=native):
                for prompt in prompts(setting):
                    answer(engine, prompt, setting.spec, setting.tokens)
        sides = engine.describe()
    dtypes = {f"{side}_dtype": sides[side]["dtype"] for side in ("draft", "target")}
    return figures(samples, timers.timer_cost_s()) | dtypes


def main() -> int:
    """Run the benchmark; the exit code is 0 unless it could not measure or answers differ."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.native and arguments.flame is None:
        parser.error("--native is about the flame graphs: give --flame too")
    for option in ("plot", "flame"):
        file = getattr(arguments, option)
        if file is not None and not file.absolute().parent.is_dir():
            parser.error(f"--{option} {file}: there is no folder {file.absolute().parent}")
    answers = arguments.answers or (QUICK_ANSWERS if arguments.quick else ANSWERS)
    spec = method_of(parser, arguments)
    setting = Setting(spec, arguments.dtype, answers, arguments.tokens, arguments.seed)
    shown = {
        "method": spec.method,
        "shape": setting.shape,
        "answers": setting.answers,
        "tokens": setting.tokens,
        "seed": setting.seed,
    }
    print(", ".join(f"{name} {value}" for name, value in shown.items()))
    print(common.machine_words())
    try:
        if arguments.plot is not None:
            pictures.require_plot()
        if arguments.flame is not None:
            pictures.require_flame()
        found = run(setting, arguments.flame, native=arguments.native)
        report(found)
        if arguments.plot is not None:
            title = f"{spec.method}: {found['round_ms']:.1f} ms"
            bar = {name: part["ms"] for name, part in found["parts"].items()}
            pictures.plot(arguments.plot, bar, title)
    except (AutodraftError, common.CannotMeasure) as error:
        print(f"profile_round: {error}", file=sys.stderr)
        return 1
    common.print_json("profile_round", found | shown | common.machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
