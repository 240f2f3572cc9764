"""The interface between the drafter and whatever decides the shape of its tree."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from autodraft.tree.draft_tree import FloatArray, IntArray
from autodraft.tree.growth import TreeGrowth


@dataclass(frozen=True)
class TreeLimits:
    """Ceilings of a tree.

    Attributes:
        width: Most frontier nodes expanded in one level.
        max_depth: Most edges from the root.
        node_budget: Most nodes sent, root excluded.
        children: Most children of a node; None allows as many as the width.
    """

    width: int
    max_depth: int
    node_budget: int
    children: int | None = None

    @property
    def most_children(self) -> int:
        """Most children of a node."""
        return self.width if self.children is None else self.children


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a round: what the target said, and what it all took.

    Attributes:
        growth: What had been grown.
        reached: Nodes of the growth that were reached: the root and the accepted path.
        truths: The target's token after each of them; the last one is the bonus token.
        context_tokens: Committed tokens before the round.
        num_nodes: Nodes sent, root excluded.
        draft_s: Time of drafting before the tree was sent.
        wait_s: Time from handing the tree to the link until the reply was there.
        queue_s: Part of it that the request waited for the target.
        verify_s: Part of it that the target's forward and walk took.
        round_s: All of the round.
        uplink_bytes: Sent.
        downlink_bytes: Received.
        ahead_s: Part of the waiting in which the next round was drafted ahead.
        overdue: Whether the reply may have waited for the last forward of that.
    """

    growth: TreeGrowth
    reached: IntArray
    truths: list[int]
    context_tokens: int
    num_nodes: int
    draft_s: float
    wait_s: float
    queue_s: float
    verify_s: float
    round_s: float
    uplink_bytes: int
    downlink_bytes: int
    ahead_s: float = 0.0
    overdue: bool = False


class Prediction(NamedTuple):
    """What a policy expects of the round whose tree it has just cut.

    Attributes:
        round_s: Seconds of the whole round.
        tokens: Tokens, bonus token included.
    """

    round_s: float
    tokens: float


class Policy(Protocol):
    """Decides, while a tree grows, how to go on and how much of it to send.

    The drafter holds every answer to the round's hard limits, so a policy need not know how many
    tokens are left to generate or what the server allows.
    """

    @property
    def limits(self) -> TreeLimits:
        """The ceilings that the method asks for."""
        ...

    def begin(self, context_tokens: int, retrieved: FloatArray) -> None:
        """Begin a round.

        Args:
            context_tokens: Committed tokens, prompt included.
            retrieved: Log path probabilities of what will be grafted when the growth ends, [M].
        """
        ...

    def width(self, growth: TreeGrowth) -> int:
        """Return how many nodes of the newest level to expand; 0 ends the growth.

        The first question of a round is asked of the bare root (depth 0).
        """
        ...

    def value(
        self, growth: TreeGrowth, expanded: IntArray, tokens: IntArray, log_probs: FloatArray
    ) -> FloatArray:
        """Return what the candidates of a level are worth: log-probabilities of acceptance, [W, K].

        Args:
            growth: The tree before the level is added.
            expanded: Its nodes that were expanded, [W].
            tokens: Candidates of each, best first, [W, K].
            log_probs: The draft's log-probabilities given the path, [W, K].
        """
        ...

    def num_nodes(self, growth: TreeGrowth) -> int:
        """Return how many of the grown tree's nodes to send, grafted ones included."""
        ...

    def prediction(self) -> Prediction | None:
        """Return what is expected of the tree just cut; None where the policy expects nothing."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round."""
        ...


class AheadPolicy(Protocol):
    """Decides on drafting ahead, while a tree is verified."""

    @property
    def width(self) -> int:
        """Most nodes of one forward ahead."""
        ...

    def remember(self, replaced: Sequence[tuple[int, int]]) -> float:
        """Take note of what the round before has spared this one; return the seconds.

        Args:
            replaced: Rows wanted and rows forwarded of each level that is shorter for it.
        """
        ...

    def begin(self) -> bool:
        """Tell whether to draft ahead in the round whose tree has just been cut."""
        ...

    def pays(self, rows: int, chance: float, elapsed_s: float) -> bool:
        """Tell whether one more forward ahead is worth its while.

        Args:
            rows: Its nodes.
            chance: That one of them comes true.
            elapsed_s: Time since the tree was sent.
        """
        ...

    def chances(self, depths: IntArray, log_probs: FloatArray) -> FloatArray:
        """Return the logs of the chances of candidates, without learning from them, [W, K].

        Args:
            depths: Depth of the candidates of each node, [W].
            log_probs: The draft's log-probabilities given the path, [W, K].
        """
        ...


class StaticPolicy:
    """What policies have in common that follow the draft's own probabilities and learn nothing."""

    def begin(self, context_tokens: int, retrieved: FloatArray) -> None:
        """Nothing depends on the context."""

    def value(
        self, growth: TreeGrowth, expanded: IntArray, tokens: IntArray, log_probs: FloatArray
    ) -> FloatArray:
        """Return the draft's own log-probabilities."""
        return log_probs

    def prediction(self) -> Prediction | None:
        """Nothing is expected."""
        return None

    def observe(self, outcome: Outcome) -> None:
        """Nothing is learned."""
