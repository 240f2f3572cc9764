"""How soon is the controller back at its best when the link or the target changes in mid-answer?

The embedded pair over a real server. Two clients answer the same prompts by turns: under one the
round trip steps from 5 to 100 ms, or the target becomes three times slower, after part of the
answer; the other has known the new condition for long. Their scores, the blend of time and cost
that the cost sensitivity asks for, are compared over the same tokens.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from typing import Final

import _common as common
import _live_target as live
from _drift_run import BEFORE, CASES, Cell, Lengths, Runner
from _drift_scores import SETTLED_ROUNDS, TOLERANCE, Figures, cell_figures, overall
from _drift_target import target_process
from _question_files import locations

from autodraft.config import ADAPTIVE, MethodSpec
from autodraft.errors import AutodraftError
from autodraft.models.loader import DTYPES
from autodraft.settings import bench_dir
from evaluation.datasets import load_bench

BENCH: Final = "mt_bench"
BUNDLED_BENCH: Final = "quick"
SENSITIVITIES: Final = (0.5, 1.0)
QUICK_SENSITIVITIES: Final = (0.5,)
HANDOVERS: Final = (True, False)
QUICK_HANDOVERS: Final = (True,)
PROMPTS: Final = 8
QUICK_PROMPTS: Final = 2
TOKENS: Final = 224
QUICK_TOKENS: Final = 144
STEP_SHARE: Final = 0.25
"""Part of the answer before the step: what comes after it has to hold well over 20 rounds."""
WARMUPS: Final = 3
QUICK_WARMUPS: Final = 2
SETTLING_TOKENS: Final = 48
QUICK_SETTLING_TOKENS: Final = 32
DTYPE: Final = "float32"
"""In it both clients write the same tokens, whatever their trees."""
UNKNOWN: Final = "–"
WANTED: Final = f"settled_ratio <= {1 + TOLERANCE:g}, rounds_to_settle <= {SETTLED_ROUNDS}"


def texts(seed: int) -> list[str]:
    """Return the first turns of the questions, in an order drawn by the seed.

    Raises:
        DataError: If the benchmark's file is malformed.
    """
    # The bundled questions are there without any file.
    bench = BENCH if bench_dir() else BUNDLED_BENCH
    found = [question.turns[0] for question in load_bench(bench, locations())]
    random.Random(seed).shuffle(found)
    return found


def specs(
    dtype: str, sensitivities: Sequence[float], handovers: Sequence[bool] = HANDOVERS
) -> list[MethodSpec]:
    """Return the method at each cost sensitivity, with hand-over and without."""
    config = live.pair_config(dtype, (ADAPTIVE,))
    return [
        config.adaptive(cs).model_copy(update={"handover": handover})
        for cs in sensitivities
        for handover in handovers
    ]


def measure(arguments: argparse.Namespace) -> list[Figures]:
    """Measure every cell.

    Raises:
        AutodraftError: If files, models, link or server fail.
        CannotMeasure: If a cell has no figures to show.
    """
    lengths = _lengths(arguments)
    handovers = QUICK_HANDOVERS if arguments.quick else HANDOVERS
    cells = []
    with target_process(arguments.dtype) as target:
        runner = Runner(target, arguments.dtype, texts(arguments.seed))
        for case in CASES:
            for spec in specs(arguments.dtype, arguments.cs, handovers):
                turns = runner.run(Cell(case, spec, lengths, arguments.prompts))
                cell = {"case": case, "cs": spec.cs, "handover": spec.handover}
                cells.append(cell | cell_figures(turns))
                print(
                    ", ".join(f"{key} {value}" for key, value in cells[-1].items()), file=sys.stderr
                )
    return cells


def _lengths(arguments: argparse.Namespace) -> Lengths:
    tokens, quick = arguments.tokens, arguments.quick
    return Lengths(
        answer=tokens,
        step=round(STEP_SHARE * tokens),
        settling=QUICK_SETTLING_TOKENS if quick else SETTLING_TOKENS,
        warmups=QUICK_WARMUPS if quick else WARMUPS,
    )


# ----------------------------------------------------------------------------------------- report


def report(cells: Sequence[Figures], arguments: argparse.Namespace) -> None:
    """Print the table and the closing JSON line."""
    common.print_table(
        [
            "step, cs, hand-over",
            "alone",
            f"rounds 1–{SETTLED_ROUNDS}",
            "later",
            "steady",
            "later/steady",
            "95 % interval",
            "rounds to settle",
        ],
        [_row(cell) for cell in cells],
    )
    settings = {name: getattr(arguments, name) for name in ("tokens", "dtype", "seed")}
    summary = overall(cells) | settings | common.machine()
    common.print_json("drift", {"cases": cells} | summary)


def _row(cell: Figures) -> list[str]:
    settle, interval = cell["rounds_to_settle"], UNKNOWN
    if cell["low"] is not None:
        interval = f"{cell['low']:.3f} – {cell['high']:.3f}"
    return [
        f"{cell['case']}, {cell['cs']:g}, {'on' if cell['handover'] else 'off'}",
        f"{cell['alone_share']:.2f}",
        _figure(cell["early_score"]),
        _figure(cell["settled_score"]),
        _figure(cell["steady_score"]),
        _figure(cell["settled_ratio"]),
        interval,
        f"over {cell['fewest_rounds_after'] - 1}" if settle is None else str(settle),
    ]


def _figure(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f}"


def _sensitivities(text: str) -> tuple[float, ...]:
    values = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    if not all(0 <= value <= 1 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} has a number that is not from 0 to 1")
    return values


def _arguments() -> argparse.Namespace:
    parser = common.parser("Measure how soon autodraft is settled after a step in mid-answer.")
    parser.add_argument("--cs", type=_sensitivities, metavar="CS,…", help="default 0.5,1")
    parser.add_argument("--prompts", type=common.positive, help=f"per cell (default {PROMPTS})")
    parser.add_argument(
        "--tokens", type=common.positive, help=f"of every measured answer (default {TOKENS})"
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", *DTYPES),
        default=DTYPE,
        help=f"of both models (default {DTYPE}: both clients write the same text)",
    )
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.cs = arguments.cs or (QUICK_SENSITIVITIES if quick else SENSITIVITIES)
    arguments.prompts = arguments.prompts or (QUICK_PROMPTS if quick else PROMPTS)
    arguments.tokens = arguments.tokens or (QUICK_TOKENS if quick else TOKENS)
    return arguments


def main() -> int:
    """Run the benchmark; the exit code is 0 unless it could not measure or answers differ."""
    arguments = _arguments()
    steps = ", ".join(
        f"{name}: RTT {BEFORE.rtt_ms:g} → {after.rtt_ms:g} ms, forwards × {after.slowdown:g}"
        for name, after in CASES.items()
    )
    print(f"{steps}; {arguments.prompts} prompts, {arguments.tokens} tokens")
    print(f"wanted of every row: {WANTED}")
    print(f"{arguments.dtype}, seed {arguments.seed}; {common.machine_words()}")
    try:
        cells = measure(arguments)
    except (AutodraftError, common.CannotMeasure) as error:
        print(f"drift: {error}", file=sys.stderr)
        return 1
    report(cells, arguments)
    if arguments.dtype == "float32" and any(cell["identical_share"] < 1 for cell in cells):
        print("drift: the two clients' answers differ, which they must not.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
