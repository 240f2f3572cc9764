"""Is the output of every method that of server-only decoding, token for token?

The embedded pair over a real server, a server for each dtype. Every turn is answered by server-only
decoding and by every method, greedy and drawn; in bfloat16 with and without ``exact``. Two controls
say what is not speculation's doing: server-only a second time, and server-only in another bucket,
where every token comes from a forward of several rows.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import _common as common
from _identity_answers import FILE, Answers
from _identity_run import SPECULATIVE, Runner, Settings, embedded_client
from _identity_scores import CLOSE, Asked, Figures, faults, overall, way_figures
from _identity_turns import DTYPES, SAMPLED_EVERY, Way, draw_turns

from autodraft.errors import AutodraftError

TURNS: Final = 8
QUICK_TURNS: Final = 1
TOKENS: Final = 64
QUICK_TOKENS: Final = 24
UNKNOWN: Final = "–"


def run(settings: Settings, folder: Path) -> dict[Way, Asked]:
    """Ask what is not answered yet; return all answers, for each way to ask.

    Args:
        settings: What is run.
        folder: Keeps the answers; a later call goes on there.

    Raises:
        AutodraftError: If files, models, link or server fail.
        CannotMeasure: If there are no figures to show.
    """
    answers = Answers(folder)
    turns = draw_turns(settings.turns, settings.seed)
    print(f"{len(answers)} answers in {folder / FILE}", file=sys.stderr)
    found: dict[Way, Asked] = {}
    for dtype in settings.dtypes:
        with embedded_client(dtype, settings) as client:
            found |= Runner(settings, turns, answers).run(dtype, client)
    return found


# ----------------------------------------------------------------------------------------- report


def report(found: Mapping[Way, Asked], settings: Mapping[str, Any]) -> None:
    """Print a table for each way to ask, and the closing JSON line."""
    ways = [way_figures(way, asked) for way, asked in found.items()]
    for way, figures in zip(found, ways, strict=True):
        _print_way(way, figures)
    summary = overall(found)
    print(", ".join(f"{name} {_number(value, '{:.1%}')}" for name, value in summary.items()))
    common.print_json(
        "identity",
        summary | {"faults": faults(found), "ways": ways} | dict(settings) | common.machine(),
    )


def _print_way(way: Way, figures: Figures) -> None:
    rows = figures["methods"] | {"all that speculate": figures["speculative"]}
    common.print_table(
        [
            f"{way}; turns: {figures['turns']}",
            "identical",
            "parted / 1000 tokens",
            "at token",
            "gap there",
            "widest",
            "re-decided / 100",
        ],
        [[label, *_cells(row)] for label, row in rows.items()],
    )
    print()


def _cells(row: Figures) -> list[str]:
    return [
        _number(row["identical_share"], "{:.1%}"),
        _number(row["differences_per_1000_tokens"], "{:.2f}"),
        _number(row["median_position"], "{:g}"),
        _number(row["median_gap"], "{:.2g}"),
        _number(row["max_gap"], "{:.2g}"),
        _number(row["redecided_per_100_tokens"], "{:.2f}"),
    ]


def _number(value: float | None, pattern: str) -> str:
    return UNKNOWN if value is None else pattern.format(value)


# ---------------------------------------------------------------------------------------- options


def _names(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Read names separated by commas; return them in the order of those that there are."""
    asked = {part.strip() for part in text.split(",")}
    if unknown := sorted(asked.difference(known)):
        raise argparse.ArgumentTypeError(
            f"there is no {', '.join(map(repr, unknown))}; known are {', '.join(known)}"
        )
    return tuple(name for name in known if name in asked)


def _dtypes(text: str) -> tuple[str, ...]:
    return _names(text, tuple(DTYPES))


def _methods(text: str) -> tuple[str, ...]:
    return _names(text, SPECULATIVE)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    made = common.parser("Compare the output of every method with that of server-only decoding.")
    made.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help=f"keeps every answer in {FILE}; a call with the same DIR asks only for those that are "
        "missing (default: a temporary folder)",
    )
    made.add_argument(
        "--turns",
        type=common.positive,
        metavar="N",
        help=f"of each question file, drawn by the seed (default {TURNS}; with --quick "
        f"{QUICK_TURNS}); one in {SAMPLED_EVERY} is answered with draws as well",
    )
    made.add_argument(
        "--tokens",
        type=common.positive,
        help=f"most tokens of an answer (default {TOKENS}; with --quick {QUICK_TOKENS})",
    )
    made.add_argument(
        "--dtypes",
        type=_dtypes,
        metavar="NAME,…",
        default=tuple(DTYPES),
        help=f"of both models (default {','.join(DTYPES)})",
    )
    made.add_argument(
        "--methods",
        type=_methods,
        metavar="NAME,…",
        default=SPECULATIVE,
        help=f"beside server-only and its controls (default {','.join(SPECULATIVE)})",
    )
    return made


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return what the options ask for."""
    quick = arguments.quick
    return Settings(
        turns=arguments.turns or (QUICK_TURNS if quick else TURNS),
        tokens=arguments.tokens or (QUICK_TOKENS if quick else TOKENS),
        dtypes=arguments.dtypes,
        methods=arguments.methods,
        seed=arguments.seed,
    )


def main() -> int:
    """Run the benchmark; the exit code is 0 unless it could not measure or answers are at fault."""
    arguments = parser().parse_args()
    settings = settings_of(arguments)
    shown = vars(settings)
    print(", ".join(f"{name} {value}" for name, value in shown.items()))
    print(common.machine_words())
    try:
        with common.working_folder(arguments.folder) as folder:
            found = run(settings, folder)
    except (AutodraftError, common.CannotMeasure, KeyboardInterrupt) as error:
        return common.stopped("identity", error, kept=arguments.folder is not None)
    report(found, shown)
    if wrong := faults(found):
        print(
            f"identity: {len(wrong)} answers differ from server-only's as they must not: where the "
            f"two best logits lie more than {CLOSE:g} apart in float32, or in where they end:",
            *wrong,
            sep="\n",
            file=sys.stderr,
        )
        return common.EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
