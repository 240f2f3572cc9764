"""Writes the table of all tags, in Markdown, for the documentation.

This module knows no file and no value: it shows what the classes of the blocks say.
"""

from typing import Final

from autodraft.config import BLOCKS
from autodraft.config.knob import knob_of
from autodraft.config_io.names import TARGETS, Target, legacy_rows

_LEGACY_SUMMARY: Final = (
    "Accepted in every block, with one warning each; they have no meaning here."
)


def key_table() -> str:
    """Return Markdown tables of all tags, one for each block, and one of tags without effect."""
    parts = []
    for block, targets in TARGETS.items():
        rows = [
            "| tag | default | unit | values | acts | meaning |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for tag, target in targets.items():
            knob = target.knob
            unit, acts = knob.unit or "–", "yes" if knob.acts else "not yet"
            cells = [f"`{tag}`", shown_default(tag, target), unit, knob.kind.allowed, acts]
            rows.append(f"| {' | '.join([*cells, knob.meaning])} |")
        summary = (BLOCKS[block].__doc__ or "").strip()
        parts.append("\n".join([f"### {block}", "", summary, "", *rows]))
    legacy = [f"| `{tag}` | {reason} |" for tag, reason in legacy_rows().items()]
    head = ["| tag | why it is without effect; what to do |", "| --- | --- |"]
    parts.append(
        "\n".join(["### Tags of the published runner", "", _LEGACY_SUMMARY, "", *head, *legacy])
    )
    return "\n\n".join(parts) + "\n"


def shown_default(tag: str, target: Target) -> str:
    """Return what a tag has where it is left out: a value, another tag, or ``required``."""
    info = BLOCKS[target.block].model_fields[target.field]
    canonical = knob_of(info)
    if canonical.tag != tag:
        return f"= {canonical.tag}"
    if canonical.same_as is not None:
        return f"= {canonical.same_as}"
    return "required" if info.is_required() else f"`{canonical.text(info.default)}`"
