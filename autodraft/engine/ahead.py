"""Drafting ahead with the draft model: forwards while a tree is verified, and what they save.

``AheadDrafter`` is a drafter that also remembers; what it proposes is what a plain one would.
Whether a forward pays is somebody else's decision. Does not know the target, the link or any price.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch

from autodraft.engine.drafter import Draft, Drafter, ModelProposer
from autodraft.engine.levels import NOT_CACHED, Levels
from autodraft.engine.proactive import Given, Lookahead, Memory
from autodraft.policy.base import AheadPolicy, Policy, TreeLimits
from autodraft.tree.attention import node_positions
from autodraft.tree.draft_tree import FloatArray, IntArray
from autodraft.tree.growth import TreeGrowth

MOST_ROWS: Final = 96
"""Most nodes that are forwarded ahead in one round, and most that the next one remembers."""

Awaited = Callable[[], float | None]
"""Returns the seconds for which a reply has been awaited; None once it is there."""


class Reuse(NamedTuple):
    """What a round's tree owes to the round before.

    Attributes:
        hit: Whether its root was remembered; None where nothing had been drafted ahead.
        used: Nodes forwarded ahead that it has used.
        replaced: Rows wanted and rows forwarded of each level that the memory has shortened.
    """

    hit: bool | None
    used: int
    replaced: tuple[tuple[int, int], ...]


class AheadDrafter(Drafter):
    """A drafter that goes on while a tree is verified.

    Attributes:
        reuse: What the tree drafted last owes to the round before.
    """

    _spare_rows = MOST_ROWS

    def start(
        self, prompt: Sequence[int], max_new_tokens: int, limits: TreeLimits, *, ahead: bool = True
    ) -> None:
        """Begin a request, as ``DraftSource`` says; nothing is remembered of the last."""
        self._memory: Memory | None = None
        self._lookahead: Lookahead | None = None
        self._remembering: _RememberingProposer | None = None
        self._draft: Draft | None = None
        self._children = limits.most_children
        self.reuse = Reuse(None, 0, ())
        super().start(prompt, max_new_tokens, limits, ahead=ahead)

    def finish(self) -> None:
        """Free what the request held; the cache is left with the context alone."""
        self._forget()
        self._lookahead = self._remembering = self._draft = None
        super().finish()

    def draft(
        self, context: Sequence[int], policy: Policy, max_depth: int, node_budget: int
    ) -> Draft:
        """Propose one round's tree, from memory as far as that goes."""
        tried, self._lookahead = self._lookahead is not None, None
        if self._memory is not None and self._memory.context_tokens != len(context):
            self._forget()  # the server has decoded alone since
        memory, self._remembering = self._memory, None
        self._draft = super().draft(context, policy, max_depth, node_budget)
        proposer = self._asked()
        if proposer is None:
            self._forget()
            self.reuse = Reuse(False if tried else None, 0, ())
        else:
            self._memory = None  # its rows are the round's own now
            used = 0 if memory is None else memory.used
            hit = memory is not None if tried else None
            self.reuse = Reuse(hit, used, tuple(proposer.replaced))
        return self._draft

    def draft_ahead(self, policy: AheadPolicy, awaited: Awaited) -> int:
        """Draft on from the likeliest outcomes of the tree drafted last; return the nodes.

        Args:
            policy: Decides whether a further forward pays.
            awaited: Tells for how long the reply has been awaited.
        """
        proposer, draft = self._asked(), self._draft
        if proposer is None or draft is None:
            return 0
        lookahead = Lookahead(draft.growth, proposer.given, proposer.rows())
        while len(lookahead.ahead) + policy.width <= MOST_ROWS:
            nodes, chance = lookahead.best(policy.width)
            elapsed_s = awaited()
            if elapsed_s is None or not nodes or not self._within_context(lookahead, nodes):
                break
            if not policy.pays(len(nodes), chance, elapsed_s):
                break
            self._expand_ahead(lookahead, proposer.placed, nodes, policy)
        if lookahead.ahead:
            self._lookahead = lookahead
        return len(lookahead.ahead)

    def commit_ahead(self, path: IntArray, bonus: int) -> None:
        """Keep what the cache holds of the accepted path, and what is remembered below the bonus.

        Args:
            path: Accepted nodes of the tree drafted last, root excluded, from the top down.
            bonus: The token behind them.
        """
        lookahead, proposer, draft = self._lookahead, self._asked(), self._draft
        if lookahead is None or proposer is None or draft is None:
            self.commit(path)
            return
        first = self._root_slot + 1
        nodes = draft.kept[path].tolist()
        landed = lookahead.child(nodes[-1] if nodes else 0, bonus)
        if landed is not None:
            context_tokens, visible = first + len(nodes) + 1, proposer.placed.visible
            self._memory = lookahead.memory_at(landed, visible, context_tokens, MOST_ROWS)
        kept = [lookahead.rows[node] for node in nodes if node in lookahead.rows]
        if self._memory is not None:
            kept += self._memory.rows_before
        self._active_cache.keep(first, [first + row for row in kept])

    def recall(self, memory: Memory, limits: TreeLimits) -> Levels:
        """Return room for a tree behind a context that the cache holds, remembered rows in it."""
        self._root_slot = memory.context_tokens - 1
        return Levels(self._root_slot, limits, self._spare_rows, memory.visible)

    def _proposer(self, context: Sequence[int], limits: TreeLimits) -> ModelProposer:
        self._remembering = _RememberingProposer(self, context, limits, self._memory)
        return self._remembering

    def _asked(self) -> "_RememberingProposer | None":
        """Return the round's proposer; None where it has asked nothing of the draft model."""
        proposer = self._remembering
        return None if proposer is None or proposer.levels is None else proposer

    def _forget(self) -> None:
        """Drop the rows that are remembered."""
        if self._memory is not None:
            self._active_cache.trim(self._memory.context_tokens)
            self._memory = None

    def _within_context(self, lookahead: Lookahead, nodes: Sequence[int]) -> bool:
        deepest = max(lookahead.depths[node] for node in nodes)
        return self._root_slot + deepest < self._runner.max_context

    def _expand_ahead(
        self, lookahead: Lookahead, levels: Levels, nodes: list[int], policy: AheadPolicy
    ) -> None:
        above = [lookahead.parent_row(node) for node in nodes]
        rows, visible = levels.add_below([NOT_CACHED if row is None else row for row in above])
        # What only the target has rows for can be grafted, but not proposed.
        tokens = np.array(self._readable([lookahead.tokens[node] for node in nodes]))
        depths = np.array([lookahead.depths[node] for node in nodes], dtype=np.int64)
        positions = node_positions(depths, self._root_slot)
        logits = self._runner.forward(self._active_cache, tokens, positions, visible)
        paths = [lookahead.path(node) for node in nodes]
        given = self._said(logits, paths, self._children)
        lookahead.expand(nodes, rows.tolist(), given, policy.chances(depths + 1, given[1]))

    def _said(
        self, logits: torch.Tensor, paths: Sequence[Sequence[int]], count: int
    ) -> tuple[IntArray, FloatArray]:
        """Return the best guesses behind paths of any lengths, [W, K] each.

        The noise of drawn tokens is that of a position, so each depth is ranked by itself.
        """
        if self._sampler is None:
            return self._likeliest(logits, count)
        lengths = np.array([len(path) for path in paths])
        tokens = np.empty((len(paths), count), dtype=np.int64)
        log_probs = np.empty((len(paths), count))
        for length in sorted(set(lengths.tolist())):
            places = np.flatnonzero(lengths == length)
            some = [paths[place] for place in places.tolist()]
            tokens[places], log_probs[places] = self._drawn(logits[places], some, count)
        return tokens, log_probs


class _RememberingProposer(ModelProposer):
    """Proposes what the draft model says, less the forwards that were made ahead.

    Attributes:
        given: What was proposed behind each node.
        replaced: Rows wanted and rows forwarded of each level that the memory has shortened.
    """

    def __init__(
        self,
        drafter: AheadDrafter,
        context: Sequence[int],
        limits: TreeLimits,
        memory: Memory | None,
    ) -> None:
        super().__init__(drafter, context, limits)
        self._recaller = drafter
        self._memory = memory
        self.given: dict[int, Given] = {}
        self.replaced: list[tuple[int, int]] = []

    def propose(self, growth: TreeGrowth, nodes: IntArray) -> tuple[IntArray, FloatArray]:
        """Return the draft model's candidates, remembered or new."""
        if self._memory is None:
            tokens, log_probs = super().propose(growth, nodes)
        elif self.levels is None:
            self.levels = self._recaller.recall(self._memory, self._limits)
            self.replaced.append((1, 0))
            only, log_prob = self._memory.root()
            tokens, log_probs = only[None], log_prob[None]
        else:
            tokens, log_probs = self._remembered(growth, nodes, self.levels, self._memory)
        self.given.update(zip(nodes.tolist(), zip(tokens, log_probs, strict=True), strict=True))
        return tokens, log_probs

    @property
    def placed(self) -> Levels:
        """Where the nodes stand, once there are any."""
        assert self.levels is not None, "propose() comes first"
        return self.levels

    def rows(self) -> dict[int, int]:
        """Return the row behind the root of each node that was expanded."""
        return {node: self.placed.row(node) for node in self.given if node}

    def _remembered(
        self, growth: TreeGrowth, nodes: IntArray, levels: Levels, memory: Memory
    ) -> tuple[IntArray, FloatArray]:
        """Return the candidates of a level, forwarding only what is not remembered."""
        found: dict[int, Given] = {}
        for node in nodes.tolist():
            if (known := memory.find(growth, node)) is not None:
                row, found[node] = known
                levels.place(node, row)
        missing = np.array([node for node in nodes.tolist() if node not in found], dtype=np.int64)
        if found:
            self.replaced.append((len(nodes), len(missing)))
        if len(missing):
            fresh = super().propose(growth, missing)
            found.update(zip(missing.tolist(), zip(*fresh, strict=True), strict=True))
        tokens, log_probs = zip(*(found[node] for node in nodes.tolist()), strict=True)
        return np.stack(tokens), np.stack(log_probs)
