"""What a round costs, before it is run: latency tables and the link, weighed by the user's blend.

Everything is in the blend's unit, in which server-only decoding costs 1 a token by the profile
(DESIGN §5). Knows no tree and no chance.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from autodraft.cost import Phases
from autodraft.policy.base import Outcome
from autodraft.policy.forecast import GainTable
from autodraft.profiling.correction import CorrectedTable
from autodraft.profiling.link import LinkEstimate
from autodraft.tree.draft_tree import FloatArray, IntArray

NODE_BYTES: Final = 4
"""What a node takes on the wire, in trees of up to 255 nodes."""
_REST_BYTES: Final = (14.0, 14.0)
"""What a round's two frames take besides the nodes, until one was seen."""
_STEP: Final = 0.2
"""Share of a new observation in a running mean."""


@dataclass
class Latencies:
    """How long things take on one pair and link: what all its requests share and correct.

    Attributes:
        draft: A draft step, by rows.
        target: A forward of the target, by rows: a tree of N nodes has N + 1.
        link: The link to it.
        queue_s: Present wait for the target before a forward.
        rest_s: Present rest of a round: neither drafting nor waiting for the target.
        rest_bytes: What a round's two frames take besides the nodes, up and down.
    """

    draft: CorrectedTable
    target: CorrectedTable
    link: LinkEstimate
    queue_s: float = 0.0
    rest_s: float = 0.0
    rest_bytes: tuple[float, float] = _REST_BYTES

    def wait_s(self, nodes: IntArray) -> FloatArray:
        """Return what sending trees takes besides the target's forward, [N]."""
        up, down = self.rest_bytes
        rate = self.link.uplink_bytes_per_s
        fixed = self.link.seconds(up, down) + self.queue_s + self.rest_s
        waits: FloatArray = np.asarray(fixed + nodes * (NODE_BYTES / rate), dtype=np.float64)
        return waits

    def observe(self, outcome: Outcome, expected_draft_s: float) -> None:
        """Learn from a round.

        Args:
            outcome: The round.
            expected_draft_s: What its drafting should have taken by the table as it was measured.
        """
        self.target.observe(outcome.num_nodes + 1, outcome.context_tokens, outcome.verify_s)
        self.draft.factor.observe(expected_draft_s, outcome.draft_s)
        up = outcome.uplink_bytes - NODE_BYTES * outcome.num_nodes
        self.rest_bytes = (max(0.0, up), float(outcome.downlink_bytes))
        trip_s = outcome.wait_s - outcome.queue_s - outcome.verify_s
        self.link.observe(trip_s, outcome.uplink_bytes, outcome.downlink_bytes)
        self.queue_s += _STEP * (outcome.queue_s - self.queue_s)
        rest_s = outcome.round_s - outcome.draft_s - outcome.wait_s
        self.rest_s += _STEP * (rest_s - self.rest_s)


class RoundCosts:
    """Costs behind one context: of sending trees of every size, and of draft steps."""

    def __init__(self, phases: Phases, latencies: Latencies, context_tokens: int, cap: int) -> None:
        """Look them up.

        Args:
            phases: The blend.
            latencies: How long things take.
            context_tokens: Committed tokens.
            cap: Most nodes of a tree.
        """
        self._phases = phases
        self._latencies = latencies
        self.context_tokens = context_tokens
        self._steps: dict[int, float] = {}
        nodes = np.arange(cap + 1)
        self.verify_s: FloatArray = latencies.target.up_to(cap + 1, context_tokens)
        self.wait_s: FloatArray = latencies.wait_s(nodes)
        up, down = latencies.rest_bytes
        weigh = partial(phases.of_round, 0.0)
        # Weights are floats and lengths arrays: one product each for all sizes.
        self.sending: FloatArray = np.asarray(
            phases.verify_s * self.verify_s
            + phases.wait_s * self.wait_s
            + phases.uplink_byte * (NODE_BYTES * nodes)
        ) + weigh(0.0, 0.0, up, down)

    def step_s(self, rows: int) -> float:
        """Return the seconds of one draft step."""
        if rows not in self._steps:
            self._steps[rows] = self._latencies.draft.at(rows, self.context_tokens)
        return self._steps[rows]

    def step(self, rows: int) -> float:
        """Return the cost of one draft step."""
        return self._phases.draft_s * self.step_s(rows)

    def measured_step_s(self, rows: int) -> float:
        """Return the seconds of one draft step as the profile has it, without correction."""
        return self._latencies.draft.table.at(rows, self.context_tokens)

    @property
    def plain(self) -> float:
        """Cost of a token that the server decodes alone, streamed."""
        return self.plain_at(1.0)

    def plain_at(self, pace: float) -> float:
        """Return the cost of such a token.

        Args:
            pace: How many times as long as expected the target's forwards take.
        """
        step_s = self._latencies.target.at(1, self.context_tokens) * pace
        return self._phases.plain_s * step_s + self._phases.wait_s * self._latencies.queue_s


@dataclass(frozen=True)
class Forecast:
    """The best that fixed shapes promise.

    Attributes:
        ratio: Cost per token.
        cost: Cost of a round.
        gain: Accepted length of a round.
        drafting: The part of the cost that is drafting.
    """

    ratio: float
    cost: float
    gain: float
    drafting: float


class Shapes:
    """What each fixed shape costs and gains behind one context; a bare root is always one more."""

    def __init__(self, costs: RoundCosts, gains: GainTable, max_depth: int, width: int) -> None:
        """Look it up.

        Args:
            costs: Costs behind the context.
            gains: What each shape gains.
            max_depth: Deepest tree allowed.
            width: Widest level allowed.
        """
        cap = min(gains.gains.shape[2], len(costs.sending))
        depth = min(gains.depth, max_depth)
        allowed = max(1, int((gains.widths <= width).sum()))
        step = np.array([costs.step(int(rows)) for rows in gains.widths[:allowed]])
        self._gain: FloatArray = gains.gains[:depth, :allowed, :cap]
        self._drafting = costs.step(1) + np.arange(depth)[:, None, None] * step[:, None]
        self._cost: FloatArray = self._drafting + costs.sending[:cap]
        self._bare = float(costs.sending[0])
        self._ease = gains.ease

    def cheapest(self) -> Forecast:
        """Return the shape whose tokens cost least on average."""
        bare = Forecast(self._bare, self._bare, 0.0, 0.0)
        if not self._gain.size:
            return bare
        ratio = self._cost / (1.0 + self._gain)
        best = np.unravel_index(int(ratio.argmin()), ratio.shape)
        found = Forecast(
            float(ratio[best]),
            float(self._cost[best]),
            float(self._gain[best]),
            float(self._drafting[best[0], best[1], 0]),
        )
        return min(found, bare, key=lambda each: each.ratio)

    def by_text(self) -> FloatArray:
        """Return what a token of each text costs by the shape that is best for it, [P]."""
        if not self._gain.size:
            return np.full(len(self._ease), self._bare)
        return np.array(
            [min(self._bare, (self._cost / (1.0 + ease * self._gain)).min()) for ease in self._ease]
        )
