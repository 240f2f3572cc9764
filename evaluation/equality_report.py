"""Show what a comparison of two runs came to: tables for the console, figures for a file.

This module compares nothing itself.
"""

import math
from collections.abc import Sequence
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from evaluation.equality import CLOSE, STRICT_DTYPE, Comparison, Difference, Verdict
from evaluation.whole_tables import UNKNOWN, print_whole, share

MOST_SHOWN: Final = 20
_NO_GAP: Final = "not recorded"


def print_verdict(console: Console, verdict: Verdict, everything: bool = False) -> None:
    """Print the table of all methods, the control, and the answers that differ.

    Args:
        console: Where to.
        verdict: What to print.
        everything: Every answer that differs, instead of the first ones.
    """
    console.print(f"A: {verdict.a.folder}", soft_wrap=True)
    console.print(f"B: {verdict.b.folder}", soft_wrap=True)
    for note in verdict.notes:
        console.print(f"note: {note}", soft_wrap=True)
    print_whole(console, _methods(verdict.methods))
    console.print(f"A/A control: {_control(verdict)}", soft_wrap=True)
    rule = "every one is a fault" if verdict.strict else "they are reported, and no fault"
    console.print(
        f"Differences where the two best logits are more than {CLOSE:g} apart: {rule} "
        f"({_dtypes(verdict)}).",
        soft_wrap=True,
    )
    found = [(part, each) for part in verdict.parts for each in part.differences]
    shown = found if everything else found[:MOST_SHOWN]
    if shown:
        print_whole(console, _differences(verdict, shown))
    if len(shown) < len(found):
        console.print(f"… and {len(found) - len(shown)} more; --all shows them.")


def first_faults(faults: Sequence[str], everything: bool = False) -> list[str]:
    """Return the faults to show, with a line on how many were left out."""
    if everything or len(faults) <= MOST_SHOWN:
        return list(faults)
    return [*faults[:MOST_SHOWN], f"… and {len(faults) - MOST_SHOWN} more faults; --all shows them"]


def figures(verdict: Verdict) -> dict[str, Any]:
    """Return everything as JSON values; a gap to no other token is the string ``inf``."""
    control = verdict.control
    return {
        "run_a": str(verdict.a.folder),
        "run_b": str(verdict.b.folder),
        "dtype_a": verdict.a.target.get("dtype"),
        "dtype_b": verdict.b.target.get("dtype"),
        "strict": verdict.strict,
        "close": CLOSE,
        "notes": list(verdict.notes),
        "methods": [_figures(part) for part in verdict.methods],
        "control_note": verdict.control_note,
        "control": None if control is None else _figures(control),
        "faults": verdict.faults,
    }


def _figures(part: Comparison) -> dict[str, Any]:
    return {
        "method": part.method,
        "compared": part.compared,
        "identical_share": part.identical_share,
        "median_position": part.median_position,
        "differences": [
            {
                **each.place._asdict(),
                "position": each.position,
                "token_a": each.tokens[0],
                "token_b": each.tokens[1],
                "gap": "inf" if each.gap == math.inf else each.gap,
            }
            for each in part.differences
        ],
        "missing": [
            {**each.place._asdict(), "in": each.side, "error": each.error} for each in part.missing
        ],
        "other_prompts": [place._asdict() for place in part.other_prompts],
    }


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.pad_edge, table.collapse_padding = False, True
    for heading in left:
        table.add_column(heading, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _methods(parts: Sequence[Comparison]) -> Table:
    headings = (
        "answers\ncompared", "identical\nshare", "differences",
        "first divergence\n(median position)", "missing", "other\nprompt",
    )  # fmt: skip
    table = _table("Every method of B against server_only of A", ["method"], headings)
    for part in parts:
        median = part.median_position
        table.add_row(
            part.method,
            str(part.compared),
            share(part.identical_share),
            str(len(part.differences)),
            UNKNOWN if median is None else f"{median:g}",
            str(len(part.missing)),
            str(len(part.other_prompts)),
        )
    return table


def _differences(verdict: Verdict, shown: Sequence[tuple[Comparison, Difference]]) -> Table:
    left = ["method", "question"]
    right = [
        "turn", "repeat", "seed", "choice", "position", "token in A", "token in B", "gap in A", "",
    ]  # fmt: skip
    table = _table("Answers that differ, and where they first do", left, right)
    for part, each in shown:
        place = each.place
        numbers = (place.turn, place.repeat, place.seed, place.choice, each.position)
        tokens = ("ended" if token is None else str(token) for token in each.tokens)
        table.add_row(
            part.method,
            f"{place.bench} {place.network} {place.question_id}",
            *map(str, numbers),
            *tokens,
            _NO_GAP if each.gap is None else f"{each.gap:.3g}",
            "fault" if verdict.is_fault(each) else "",
        )
    return table


def _control(verdict: Verdict) -> str:
    part = verdict.control
    if part is None:
        return verdict.control_note
    return (
        f"{verdict.control_note}: {part.compared} answers compared, "
        f"{share(part.identical_share)} identical"
    )


def _dtypes(verdict: Verdict) -> str:
    found = dict.fromkeys(_form(run.target) for run in (verdict.a, verdict.b))
    return "target in " + " and ".join(found)


def _form(target: Any) -> str:
    dtype = target.get("dtype") or f"a dtype that is not recorded, taken for {STRICT_DTYPE}"
    quantization = target.get("quantization")
    return dtype if quantization in (None, "none") else f"{dtype}, {quantization}"
