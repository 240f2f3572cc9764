"""Drafting by retrieval alone: no draft model, no cache, next to no time.

Knows neither the target nor the link; what a continuation is worth is the retriever's business.
"""

from collections.abc import Sequence

from autodraft.decoding.retrieval import Retriever
from autodraft.engine.drafter import Draft, cut_tree, retrieve
from autodraft.policy.base import Policy, TreeLimits
from autodraft.tree.draft_tree import IntArray
from autodraft.tree.growth import TreeGrowth


class LookupDrafter:
    """Proposes what followed when the context's last tokens stood there before."""

    def __init__(self, retriever: Retriever) -> None:
        """Take the retriever, which is this drafter's alone while a request lasts."""
        self._retriever = retriever

    def start(
        self, prompt: Sequence[int], max_new_tokens: int, limits: TreeLimits, *, ahead: bool = True
    ) -> None:
        """Begin a request: index its prompt."""
        self._retriever.start(prompt)

    def draft(
        self, context: Sequence[int], policy: Policy, max_depth: int, node_budget: int
    ) -> Draft:
        """Propose one round's tree behind the committed context, as ``DraftSource`` says."""
        growth = TreeGrowth(context[-1])
        if max_depth >= 1 and node_budget >= 1:
            found = retrieve(self._retriever, context, policy, max_depth)
            policy.begin(len(context), found.path_log_probs)
            growth.graft(found.parents, found.tokens, found.log_probs)
        return cut_tree(growth, policy, node_budget, width=0)

    def commit(self, path: IntArray) -> None:
        """Nothing to keep: the next context says what was accepted."""

    def finish(self) -> None:
        """Forget the request's text."""
        self._retriever.start()
