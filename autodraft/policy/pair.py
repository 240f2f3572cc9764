"""A draft here and a target there, as the controller sees them: knowledge, prices, normalisers.

Puts together what profiles, the link and the configuration say, and makes the policy of each
request. Measures nothing itself.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from autodraft.config import MethodSpec, ObjectiveConfig, SloConfig
from autodraft.cost import SECONDS, Phases, Powers, Prices, blend, phase_units
from autodraft.decoding.sampling import GREEDY
from autodraft.errors import ConfigError
from autodraft.policy.adaptive import Ablation, AdaptivePolicy, PairKnowledge
from autodraft.policy.base import TreeLimits
from autodraft.policy.costs import Latencies, RoundCosts, Shapes
from autodraft.policy.limits import Rates, Steering
from autodraft.policy.survey import DEPTH, WIDTHS, PairPrior
from autodraft.profiling.correction import CorrectedTable
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.tables import CONTEXTS, LatencyTable
from autodraft.units import MS_PER_S

_MONEY: Final = "total_cost"
"""What limits on money count, whatever the objective is."""
_OTHER_KIND_TRUST: Final = 0.1
"""What the survey's trials are worth where tokens are drawn."""
_SAME_RTT: Final = 0.25
_SAME_RTT_S: Final = 2e-3
"""Links whose delays differ by no more than such a share, and so many seconds, are alike."""
_TOKEN_BYTES: Final = 14
"""What a streamed token takes on the wire, about."""


class Normalisers(NamedTuple):
    """What time and an objective are measured in (DESIGN §5); fixed for a pair and its prices.

    Attributes:
        tau_s: Seconds of a token of server-only decoding, by the profile.
        kappa: Units of the objective that such a token costs; for an objective that costs it
            nothing, what a token of the fastest fixed tree costs.
    """

    tau_s: float
    kappa: float


class Tables(NamedTuple):
    """Latency tables of both sides."""

    draft: LatencyTable
    target: LatencyTable


@dataclass(frozen=True)
class Money:
    """What an engine pays: prices, billing and powers."""

    prices: Prices
    billing: str
    powers: Powers

    def phases(self, objective: str) -> Phases:
        """Return what each second and byte costs; raises as ``phase_units``."""
        return phase_units(objective, self.prices, self.billing, self.powers)


def money_of(objective: ObjectiveConfig, powers: Powers) -> Money:
    """Return what a configuration pays."""
    prices = Prices(
        target_per_hour_usd=objective.target_per_hour_cost,
        electricity_usd_per_kwh=objective.draft_electricity_cost_per_kwh,
        uplink_usd_per_gb=objective.user_comm_cost_per_gb,
        downlink_usd_per_gb=objective.cloud_outbound_cost_per_gb,
        draft_per_hour_usd=objective.draft_per_hour_cost,
    )
    return Money(prices, objective.billing, powers)


class Pair:
    """A pair of models over one link."""

    def __init__(
        self,
        tables: Tables,
        prior: PairPrior,
        link: LinkEstimate,
        money: Money,
        *,
        fixed: bool = False,
    ) -> None:
        """Put it together.

        Args:
            tables: Latencies of both sides.
            prior: What a survey found.
            link: The link, as it was measured.
            money: What is paid.
            fixed: Leave the tables as they were measured.
        """
        self._prior = prior
        self._latencies = Latencies(
            CorrectedTable(tables.draft, fixed=fixed),
            CorrectedTable(tables.target, fixed=fixed),
            link,
        )
        self._known: dict[str, PairKnowledge] = {}
        self._steerings: dict[tuple[Phases, SloConfig], Steering] = {}
        self._tables = tables
        self._money = money

    def knowledge(self, kind: str = GREEDY.kind) -> PairKnowledge:
        """Return what requests share and learn that sample in one way (``Sampling.kind``).

        Chances begin with what a survey of greedy answers found, and for drawn ones with less trust
        in it. All kinds share the latencies.
        """
        if kind not in self._known:
            trust = 1.0 if kind == GREEDY.kind else _OTHER_KIND_TRUST
            self._known[kind] = PairKnowledge(self._latencies, *self._prior.knowledge(trust))
        return self._known[kind]

    @property
    def link(self) -> LinkEstimate:
        """The link at present."""
        return self._latencies.link

    def relink(self, link: LinkEstimate) -> None:
        """Take another link; what was learned of the models stays.

        Where it takes notably longer or shorter, how answers begin and what limits need is learned
        anew.
        """
        before, self._latencies.link = self._latencies.link, link
        if abs(link.rtt_s - before.rtt_s) > _SAME_RTT * before.rtt_s + _SAME_RTT_S:
            self._steerings.clear()
            for known in self._known.values():
                known.forget_openings()

    def normalisers(self, objective: str) -> Normalisers:
        """Return τ and κ of an objective; they depend on profile and prices alone.

        Raises:
            ConfigError: If the objective needs a power that is not known.
        """
        units = self._money.phases(objective)
        tau_s = self._tables.target.at(1, CONTEXTS[0])
        kappa = units.server_only_s * tau_s + units.downlink_byte * _TOKEN_BYTES
        if kappa <= 0:
            kappa = self._fastest_tree_units(units)
        if kappa <= 0:
            raise ConfigError(
                f"The objective {objective} costs nothing here: neither server-only decoding nor "
                "the fastest tree adds to it. Correct the prices and watts of the block objective."
            )
        return Normalisers(tau_s, kappa)

    def policy(self, spec: MethodSpec, kind: str = GREEDY.kind) -> AdaptivePolicy:
        """Return the policy of one request.

        Args:
            spec: The method.
            kind: How it samples.

        Raises:
            ConfigError: If its objective needs a power that is not known.
        """
        phases = self._blended(spec)
        limits = TreeLimits(spec.width, spec.max_depth, spec.node_budget)
        steering = self.steering(spec) if spec.slo.limits else None
        return AdaptivePolicy(limits, phases, self.knowledge(kind), _ablation(spec), steering)

    def steers(self, spec: MethodSpec) -> bool:
        """Return whether the limits of a spec have been followed before."""
        return (self._blended(spec), spec.slo) in self._steerings

    def steering(self, spec: MethodSpec) -> Steering:
        """Return what holds a spec to its limits, from request to request.

        Raises:
            ConfigError: If the objective, or total cost, needs a power that is not known.
        """
        nominal = self._blended(spec)
        key = (nominal, spec.slo)
        if key not in self._steerings:
            tau_s, kappa_usd = self.normalisers(_MONEY)
            rates = Rates(tau_s, kappa_usd, self._money.phases(_MONEY))
            self._steerings[key] = Steering(nominal, rates, spec.slo)
        return self._steerings[key]

    def _blended(self, spec: MethodSpec) -> Phases:
        assert spec.cs is not None, "only autodraft is adapted"
        tau_s, kappa = self.normalisers(spec.objective)
        return blend(self._money.phases(spec.objective), spec.cs, tau_s, kappa)

    def _fastest_tree_units(self, units: Phases) -> float:
        """Return the units per token of the fastest fixed tree over a link without delay."""
        tables, gains = self._tables, self.knowledge().gains
        as_measured = Latencies(
            CorrectedTable(tables.draft), CorrectedTable(tables.target), LinkEstimate(0.0)
        )
        cap = gains.gains.shape[2] - 1
        costs = RoundCosts(SECONDS, as_measured, CONTEXTS[0], cap)
        best = Shapes(costs, gains, DEPTH, WIDTHS[-1]).cheapest()
        sending_s = best.cost - best.drafting
        total = units.draft_s * best.drafting + units.verify_s * sending_s
        return total / (1.0 + best.gain)


def _ablation(spec: MethodSpec) -> Ablation:
    width, depth, nodes = spec.fixed
    still = {
        "no_width": Ablation(width=width),
        "no_depth": Ablation(depth=depth),
        "no_nodes": Ablation(nodes=nodes),
        "no_calibration": Ablation(calibrated=False),
    }
    return still.get(spec.mode, Ablation())


def describe_pair(pair: Pair) -> str:
    """Return what is known of a pair as lines for people."""
    known = pair.knowledge()
    latencies, link = known.latencies, known.latencies.link
    lines = [
        *_table_lines("draft step", latencies.draft.table),
        *_table_lines("target forward", latencies.target.table),
        f"link: {link.rtt_s * MS_PER_S:.1f} ms, {_rate(link.uplink_bytes_per_s)} up, "
        f"{_rate(link.downlink_bytes_per_s)} down",
        "accepted length by depth, width 8 and 32 nodes: "
        + " ".join(f"{gain:.2f}" for gain in known.gains.gains[:, -1, :33][:, -1]),
    ]
    return "\n".join(lines)


def _table_lines(name: str, table: LatencyTable) -> list[str]:
    rows = " ".join(f"{count:>6}" for count in table.rows)
    lines = [f"{name}, ms by rows:  {rows}"]
    for context, seconds in zip(table.contexts, table.seconds, strict=True):
        times = " ".join(f"{value * MS_PER_S:6.1f}" for value in seconds)
        lines.append(f"{f'behind {context} tokens':>{len(name) + 13}}  {times}")
    return lines


def _rate(bytes_per_s: float) -> str:
    if bytes_per_s == float("inf"):
        return "unlimited"
    return f"{bytes_per_s * 8 / 1e6:.1f} Mbit/s"
