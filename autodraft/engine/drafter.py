"""Drafting a tree with the draft model, level by level, and grafting what retrieval adds.

Keeps the draft's cache in step with the committed context and holds every policy to the round's
limits. Does not know the target, the link or any price.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from autodraft.decoding.retrieval import Continuations, Retriever
from autodraft.decoding.sampler import Sampler
from autodraft.decoding.sampling import GREEDY, Sampling
from autodraft.engine.kept import Kept
from autodraft.engine.levels import NOT_CACHED, Levels
from autodraft.models.candidates import host_rows, top_candidates
from autodraft.models.kv_cache import KVCache
from autodraft.models.memory import give_back_memory
from autodraft.models.runner import ModelRunner
from autodraft.policy.base import Policy, TreeLimits
from autodraft.policy.growing import grow
from autodraft.tree.attention import node_positions
from autodraft.tree.draft_tree import DraftTree, FloatArray, IntArray
from autodraft.tree.growth import TreeGrowth

_NOTHING: Final = np.empty(0)


@dataclass(frozen=True)
class Draft:
    """What one round drafted.

    Attributes:
        tree: The tree to send.
        kept: Node of the growth that each node of the tree was, [N + 1].
        growth: All that was proposed.
        width: Most nodes expanded in one level.
    """

    tree: DraftTree
    kept: IntArray
    growth: TreeGrowth
    width: int

    @classmethod
    def whole(cls, tree: DraftTree, width: int) -> "Draft":
        """Return a draft of which all is sent, for drafters that grow no tree level by level."""
        growth = TreeGrowth(int(tree.tokens[0]))
        growth.tokens, growth.parents = tree.tokens, tree.parents
        growth.depths, growth.log_values = tree.depths, tree.log_probs
        return cls(tree, np.arange(len(tree.tokens)), growth, width)

    @property
    def drafted_nodes(self) -> int:
        """Nodes proposed, sent or not."""
        return self.growth.num_nodes


@dataclass(frozen=True)
class Guessing:
    """How the target chooses the tokens that a draft is to guess.

    Attributes:
        sampling: As the target does it.
        eos_ids: Token ids that end an answer.
    """

    sampling: Sampling = GREEDY
    eos_ids: frozenset[int] = frozenset()

    def sampler(self, prompt: Sequence[int], runner: ModelRunner) -> Sampler | None:
        """Return what ranks the logits of a draft model; None where that is their own order."""
        if self.sampling.plain:
            return None
        columns = runner.output_ids
        return Sampler(self.sampling, prompt, self.eos_ids, runner.vocab_size, columns)


GREEDILY: Final = Guessing()


class DraftSource(Protocol):
    """Whatever proposes the trees of one request after another."""

    def start(
        self, prompt: Sequence[int], max_new_tokens: int, limits: TreeLimits, *, ahead: bool = True
    ) -> None:
        """Begin a request.

        Args:
            prompt: Token ids.
            max_new_tokens: Most tokens of the answer.
            limits: Ceilings of its trees.
            ahead: Whether a round is about to come; else nothing is computed before it does.
        """
        ...

    def draft(
        self, context: Sequence[int], policy: Policy, max_depth: int, node_budget: int
    ) -> Draft:
        """Propose one round's tree behind the committed context.

        Args:
            context: All committed token ids, prompt included; the last one is the root.
            policy: Decides the shape.
            max_depth: Deepest level this round allows, whatever the policy says.
            node_budget: Most nodes this round allows to send, whatever the policy says.
        """
        ...

    def commit(self, path: IntArray) -> None:
        """Take note of the accepted nodes of the tree drafted last, root excluded, top down."""
        ...

    def finish(self) -> None:
        """Free what the request held."""
        ...


def retrieve(
    retriever: Retriever, context: Sequence[int], policy: Policy, max_depth: int
) -> Continuations:
    """Return what the retriever finds, within the depth of the policy and of the round."""
    return retriever.propose(context, min(max_depth, policy.limits.max_depth))


def cut_tree(growth: TreeGrowth, policy: Policy, node_budget: int, width: int) -> Draft:
    """Cut out what the policy sends of a grown tree, within the round's budget."""
    tree, kept = growth.best(min(policy.num_nodes(growth), node_budget))
    return Draft(tree, kept, growth, width)


class Drafter:
    """Proposes trees for one request after another with one draft model."""

    _spare_rows = 0
    """Rows of the cache that may be filled on top of a growth's own."""

    def __init__(
        self,
        runner: ModelRunner,
        excluded: Sequence[int] = (),
        retriever: Retriever | None = None,
        guessing: Guessing = GREEDILY,
        kept: Kept | None = None,
    ) -> None:
        """Wrap a draft model.

        Args:
            runner: The draft model.
            excluded: Token ids that the target does not know and that are never proposed.
            retriever: Finds continuations in the context, which are grafted into every tree.
            guessing: How the target chooses the tokens that are to be guessed.
            kept: What an earlier answer left in the cache, and where this one leaves its own; None
                reuses nothing.
        """
        self._runner = runner
        self._retriever = retriever
        self._excluded = runner.columns_of(excluded) if excluded else None
        self._guessing = guessing
        self._kept = kept
        self._sampler: Sampler | None = None
        self._context: Sequence[int] = ()
        self._cache: KVCache | None = None
        self._tree_slots: IntArray = np.empty(0, dtype=np.int64)
        self._root_slot = 0

    def start(
        self, prompt: Sequence[int], max_new_tokens: int, limits: TreeLimits, *, ahead: bool = True
    ) -> None:
        """Begin a request: allocate its cache and, ahead of the first round, forward the prompt."""
        expanded = limits.width * limits.max_depth
        capacity = len(prompt) + max_new_tokens + expanded + 1 + 2 * self._spare_rows
        store = self._kept or Kept()
        self._cache, held = store.take(self._runner, prompt, capacity)
        self._context = prompt
        if ahead and len(prompt) <= self._runner.max_context:
            self._runner.prefill(self._cache, self._readable(prompt[held:]))
        self._sampler = self._guessing.sampler(prompt, self._runner)
        if self._retriever is not None:
            self._retriever.start(prompt)

    def finish(self) -> None:
        """Free the request's cache and text, or leave the cache to the next."""
        if self._cache is not None:
            held = min(self._cache.length, len(self._context))
            if self._kept is not None and held:
                self._kept.keep(self._runner, self._cache, self._context[:held])
            else:
                self._runner.release(self._cache)
            self._cache = None
            give_back_memory(collect=False)
        if self._retriever is not None:
            self._retriever.start()

    def draft(
        self, context: Sequence[int], policy: Policy, max_depth: int, node_budget: int
    ) -> Draft:
        """Grow one round's tree behind the committed context, as ``DraftSource`` says."""
        growth = TreeGrowth(context[-1])
        self._tree_slots = np.empty(0, dtype=np.int64)
        self._context = context
        if max_depth < 1 or node_budget < 1:
            policy.begin(len(context), _NOTHING)
            return cut_tree(growth, policy, 0, width=0)
        found = None
        if self._retriever is not None:
            found = retrieve(self._retriever, context, policy, max_depth)
        policy.begin(len(context), _NOTHING if found is None else found.path_log_probs)
        # Beyond the draft model's own context there is nothing to draft with but retrieval.
        room = min(max_depth, self._runner.max_context - len(context))
        proposer = self._proposer(context, policy.limits)
        width = grow(growth, policy, proposer, room)
        if found is not None:
            growth.graft(found.parents, found.tokens, found.log_probs)
        draft = cut_tree(growth, policy, node_budget, width)
        if proposer.levels is not None:
            self._tree_slots = proposer.levels.slots(draft.kept)
        return draft

    def commit(self, path: IntArray) -> None:
        """Keep what the cache holds of the accepted path and forget the rest of the tree.

        Args:
            path: Accepted nodes of the tree drafted last, root excluded, from the top down.
        """
        if len(self._tree_slots) == 0:
            return
        slots = self._tree_slots[path]
        cached = slots[slots != NOT_CACHED]  # a node is expanded only after its parent
        self._active_cache.keep(self._root_slot + 1, cached)

    def _proposer(self, context: Sequence[int], limits: TreeLimits) -> "ModelProposer":
        """Return what proposes the nodes of one round."""
        return ModelProposer(self, context, limits)

    @property
    def _active_cache(self) -> KVCache:
        assert self._cache is not None, "start() comes first"
        return self._cache

    def candidates(
        self, logits: torch.Tensor, growth: TreeGrowth, nodes: IntArray, count: int
    ) -> tuple[IntArray, FloatArray]:
        """Return the best guesses behind nodes and the logs of their probabilities, [W, K] each."""
        if self._sampler is None:
            return self._likeliest(logits, count)
        return self._drawn(logits, [growth.path(node) for node in nodes.tolist()], count)

    def _likeliest(self, logits: torch.Tensor, count: int) -> tuple[IntArray, FloatArray]:
        """Return the best guesses of greedy tokens, whatever is before them, [W, K] each."""
        columns, log_probs = top_candidates(logits, count, self._excluded)
        return self._runner.token_ids(columns), log_probs

    def _drawn(
        self, logits: torch.Tensor, paths: Sequence[Sequence[int]], count: int
    ) -> tuple[IntArray, FloatArray]:
        """Return the best guesses of drawn tokens behind paths of equal length, [W, K] each."""
        assert self._sampler is not None, "greedy guesses are not drawn"
        rows = host_rows(logits)
        if self._excluded is not None:
            rows[:, self._excluded.cpu().numpy()] = -np.inf
        self._sampler.append(self._context[self._sampler.context_tokens :])
        return self._sampler.rank(rows, paths, count)

    def plant(self, context: Sequence[int], limits: TreeLimits) -> tuple[Levels, torch.Tensor]:
        """Catch up with the context; return room for a tree, and the logits behind its root."""
        cache = self._active_cache
        logits = self._runner.prefill(cache, self._readable(context[cache.length :]))
        self._root_slot = cache.length - 1
        return Levels(self._root_slot, limits, self._spare_rows), logits

    def _readable(self, tokens: Sequence[int]) -> list[int]:
        """Return tokens with its last one in place of those that only the target has rows for."""
        last = self._runner.vocab_size - 1
        return [min(token, last) for token in tokens]

    def expand(self, growth: TreeGrowth, nodes: IntArray, levels: Levels) -> torch.Tensor:
        """Forward nodes of a growth; return the logits behind each, [W, V]."""
        visible = levels.add(nodes, growth.parents[nodes])
        positions = node_positions(growth.depths[nodes], self._root_slot)
        return self._runner.forward(self._active_cache, growth.tokens[nodes], positions, visible)


class ModelProposer:
    """Proposes what the draft model says: one forward a level.

    Attributes:
        levels: Where the nodes of this growth stand in the cache; None before the first forward.
    """

    def __init__(self, drafter: Drafter, context: Sequence[int], limits: TreeLimits) -> None:
        self._drafter = drafter
        self._context = context
        self._limits = limits
        self.levels: Levels | None = None

    def propose(self, growth: TreeGrowth, nodes: IntArray) -> tuple[IntArray, FloatArray]:
        """Return the draft model's candidates; a policy that drafts nothing pays no forward."""
        if self.levels is None:
            self.levels, logits = self._drafter.plant(self._context, self._limits)
        else:
            logits = self._drafter.expand(growth, nodes, self.levels)
        return self._drafter.candidates(logits, growth, nodes, self._limits.most_children)
