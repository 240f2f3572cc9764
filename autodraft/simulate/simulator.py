"""Methods over traces and tables: answers in no time, with the records of real ones.

Takes method specs as the engine does, and keeps what requests of a pair learn from each other: one
simulator is one pair over one link.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from autodraft.config import MethodSpec, NetworkSetting, ObjectiveConfig
from autodraft.cost import Powers
from autodraft.decoding.retrieval import AcceptanceTable, Retriever
from autodraft.errors import ConfigError
from autodraft.policy import POLICIES, TreeLimits
from autodraft.policy.handover import HandOver
from autodraft.policy.pair import Money, Pair, Tables, money_of
from autodraft.policy.survey import MOST_NODES, PairPrior, SurveyPolicy
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.traces import Places, Trace
from autodraft.records import RequestRecord, RoundRecord
from autodraft.simulate.answers import (
    Answer,
    Drafter,
    decode_adaptively,
    decode_alone,
    decode_in_rounds,
)
from autodraft.simulate.clock import Tally, World
from autodraft.simulate.devices import Devices
from autodraft.units import MS_PER_S

_SURVEYED: Final = 10
"""Answers that a prior is learned from where none is given."""


class Simulated(NamedTuple):
    """A simulated answer.

    Attributes:
        request: Its record.
        rounds: Those of its rounds.
    """

    request: RequestRecord
    rounds: list[RoundRecord]


@dataclass(frozen=True)
class Place:
    """Where methods are simulated.

    Attributes:
        devices: Both machines.
        money: Prices, billing and powers.
        link: Delay and bandwidth.
    """

    devices: Devices
    money: Money
    link: LinkEstimate


class Simulator:
    """Answers traces by any method."""

    def __init__(
        self, place: Place, traces: Sequence[Trace], prior: PairPrior | None = None
    ) -> None:
        """Prepare.

        Args:
            place: Where it happens.
            traces: What may be asked.
            prior: What is known of the pair before the first answer; None learns it from the first
                ten traces, as a survey would.

        Raises:
            ConfigError: If there is no trace, or nothing can be learned from them.
        """
        if not traces:
            raise ConfigError("There is no trace to simulate. Record one with run.SAVE_TRACE=1.")
        self.traces = traces
        self._place = place
        self._places = {id(trace): Places.of(trace) for trace in traces}
        self._acceptance = AcceptanceTable()
        self._prior = prior
        self._pair: Pair | None = None

    @property
    def pair(self) -> Pair:
        """What is known of the pair."""
        if self._pair is None:
            place, devices = self._place, self._place.devices
            tables = Tables(devices.draft, devices.target)
            self._pair = Pair(tables, self.prior, place.link, place.money)
        return self._pair

    @property
    def prior(self) -> PairPrior:
        """What is known of the pair before the first answer; machines and link play no part.

        Raises:
            ConfigError: If it is to be learned from the traces, and nothing can be.
        """
        if self._prior is None:
            self._prior = self._surveyed()
        return self._prior

    def answer(self, trace: Trace, spec: MethodSpec, limit: int) -> Simulated:
        """Answer one of the traces.

        Args:
            trace: The answer.
            spec: The method.
            limit: Most tokens.

        Raises:
            ConfigError: If the method does not exist.
        """
        spec.require_available()
        place = self._place
        tally = Tally(World(place.devices, place.money.powers, place.link))
        answer = Answer(trace, self._places[id(trace)], tally, limit)
        _METHODS.get(spec.method, Simulator._in_rounds)(self, answer, spec)
        speculates = spec.method not in _PLAIN
        record = tally.record(
            spec.label,
            len(trace.prompt_ids),
            answer.output_ids,
            takes_part=speculates and spec.placement == "user",
            speculates=speculates,
            ended=answer.ended,
            hands_over=spec.handover,
        )
        return Simulated(record, tally.rounds)

    def _alone(self, answer: Answer, spec: MethodSpec) -> None:
        decode_alone(answer)

    def _in_rounds(self, answer: Answer, spec: MethodSpec) -> None:
        limits = TreeLimits(spec.width, spec.max_depth, spec.node_budget)
        retrieves = spec.retrieval or not spec.needs_draft_model
        by = Drafter(
            POLICIES[spec.method](limits),
            Retriever(self._acceptance) if retrieves else None,
            spec.needs_draft_model,
            spec.placement == "server",
        )
        decode_in_rounds(answer, by, spec.node_budget)

    def _adaptive(self, answer: Answer, spec: MethodSpec) -> None:
        policy = self.pair.policy(spec)
        handover = HandOver(
            policy.opening, policy.trials, enabled=spec.handover, confidence=policy.confidence
        )
        retriever = Retriever(self._acceptance) if spec.retrieval else None
        decode_adaptively(answer, Drafter(policy, retriever, has_model=True), policy, handover)

    def _surveyed(self) -> PairPrior:
        policy = SurveyPolicy(MOST_NODES)
        world = World(self._place.devices, self._place.money.powers, self._place.link)
        for trace in self.traces[:_SURVEYED]:
            policy.begin_text()
            answer = Answer(trace, self._places[id(trace)], Tally(world), len(trace.output_ids))
            decode_in_rounds(answer, Drafter(policy, None, has_model=True), MOST_NODES)
        if not policy.rounds:
            raise ConfigError(
                "Nothing can be learned of a pair whose traces have one token each. Record longer "
                "answers."
            )
        return policy.prior()


_PLAIN: Final = frozenset({"server_only"})
_METHODS: Final[dict[str, Callable[[Simulator, Answer, MethodSpec], None]]] = {
    "server_only": Simulator._alone,
    "autodraft": Simulator._adaptive,
}


def place_of(devices: Devices, objective: ObjectiveConfig, network: NetworkSetting) -> Place:
    """Return where a configuration would run, on machines with these tables.

    Args:
        devices: The machines.
        objective: Prices, billing and powers.
        network: The link; its jitter is left out.
    """
    powers = Powers(
        draft_watts=objective.draft_watts,
        draft_idle_watts=objective.draft_idle_watts,
        target_watts=objective.target_watts,
        target_idle_watts=objective.target_idle_watts,
    )
    link = link_of(network.rtt_ms / MS_PER_S, network.uplink_mbps, network.downlink_mbps)
    return Place(devices, money_of(objective, powers), link)


def link_of(rtt_s: float, uplink_mbps: float | None, downlink_mbps: float | None) -> LinkEstimate:
    """Return a link.

    Args:
        rtt_s: Delay of an empty round trip, in seconds.
        uplink_mbps: Bandwidth to the target, in Mbit/s; None is unlimited.
        downlink_mbps: Bandwidth from it.
    """

    def rate(mbps: float | None) -> float:
        return float("inf") if mbps is None else mbps * 1e6 / 8

    return LinkEstimate(rtt_s, rate(uplink_mbps), rate(downlink_mbps))
