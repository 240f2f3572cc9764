"""Which tag belongs where: blocks, second names, and names of the published runner.

This module knows no values and no files.
"""

from dataclasses import dataclass
from typing import Any, Final

from autodraft.config import BLOCKS, OBJECTIVES
from autodraft.config.knob import Choice, Each, Knob, Whole, did_you_mean, nearest
from autodraft.config.methods import MAX_DEPTH


@dataclass(frozen=True)
class Target:
    """What a tag of a file sets.

    Attributes:
        block: Block of the field.
        field: Name of the field.
        knob: Reads the value, in the name that the user wrote.
        single: Whether the field is a list of which the tag gives the only item.
    """

    block: str
    field: str
    knob: Knob
    single: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """The field, however its tag was spelled."""
        return self.block, self.field

    def read(self, raw: object) -> Any:
        """Return the value of the field; raise ValueError with a whole message."""
        value = self.knob.read(raw)
        return (value,) if self.single else value


_SECOND_NAMES: Final = {  # (block where it is written, tag) -> what it sets
    ("objective", "OBJECTIVE_METRIC"): Target(
        "objective",
        "objective_metrics",
        Knob(
            "OBJECTIVE_METRIC", Each(Choice(OBJECTIVES)), "Another name of OBJECTIVE_METRICS_CSV."
        ),
    ),
    ("tree", "NON_TREE_DEPTH"): Target(
        "algorithms",
        "chain_d",
        Knob(
            "NON_TREE_DEPTH",
            Whole(1, MAX_DEPTH),
            "Another name of CHAIN_D (block algorithms), with one value.",
            unit="tokens",
        ),
        single=True,
    ),
}

TARGETS: Final[dict[str, dict[str, Target]]] = {  # block -> tag -> what it sets
    block: {
        **{knob.tag: Target(block, name, knob) for name, knob in cls.knobs().items()},
        **{tag: target for (where, tag), target in _SECOND_NAMES.items() if where == block},
    }
    for block, cls in BLOCKS.items()
}
_BLOCK_OF: Final = {tag: block for block, targets in TARGETS.items() for tag in targets}

_CHAIN: Final = "a chain of d tokens has width 1 and d nodes; set CHAIN_D"
_AHEAD: Final = "whether drafting ahead pays is computed; ENABLE_PROACTIVE switches it"
_REFERENCE: Final = "the scales of a run come from its own server_only answers; leave it out"
_RESULTS: Final = "every run writes a folder of its own; choose where with --output"
_SLEEP: Final = "nothing sleeps between methods; leave it out"
_SAME_PROFILE: Final = (
    "a draft on the server is profiled like the user's; set DRAFT_PROFILE_WIDTH_LIST and "
    "DRAFT_PROFILE_MODEL_CALLS_PER_COUNT"
)
LEGACY_PREFIX: Final = "SERVER_DRAFT_PROFILE_"
_LEGACY: Final = {  # tag of the published runner without a meaning here -> why, what to use
    "NON_TREE_WIDTH": _CHAIN,
    "NON_TREE_NODES": _CHAIN,
    "ACCEPT_LENGTH_MARGIN": "acceptance is learned from the rounds themselves; leave it out",
    "PROACTIVE_THRESHOLD": _AHEAD,
    "JOIN_CANCELED_PROACTIVE_BEFORE_TREE_BUILD": _AHEAD,
    "DISABLE_PROACTIVE_BUDGET": _AHEAD,
    "ENABLE_GPU_MONITOR": "energy is always recorded, with its method; DRAFT_WATTS, "
    "DRAFT_IDLE_WATTS, TARGET_WATTS and TARGET_IDLE_WATTS set the modelled one",
    "GPU_MONITOR_INTERVAL": "each energy meter knows its own interval; leave it out",
    "REFERENCE_FORCE_REFRESH": "nothing is kept from run to run but profiles; set "
    "FORCE_PROFILE_REFRESH",
    "REFERENCE_CS_CURVE_ROUNDS": _REFERENCE,
    "REFERENCE_MAX_STEPS_LIMIT": _REFERENCE,
    "SERVER_ONLY_AR_MAX_NEW_TOKENS": "every method has the same limit; set MAX_NEW_TOKENS",
    "SERVER_ONLY_AR_TURN_RPC": "server_only is always streamed; leave it out",
    "RUN_METRIC_INVARIANT_ONLY_ON_FIRST_OBJECTIVE": "a method that ignores the objective runs "
    "once and every objective is computed from its records; leave it out",
    "SKIP_SERVER_ONLY_AUTODRAFT_DRAFT_ENERGY": "methods are chosen by name; set METHODS_CSV or "
    "ENABLE_SERVER_ONLY_AUTODRAFT",
    "SKIP_SELECTED_EXISTING_AUTODRAFT": _RESULTS,
    "SELECTED_RESULT_ROOT": _RESULTS,
    "DRAFT_ENTRYPOINT": "the harness runs the draft itself; leave it out",
    "DETERMINISTIC": "output depends on the prompt and SEED alone; set SEED",
    "SKIP_SLEEP": _SLEEP,
    "SLEEP_SECONDS": _SLEEP,
}


def legacy_reason(tag: str) -> str | None:
    """Return why a tag of the published runner has no meaning here; None for other tags."""
    return _SAME_PROFILE if tag.startswith(LEGACY_PREFIX) else _LEGACY.get(tag)


def legacy_rows() -> dict[str, str]:
    """Return the tags of the published runner with their reasons, for the documentation."""
    return {**_LEGACY, f"{LEGACY_PREFIX}*": _SAME_PROFILE}


def unknown_block(name: str) -> str:
    """Return the message for a block that does not exist."""
    hint = did_you_mean(name, BLOCKS)
    if name in _BLOCK_OF:
        hint = f"It is a tag of the block {_BLOCK_OF[name]}: put it there."
    return _sentences(f"unknown block {name}.", hint, f"Blocks: {', '.join(BLOCKS)}.")


def unknown_tag(block: str, tag: str) -> str:
    """Return the message for a tag that the block does not have."""
    if tag in _BLOCK_OF:
        return f"{tag} belongs to the block {_BLOCK_OF[tag]}, not to {block}. Move it there."
    allowed = f"Allowed in {block}: {', '.join(TARGETS[block])}."
    hint = did_you_mean(tag, TARGETS[block])
    if not hint and (elsewhere := nearest(tag, _BLOCK_OF)):
        hint = f"Did you mean {elsewhere} (block {_BLOCK_OF[elsewhere]})?"
    return _sentences(f"unknown tag {tag} in the block {block}.", hint, allowed)


def _sentences(*parts: str) -> str:
    return " ".join(part for part in parts if part)
