"""Method ``autodraft`` over a real socket: whatever it decides, the answer is server-only's.

The latencies that it decides by are made up, so that what it must do is known.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autodraft import Autodraft
from autodraft.config import ExperimentConfig, MethodSpec, ModelsConfig, RuntimeConfig
from autodraft.cost import Powers, Prices
from autodraft.policy.adaptive import AdaptivePolicy
from autodraft.policy.base import Outcome
from autodraft.policy.calibration import Calibration
from autodraft.policy.forecast import ChildForecast
from autodraft.policy.opening import Trials
from autodraft.policy.pair import Money, Pair, Tables
from autodraft.policy.survey import PairPrior
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.tables import LatencyTable
from tests.local_server import LocalServer

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = 40
PROMPT = "Say it again: one two three, one two three, one two"
PRICES = Prices(
    target_per_hour_usd=1.2,
    electricity_usd_per_kwh=0.2,
    uplink_usd_per_gb=0.3,
    downlink_usd_per_gb=0.1,
)
POWERS = Powers(draft_watts=65, draft_idle_watts=15, target_watts=65, target_idle_watts=15)


@pytest.fixture(scope="module")
def engine(tiny_pair: tuple[Path, Path]) -> Iterator[Autodraft]:
    server = LocalServer(tiny_pair[0], dtype="float32")
    config = ExperimentConfig(
        runtime=RuntimeConfig(target_port=server.port),
        models=ModelsConfig(
            base_model_path=str(tiny_pair[0]), draft_model_path=str(tiny_pair[1]), dtype="float32"
        ),
        algorithms={"method_names": "server_only,autodraft"},
    )
    with Autodraft.from_config(config) as running:
        yield running
    server.stop()


@pytest.fixture(scope="module")
def expected(engine: Autodraft) -> list[int]:
    plain = MethodSpec(method="server_only", width=0, max_depth=0, node_budget=0)
    return engine.run(PROMPT, method=plain, max_new_tokens=TOKENS).token_ids


def knows(engine: Autodraft, *, draft_s: float, gain: float, rtt_s: float = 0.0) -> Pair:
    """Let the engine believe in a target of 30 ms whatever the size, and in so quick a draft."""
    tables = Tables(
        LatencyTable([1, 8], [128], [[draft_s, draft_s]]),
        LatencyTable([1, 33], [128], [[0.03, 0.03]]),
    )
    children = ChildForecast()
    prior = PairPrior(
        calibration=Calibration().counts,
        child_sums=children.sums,
        child_trials=children.trials,
        widths=np.array([1]),
        gains=np.full((1, 1, 9), gain),
        ease=np.ones(1),
        rounds=1,
    )
    pair = Pair(tables, prior, LinkEstimate(rtt_s), Money(PRICES, "busy", POWERS), fixed=True)
    engine._user.side.pair = pair
    return pair


def spec(**fields: object) -> MethodSpec:
    shape = {"method": "autodraft", "width": 8, "max_depth": 4, "node_budget": 12}
    return MethodSpec(**{**shape, "cs": 0.0, "handover": True, **fields})


@pytest.mark.parametrize("cs", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("retrieval", [False, True])
def test_trees_that_pay_give_server_onlys_answer(
    engine: Autodraft, expected: list[int], cs: float, retrieval: bool
) -> None:
    knows(engine, draft_s=1e-5, gain=3.0)
    method = spec(cs=cs, handover=False, retrieval=retrieval)
    result = engine.run(PROMPT, method=method, max_new_tokens=TOKENS)
    assert result.token_ids == expected
    assert result.request.handed_over_tokens is None
    assert result.rounds
    assert all(0 < one.num_nodes <= 12 and one.depth <= 4 for one in result.rounds[:-1])
    assert all(one.predicted_s and one.predicted_tokens for one in result.rounds)
    assert sum(hits for _, _, hits in result.request.reliability or []) >= 0


def test_a_link_that_never_pays_leaves_all_to_the_server(
    engine: Autodraft, expected: list[int]
) -> None:
    knows(engine, draft_s=1e-5, gain=3.0, rtt_s=1e6)
    result = engine.run(PROMPT, method=spec(), max_new_tokens=TOKENS)
    assert result.token_ids == expected
    assert result.rounds == []
    assert result.request.handed_over_tokens == len(expected) - 1
    assert result.request.rounds == len(expected) - 1
    assert result.request.target_forwards == len(expected)


def test_a_draft_that_is_never_right_is_given_up_before_round_three(
    engine: Autodraft, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    knows(engine, draft_s=1e-5, gain=3.0)
    # Rounds that seem to cost twice a plain token, and an answer without a hit.
    monkeypatch.setattr(AdaptivePolicy, "cost_of", lambda self, outcome: 2 * self.plain)
    weigh = AdaptivePolicy.weigh
    monkeypatch.setattr(
        AdaptivePolicy,
        "weigh",
        lambda self, outcome: weigh(self, _without_hits(outcome)),
    )
    result = engine.run(PROMPT, method=spec(), max_new_tokens=TOKENS)
    assert result.token_ids == expected
    assert 1 <= len(result.rounds) <= 2
    emitted = sum(one.emitted_tokens for one in result.rounds)
    assert result.request.handed_over_tokens == len(expected) - 1 - emitted


def _without_hits(outcome: Outcome) -> Outcome:
    return replace(outcome, reached=outcome.reached[:1])


def test_going_to_and_fro_loses_no_token(
    engine: Autodraft, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    knows(engine, draft_s=1e-5, gain=3.0)
    monkeypatch.setattr(AdaptivePolicy, "cost_of", lambda self, outcome: 100 * self.plain)
    monkeypatch.setattr(Trials, "due", lambda self, loss: True)
    monkeypatch.setattr(AdaptivePolicy, "loss", property(lambda self: 0.0))
    result = engine.run(PROMPT, method=spec(), max_new_tokens=TOKENS)
    assert result.token_ids == expected
    alone = result.request.handed_over_tokens or 0
    assert len(result.rounds) >= 2
    assert alone >= 2
    assert alone + sum(one.emitted_tokens for one in result.rounds) == len(expected) - 1


def test_the_ablations_hold_what_they_say(engine: Autodraft, expected: list[int]) -> None:
    knows(engine, draft_s=1e-5, gain=3.0)
    for mode, of in (("no_width", "width"), ("no_depth", "depth"), ("no_nodes", "num_nodes")):
        method = spec(mode=mode, handover=False, fixed=(2, 3, 5))
        result = engine.run(PROMPT, method=method, max_new_tokens=TOKENS)
        assert result.token_ids == expected
        found = [getattr(one, of) for one in result.rounds[:-2]]
        wanted = {"width": 2, "depth": 3, "num_nodes": 5}[of]
        assert max(found) <= wanted
        if mode == "no_nodes":
            assert set(found) == {wanted}
