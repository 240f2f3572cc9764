"""Does a shaped link add the round trip that was set, and what is left of it in each method?

The embedded pair, a target server in a process of its own, both models in float32. The methods and
the round trips take turns. ``server_only`` streams, so a round trip may cost it one wait and no
more; ``chain`` drafts at the user and waits in every round; ``chain@server`` drafts on the server.
"""

import argparse
import random
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import _common as common
import _live_target as live

from autodraft import Autodraft
from autodraft.config import MethodSpec, NetworkSetting
from autodraft.errors import AutodraftError
from autodraft.models.embedded import EMBEDDED_DRAFT, EMBEDDED_TARGET
from autodraft.records import GenerationResult
from autodraft.units import MS_PER_S

RTTS_MS: Final = (20, 100)
"""Beside 0, the unshaped link, with which they are compared."""
TURNS: Final = 20
QUICK_TURNS: Final = 4
TOKENS: Final = 32
DTYPE: Final = "float32"
DIGITS: Final = 4
WANTED_MS: Final = 1.0
WANTED_SHARE: Final = 0.05

CHAIN_DEPTH: Final = 3
PLAIN, USER, SERVER = "server_only", "chain", "chain@server"
METHODS: Final = {
    PLAIN: MethodSpec(method="server_only", width=0, max_depth=0, node_budget=0),
    USER: MethodSpec(method="chain", width=1, max_depth=CHAIN_DEPTH, node_budget=CHAIN_DEPTH),
    SERVER: MethodSpec(
        method="chain",
        placement="server",
        width=1,
        max_depth=CHAIN_DEPTH,
        node_budget=CHAIN_DEPTH,
    ),
}
WARMUP: Final = [(name, 0) for name in METHODS]
QUESTIONS: Final = (
    "Why is the sky blue?",
    "Write a short story about a lighthouse keeper.",
    "Explain how a bicycle stays upright.",
    "List five things to see in Rome.",
    "What is the difference between weather and climate?",
)


@dataclass(frozen=True)
class Answer:
    """What one request took.

    Attributes:
        token_ids: The answer.
        ttft_s: Submit to first token.
        total_s: Submit to last token.
        link_s: For each round: the wait for its reply, less the server's own queue and
            verification. Of use where the round crossed the link.
    """

    token_ids: tuple[int, ...]
    ttft_s: float
    total_s: float
    link_s: tuple[float, ...]

    @classmethod
    def of(cls, result: GenerationResult) -> "Answer":
        """Take what is needed out of a result."""
        link_s = tuple(one.wait_s - one.verify_s - one.queue_s for one in result.rounds)
        record = result.request
        return cls(tuple(result.token_ids), record.ttft_s, record.total_s, link_s)

    @property
    def tpot_s(self) -> float:
        """Mean seconds of a token after the first."""
        return (self.total_s - self.ttft_s) / (len(self.token_ids) - 1)

    @property
    def steps(self) -> int:
        """Rounds; in plain decoding, single-token steps."""
        return len(self.link_s) or len(self.token_ids) - 1


Turn = dict[tuple[str, int], Answer]
"""The answers of every method at every round trip (in ms) to one question."""


@dataclass(frozen=True)
class Measured:
    """All that was measured.

    Attributes:
        turns: One for each question asked.
        pings_s: Empty round trips, by the round trip set in ms.
    """

    turns: list[Turn]
    pings_s: dict[int, list[float]]


def measure(
    engine: Autodraft, rtts_ms: Sequence[int], turns: int, tokens: int, seed: int
) -> Measured:
    """Ask every question by every method at every round trip, in an order drawn for each question.

    Raises:
        CannotMeasure: If an answer differs from ``server_only``'s, or is too short to time.
    """
    order = random.Random(seed)
    cells = [(name, rtt) for name in METHODS for rtt in (0, *rtts_ms)]
    measured = Measured([], {rtt: [] for rtt in (0, *rtts_ms)})
    for number in range(-1, turns):  # the first one warms everything up
        question = QUESTIONS[number % len(QUESTIONS)]
        prompt = engine.encode_chat([{"role": "user", "content": question}])
        turn: Turn = {}
        order.shuffle(cells)
        for name, rtt in cells if number >= 0 else WARMUP:
            engine.use_network(NetworkSetting(rtt_ms=rtt))
            ping_s = engine.measure_rtt()
            result = engine.run(
                prompt_ids=prompt, method=METHODS[name], max_new_tokens=tokens, reuse_prefix=False
            )
            turn[name, rtt] = Answer.of(result)
            if number >= 0:
                measured.pings_s[rtt].append(ping_s)
        require_equal(turn)
        if number >= 0:
            measured.turns.append(turn)
    return measured


def require_equal(turn: Turn) -> None:
    """Do nothing if all answers of a turn are plain decoding's, and have two tokens or more.

    Raises:
        CannotMeasure: If not.
    """
    plain = turn[PLAIN, 0].token_ids
    for (name, rtt), answer in turn.items():
        if answer.token_ids != plain:
            raise common.CannotMeasure(f"{name} at {rtt} ms does not answer as {PLAIN} at 0 ms.")
    if len(plain) < 2:
        raise common.CannotMeasure("An answer of one token has no time per later token.")


def _ms(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * MS_PER_S


def _rounded(found: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, DIGITS) for name, value in found.items()}


def round_figures(measured: Measured, rtt_ms: int) -> dict[str, float]:
    """Return what an empty round trip and a round's link took, and their distance from what is set.

    The distance is against the same at 0 ms, so it holds all that shaping adds by itself.
    """
    link, bare = (
        _ms([seconds for turn in measured.turns for seconds in turn[USER, rtt].link_s])
        for rtt in (rtt_ms, 0)
    )
    found = {"ping_ms": _ms(measured.pings_s[rtt_ms]), "round_link_ms": link}
    if rtt_ms:
        error = link - bare - rtt_ms
        found["ping_error_ms"] = found["ping_ms"] - _ms(measured.pings_s[0]) - rtt_ms
        found["round_error_ms"] = error
        found["round_error_share"] = error / rtt_ms
    return _rounded(found)


def method_figures(measured: Measured, name: str, rtt_ms: int) -> dict[str, float]:
    """Return one method's speed at one round trip; changes are medians over equal questions."""
    turns = measured.turns
    answers = [turn[name, rtt_ms] for turn in turns]
    bare = [turn[name, 0] for turn in turns]
    plain = [turn[PLAIN, rtt_ms] for turn in turns]
    tokens = sum(len(one.token_ids) for one in answers)
    total_s, plain_s = (sum(one.total_s for one in many) for many in (answers, plain))
    pairs, against = list(zip(answers, bare, strict=True)), list(zip(answers, plain, strict=True))
    found = {
        "tokens_per_s": tokens / total_s,
        "ttft_ms": _ms([one.ttft_s for one in answers]),
        "tpot_ms": _ms([one.tpot_s for one in answers]),
        "ttft_added_ms": _ms([one.ttft_s - other.ttft_s for one, other in pairs]),
        "tpot_change": statistics.median(one.tpot_s / other.tpot_s - 1 for one, other in pairs),
        "speedup": plain_s / total_s,
        "mat": sum(len(one.token_ids) - 1 for one in answers) / sum(one.steps for one in answers),
        "ttft_over_server_only_ms": _ms([one.ttft_s - other.ttft_s for one, other in against]),
    }
    return _rounded(found)


def figures(measured: Measured, rtts_ms: Sequence[int]) -> dict[str, Any]:
    """Return every figure: by round trip, and the worst of those that are judged."""
    links = {rtt: round_figures(measured, rtt) for rtt in (0, *rtts_ms)}
    methods = {
        rtt: {name: method_figures(measured, name, rtt) for name in METHODS}
        for rtt in (0, *rtts_ms)
    }
    errors = {rtt: links[rtt]["round_error_ms"] for rtt in rtts_ms}
    plain = {rtt: methods[rtt][PLAIN] for rtt in rtts_ms}
    return {
        "worst_round_error_ms": _worst(errors.values()),
        "worst_round_error_share": _worst(links[rtt]["round_error_share"] for rtt in rtts_ms),
        "rounds_as_wanted": all(
            abs(error) <= max(WANTED_MS, WANTED_SHARE * rtt) for rtt, error in errors.items()
        ),
        "worst_server_only_tpot_change": _worst(one["tpot_change"] for one in plain.values()),
        "worst_server_only_ttft_error_ms": _worst(
            one["ttft_added_ms"] - rtt for rtt, one in plain.items()
        ),
        "rtts_ms": {str(rtt): {**links[rtt], "methods": methods[rtt]} for rtt in links},
    }


def _worst(values: Iterable[float]) -> float:
    worst: float = max(values, key=abs)
    return round(worst, DIGITS)


def report(found: Mapping[str, Any]) -> None:
    """Print the tables for people."""
    by_rtt: Mapping[str, Mapping[str, Any]] = found["rtts_ms"]
    columns = ("ping_ms", "round_link_ms", "ping_error_ms", "round_error_ms")
    common.print_table(
        ["round trip set, ms", "ping", "round's link", "ping's error", "round's error", "of set"],
        [
            [rtt, *(_number(one.get(name)) for name in columns), _share(one, "round_error_share")]
            for rtt, one in by_rtt.items()
        ],
    )
    print()
    common.print_table(
        [
            "method, round trip",
            "tokens/s",
            "TTFT ms",
            "added",
            "TPOT ms",
            "change",
            "speed-up",
            "MAT",
        ],
        [
            [
                f"{name}, {rtt} ms",
                *(_number(one[key]) for key in ("tokens_per_s", "ttft_ms", "ttft_added_ms")),
                _number(one["tpot_ms"]),
                _share(one, "tpot_change"),
                *(_number(one[key]) for key in ("speedup", "mat")),
            ]
            for name in METHODS
            for rtt, one in ((rtt, by_rtt[rtt]["methods"][name]) for rtt in by_rtt)
        ],
    )
    print()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _share(found: Mapping[str, float], name: str) -> str:
    return f"{found[name]:+.1%}" if name in found else ""


def _arguments() -> argparse.Namespace:
    parser = common.parser("Compare a shaped link with what was set, and methods over it.")
    parser.add_argument("--turns", type=common.positive, help="questions asked of every method")
    parser.add_argument(
        "--tokens", type=common.positive, default=TOKENS, help="of an answer (default %(default)s)"
    )
    parser.add_argument(
        "--rtt",
        type=common.positive,
        nargs="+",
        default=list(RTTS_MS),
        metavar="MS",
        help="round trips beside 0 (default 20 100)",
    )
    return parser.parse_args()


def main() -> int:
    """Run the benchmark; the exit code is 0 unless it could not measure or answers differ."""
    arguments = _arguments()
    turns = arguments.turns or (QUICK_TURNS if arguments.quick else TURNS)
    rtts_ms = sorted(set(arguments.rtt))
    print(f"{turns} questions, {arguments.tokens} tokens each, seed {arguments.seed}")
    print(common.machine_words())
    try:
        options = ["--base-model-path", EMBEDDED_TARGET, "--dtype", DTYPE]
        options += ["--draft-model-path", EMBEDDED_DRAFT, "--draft-dtype", DTYPE]
        with (
            live.live_target(*options) as target,
            Autodraft.from_config(
                live.pair_config(DTYPE, tuple(METHODS), target.port), token=live.TOKEN
            ) as engine,
        ):
            measured = measure(engine, rtts_ms, turns, arguments.tokens, arguments.seed)
    except (AutodraftError, common.CannotMeasure) as error:
        print(f"link_shaping: {error}", file=sys.stderr)
        return 1
    found = figures(measured, rtts_ms)
    report(found)
    settings = {"turns": turns, "tokens": arguments.tokens, "seed": arguments.seed}
    common.print_json("link_shaping", found | settings | {"dtype": DTYPE} | common.machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
