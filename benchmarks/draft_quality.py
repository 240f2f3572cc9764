"""How well a draft model guesses its target, on real questions: agreement, accepted tokens, time.

The target answers each question's first turn greedily, token by token. The draft is then played
against that known answer: its choices at every position, chains of each length, and the best trees
that the drafter grows, with and without retrieved continuations. Knows no link and no price.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import _common as common
from _draft_models import (
    RANKED,
    Growths,
    Pair,
    greedy_answer,
    load_pair,
    step_times,
    token_ranks,
)
from _draft_report import (
    CHAINS,
    RETRIEVAL,
    TREES,
    Figures,
    Played,
    bench_figures,
    figures,
    print_bench,
    print_mats,
    print_steps,
    step_figures,
)
from _draft_rounds import BestTree, Chain, Guesser, KnownAnswer, play
from _question_files import locations

from autodraft.config import TreeConfig
from autodraft.decoding.retrieval import AcceptanceTable, Retriever
from autodraft.decoding.stopping import StopRules, answer_limit
from autodraft.engine.drafter import Drafter
from autodraft.errors import AutodraftError
from autodraft.models.embedded import EMBEDDED_DRAFT, EMBEDDED_TARGET
from autodraft.models.loader import DTYPES
from autodraft.models.tokenizer import Tokenizer
from evaluation.datasets import (
    AVAILABLE_BENCHES,
    BENCH_DIR_VARIABLE,
    Question,
    load_bench,
)

BENCH: Final = "mt_bench"
QUICK_BENCH: Final = "quick"
TOKENS: Final = 128
QUICK_TOKENS: Final = 48
WIDTH: Final = 8
DEPTH: Final = 8
RETRIEVAL_DEPTH: Final = TreeConfig().proposed_max_depth[0]
"""A continuation costs no draft step, so it may go as deep as the harness lets a tree go."""
CONTEXTS: Final = (128, 256, 512)
TURNS: Final = 60
QUICK_TURNS: Final = 15


@dataclass(frozen=True)
class Limits:
    """How much is played.

    Attributes:
        tokens: Most tokens of an answer.
        width: Nodes that the draft model expands on each level.
        depth: Levels that it grows.
        retrieval_depth: Deepest node of a tree with retrieved continuations.
    """

    tokens: int
    width: int
    depth: int
    retrieval_depth: int


class Quality:
    """Plays the questions of one benchmark after another."""

    def __init__(self, pair: Pair, limits: Limits) -> None:
        """Take a pair and the limits of answers and growths."""
        self._pair = pair
        self._limits = limits
        self._drafter = Drafter(pair.draft.runner, pair.excluded)
        self.step_seconds: list[float] = []

    def run(self, bench: str, questions: Sequence[Question]) -> list[Played]:
        """Play all questions in order; what retrieval learns lasts for the benchmark."""
        retrievers = {size: Retriever(AcceptanceTable()) for size in TREES}
        played = []
        for number, question in enumerate(questions, start=1):
            played.append(self._play(question, retrievers))
            print(f"{bench}: {number} of {len(questions)} questions", file=sys.stderr)
        return played

    def _play(self, question: Question, retrievers: Mapping[int, Retriever]) -> Played:
        answer = self._answer(question)
        draft = self._pair.draft.runner
        ranks = token_ranks(draft, answer, self._pair.excluded)
        growths = Growths(self._drafter, answer, self._limits.width, self._limits.depth)
        guessers: dict[str, Guesser] = {
            f"chain{depth}": Chain(answer, ranks == 0, depth) for depth in CHAINS
        }
        for size in TREES:
            guessers[f"tree{size}"] = BestTree(answer, growths.at, size, self._limits.depth)
        for size, retriever in retrievers.items():
            guessers[f"tree{size}{RETRIEVAL}"] = BestTree(
                answer, growths.at, size, self._limits.retrieval_depth, retriever
            )
        rounds = play(len(answer.tokens), list(guessers.values()))
        growths.finish()
        counts = {way: len(lengths) for way, lengths in zip(guessers, rounds, strict=True)}
        top1, top4 = int((ranks == 0).sum()), int((ranks < RANKED).sum())
        return Played(question, len(answer.tokens), top1, top4, counts)

    def _answer(self, question: Question) -> KnownAnswer:
        target = self._pair.target
        prompt = _prompt_ids(target.tokenizer, question)
        limit = answer_limit(self._limits.tokens, len(prompt), target.runner.max_context)
        if limit < 1:
            raise common.CannotMeasure(
                f"{question.bench}: question {question.id} has {len(prompt)} tokens, and the "
                f"target takes {target.runner.max_context}. Choose another benchmark or target."
            )
        rules = StopRules(target.tokenizer.eos_ids, limit, question.stop)
        answer, seconds = greedy_answer(target.runner, prompt, rules, target.tokenizer.decode)
        self.step_seconds += seconds
        return answer


def _prompt_ids(tokenizer: Tokenizer, question: Question) -> list[int]:
    text = question.turns[0]
    if question.form == "completion":
        return tokenizer.encode(text)
    return tokenizer.encode_chat([{"role": "user", "content": text}])


def load_questions(benches: Sequence[str], limit: int | None) -> dict[str, tuple[Question, ...]]:
    """Return the questions of each benchmark.

    Raises:
        ConfigError: If there is no such benchmark.
        DataError: If its file is found nowhere or is malformed.
    """
    places = locations()
    return {bench: load_bench(bench, places, limit) for bench in benches}


def report(played: Mapping[str, Sequence[Played]], found: Figures, settings: Figures) -> None:
    """Print the tables and the closing JSON line.

    Args:
        played: Questions of each benchmark.
        found: The times of a step.
        settings: What was asked for.
    """
    benches = {bench: bench_figures(bench, ones) for bench, ones in played.items()}
    for bench, row in benches.items():
        print_bench(bench, row)
    if len(benches) == 1:
        (total,) = benches.values()
    else:
        everything = figures([one for ones in played.values() for one in ones])
        print_mats("all", everything)
        total = everything | {"benches": benches}
    print_steps(found)
    bench = ",".join(benches)
    common.print_json(
        "draft_quality", {"bench": bench} | total | found | settings | common.machine()
    )


def _bench_names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _arguments() -> argparse.Namespace:
    parser = common.parser("Measure how well a draft model guesses its target.")
    parser.add_argument(
        "--bench",
        type=_bench_names,
        metavar="NAME,…",
        help=f"benchmarks, out of {', '.join(AVAILABLE_BENCHES)} (default {BENCH}; with --quick "
        f"{QUICK_BENCH}); all but {QUICK_BENCH} are read from {BENCH_DIR_VARIABLE}, or downloaded",
    )
    parser.add_argument(
        "--limit", type=common.positive, help="questions of each benchmark and sub-task"
    )
    parser.add_argument(
        "--tokens",
        type=common.positive,
        help=f"most tokens of an answer (default {TOKENS}; with --quick {QUICK_TOKENS})",
    )
    parser.add_argument("--target", default=EMBEDDED_TARGET, help=f"default {EMBEDDED_TARGET}")
    parser.add_argument("--draft", default=EMBEDDED_DRAFT, help=f"default {EMBEDDED_DRAFT}")
    parser.add_argument(
        "--dtype", choices=("auto", *DTYPES), default="auto", help="of both models (default auto)"
    )
    parser.add_argument(
        "--width", type=common.positive, default=WIDTH, help=f"nodes per level (default {WIDTH})"
    )
    parser.add_argument(
        "--depth", type=common.positive, default=DEPTH, help=f"levels of a tree (default {DEPTH})"
    )
    parser.add_argument(
        "--retrieval-depth",
        type=common.positive,
        default=RETRIEVAL_DEPTH,
        help=f"levels of a tree with retrieved continuations (default {RETRIEVAL_DEPTH})",
    )
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.bench = arguments.bench or [QUICK_BENCH if quick else BENCH]
    arguments.tokens = arguments.tokens or (QUICK_TOKENS if quick else TOKENS)
    return arguments


def _settings(arguments: argparse.Namespace, pair: Pair) -> dict[str, Any]:
    return {
        "target": arguments.target,
        "draft": arguments.draft,
        "draft_revision": pair.draft.revision,
        "target_dtype": pair.target.runner.dtype,
        "draft_dtype": pair.draft.runner.dtype,
        "width": arguments.width,
        "depth": arguments.depth,
        "retrieval_depth": arguments.retrieval_depth,
        "max_tokens": arguments.tokens,
        "limit": arguments.limit,
        "seed": arguments.seed,
    }


def main() -> int:
    """Run the benchmark; the exit code is 0 unless it could not measure."""
    arguments = _arguments()
    try:
        questions = load_questions(arguments.bench, arguments.limit)
        pair = load_pair(arguments.target, arguments.draft, arguments.dtype)
        settings = _settings(arguments, pair)
        print(", ".join(f"{name} {value}" for name, value in settings.items()))
        print(common.machine_words())
        limits = Limits(
            arguments.tokens, arguments.width, arguments.depth, arguments.retrieval_depth
        )
        quality = Quality(pair, limits)
        played = {bench: quality.run(bench, chosen) for bench, chosen in questions.items()}
        if not quality.step_seconds:
            raise common.CannotMeasure("No answer has a second token, so nothing can be drafted.")
        turns = QUICK_TURNS if arguments.quick else TURNS
        steps = step_figures(step_times(pair, CONTEXTS, turns, arguments.seed))
    except (AutodraftError, common.CannotMeasure) as error:
        print(f"draft_quality: {error}", file=sys.stderr)
        return 1
    decoding_ms = round(statistics.median(quality.step_seconds) * 1e3, 3)
    report(played, steps | {"decoding_step_ms": decoding_ms}, settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
