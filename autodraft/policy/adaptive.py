"""The controller: a tree that pays, every round (DESIGN §5).

A tree of N nodes yields ``1 + Σ P(v)`` tokens, P(v) the calibrated chance of a node's path, and is
worth ``θ·(1 + Σ P(v)) − cost``, θ being what a token costs at present (Dinkelbach 1967; the
long-run cost per token is a ratio of expectations). Another level is drafted where its forecast
nodes raise that worth by more than the draft step costs; its width is the one that raises it most;
N is the best of *all* sizes, because latencies have steps.

What the pair's requests share is ``PairKnowledge``; the policy itself is of one request. It knows
no model, no socket and no clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from autodraft.cost import Phases
from autodraft.policy.ahead import Ahead, AheadKnowledge, spared
from autodraft.policy.base import Outcome, Prediction, TreeLimits
from autodraft.policy.calibration import Calibration, Reliability
from autodraft.policy.costs import Latencies, RoundCosts, Shapes
from autodraft.policy.forecast import CHILDREN, ChildForecast, GainTable
from autodraft.policy.handover import COST_STEP, Weighed, Worth, patience
from autodraft.policy.limits import Steering, Usage, usage_of
from autodraft.policy.opening import Opening, Trials, opening_cost
from autodraft.profiling.tables import CONTEXTS
from autodraft.tree.draft_tree import FloatArray, IntArray
from autodraft.tree.growth import TreeGrowth

_LOOKAHEAD: Final = 2
"""Unseen levels that a decision weighs: one alone may not fill the step of a latency table."""
_AHEAD_WIDTH: Final = 8
"""Most nodes of a forward ahead."""
_AHEAD_STEP: Final = 1.25
"""What such a forward may take, in parts of one with a single node."""
_CONFIDENT_TRIALS: Final = 400.0
"""Judged candidates that make half of full confidence in the calibration."""
_MOST_PACE: Final = 5.0
"""How much slower than expected a forward is taken to be at most; and faster."""
_SURELY: Final = 0.97
"""Rounds that limits call back must cost no more than so much of plain decoding."""
_USUAL_TOKENS: Final = 128
"""Length of an answer that may have more tokens."""


class BlendKnowledge(NamedTuple):
    """What the requests at one blend learn from each other.

    Attributes:
        opening: How far its forecasts of how to begin an answer came true.
        trials: What may be tried.
    """

    opening: Opening
    trials: Trials


@dataclass
class PairKnowledge:
    """What all requests of one pair of models over one link know and learn.

    Attributes:
        latencies: How long things take.
        calibration: Chances of drafted tokens.
        children: Chances of what was not drafted yet.
        gains: What fixed shapes gain.
        opening: How far forecasts of how to begin an answer came true, at all blends.
        blends: What each blend has learned for itself.
        ahead: What drafting ahead has saved and cost.
    """

    latencies: Latencies
    calibration: Calibration
    children: ChildForecast
    gains: GainTable
    opening: Opening = field(default_factory=Opening)
    blends: dict[Phases, BlendKnowledge] = field(default_factory=dict)
    ahead: AheadKnowledge = field(default_factory=AheadKnowledge)

    @property
    def confidence(self) -> float:
        """How well the chances are known, 0 … 1."""
        trials = self.calibration.trials
        return trials / (trials + _CONFIDENT_TRIALS)

    def forget_openings(self) -> None:
        """Forget how far forecasts came true: over another link they are of other rounds."""
        self.opening = Opening()
        self.blends.clear()

    def blend(self, phases: Phases) -> BlendKnowledge:
        """Return what one blend has learned for itself."""
        if phases not in self.blends:
            self.blends[phases] = BlendKnowledge(Opening(self.opening), Trials())
        return self.blends[phases]


@dataclass(frozen=True)
class Ablation:
    """Parts of the controller that are held still; None where it decides.

    Attributes:
        width: Frontier nodes to expand.
        depth: Depth of the tree.
        nodes: Nodes to send.
        calibrated: Whether chances are learned; else the draft's own word is taken.
    """

    width: int | None = None
    depth: int | None = None
    nodes: int | None = None
    calibrated: bool = True


class _Level(NamedTuple):
    """What was proposed below the expanded nodes of one level."""

    expanded: IntArray
    tokens: IntArray
    log_probs: FloatArray
    log_chances: FloatArray


class _Plan(NamedTuple):
    """A tree size and what it is worth."""

    worth: float
    nodes: int
    gain: float


@dataclass
class _Round:
    """The state of the round in progress."""

    costs: RoundCosts
    retrieved: FloatArray
    levels: list[_Level] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    plan: _Plan = _Plan(0.0, 0, 0.0)


class AdaptivePolicy:
    """Decides the shape of every tree of one request.

    Attributes:
        limits: Ceilings that hold.
        worth: θ, tracked.
        opening: What is known of how answers begin at this blend.
        trials: What may be tried at this blend.
        draft_reliability: How often the draft's own word came true.
        reliability: How often calibrated chances did.
    """

    def __init__(
        self,
        limits: TreeLimits,
        phases: Phases,
        pair: PairKnowledge,
        ablation: Ablation | None = None,
        steering: Steering | None = None,
    ) -> None:
        """Prepare for a request; ``start`` comes next.

        Args:
            limits: Ceilings of its trees.
            phases: The user's blend.
            pair: What is known of the pair.
            ablation: Parts that are held still.
            steering: Moves the blend so that limits are met; None leaves it as it is.
        """
        children = min(CHILDREN, max(1, limits.node_budget))
        self.limits = TreeLimits(limits.width, limits.max_depth, limits.node_budget, children)
        self._nominal = phases
        self._steering = steering
        self._pair = pair
        self._still = ablation or Ablation()
        self.draft_reliability = Reliability()
        self.reliability = Reliability()
        self.opening, self.trials = pair.blend(phases)
        self._ahead: Ahead | None = None
        self._widths = self._width_options()
        self.start(0, 1)

    @property
    def _phases(self) -> Phases:
        return self._nominal if self._steering is None else self._steering.phases

    def draft_ahead(self) -> Ahead:
        """Let the rounds to come be drafted ahead; return who decides on that."""
        steps = self._pair.latencies.draft
        most_s = _AHEAD_STEP * steps.at(1, CONTEXTS[0])
        fitting = [width for width in self._widths if width <= _AHEAD_WIDTH]
        width = max((each for each in fitting if steps.at(each, CONTEXTS[0]) <= most_s), default=1)
        self._ahead = Ahead(self._pair.ahead, self._pair.latencies, width, self._chances_ahead)
        return self._ahead

    def start(self, prompt_tokens: int, max_new_tokens: int) -> None:
        """Begin a request: forecast what its rounds will be worth."""
        self._round = _Round(self._costs(prompt_tokens), np.empty(0))
        self._max_new_tokens = max_new_tokens
        self._usual: FloatArray | None = None
        self._shapes = self._shapes_now()
        promise = self._shapes.cheapest()
        self.worth = Worth(promise.cost, promise.gain, self._pair.confidence)

    @property
    def confidence(self) -> float:
        """How well the pair's chances are known, 0 … 1."""
        return self._pair.confidence

    @property
    def plain(self) -> float:
        """Cost of a token that the server decodes alone, as things are."""
        return self._round.costs.plain

    def observe_beginning(self, seconds: float, prefill_s: float) -> None:
        """Take note of what the first token has taken: it counts in the limits as any other does.

        Args:
            seconds: From submit to the first token.
            prefill_s: The target's part of it.
        """
        if self._steering is not None:
            self._steering.observe(Usage(0.0, prefill_s, seconds - prefill_s), 1, later=0)

    def observe_plain(self, context_tokens: int, step_s: float, elapsed_s: float) -> None:
        """Learn from a token that the server has decoded alone.

        Args:
            context_tokens: Tokens before it.
            step_s: Time of its forward.
            elapsed_s: Time since the token before.
        """
        self._pair.latencies.target.observe(1, context_tokens, step_s)
        if self._steering is not None:
            self._steering.observe(Usage(0.0, step_s, max(0.0, elapsed_s - step_s)), 1, later=1)

    @property
    def pays_again(self) -> bool:
        """Whether moved weights make rounds cheaper than the server alone; without limits never."""
        if self._steering is None:
            return False
        self._round.costs = self._costs(self._round.costs.context_tokens)
        if self._usual is None:  # no round yet
            self._shapes = self._shapes_now()
            return self.opening.pays(self.opening_cost / _SURELY)
        self._reprice()
        return self.worth.value < _SURELY * self.plain

    def _reprice(self) -> None:
        """Let θ follow weights that have moved."""
        if self._steering is not None and self._usual is not None:
            self.worth.reprice(self._phases.of_round(*self._usual))

    @property
    def transfer(self) -> float:
        """Cost of letting the server go on alone: the way of the request."""
        return self._phases.of_round(0.0, 0.0, float(self._round.costs.wait_s[0]))

    @property
    def loss(self) -> float:
        """Cost of trying rounds in vain."""
        return patience(self.confidence) * self.worth.round_cost + self.transfer

    @property
    def costs(self) -> RoundCosts:
        """Costs of the round in progress, or of the last one."""
        return self._round.costs

    @property
    def opening_cost(self) -> float:
        """Forecast cost of an answer that begins with rounds, in parts of plain decoding."""
        tokens = min(self._max_new_tokens, _USUAL_TOKENS)
        return opening_cost(self._shapes.by_text(), self.plain, self.loss, tokens)

    def cost_of(self, outcome: Outcome) -> float:
        """Return what a round has cost."""
        return self._phases.of_round(*usage_of(outcome))

    # ------------------------------------------------------------------------- one round

    def begin(self, context_tokens: int, retrieved: FloatArray) -> None:
        """Begin a round: look up what things cost behind this context."""
        values = -np.sort(-np.exp(retrieved))[: self.limits.node_budget]
        self._round = _Round(self._costs(context_tokens), values)
        self._reprice()

    def width(self, growth: TreeGrowth) -> int:
        """Return the width of the level that pays most, 0 where none pays."""
        deepest = self._still.depth or self.limits.max_depth
        if growth.depth >= min(deepest, self.limits.max_depth):
            return 0
        frontier, links = _frontier(growth)
        if not len(frontier):
            return 0
        kept = self._best_known(growth)
        best, choice = self._plan(kept).worth, 0
        if self._still.depth is not None:
            best = -np.inf
        for width, rows in self._choices(len(frontier)):
            worth = self._worth_of_levels(growth.depth, kept, frontier[:width], links[:width], rows)
            if worth > best:
                best, choice = worth, width
        if choice:
            self._round.rows.append(choice if growth.depth else 1)
        return choice

    def value(
        self, growth: TreeGrowth, expanded: IntArray, tokens: IntArray, log_probs: FloatArray
    ) -> FloatArray:
        """Return the log of the calibrated chance of each candidate, [W, K]."""
        depth = growth.depth + 1
        chances = log_probs
        if self._still.calibrated:
            chances = self._pair.calibration.log_chances(depth, log_probs)
        self._pair.children.learn(growth.depth, _links(growth, expanded), np.exp(chances))
        self._round.levels.append(_Level(expanded, tokens, log_probs, chances))
        return chances

    def num_nodes(self, growth: TreeGrowth) -> int:
        """Return how many nodes are worth sending: the best of all sizes."""
        values = _descending(np.exp(growth.log_values[1:]), self.limits.node_budget)
        plan = self._plan(values)
        if self._still.nodes is not None:
            nodes = min(self._still.nodes, len(values))
            plan = _Plan(0.0, nodes, float(values[:nodes].sum()))
        self._round.plan = plan
        if self._ahead is not None:
            self._ahead.cut(self._phases, self._round.costs, plan.nodes)
        return plan.nodes

    def prediction(self) -> Prediction:
        """Return what is expected of the tree just cut, in this request so far."""
        costs, plan = self._round.costs, self._round.plan
        drafting_s = sum(map(costs.step_s, self._round.rows))
        drafting_s -= 0.0 if self._ahead is None else self._ahead.saved_s
        round_s = drafting_s + costs.verify_s[plan.nodes] + costs.wait_s[plan.nodes]
        return Prediction(float(round_s), 1.0 + self.worth.truth * plan.gain)

    def observe(self, outcome: Outcome) -> None:
        """Learn from a round what things take, and which candidates were right."""
        costs = self._round.costs
        expected_s = sum(map(costs.measured_step_s, self._round.rows))
        if self._ahead is not None:
            expected_s -= spared(self._ahead.replaced, costs.measured_step_s)
            outcome = self._ahead.observe(outcome)
        self._pair.latencies.observe(outcome, expected_s)
        for node, truth in zip(outcome.reached.tolist(), outcome.truths, strict=True):
            self._judge(node, truth)

    def weigh(self, outcome: Outcome) -> Weighed:
        """Track θ; return what a round has cost and what it is worth."""
        used, accepted = usage_of(outcome), len(outcome.reached) - 1
        cost = self.cost_of(outcome)
        self._steer(used, 1 + accepted)
        worth = self.worth.observe(cost, self._round.plan.gain, accepted)
        # What slows this forward down would slow a plain one down as well, but for drafting ahead.
        ahead = self._ahead
        verify_s = outcome.verify_s if ahead is None else ahead.verify_alone_s(outcome)
        pace = verify_s / self.costs.verify_s[outcome.num_nodes]
        plain = self.costs.plain_at(min(max(pace, 1 / _MOST_PACE), _MOST_PACE))
        return Weighed(cost, worth, 1 + accepted, plain, self.worth.round_cost)

    def _steer(self, used: Usage, tokens: int) -> None:
        if self._steering is None:
            return
        now = np.array(used)
        self._usual = now if self._usual is None else self._usual + COST_STEP * (now - self._usual)
        self._steering.observe(used, tokens, later=tokens)

    # ----------------------------------------------------------------------- how it decides

    def _shapes_now(self) -> Shapes:
        """Return what fixed shapes cost and gain at present weights."""
        limits = self.limits
        return Shapes(self.costs, self._pair.gains, limits.max_depth, limits.width)

    def _costs(self, context_tokens: int) -> RoundCosts:
        cap = self.limits.node_budget
        return RoundCosts(self._phases, self._pair.latencies, context_tokens, cap)

    def _chances_ahead(self, depths: IntArray, log_probs: FloatArray) -> FloatArray:
        """Return the logs of the chances of candidates behind nodes, and learn nothing, [W, K]."""
        if not self._still.calibrated:
            return log_probs
        found, learned = np.empty_like(log_probs), self._pair.calibration
        for depth in set(depths.tolist()):
            places = depths == depth
            found[places] = learned.log_chances(depth, log_probs[places])
        return found

    def _width_options(self) -> tuple[int, ...]:
        """Return the widths that are weighed: the last ones before a step of the draft's table."""
        table = self._pair.latencies.draft.table
        sizes: Sequence[int] = (table.padding if len(table.padding) else table.rows).tolist()
        return tuple(sorted({min(size, self.limits.width) for size in sizes}))

    def _choices(self, available: int) -> list[tuple[int, int]]:
        """Return widths to weigh, and the rows that each computes."""
        if self._still.width is not None:
            width = min(self._still.width, available, self.limits.width)
            return [(width, width)]
        found = [(min(width, available), width) for width in self._widths]
        cut = sum(width < available for width, _ in found) + 1
        return [(width, min(rows, available)) for width, rows in found[:cut]]

    def _best_known(self, growth: TreeGrowth) -> FloatArray:
        """Return the chances of the best nodes that could be sent now, best first."""
        grown = np.exp(growth.log_values[1:])
        both = np.concatenate((grown, self._round.retrieved)) if self._retrieves else grown
        return _descending(both, self.limits.node_budget)

    @property
    def _retrieves(self) -> bool:
        return len(self._round.retrieved) > 0

    def _plan(self, values: FloatArray) -> _Plan:
        """Return the best size of a tree: the argmax over all of them."""
        gains = values.cumsum()
        worths = self.worth.value * gains - self._round.costs.sending[1 : len(values) + 1]
        bare = -float(self._round.costs.sending[0])
        if not len(worths) or worths.max() <= bare:
            return _Plan(bare, 0, 0.0)
        nodes = int(worths.argmax()) + 1
        return _Plan(float(worths[nodes - 1]), nodes, float(gains[nodes - 1]))

    def _worth_of_levels(
        self, depth: int, kept: FloatArray, frontier: FloatArray, links: FloatArray, rows: int
    ) -> float:
        """Return the worth with the next level drafted, or the next two, whichever is more."""
        best, spent = -np.inf, 0.0
        ahead = min(_LOOKAHEAD, self.limits.max_depth - depth)
        for level in range(depth, depth + ahead):
            chances = self._pair.children.of(level, links)
            below = (frontier[:, None] * chances).ravel()
            kept = _descending(np.concatenate((kept, below)), self.limits.node_budget)
            spent += self._round.costs.step(rows if level else 1)
            best = max(best, self._plan(kept).worth - spent)
            order = np.argsort(-below)[: max(rows, 1)]
            frontier, links = below[order], chances.ravel()[order]
        return float(best)

    def _judge(self, node: int, truth: int) -> None:
        """Learn from one node that was reached, where it was expanded."""
        for number, level in enumerate(self._round.levels):
            places = np.flatnonzero(level.expanded == node)
            if not len(places):
                continue
            row = int(places[0])
            hits = np.flatnonzero(level.tokens[row] == truth)
            hit = int(hits[0]) if len(hits) else None
            self.draft_reliability.count(level.log_probs[row], hit)
            self.reliability.count(level.log_chances[row], hit)
            if self._still.calibrated:
                self._pair.calibration.learn(number + 1, level.log_probs[row], hit)
            return


def _descending(values: FloatArray, count: int) -> FloatArray:
    """Return the ``count`` largest values, best first."""
    if len(values) > count:
        values = np.partition(values, len(values) - count)[-count:] if count else values[:0]
    ordered: FloatArray = np.sort(values)[::-1]
    return ordered


def _links(growth: TreeGrowth, nodes: IntArray) -> FloatArray:
    """Return the chance of nodes given their parents, [W]; 1 for a root."""
    values = growth.log_values
    links: FloatArray = np.exp(values[nodes] - values[np.maximum(growth.parents[nodes], 0)])
    return links


def _frontier(growth: TreeGrowth) -> tuple[FloatArray, FloatArray]:
    """Return chance and link of the newest level's nodes, best first."""
    nodes = growth.frontier(len(growth.frontier_log_values))
    return np.exp(growth.log_values[nodes]), _links(growth, nodes)
