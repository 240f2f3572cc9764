"""Whatever drafts, where and in what shapes: the answer is server-only's, token for token.

Tiny random models in float32. Models, prompts, trees and wishes are drawn by hypothesis, the same
ones at each run. There is no socket, but every message is encoded and decoded as on the wire.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from autodraft.cost import Powers, Prices
from autodraft.engine.session import Request
from autodraft.policy.adaptive import AdaptivePolicy
from autodraft.policy.calibration import Calibration
from autodraft.policy.forecast import ChildForecast
from autodraft.policy.pair import Money, Pair, Tables
from autodraft.policy.survey import PairPrior
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.tables import LatencyTable
from tests.integration.lossless_cases import (
    TOKEN,
    Case,
    cases,
    connect,
    drafted,
    server_only,
    side_of,
    specs,
)

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.timeout(900)]

CASES = {"tree": 300, "retrieving": 200, "adaptive": 250, "co-located": 120, "conversation": 50}
"""How many of each kind are tried."""


@dataclass
class Tally:
    """What cases have shown, so that no part of it can be missing unseen.

    Attributes:
        cases: Answers compared.
        accepted: Drafted tokens that were right.
        refused: Drafted tokens that were not.
        alone: Tokens that the server made after a hand-over.
        ahead_hits: Rounds that began from what was drafted ahead.
        reused: Tokens of prompts that the target's cache held already.
        finishes: Reasons why answers ended.
    """

    cases: int = 0
    accepted: int = 0
    refused: int = 0
    alone: int = 0
    ahead_hits: int = 0
    reused: int = 0
    finishes: set[str] = field(default_factory=set)

    def add(self, request: Request) -> None:
        """Count the answer of a method."""
        record = request.record
        self.cases += 1
        self.accepted += record.accepted_tokens
        self.refused += record.sent_nodes - record.accepted_tokens
        self.alone += record.handed_over_tokens or 0
        self.ahead_hits += record.ahead_hits
        self.reused += record.reused_prompt_tokens
        self.finishes.add(record.finish_reason)


def try_all(kind: str, check: Callable[[Any, Tally], None], asked: st.SearchStrategy[Any]) -> Tally:
    """Check as many cases as the kind is to have."""
    tally = Tally()

    @settings(
        max_examples=CASES[kind],
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(asked)
    def run(one: Any) -> None:
        check(one, tally)

    run()
    assert tally.cases >= CASES[kind]
    assert tally.finishes == {"stop", "length"}
    assert tally.accepted > tally.cases
    assert tally.refused > tally.cases
    return tally


TREES = ("chain", "fixed_tree", "opt_tree")


def check(case: Case, tally: Tally) -> None:
    side = side_of(case)
    found, request = drafted(case, side, connect(case, side))
    assert found == server_only(case)
    tally.add(request)


def test_a_draft_models_trees_change_nothing() -> None:
    try_all("tree", check, cases(specs(TREES)))


def test_retrieval_changes_nothing() -> None:
    grafted, alone = specs(TREES, retrieval=True), specs(["lookup"])
    try_all("retrieving", check, cases(grafted | alone))


def test_drafting_on_the_server_changes_nothing() -> None:
    grafted = specs(TREES, retrieval=st.booleans(), placement="server")
    alone = specs(["lookup"], placement="server")
    try_all("co-located", check, cases(grafted | grafted | alone))


def pair_over(rtt_s: float) -> Pair:
    """Return a pair of a quick draft and a target of 30 ms, over a link of so many seconds."""
    children = ChildForecast()
    prior = PairPrior(
        calibration=Calibration().counts,
        child_sums=children.sums,
        child_trials=children.trials,
        widths=np.array([1]),
        gains=np.full((1, 1, 9), 3.0),
        ease=np.ones(1),
        rounds=1,
    )
    tables = Tables(
        LatencyTable([1, 8], [128], [[1e-5, 1e-5]]), LatencyTable([1, 33], [128], [[0.03, 0.03]])
    )
    prices = Prices(
        target_per_hour_usd=1.2,
        electricity_usd_per_kwh=0.2,
        uplink_usd_per_gb=0.3,
        downlink_usd_per_gb=0.1,
    )
    powers = Powers(draft_watts=65, draft_idle_watts=15, target_watts=65, target_idle_watts=15)
    return Pair(tables, prior, LinkEstimate(rtt_s), Money(prices, "busy", powers), fixed=True)


_ADAPTIVE = specs(
    ["autodraft"],
    cs=st.sampled_from([0.0, 0.5, 1.0]),
    retrieval=st.booleans(),
    handover=st.booleans(),
    proactive=st.booleans(),
    mode=st.sampled_from(["full", "full", "no_width", "no_depth", "no_nodes", "no_calibration"]),
    fixed=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 12)),
)
_LINKS = st.fixed_dictionaries(
    {"rtt_s": st.sampled_from([0.0, 1e6]), "dear": st.booleans(), "spell": st.integers(1, 6)}
)


def check_adaptive(asked: tuple[Case, dict[str, Any]], tally: Tally) -> None:
    case, link = asked
    side = side_of(case)
    side.pair = pair_over(link["rtt_s"])
    with pytest.MonkeyPatch.context() as patch:
        if link["dear"]:  # rounds are given up as soon as they are begun
            patch.setattr(AdaptivePolicy, "cost_of", lambda self, outcome: 100 * self.plain)
        found, request = drafted(case, side, connect(case, side, link["spell"]))
    assert found == server_only(case)
    tally.add(request)


def test_the_controller_changes_nothing_and_handing_over_and_back_neither() -> None:
    tally = try_all("adaptive", check_adaptive, st.tuples(cases(_ADAPTIVE), _LINKS))
    assert tally.ahead_hits > tally.cases / 10
    assert tally.alone > 0


def check_conversation(asked: tuple[Case, list[tuple[int, list[int]]]], tally: Tally) -> None:
    case, turns = asked
    side = side_of(case)
    remote = connect(case, side)
    for taken_back, question in turns:
        found, request = drafted(case, side, remote, reuse=True)
        assert found == server_only(case)
        tally.add(request)
        said = case.prompt + found.tokens
        prompt = (said[: max(1, len(said) - taken_back)] + question)[: case.models.context - 2]
        case = replace(case, prompt=prompt)


def test_what_is_left_in_the_caches_changes_nothing() -> None:
    turn = st.tuples(st.integers(0, 60), st.lists(TOKEN, min_size=1, max_size=12))
    turns = st.lists(turn, min_size=2, max_size=4)
    spec = specs(TREES, retrieval=st.booleans(), placement=st.sampled_from(["user", "server"]))
    tally = try_all("conversation", check_conversation, st.tuples(cases(spec), turns))
    assert tally.reused > tally.cases


def test_these_are_five_hundred_cases() -> None:
    assert sum(CASES.values()) >= 500
