"""Tables and the closing JSON line of the adaptivity benchmark. Computes no figure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import _common as common
from _adaptivity_cells import WANTED, Figures, overall

UNKNOWN: Final = "–"


def report(cells: Sequence[Figures], settings: Mapping[str, Any]) -> None:
    """Print the tables and the closing JSON line.

    Args:
        cells: The figures of each cell.
        settings: What was asked for.
    """
    found = overall(cells)
    print_scores(cells)
    print_rounds(cells)
    print(
        f"AutoDraft over the best static method: worst {found['worst_vs_best_static']:.3f}, mean "
        f"{found['mean_vs_best_static']:.3f}; over server-only: worst "
        f"{found['worst_vs_server_only']:.3f}, mean {found['mean_vs_server_only']:.3f} (above 1: "
        f"AutoDraft is better)."
    )
    print(
        f"Cells whose whole interval is below {WANTED}: {found['cells_below_0.98']} against the "
        f"best static method, {found['cells_below_0.98_server_only']} against server-only."
    )
    common.print_json(
        "adaptivity", found | {"cells": list(cells)} | dict(settings) | common.machine()
    )


def print_scores(cells: Sequence[Figures]) -> None:
    """Print what is judged: the score against the best static method and against server-only."""
    header = ["benchmark, RTT, cs", "best static", "over best static", "over server-only"]
    header += ["tokens/s ×", "busy $ ×", "held $ ×"]
    common.print_table(
        header,
        [
            [
                _name(one),
                one["best_static"],
                _interval(one, "vs_best_static"),
                _interval(one, "vs_server_only"),
                *(
                    _number(one[name], "{:.2f}")
                    for name in ("tokens_per_s_ratio", "busy_cost_ratio", "held_cost_ratio")
                ),
            ]
            for one in cells
        ],
    )
    print()


def print_rounds(cells: Sequence[Figures]) -> None:
    """Print what autodraft did: its shapes, hand-over, and how far its predictions were off."""
    header = ["benchmark, RTT, cs", "calls saved", "handed over", "identical", "rounds"]
    header += ["width", "depth", "nodes", "time off by", "tokens off by"]
    common.print_table(
        header,
        [
            [
                _name(one),
                *(
                    _number(one[name], "{:.1%}")
                    for name in ("calls_saved", "handed_over_share", "identical_share")
                ),
                str(one["rounds"]),
                *(
                    _number(one[name], "{:.1f}")
                    for name in ("mean_width", "mean_depth", "mean_nodes")
                ),
                *(_number(one[name], "{:.1%}") for name in ("time_error", "tokens_error")),
            ]
            for one in cells
        ],
    )
    print()


def _name(one: Figures) -> str:
    return f"{one['bench']}, {one['rtt_ms']:g} ms, {one['cs']:g}"


def _interval(one: Figures, name: str) -> str:
    low, high = one[f"{name}_low"], one[f"{name}_high"]
    spread = UNKNOWN if low is None else f"{low:.3f}, {high:.3f}"
    return f"{one[name]:.3f} [{spread}]"


def _number(value: float | None, pattern: str) -> str:
    return UNKNOWN if value is None else pattern.format(value)
