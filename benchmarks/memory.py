"""How much memory do a target server and a client hold over 200 requests, and does it grow?

A real ``autodraft target`` and a client with an engine, each in a process of its own, both with
the embedded pair. Methods take turns in an order drawn from the seed, nearly every prompt has a
length of its own. Both processes are looked at from outside, between requests.
"""

import argparse
import contextlib
import math
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

import _common as common
from _child import child
from _live_target import TOKEN, live_target, pair_config
from _private_memory import Held

from autodraft import Autodraft
from autodraft.config import MethodSpec
from autodraft.errors import AutodraftError
from autodraft.models.embedded import EMBEDDED_DRAFT, EMBEDDED_TARGET

METHODS: Final = ("server_only", "chain", "fixed_tree", "opt_tree", "lookup")
SHORTEST: Final = 16
LONGEST: Final = 1000
TOKENS: Final = 16
SAMPLE_EVERY: Final = 10
SEEDS: Final = 1 << 32
REQUESTS: Final = 200
QUICK_REQUESTS: Final = 40
EARLY: Final = 50
QUICK_EARLY: Final = 10

KB: Final = 1_000
MB: Final = 1_000_000
ALLOWED_SHARE: Final = 1.15
ALLOWED_BYTES: Final = 300 * MB
FLAT_SHARE: Final = 0.01
"""Growth that still counts as none: allocators and page sizes let figures waver."""
DIGITS: Final = 1
REPLY_TIMEOUT_S: Final = 120.0

SENTENCES: Final = (
    "The lighthouse keeper wrote down the weather of every evening in a blue notebook.",
    "A bicycle stays upright because its front wheel is steered under the fall.",
    "In 1969 three people flew to the moon, and two of them walked on it.",
    "Rain that falls on the northern side of the ridge reaches another sea.",
    "To bake bread one needs flour, water, salt, yeast and a good deal of patience.",
    "The function returns the smallest of its arguments, or raises an error without any.",
    "She asked the librarian for a map of the old harbour and the names of its ships.",
    "Prices rose by four per cent in spring and fell again before the harvest.",
)
FEWEST_WORDS: Final = min(len(sentence.split()) for sentence in SENTENCES)


@dataclass(frozen=True)
class Job:
    """One request.

    Attributes:
        method: Method id.
        prompt_tokens: Length of its prompt.
        seed: What its prompt is drawn from.
    """

    method: str
    prompt_tokens: int
    seed: int


@dataclass(frozen=True)
class Model:
    """What a model takes by itself.

    Attributes:
        weights_bytes: All its weights.
        bytes_per_token: Keys and values of one token.
    """

    weights_bytes: int
    bytes_per_token: int


Samples = Mapping[int, Held]
"""What a process held after so many requests."""


def jobs(requests: int, seed: int) -> list[Job]:
    """Return the requests: every method as often as another, prompts of short to long.

    The logarithm of a length is drawn evenly, as short prompts are the more frequent ones. The
    first request of each method has the longest prompt, so that what that needs has been
    allocated once before figures are compared.
    """
    drawn = random.Random(seed)
    made = [Job(method, LONGEST, drawn.randrange(SEEDS)) for method in METHODS]
    while len(made) < requests:
        for method in drawn.sample(METHODS, len(METHODS)):
            length = round(math.exp(drawn.uniform(math.log(SHORTEST), math.log(LONGEST))))
            made.append(Job(method, length, drawn.randrange(SEEDS)))
    return made[:requests]


def cache_tokens(wanted: Iterable[Job], specs: Mapping[str, MethodSpec]) -> dict[str, int]:
    """Return the tokens of the largest cache on either side, as the engine allocates it.

    The target has room for prompt, answer, the nodes of a round and its root; the draft for
    prompt, answer, every node that a round may expand and the root.
    """
    pairs = [(job, specs[job.method]) for job in wanted]
    target = [job.prompt_tokens + TOKENS + spec.node_budget + 1 for job, spec in pairs]
    draft = [
        job.prompt_tokens + TOKENS + spec.width * spec.max_depth + 1
        for job, spec in pairs
        if spec.needs_draft_model
    ]
    return {"client": max(draft, default=0), "target": max(target)}


def limit_bytes(model: Model, tokens: int) -> int:
    """Return what a process with this model and a cache of so many tokens may hold."""
    kv_bytes = model.bytes_per_token * tokens
    return round(ALLOWED_SHARE * model.weights_bytes) + kv_bytes + ALLOWED_BYTES


def growth_bytes(held: Mapping[int, int]) -> float:
    """Return the bytes that a request adds: the slope of the least-squares line.

    Args:
        held: Bytes by the number of requests, at least two.
    """
    mean_x, mean_y = sum(held) / len(held), sum(held.values()) / len(held)
    spread = sum((x - mean_x) ** 2 for x in held)
    return sum((x - mean_x) * (y - mean_y) for x, y in held.items()) / spread


def side_figures(samples: Samples, model: Model, tokens: int, early: int) -> dict[str, Any]:
    """Return one process's figures, in MB of a million bytes.

    Args:
        samples: What it held, by the number of requests.
        model: Its model.
        tokens: Of its largest cache.
        early: The number of requests after which it is to grow no more.
    """
    last, limit = max(samples), limit_bytes(model, tokens)
    private = {number: held.private_bytes for number, held in samples.items()}
    later = {number: size for number, size in private.items() if number >= early}
    return {
        "mb": {str(number): _mb(size) for number, size in private.items()},
        "rss_mb": {str(number): _mb(held.rss_bytes) for number, held in samples.items()},
        "limit_mb": _mb(limit),
        "weights_mb": _mb(model.weights_bytes),
        "kv_mb": _mb(model.bytes_per_token * tokens),
        "growth_kb_per_request": round(growth_bytes(later) / KB, DIGITS),
        "within_limit": private[last] <= limit,
        "rss_within_limit": samples[last].rss_bytes <= limit,
        "flat": private[last] <= private[early] * (1 + FLAT_SHARE),
    }


def figures(sides: Mapping[str, Mapping[str, Any]], early: int, last: int) -> dict[str, Any]:
    """Return every figure: those that are judged, then all of both processes."""
    found: dict[str, Any] = {}
    for side, one in sides.items():
        found |= {f"{side}_mb_{number}": one["mb"][str(number)] for number in (early, last)}
        found[f"{side}_rss_mb_{last}"] = one["rss_mb"][str(last)]
        found[f"{side}_limit_mb"] = one["limit_mb"]
    for verdict in ("within_limit", "rss_within_limit", "flat"):
        found[verdict] = all(one[verdict] for one in sides.values())
    return found | {"processes": dict(sides)}


def report(sides: Mapping[str, Mapping[str, Any]], shown: Sequence[int]) -> None:
    """Print the table, and what each limit is made of, for people."""
    common.print_table(
        ["MB held after requests", *map(str, shown), "limit", "KB per request"],
        [
            [
                f"{side}, {words}",
                *(f"{one[name][str(number)]:.0f}" for number in shown),
                f"{one['limit_mb']:.0f}",
                f"{one['growth_kb_per_request']:+.0f}" if name == "mb" else "",
            ]
            for side, one in sides.items()
            for name, words in (("mb", "its own"), ("rss_mb", "all resident"))
        ],
    )
    print()
    for side, one in sides.items():
        print(
            f"{side}: limit {one['limit_mb']:.0f} MB = {ALLOWED_SHARE} x {one['weights_mb']:.1f} "
            f"weights + {one['kv_mb']:.1f} largest cache + {ALLOWED_BYTES / MB:.0f}: "
            f"{_verdict(one['within_limit'])} (all resident: {_verdict(one['rss_within_limit'])});"
            f" {'flat' if one['flat'] else 'growing'}"
        )
    print()


def _verdict(within: bool) -> str:
    return "held" if within else "missed"


def _mb(size: float) -> float:
    return round(size / MB, DIGITS)


class Client:
    """A client in a process of its own, which makes one request after another.

    Attributes:
        pid: Its process id.
    """

    def __init__(self, pid: int, link: Connection) -> None:
        """Take over a process that tells over ``link`` when it is ready."""
        self.pid = pid
        self._link = link

    def wait(self) -> None:
        """Wait until it has connected, or has made the request given to it.

        Raises:
            CannotMeasure: If it fails, ends, or takes too long.
        """
        if not self._link.poll(REPLY_TIMEOUT_S):
            raise common.CannotMeasure(f"The client says nothing for {REPLY_TIMEOUT_S:.0f} s.")
        try:
            fault = self._link.recv()
        except (EOFError, OSError) as error:
            raise common.CannotMeasure("The client's process has ended.") from error
        if fault is not None:
            raise common.CannotMeasure(f"The client cannot go on: {fault}")

    def run(self, job: Job) -> None:
        """Have one request answered; raises as ``wait`` does."""
        with contextlib.suppress(BrokenPipeError):  # it said why before it ended, or ``wait`` does
            self._link.send(job)
        self.wait()


@contextlib.contextmanager
def live_client(port: int, dtype: str) -> Iterator[Client]:
    """Run a client of the server at ``port`` meanwhile.

    Raises:
        CannotMeasure: If it does not come up.
    """
    with child(serve, port, dtype) as process:
        client = Client(process.pid, process.channel)
        client.wait()
        yield client


def serve(link: Connection, port: int, dtype: str) -> None:
    """Make the requests that come over ``link`` until it is closed: all that the client does.

    Each is answered with None, or with what went wrong.
    """
    try:
        config = pair_config(dtype, METHODS, port)
        with Autodraft.from_config(config, token=TOKEN) as engine:
            link.send(None)
            while True:
                job: Job = link.recv()
                ids = prompt(engine, job)
                engine.run(
                    prompt_ids=ids, method=job.method, max_new_tokens=TOKENS, reuse_prefix=False
                )
                link.send(None)
    except EOFError:  # the other end is closed: no more requests
        return
    except AutodraftError as error:
        link.send(str(error))


def prompt(engine: Autodraft, job: Job) -> list[int]:
    """Return a prompt of exactly the tokens wanted, of sentences drawn from the job's seed."""
    drawn = random.Random(job.seed)
    count = job.prompt_tokens // FEWEST_WORDS + 1  # a word is a token or more
    text = " ".join(drawn.choices(SENTENCES, k=count))
    return engine.encode_text(text)[: job.prompt_tokens]


def sample(wanted: Sequence[Job], dtype: str) -> dict[str, dict[int, Held]]:
    """Make all requests and return what both processes held, by the number of requests made.

    Raises:
        CannotMeasure: If a process does not come up, or a request fails.
    """
    options = ("--base-model-path", EMBEDDED_TARGET, "--dtype", dtype)
    with live_target(*options) as target, live_client(target.port, dtype) as client:
        pids = {"client": client.pid, "target": target.pid}
        samples = {side: {0: Held.by(pid)} for side, pid in pids.items()}
        for number, job in enumerate(wanted, 1):
            client.run(job)
            if number % SAMPLE_EVERY == 0:
                for side, pid in pids.items():
                    samples[side][number] = Held.by(pid)
    return samples


def models(dtype: str) -> dict[str, Model]:
    """Load both models here, as the two processes did, and return what they take."""
    from autodraft.models.loader import ModelSource, load_model  # not at the top: imports torch

    sources = {
        "client": ModelSource(EMBEDDED_DRAFT, dtype=dtype, drafts=True),
        "target": ModelSource(EMBEDDED_TARGET, dtype=dtype),
    }
    runners = {side: load_model(source).runner for side, source in sources.items()}
    return {
        side: Model(runner.weights_bytes, runner.layout.bytes_per_token)
        for side, runner in runners.items()
    }


def _arguments() -> argparse.Namespace:
    parser = common.parser("Compare what a target server and a client hold with their limits.")
    parser.add_argument(
        "--dtype",
        default="auto",
        choices=("auto", "float32", "bfloat16"),
        help="of both models (default %(default)s)",
    )
    return parser.parse_args()


def main() -> int:
    """Run the benchmark; the exit code is 0 unless it could not measure."""
    arguments = _arguments()
    last, early = (QUICK_REQUESTS, QUICK_EARLY) if arguments.quick else (REQUESTS, EARLY)
    wanted = jobs(last, arguments.seed)
    print(f"{last} requests, {TOKENS} tokens each, seed {arguments.seed}: {', '.join(METHODS)}")
    print(f"prompts of {SHORTEST} to {LONGEST} tokens")
    try:
        samples = sample(wanted, arguments.dtype)
        sizes = models(arguments.dtype)
    except (AutodraftError, common.CannotMeasure) as error:
        print(f"memory: {error}", file=sys.stderr)
        return 1
    print(common.machine_words())
    config = pair_config(arguments.dtype, METHODS)
    tokens = cache_tokens(wanted, {name: config.method(name) for name in METHODS})
    sides = {
        side: side_figures(samples[side], sizes[side], tokens[side], early) for side in samples
    }
    report(sides, [last * quarter // 4 for quarter in range(5)])
    settings = {"requests": last, "tokens": TOKENS, "seed": arguments.seed}
    found = figures(sides, early, last) | settings | {"dtype": arguments.dtype}
    common.print_json("memory", found | common.machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
