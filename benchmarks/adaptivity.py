"""Is AutoDraft as good as the best static method, whatever the benchmark, the link and the aim?

The embedded pair over a real server. For each benchmark and round trip the static methods (chain,
fixed_tree, opt_tree) are tuned on validation questions for every cost sensitivity, and measured
beside server-only decoding and autodraft, the methods taking turns on each question. Scored is the
blend of time and total cost that the cost sensitivity asks for.
"""

import argparse
import contextlib
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final, TypeVar

import _common as common
from _adaptivity_cells import Figures, cell
from _adaptivity_plan import Settings, Shapes, places
from _adaptivity_report import report
from _adaptivity_run import Workshop

from autodraft.errors import AutodraftError
from autodraft.settings import bench_dir
from evaluation.datasets import AVAILABLE_BENCHES

BENCHES: Final = ("mt_bench", "humaneval", "spec_bench:summarization")
RTTS_MS: Final = (0.0, 20.0, 100.0)
SENSITIVITIES: Final = (0.0, 0.5, 1.0)
QUESTIONS: Final = 10
VALIDATION: Final = 3
TOKENS: Final = 64
QUICK_BENCH: Final = "mt_bench"
BUNDLED_BENCH: Final = "quick"
QUICK_RTTS_MS: Final = (0.0, 100.0)
QUICK_SENSITIVITIES: Final = (0.0, 1.0)
QUICK_QUESTIONS: Final = 3
QUICK_TOKENS: Final = 20
FEWEST_QUESTIONS: Final = 2
"""One question has no interval."""
SHAPES_IN_WORDS: Final = {
    "tuned": "Static methods: shapes tuned on validation questions, for each cs.",
    "default": "Static methods: NOT tuned, each at its default shape (--no-tuning).",
    "small": "Static methods: NOT tuned, one small shape each (--quick). First turns only.",
}

_Item = TypeVar("_Item", str, float)


def run(settings: Settings, folder: Path) -> list[Figures]:
    """Measure what is not measured yet, and return the figures of every cell.

    Args:
        settings: What is run.
        folder: Keeps everything that is measured; a later call goes on there.

    Raises:
        AutodraftError: If files, models, link or server fail.
        CannotMeasure: If there are no figures to show.
    """
    cells = []
    with contextlib.ExitStack() as stack:
        workshop = Workshop(settings, folder, stack)
        for place in places(settings):
            print(f"{place.name} …", file=sys.stderr)
            measured, compared = workshop.measure(place)
            cells += [cell(measured, one) for one in compared]
    return cells


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Return what the options ask for, those left out as the default or ``--quick`` has them."""
    quick = arguments.quick
    shapes: Shapes = "small" if quick else "default" if arguments.no_tuning else "tuned"
    # The bundled questions are there without any file.
    quick_bench = QUICK_BENCH if bench_dir() else BUNDLED_BENCH
    return Settings(
        benches=arguments.benches or ((quick_bench,) if quick else BENCHES),
        rtts_ms=arguments.rtts or (QUICK_RTTS_MS if quick else RTTS_MS),
        sensitivities=arguments.cs or (QUICK_SENSITIVITIES if quick else SENSITIVITIES),
        questions=arguments.questions or (QUICK_QUESTIONS if quick else QUESTIONS),
        validation=arguments.validation or VALIDATION,
        tokens=arguments.tokens or (QUICK_TOKENS if quick else TOKENS),
        seed=arguments.seed,
        shapes=shapes,
        first_turns=quick,
    )


def _listed(read: Callable[[str], _Item]) -> Callable[[str], tuple[_Item, ...]]:
    """Return a reader of values separated by commas, each once, in the order given."""

    def items(text: str) -> tuple[_Item, ...]:
        return tuple(dict.fromkeys(read(part.strip()) for part in text.split(",")))

    return items


def _bench(text: str) -> str:
    if text not in AVAILABLE_BENCHES:
        known = ", ".join(AVAILABLE_BENCHES)
        raise argparse.ArgumentTypeError(f"there is no benchmark {text!r}; known are {known}")
    return text


def _within(most: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= most or math.isinf(value):
            limit = f"from 0 to {most:g}" if math.isfinite(most) else "of at least 0"
            raise argparse.ArgumentTypeError(f"{text!r} is not a number {limit}")
        return value

    return read


def _several(text: str) -> int:
    value = int(text)
    if value < FEWEST_QUESTIONS:
        raise argparse.ArgumentTypeError(
            f"{value} is not at least {FEWEST_QUESTIONS}: one question has no interval"
        )
    return value


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    made = common.parser("Compare autodraft with tuned static methods and with server-only.")
    made.add_argument(
        "--folder",
        type=Path,
        metavar="DIR",
        help="keeps all that is measured; a call with the same DIR and options goes on where it "
        "stood, or only prints (default: a temporary folder)",
    )
    made.add_argument(
        "--benches",
        type=_listed(_bench),
        metavar="NAME,…",
        help=f"default {','.join(BENCHES)}; with --quick {QUICK_BENCH}, or the bundled "
        f"{BUNDLED_BENCH} where AUTODRAFT_BENCH_DIR is not set",
    )
    made.add_argument(
        "--rtts", type=_listed(_within(math.inf)), metavar="MS,…", help="default 0,20,100"
    )
    made.add_argument("--cs", type=_listed(_within(1)), metavar="CS,…", help="default 0,0.5,1")
    made.add_argument(
        "--questions",
        type=_several,
        metavar="N",
        help=f"measured of each benchmark at each round trip, drawn by the seed (default "
        f"{QUESTIONS}; with --quick {QUICK_QUESTIONS})",
    )
    made.add_argument(
        "--validation",
        type=common.positive,
        metavar="N",
        help=f"questions that shapes are tuned on (default {VALIDATION})",
    )
    made.add_argument(
        "--tokens",
        type=common.positive,
        help=f"most tokens of an answer (default {TOKENS}; with --quick {QUICK_TOKENS})",
    )
    made.add_argument(
        "--no-tuning", action="store_true", help="static methods at their default shapes"
    )
    return made


def main() -> int:
    """Run the benchmark; the exit code is 0 unless it could not measure."""
    arguments = parser().parse_args()
    settings = settings_of(arguments)
    shown = asdict(settings)
    print(", ".join(f"{name} {value}" for name, value in shown.items()))
    print(SHAPES_IN_WORDS[settings.shapes])
    print(common.machine_words())
    try:
        with common.working_folder(arguments.folder) as folder:
            cells = run(settings, folder)
    except (AutodraftError, common.CannotMeasure, KeyboardInterrupt) as error:
        return common.stopped("adaptivity", error, kept=arguments.folder is not None)
    report(cells, shown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
