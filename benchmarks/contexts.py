"""What prefill and a round cost behind short and long contexts, and whether memory stays flat.

The embedded pair over a loopback link without delay, ``fixed_tree`` in its default shape; the
server is a real ``autodraft target``, the client's loop and draft run here. Prompts are the
repository's own documents, cut to length; a context that does not fit the models' positions with
its answer is cut to what fits, and the table says so. The contexts take turns.

* **Prefill** is in chunks, and draft and target do theirs at once: they share the processor.
* **Rounds**: medians over all that had room for a tree of full depth.
* **Memory** is what lies in no file (rows of a mapped checkpoint that are read for the first time
  do not count; off Linux it is USS), read between rounds: after the prefill, after the first
  rounds, and before the session is closed. **Growth** is that between the second and the third
  reading. A cache is allocated as a whole, but the system hands out a page
  when it is first written, so the keys and values of the tokens that came in between may be part of
  it; what goes beyond them is **unexplained**. Answers that warm everything up come first.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import _common as common
import _live_target as live
from _private_memory import MIB, Growth, Private, Reading, memory_reader
from transformers import AutoConfig

from autodraft.config import MethodSpec
from autodraft.config.methods import FIXED_TREE_WHEN_AUTO
from autodraft.decoding.stopping import StopRules
from autodraft.engine.methods import DraftSide, make_method
from autodraft.engine.remote import RemoteTarget, TargetWish
from autodraft.engine.rounds import Meters
from autodraft.engine.session import Request
from autodraft.errors import AutodraftError
from autodraft.models.embedded import EMBEDDED_DRAFT, EMBEDDED_TARGET, resolve_embedded
from autodraft.models.loader import DTYPES, LoadedModel, ModelSource, load_model
from autodraft.records import RequestRecord, RoundRecord
from autodraft.transport.client import Link
from autodraft.units import MS_PER_S

WIDTH, DEPTH, NODES = FIXED_TREE_WHEN_AUTO
SPEC: Final = MethodSpec(method="fixed_tree", width=WIDTH, max_depth=DEPTH, node_budget=NODES)
SERVER_NAME: Final = "autodraft"
DEVICE: Final = "cpu"
TEXTS: Final = live.CHECKOUT / "docs"
CONTEXTS: Final = (128, 512, 2048, 8192)
FULL: Final = (128, 3)
"""Tokens of an answer, answers behind each context."""
QUICK: Final = (64, 1)
WARMUPS: Final = 2
"""Answers behind the shortest context: libraries keep things of the first ones for later ones."""
FIRST_ROUNDS: Final = 4
"""After these, every buffer of a round has been used."""
MEMORY: Final = {"prefilled": "prefilled", "first": f"{FIRST_ROUNDS} rounds", "last": "all rounds"}
"""Names and words of the three readings."""
LEAST_ROUNDS: Final = 2 * FIRST_ROUNDS
TRIES: Final = 6
DIGITS: Final = 4


@dataclass(frozen=True)
class Answer:
    """One answer behind one context.

    Attributes:
        record: Of the request.
        rounds: Of its rounds.
        readings: After the prefill, after the first rounds, after the last one.
    """

    record: RequestRecord
    rounds: list[RoundRecord]
    readings: tuple[Reading, Reading, Reading]

    @property
    def draft_prefill_s(self) -> float:
        """Seconds of the draft's prefill."""
        return (self.record.draft_s or 0.0) - sum(one.draft_s for one in self.rounds)

    @property
    def target_prefill_s(self) -> float:
        """Seconds of the target's prefill, on the server's clock."""
        return self.record.target_busy_s - sum(one.verify_s for one in self.rounds)

    def full_rounds(self, limit: int) -> list[RoundRecord]:
        """Return the rounds in which an answer of ``limit`` tokens left room for the whole tree."""
        end = self.record.prompt_tokens + limit
        return [one for one in self.rounds if end - one.context_tokens - 1 >= DEPTH]

    def growth(self, side: str, bytes_per_token: Private) -> Growth:
        """Return how a side grew over the rounds; the second and third readings are compared."""
        _, early, last = self.readings
        before, after = getattr(early.private, side), getattr(last.private, side)
        tokens = last.tokens - early.tokens
        return Growth(after - before, tokens * getattr(bytes_per_token, side))


@dataclass(frozen=True)
class Pair:
    """Both sides, ready to answer.

    Attributes:
        target: The server, through the link.
        draft: The draft model.
        read: Reads the memory of both sides.
    """

    target: RemoteTarget
    draft: LoadedModel
    read: Callable[[], Private]

    @property
    def max_context(self) -> int:
        """Most tokens that both models' positions allow."""
        return min(self.target.welcome.max_context, self.draft.runner.max_context)

    def bytes_per_token(self) -> Private:
        """Return what a token takes in the cache of each side."""
        client = self.draft.runner.layout.bytes_per_token
        return Private(client, target_bytes_per_token(self.target.welcome.dtype))


def target_bytes_per_token(dtype: str) -> int:
    """Return the bytes of one token's keys and values in all layers of the embedded target."""
    config = AutoConfig.from_pretrained(resolve_embedded(EMBEDDED_TARGET))
    heads = 2 * config.num_hidden_layers * config.num_key_value_heads
    return int(heads * config.head_dim * DTYPES[dtype].itemsize)


def fitting(context: int, tokens: int, max_context: int) -> int:
    """Return the tokens of a prompt that leaves room for its answer and a last round's tree.

    Raises:
        CannotMeasure: If nothing is left of it.
    """
    fits = min(context, max_context - tokens - DEPTH)
    if fits < 1:
        raise common.CannotMeasure(
            f"An answer of {tokens} tokens leaves no room for a prompt in the {max_context} tokens "
            "of context that the pair has. Ask for fewer with --tokens."
        )
    return fits


def ask(pair: Pair, prompt: Sequence[int], tokens: int) -> Answer:
    """Answer a prompt and read memory on the way; the loop stands still meanwhile."""
    rules = StopRules(frozenset(pair.target.welcome.eos_ids), tokens)
    method = make_method(SPEC, DraftSide(runner=pair.draft.runner))
    request = Request(pair.target, method, prompt, rules, Meters())
    readings: list[Reading] = []
    length = len(prompt)
    for number, block in enumerate(request):
        length += len(block)
        ended = block[-1] in rules.eos_ids or length == len(prompt) + tokens
        if number in (0, FIRST_ROUNDS) or ended:
            readings.append(Reading(length, pair.read()))
    first, last = readings[0], readings[-1]
    early = readings[1] if len(readings) > 2 else last
    return Answer(request.record, request.rounds, (first, early, last))


def ask_at_length(pair: Pair, prompts: Iterator[list[int]], tokens: int) -> Answer:
    """Answer the first prompt whose answer has enough rounds to compare.

    Raises:
        CannotMeasure: If none of several has.
    """
    for prompt in itertools.islice(prompts, TRIES):
        answer = ask(pair, prompt, tokens)
        if len(answer.full_rounds(tokens)) >= LEAST_ROUNDS:
            return answer
    raise common.CannotMeasure(
        f"None of {TRIES} answers had {LEAST_ROUNDS} rounds with room for a whole tree. Ask for "
        "longer ones with --tokens."
    )


def text_ids(draft: LoadedModel, folder: Path = TEXTS) -> list[int]:
    """Return the token ids of the repository's documents, one behind the other."""
    paths = sorted(folder.glob("*.md"))
    return [token for path in paths for token in draft.tokenizer.encode(path.read_text("utf-8"))]


def prompts_of(ids: Sequence[int], length: int, start: int) -> Iterator[list[int]]:
    """Yield prompts of ``length`` tokens, each from where the last one ended; the text is a ring.

    Args:
        ids: The text.
        length: Tokens of a prompt.
        start: Where the first one begins.
    """
    ring = itertools.cycle(ids)
    next(itertools.islice(ring, start % len(ids), start % len(ids)), None)
    while True:
        yield list(itertools.islice(ring, length))


def measure(
    pair: Pair, contexts: Sequence[int], tokens: int, repeats: int, seed: int
) -> dict[int, list[Answer]]:
    """Answer ``repeats`` prompts behind each context; the contexts take turns."""
    ids = text_ids(pair.draft)
    sources = {
        context: prompts_of(ids, fitting(context, tokens, pair.max_context), seed * len(ids) // 10)
        for context in contexts
    }
    for _ in range(WARMUPS):
        ask_at_length(pair, sources[contexts[0]], tokens)
    answers: dict[int, list[Answer]] = {context: [] for context in contexts}
    for _, context in itertools.product(range(repeats), contexts):
        answers[context].append(ask_at_length(pair, sources[context], tokens))
    return answers


def _ms(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * MS_PER_S


def context_figures(
    answers: Sequence[Answer], tokens: int, bytes_per_token: Private
) -> dict[str, float]:
    """Return the figures of one context: medians, and the memory of the answer that grew most."""
    rounds = [one for answer in answers for one in answer.full_rounds(tokens)]
    prefill_s = statistics.median(answer.record.ttft_s for answer in answers)
    prompt_tokens = answers[0].record.prompt_tokens
    found = {
        "prompt_tokens": prompt_tokens,
        "prefill_s": prefill_s,
        "prefill_tokens_per_s": prompt_tokens / prefill_s,
        "draft_prefill_s": statistics.median(answer.draft_prefill_s for answer in answers),
        "target_prefill_s": statistics.median(answer.target_prefill_s for answer in answers),
        "rounds": len(rounds),
        "tokens_per_round": statistics.fmean(one.emitted_tokens for one in rounds),
        "draft_ms": _ms([one.draft_s for one in rounds]),
        "verify_ms": _ms([one.verify_s for one in rounds]),
        "link_ms": _ms([one.wait_s - one.verify_s - one.queue_s for one in rounds]),
        "round_ms": _ms([one.round_s for one in rounds]),
        "cache_bytes": bytes_per_token.server * (prompt_tokens + tokens),
        "draft_cache_bytes": bytes_per_token.client * (prompt_tokens + tokens),
    }
    for side in Private._fields:
        found |= memory_figures(answers, side, bytes_per_token)
    return {name: round(value, DIGITS) for name, value in found.items()}


def memory_figures(
    answers: Sequence[Answer], side: str, bytes_per_token: Private
) -> dict[str, float]:
    """Return one side's memory in the answer that grew most beyond its cache, in MiB."""
    growths = [answer.growth(side, bytes_per_token) for answer in answers]
    worst = max(range(len(answers)), key=lambda number: growths[number].unexplained)
    readings = zip(MEMORY, answers[worst].readings, strict=True)
    found = {f"{side}_private_mb_{name}": getattr(one.private, side) for name, one in readings}
    found |= {
        f"{side}_growth_mb": growths[worst].whole,
        f"{side}_new_tokens_mb": growths[worst].new_tokens,
        f"{side}_unexplained_mb": growths[worst].unexplained,
    }
    return {name: used / MIB for name, used in found.items()}


def figures(
    answers: Mapping[int, Sequence[Answer]], tokens: int, bytes_per_token: Private
) -> dict[str, Any]:
    """Return every figure, by context and over all of them."""
    found = {
        context: context_figures(some, tokens, bytes_per_token) for context, some in answers.items()
    }
    shortest, longest = found[min(found)], found[max(found)]
    return {
        "round_ratio": round(longest["round_ms"] / shortest["round_ms"], DIGITS),
        "worst_client_unexplained_mb": max(one["client_unexplained_mb"] for one in found.values()),
        "worst_server_unexplained_mb": max(one["server_unexplained_mb"] for one in found.values()),
        "contexts": {str(context): one for context, one in found.items()},
    }


COSTS: Final = {
    "prefill_s": "prefill s",
    "prefill_tokens_per_s": "tokens/s",
    "draft_prefill_s": "draft's s",
    "target_prefill_s": "target's s",
    "rounds": "rounds",
    "tokens_per_round": "tokens each",
    "draft_ms": "draft ms",
    "verify_ms": "verify ms",
    "link_ms": "link ms",
    "round_ms": "round ms",
}


def report(found: Mapping[str, Any]) -> None:
    """Print the tables for people."""
    contexts: Mapping[str, Mapping[str, float]] = found["contexts"]
    names = {
        context: context
        if one["prompt_tokens"] == int(context)
        else f"{context} (cut to {one['prompt_tokens']:.0f})"
        for context, one in contexts.items()
    }
    common.print_table(
        ["context", *COSTS.values()],
        [
            [names[context], *(f"{one[key]:.5g}" for key in COSTS)]
            for context, one in contexts.items()
        ],
    )
    print(f"a round behind the longest takes {found['round_ratio']:.2f} x that of the shortest\n")
    common.print_table(
        ["memory in no file, MiB", *MEMORY.values(), "growth", "new tokens", "cache"],
        [
            [
                f"{side}, {names[context]}",
                *(f"{one[f'{side}_private_mb_{name}']:.1f}" for name in MEMORY),
                f"{one[f'{side}_growth_mb']:+.2f}",
                f"{one[f'{side}_new_tokens_mb']:.2f}",
                f"{one[cache] / MIB:.1f}",
            ]
            for side, cache in (("server", "cache_bytes"), ("client", "draft_cache_bytes"))
            for context, one in contexts.items()
        ],
    )
    print()


def _arguments() -> argparse.Namespace:
    parser = common.parser("Time prefill and rounds behind several contexts, and watch memory.")
    parser.add_argument("--dtype", choices=("auto", *DTYPES), default="auto", help="default auto")
    parser.add_argument(
        "--contexts",
        type=common.positive,
        nargs="+",
        default=list(CONTEXTS),
        metavar="TOKENS",
        help="tokens of the prompts (default 128 512 2048 8192)",
    )
    parser.add_argument(
        "--tokens", type=common.positive, help=f"of an answer, at most (default {FULL[0]})"
    )
    parser.add_argument(
        "--repeats", type=common.positive, help=f"answers behind each (default {FULL[1]})"
    )
    return parser.parse_args()


def run(arguments: argparse.Namespace, tokens: int, repeats: int) -> dict[str, Any]:
    """Start both sides, measure, and return the figures.

    Raises:
        CannotMeasure: If a context cannot be measured.
    """
    contexts, dtype = sorted(set(arguments.contexts)), arguments.dtype
    options = ("--base-model-path", EMBEDDED_TARGET, "--dtype", dtype, "--device-map", DEVICE)
    with (
        live.live_target(*options) as server,
        Link(live.HOST, server.port, live.TOKEN) as link,
    ):
        target = RemoteTarget(link, TargetWish(SERVER_NAME))
        draft = load_model(ModelSource(EMBEDDED_DRAFT, dtype=dtype, device_map=DEVICE, drafts=True))
        pair = Pair(target, draft, memory_reader(server.pid))
        answers = measure(pair, contexts, tokens, repeats, arguments.seed)
        found = figures(answers, tokens, pair.bytes_per_token())
        return found | {"dtype": target.welcome.dtype}


def main() -> int:
    """Run the benchmark; the exit code is 0 unless it could not measure."""
    arguments = _arguments()
    defaults = QUICK if arguments.quick else FULL
    tokens, repeats = arguments.tokens or defaults[0], arguments.repeats or defaults[1]
    shape = f"width {WIDTH}, depth {DEPTH}, {NODES} nodes"
    print(f"embedded pair, fixed_tree ({shape}), answers of {tokens} tokens, {repeats} each")
    print(common.machine_words())
    try:
        found = run(arguments, tokens, repeats)
    except (AutodraftError, common.CannotMeasure) as error:
        print(f"contexts: {error}", file=sys.stderr)
        return 1
    report(found)
    settings = {"tokens": tokens, "repeats": repeats, "seed": arguments.seed}
    models = {"target": EMBEDDED_TARGET, "draft": EMBEDDED_DRAFT, "memory": "in no file"}
    common.print_json("contexts", found | settings | models | common.machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
