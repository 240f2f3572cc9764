"""What is timed of the two models and of the link, and where the tables come from.

A target is timed by the work that a round pays for, on the server where it was told to, else over
the link from the server's own times; a draft by one level of drafting. A table comes from the
server's welcome, from disk, or is measured now. How often each entry is timed, and how a profile is
kept, is the business of ``autodraft.profiling``.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from autodraft.config import ServerConfig, TreeConfig
from autodraft.engine.remote import RemoteTarget
from autodraft.engine.timers import (
    MAX_NEW_TOKENS,
    ROOM,
    DraftStep,
    FarTarget,
    OwnTarget,
    TargetTimer,
)
from autodraft.errors import ProfileError, ProtocolError
from autodraft.models.loader import LoadedModel
from autodraft.models.runner import ModelRunner
from autodraft.profiling import link
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.measure import contexts_within, measure_table, sizes_to_time
from autodraft.profiling.store import StoredTable, read_table, write_table
from autodraft.profiling.tables import LatencyTable
from autodraft.protocol.messages import Welcome

DRAFT: Final = "draft"
TARGET: Final = "target"
"""Kinds of profiles."""
CHILDREN: Final = 8
"""Candidates that a timed draft step looks for behind each node."""

IntArray = npt.NDArray[np.int64]


class Where(NamedTuple):
    """Where a profile is kept.

    Attributes:
        folder: Folder of all profiles; None keeps none.
        kind: ``draft`` or ``target``.
        key: What the profile holds for.
    """

    folder: Path | None
    kind: str
    key: str


class Sizes(NamedTuple):
    """The rows that a table is to know.

    Attributes:
        rows: Rows wanted.
        padding: Numbers of rows that the model pads others to, rising.
    """

    rows: Sequence[int]
    padding: Sequence[int]

    def within(self, table: LatencyTable) -> bool:
        """Tell whether a table holds them all."""
        same = table.padding.tolist() == list(self.padding)
        return same and set(sizes_to_time(*self)) <= set(table.rows.tolist())


def measure_link(target: RemoteTarget) -> LinkEstimate:
    """Measure the delay and the bandwidth of the link to a target; takes about a second at most.

    On a link with a long delay it takes 14 round trips.
    """
    return link.measure(target.ping)


def target_key(welcome: Welcome) -> str:
    """Return the key of a target's profile on a client."""
    return f"{welcome.server_name} {welcome.profile}"


def target_table(
    target: RemoteTarget,
    folder: Path,
    nodes: Sequence[int],
    calls: int,
    *,
    refresh: bool = False,
    allowed: bool = True,
) -> LatencyTable:
    """Return what a target's forwards take by rows, the root's included.

    Args:
        target: The target; no session may be open.
        folder: Where profiles are kept.
        nodes: Node counts at which a verify is timed.
        calls: Timed forwards for each entry, at least.
        refresh: Measure again what is on disk; what the server measured is taken as it is.
        allowed: Whether a missing profile may be measured.

    Raises:
        ProfileError: If it is missing and must not be measured, or the stored one is damaged.
        LinkError: If the link or the server fails.
    """
    welcome = target.welcome
    if welcome.latencies is not None:
        return _server_table(welcome)
    where = Where(folder, TARGET, target_key(welcome))
    rows = _rows_of(nodes, _most_nodes(welcome.max_nodes, welcome.max_depth, _alphabet(welcome)))
    needed = Sizes(rows, welcome.row_padding)
    return _provided(
        where, needed, calls, lambda: measure_target(target, nodes, calls), refresh, allowed
    )


def draft_table(
    model: LoadedModel,
    folder: Path,
    widths: Sequence[int],
    calls: int,
    *,
    refresh: bool = False,
    allowed: bool = True,
) -> LatencyTable:
    """Return what a draft model's steps take by the nodes expanded.

    Args:
        model: The draft model, on this machine.
        folder: Where profiles are kept.
        widths: Widths at which a step is timed.
        calls: Timed forwards for each entry, at least.
        refresh: Measure again what is on disk.
        allowed: Whether a missing profile may be measured.

    Raises:
        ProfileError: If it is missing and must not be measured, or the stored one is damaged.
    """
    where = Where(folder, DRAFT, model.profile_key)
    needed = Sizes(widths, model.runner.padding)
    return _provided(
        where, needed, calls, lambda: measure_draft(model.runner, widths, calls), refresh, allowed
    )


def served_table(target: LoadedModel, config: ServerConfig) -> LatencyTable:
    """Return what the forwards of a server's own target take by rows, the root's included.

    Raises:
        ProfileError: If the stored one is damaged, or a new one cannot be written.
    """
    tree = TreeConfig()
    calls = tree.target_profile_model_calls_per_count
    max_context = min(target.runner.max_context, config.max_context or target.runner.max_context)
    alphabet = _plain_ids(target.runner.vocab_size, target.tokenizer.added_tokens())
    most = _most_nodes(config.max_nodes, config.max_depth, alphabet)
    needed = Sizes(_rows_of(tree.target_profile_node_list, most), target.runner.padding)

    def measure() -> LatencyTable:
        timer = OwnTarget(target.runner, alphabet, most)
        return _measured(timer, needed, max_context, calls)

    where = Where(config.profile_dir, TARGET, target.profile_key)
    return _provided(where, needed, calls, measure)


def _provided(
    where: Where,
    needed: Sizes,
    calls: int,
    measure: Callable[[], LatencyTable],
    refresh: bool = False,
    allowed: bool = True,
) -> LatencyTable:
    """Return a table from disk, or measure and store it.

    A stored table with other sizes than those wanted is measured again where that is allowed.
    """
    stored = None
    if where.folder is not None and not refresh:
        stored = read_table(where.folder, where.kind, where.key)
    if stored is not None and (not allowed or needed.within(stored.table)):
        return stored.table
    if not allowed:
        raise ProfileError(
            f"No profile of the {where.kind} {where.key!r} can be used, and DISABLE_AUTO_PROFILE=1 "
            "forbids to measure one. Measure it with `python -m autodraft profile`, or set "
            "DISABLE_AUTO_PROFILE=0."
        )
    table = measure()
    if where.folder is not None:
        write_table(where.folder, where.kind, where.key, StoredTable(table, calls))
    return table


def _server_table(welcome: Welcome) -> LatencyTable:
    told = welcome.latencies
    assert told is not None
    try:
        return LatencyTable(told.rows, told.contexts, told.seconds, told.padding)
    except ValueError as error:
        raise ProtocolError(
            f"The server {welcome.server_name!r} sent a latency table that is none: {error}. "
            "Delete its file in the folder of profiles there, and start it again."
        ) from error


def measure_target(target: RemoteTarget, nodes: Sequence[int], calls: int) -> LatencyTable:
    """Time a target over the link, by its own clock and without its queue.

    Args:
        target: The target; no session may be open.
        nodes: Node counts at which a verify is timed; those above the server's limit are left out.
        calls: Timed forwards for each entry, at least.

    Raises:
        ProfileError: If its context is too short, or its answers end at once.
        LinkError: If the link or the server fails.
    """
    welcome, alphabet = target.welcome, _alphabet(target.welcome)
    most = _most_nodes(welcome.max_nodes, welcome.max_depth, alphabet)
    needed = Sizes(_rows_of(nodes, most), welcome.row_padding)
    return _measured(FarTarget(target, alphabet, most), needed, welcome.max_context, calls)


def measure_draft(
    runner: ModelRunner, widths: Sequence[int], calls: int, children: int = CHILDREN
) -> LatencyTable:
    """Time the expansion of so many nodes: their forward, and their best children.

    Args:
        runner: The draft model.
        widths: Numbers of nodes.
        calls: Timed steps for each entry, at least.
        children: Candidates looked for behind each node.
    """
    step = DraftStep(runner, children, max(widths))
    contexts = contexts_within(runner.max_context, 1)
    try:
        return measure_table(step, widths, contexts, runner.padding, calls)
    finally:
        step.close()


def _measured(timer: TargetTimer, needed: Sizes, max_context: int, calls: int) -> LatencyTable:
    if max_context <= MAX_NEW_TOKENS:
        raise ProfileError(
            f"A target with a context of {max_context} tokens cannot be timed; that takes more "
            f"than {MAX_NEW_TOKENS}. Start the server with a larger --max-context, or without "
            "--enable-auto-target-profile."
        )
    contexts = contexts_within(max_context, ROOM)
    table = measure_table(timer, needed.rows, contexts, needed.padding, calls)
    timer.close()
    return table


def _alphabet(welcome: Welcome) -> IntArray:
    return _plain_ids(welcome.vocab_size, [*welcome.added_tokens, *welcome.eos_ids])


def _plain_ids(vocab_size: int, special: Iterable[int]) -> IntArray:
    """Return the token ids that stand for text, rising; all of them where none does."""
    ids: IntArray = np.arange(vocab_size)
    plain = np.setdiff1d(ids, list(special))
    return plain if len(plain) else ids


def _most_nodes(max_nodes: int, max_depth: int, alphabet: IntArray) -> int:
    """Return the most nodes of a star that a server takes: none where no tree is allowed."""
    return min(max_nodes, len(alphabet)) if max_depth else 0


def _rows_of(nodes: Sequence[int], most: int) -> list[int]:
    """Return the rows of a plain step, and of verifications of so many nodes."""
    return [1, *(count + 1 for count in nodes if count <= most)]
