"""Whether drafting ahead pays: what it saves the next round, and what it costs this one.

While a tree is verified the user's device has nothing to do. A forward made then costs energy, may
keep a reply waiting, and where both sides share a machine slows the target down. It saves a forward
of the next round where its nodes come true. How much of that it keeps, and by how much the target
is slowed down, is learned: some rounds are run without, as the control.

``AheadKnowledge`` is of a pair, in seconds; ``Ahead`` is of one request, in the unit of its blend.
Knows no tree, no model and no clock.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from autodraft.cost import Phases
from autodraft.policy.base import Outcome
from autodraft.policy.costs import Latencies, RoundCosts
from autodraft.tree.draft_tree import FloatArray, IntArray

CONTROL_EVERY: Final = 8
"""One round in so many is run without drafting ahead."""
RETRY_EVERY: Final = 32
"""One round in so many is run with it whatever was learned, its promises taken at their word."""
LEAST_ROUNDS: Final = 12
"""Rounds with it before what they say is believed."""
_LEAST_CONTROLS: Final = 2
_STEP: Final = 0.1
"""Share of a new observation in a running mean of many."""
_MOST_PACE: Final = 4.0
"""No forward counts as more than so many times slower or faster than expected."""
_LEAST_TRUTH, _MOST_TRUTH = 0.25, 2.0


class _Mean:
    """A running mean: of all observations while they are few, then of the later ones."""

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def observe(self, value: float) -> None:
        self.count += 1
        self.value += max(_STEP, 1 / self.count) * (value - self.value)


class AheadKnowledge:
    """What the rounds of a pair have taught about drafting ahead."""

    def __init__(self) -> None:
        self._rounds = 0
        self._pace_with, self._pace_without = _Mean(), _Mean()  # as logarithms
        self._promised_s, self._saved_s, self._spent_s = _Mean(), _Mean(), _Mean()

    @property
    def slowed(self) -> float:
        """How much longer the target's forwards take beside it, as a share of their own time."""
        if min(self._pace_with.count, self._pace_without.count) < _LEAST_CONTROLS:
            return 0.0
        return max(0.0, math.exp(self._pace_with.value - self._pace_without.value) - 1.0)

    @property
    def truth(self) -> float:
        """How much of what forwards ahead promise to save they do save."""
        if self._saved_s.count < LEAST_ROUNDS or not self._promised_s.value:
            return 1.0
        return min(max(self._saved_s.value / self._promised_s.value, _LEAST_TRUTH), _MOST_TRUTH)

    def worth(self, phases: Phases, verify_s: float) -> float:
        """Return what a round with it is worth beside one without, in the unit of a blend.

        Args:
            phases: The blend.
            verify_s: The target's forward, undisturbed.
        """
        instead = phases.draft_s - phases.wait_s
        return (
            phases.draft_s * self._saved_s.value
            - instead * self._spent_s.value
            - phases.verify_s * self.slowed * verify_s
        )

    def next_round(self, worth: float) -> tuple[bool, bool]:
        """Tell whether the next round drafts ahead, and whether promises count in full.

        Args:
            worth: What that is worth.
        """
        self._rounds += 1
        if self._rounds % RETRY_EVERY == 0:
            return True, True
        pays = self._saved_s.count < LEAST_ROUNDS or worth >= 0
        return pays and self._rounds % CONTROL_EVERY != 0, False

    def observe_forward(self, pace: float, *, ahead: bool) -> None:
        """Take note of a forward of the target.

        Args:
            pace: How many times as long as expected it took.
            ahead: Whether something was drafted ahead beside it.
        """
        mean = self._pace_with if ahead else self._pace_without
        mean.observe(math.log(min(max(pace, 1 / _MOST_PACE), _MOST_PACE)))

    def observe_saving(self, promised_s: float, saved_s: float, spent_s: float) -> None:
        """Take note of what came of drafting ahead in one round.

        Args:
            promised_s: What it was expected to save.
            saved_s: What it has saved the round behind it.
            spent_s: What it took.
        """
        self._promised_s.observe(promised_s)
        self._saved_s.observe(saved_s)
        self._spent_s.observe(spent_s)


class Ahead:
    """Decides on drafting ahead in the rounds of one request.

    Attributes:
        width: Most nodes of one forward ahead.
        saved_s: What the round in progress was spared.
        replaced: The levels that are shorter for it: rows wanted and rows forwarded.
    """

    def __init__(
        self,
        knowledge: AheadKnowledge,
        latencies: Latencies,
        width: int,
        chances: Callable[[IntArray, FloatArray], FloatArray],
    ) -> None:
        """Prepare for a request; ``cut`` comes next.

        Args:
            knowledge: What the pair's rounds have taught.
            latencies: How long things take.
            width: Most nodes of one forward ahead.
            chances: Turns depths and log-probabilities of candidates into logs of their chances.
        """
        self.width = width
        self.chances = chances
        self.saved_s = 0.0
        self.replaced: Sequence[tuple[int, int]] = ()
        self._knowledge = knowledge
        self._latencies = latencies
        self._promised_s = 0.0
        self._trusting = False
        self._before: tuple[float, float] | None = None  # promised and spent a round ago

    def cut(self, phases: Phases, costs: RoundCosts, nodes: int) -> None:
        """A round's tree has been cut.

        Args:
            phases: The blend at present.
            costs: Costs behind its context.
            nodes: Nodes that are sent.
        """
        self._phases, self._costs, self._nodes = phases, costs, nodes
        self.replaced, self.saved_s = (), 0.0
        self._promised_s = 0.0

    def remember(self, replaced: Sequence[tuple[int, int]]) -> float:
        """Take note of what the round before has spared this one; return the seconds."""
        self.replaced = replaced
        self.saved_s = spared(replaced, self._costs.step_s)
        return self.saved_s

    def begin(self) -> bool:
        """Tell whether to draft ahead while the tree is verified; not where it is a bare root."""
        if not self._nodes:
            return False
        worth = self._knowledge.worth(self._phases, float(self._costs.verify_s[self._nodes]))
        ahead, self._trusting = self._knowledge.next_round(worth)
        return ahead

    def pays(self, rows: int, chance: float, elapsed_s: float) -> bool:
        """Tell whether one more forward ahead is worth its while."""
        costs, nodes, knowledge = self._costs, self._nodes, self._knowledge
        step_s = costs.step_s(rows)
        due_s = float(costs.verify_s[nodes]) * (1.0 + knowledge.slowed) + float(costs.wait_s[nodes])
        overrun_s = min(step_s, max(0.0, elapsed_s + step_s - due_s))
        used = min(1.0, chance)
        truth = 1.0 if self._trusting else knowledge.truth
        pays = step_pays(truth * used, self._phases, step_s, overrun_s)
        self._promised_s += used * step_s if pays else 0.0
        return pays

    def verify_alone_s(self, outcome: Outcome) -> float:
        """Return what a round's forward would have taken without drafting ahead beside it."""
        slowed = self._knowledge.slowed if outcome.ahead_s else 0.0
        return outcome.verify_s / (1.0 + slowed)

    def observe(self, outcome: Outcome) -> Outcome:
        """Learn from a round; return it as it would have been without drafting ahead in it."""
        before, ahead = self._before, outcome.ahead_s > 0
        if before is not None:
            promised_s, spent_s = before
            self._knowledge.observe_saving(promised_s, self.saved_s, spent_s)
        self._before = (self._promised_s, outcome.ahead_s) if ahead else None
        pace = outcome.verify_s / float(self._costs.verify_s[outcome.num_nodes])
        self._knowledge.observe_forward(pace, ahead=ahead)
        verify_s = self.verify_alone_s(outcome)
        less_s = outcome.verify_s - verify_s + self._late_s(outcome)
        return replace(
            outcome,
            verify_s=verify_s,
            wait_s=outcome.wait_s - less_s,
            round_s=outcome.round_s - less_s,
        )

    def _late_s(self, outcome: Outcome) -> float:
        """Return what the reply has waited: all that the link took longer than it does usually."""
        if not outcome.overdue:
            return 0.0
        usual_s = self._latencies.link.seconds(outcome.uplink_bytes, outcome.downlink_bytes)
        trip_s = outcome.wait_s - outcome.queue_s - outcome.verify_s
        return max(0.0, trip_s - usual_s)


def step_pays(chance: float, phases: Phases, seconds: float, overrun_s: float) -> bool:
    """Return whether one more forward ahead is worth its while.

    Args:
        chance: That it saves what it takes.
        phases: Cost of a second of drafting, and of waiting, in whose place it comes.
        seconds: What it takes.
        overrun_s: Part of that for which the reply is kept waiting.
    """
    gain = chance * phases.draft_s * seconds
    instead = (phases.draft_s - phases.wait_s) * (seconds - overrun_s)
    return gain > instead + phases.draft_s * overrun_s


def spared(replaced: Sequence[tuple[int, int]], step_s: Callable[[int], float]) -> float:
    """Return the seconds that levels take less of which only some rows are forwarded.

    Args:
        replaced: Rows wanted and rows forwarded of each.
        step_s: Seconds of one draft step, by rows.
    """
    return sum(step_s(wanted) - (step_s(rest) if rest else 0.0) for wanted, rest in replaced)
