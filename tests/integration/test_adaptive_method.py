"""Method ``autodraft`` over a real socket: whatever it decides, the answer is server-only's.

The latencies that it decides by are made up, so that what it must do is known.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from autodraft import Autodraft
from autodraft.config import (
    ExperimentConfig,
    MethodSpec,
    ModelsConfig,
    NetworkSetting,
    RuntimeConfig,
)
from autodraft.cost import Powers, Prices
from autodraft.decoding.sampling import GREEDY, Sampling
from autodraft.engine.ahead import AheadDrafter
from autodraft.engine.survey import MeasuredPowers, Survey
from autodraft.engine.user import Known
from autodraft.errors import ConfigError, StoreError
from autodraft.policy.adaptive import AdaptivePolicy
from autodraft.policy.ahead import Ahead
from autodraft.policy.base import Outcome
from autodraft.policy.calibration import Calibration
from autodraft.policy.forecast import ChildForecast
from autodraft.policy.opening import Trials
from autodraft.policy.pair import Money, Pair, Tables
from autodraft.policy.survey import PairPrior
from autodraft.profiling.link import LinkEstimate
from autodraft.profiling.tables import LatencyTable
from autodraft.profiling.traces import Trace
from autodraft.transport.client import Link
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


def known(engine: Autodraft, pair: Pair) -> None:
    """Let the engine know where the pair's knowledge is from: one trace, always right."""
    tables = Tables(
        LatencyTable([1, 8], [128], [[1e-5, 1e-5]]), LatencyTable([1, 33], [128], [[0.03, 0.03]])
    )
    output = list(range(20, 60))
    trace = Trace(
        prompt_ids=[1, 2, 3],
        output_ids=output,
        tokens=[[token, 7] for token in output],
        log_probs=[[-0.1, -3.0]] * len(output),
    )
    found = Survey(pair._prior, MeasuredPowers(None, None, None), (trace,))
    money = Money(PRICES, "busy", POWERS)
    engine._user._known = {"pair": Known("pair", pair, tables, money, found)}


def test_limits_change_the_work_and_never_the_answer(
    engine: Autodraft, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTODRAFT_DATA_DIR", str(tmp_path))
    # Rounds are cheap, but each takes ten seconds of waiting by the link that it believes in.
    known(engine, knows(engine, draft_s=1e-5, gain=3.0, rtt_s=10.0))
    free = engine.run(PROMPT, method="autodraft", cs=1.0, max_new_tokens=TOKENS)
    assert free.token_ids == expected
    assert free.request.handed_over_tokens == 0
    assert free.limits is None
    known(engine, knows(engine, draft_s=1e-5, gain=3.0, rtt_s=10.0))
    held = engine.run(
        PROMPT, method="autodraft", cs=1.0, slo={"max_tpot_ms": 40}, max_new_tokens=TOKENS
    )
    assert held.token_ids == expected
    assert held.request.handed_over_tokens  # until it is known that the limit is no matter
    (report,) = held.limits or []
    # Alone the server takes 30 ms a token, by its table; the first ten seconds do not count.
    assert (report.tag, report.limit, report.feasible) == ("MAX_TPOT_MS", 40, True)
    assert report.attainable == pytest.approx(30.0)
    later_s = held.request.total_s - held.request.ttft_s
    attained = report.attained or 0.0
    assert attained == pytest.approx(1e3 * later_s / (len(expected) - 1))
    assert report.met == (attained <= 40 * 1.05)


def test_a_limit_out_of_reach_is_said_with_what_is_attainable(
    engine: Autodraft, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTODRAFT_DATA_DIR", str(tmp_path))
    known(engine, knows(engine, draft_s=1e-5, gain=3.0, rtt_s=10.0))
    (found,) = engine.forecast({"MIN_TOKENS_PER_S": 1e6})
    assert not found.feasible
    assert 0 < found.attainable < 1e6
    result = engine.run(
        PROMPT, method="autodraft", slo={"min_tokens_per_s": 1e6}, max_new_tokens=TOKENS
    )
    assert result.token_ids == expected
    (report,) = result.limits or []
    assert (report.feasible, report.met) == (False, False)
    assert report.attainable == pytest.approx(found.attainable)


def test_wrong_limits_are_named(engine: Autodraft) -> None:
    with pytest.raises(ConfigError, match="no limit 'speed'. Allowed: min_tokens_per_s"):
        engine.run(PROMPT, method="autodraft", slo={"speed": 3})
    with pytest.raises(ConfigError):
        engine.run(PROMPT, method="autodraft", slo={"max_tpot_ms": -3})
    with pytest.raises(ValueError, match="is for method='autodraft'"):
        engine.run(PROMPT, method="server_only", slo={"max_tpot_ms": 30})
    with pytest.raises(ConfigError, match="No limit is given"):
        engine.forecast({})


def test_answers_add_to_the_saved_curve(
    engine: Autodraft, expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTODRAFT_DATA_DIR", str(tmp_path / "data"))
    known(engine, knows(engine, draft_s=1e-5, gain=3.0))
    for cs in (0.0, 1.0, 1.0):
        result = engine.run(
            PROMPT,
            method="autodraft",
            cs=cs,
            max_new_tokens=TOKENS,
            save_tradeoff=True,
            tradeoff_dir=tmp_path / "curves",
        )
        assert result.token_ids == expected
    (path,) = (tmp_path / "curves").glob("*.json")
    saved = json.loads(path.read_text())
    assert [point["cs"] for point in saved["predicted"]] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [point["cs"] for point in saved["measured"]] == [0.0, 1.0]
    assert {cs: each["answers"] for cs, each in saved["answers"].items()} == {"0.0": 1, "1.0": 2}
    total_s = saved["answers"]["1.0"]["total_s"]
    assert saved["measured"][1]["tokens_per_s"] == pytest.approx(2 * len(expected) / total_s)
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "data" / "reference").glob("curve-*.json"))) == 1
    with pytest.raises(ValueError, match="save_tradeoff=True is for method='autodraft'"):
        engine.run(PROMPT, method="server_only", save_tradeoff=True)
    path.write_text("{")
    with pytest.raises(StoreError, match="cannot be used"):
        engine.run(PROMPT, method="autodraft", save_tradeoff=True, tradeoff_dir=tmp_path / "curves")


@pytest.fixture
def far(engine: Autodraft) -> Iterator[Autodraft]:
    """The engine over a link of 20 ms."""
    engine.use_network(NetworkSetting(rtt_ms=20))
    engine.connect()
    yield engine
    engine.use_network(NetworkSetting())
    engine.connect()


SAMPLINGS = [GREEDY, Sampling(temperature=0.8, top_p=0.9, seed=5)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "drawn"])
@pytest.mark.parametrize("retrieval", [False, True])
@pytest.mark.parametrize("tokens", [TOKENS, 240])
def test_drafting_ahead_changes_no_token(
    far: Autodraft, sampling: Sampling, retrieval: bool, tokens: int
) -> None:
    plain = MethodSpec(method="server_only", width=0, max_depth=0, node_budget=0)
    options = {"max_new_tokens": tokens, "sampling": sampling}
    wanted = far.run(PROMPT, method=plain, **options).token_ids
    results = []
    for proactive in (False, True):
        knows(far, draft_s=1e-3, gain=3.0, rtt_s=0.02)
        method = spec(proactive=proactive, retrieval=retrieval, handover=False)
        results.append(far.run(PROMPT, method=method, **options))
    off, on = results
    assert off.token_ids == on.token_ids == wanted
    nothing = off.request
    assert (nothing.ahead_nodes, nothing.ahead_s, nothing.saved_s, nothing.wasted_s) == (0,) * 4
    assert all(one.ahead_hit is None for one in off.rounds)
    record, rounds = on.request, on.rounds
    assert record.ahead_nodes == sum(one.ahead_nodes for one in rounds) > 0
    assert record.ahead_s == pytest.approx(sum(one.ahead_s for one in rounds))
    assert record.wasted_s == pytest.approx(sum(one.wasted_s for one in rounds))
    assert record.saved_s == pytest.approx(sum(one.saved_s for one in rounds))
    assert all(0.0 <= one.wasted_s <= one.ahead_s <= one.wait_s for one in rounds)
    behind = [one.ahead_hit for before, one in pairwise(rounds) if before.ahead_nodes]
    assert None not in behind
    assert record.ahead_rounds == len(behind)
    assert record.ahead_hits == sum(map(bool, behind))


def test_a_far_target_leaves_time_to_hit(far: Autodraft) -> None:
    knows(far, draft_s=1e-3, gain=3.0, rtt_s=0.02)
    method = spec(proactive=True, handover=False)
    record = far.run(PROMPT, method=method, max_new_tokens=240).request
    assert record.ahead_hits > 0
    assert record.saved_s > 0


def test_some_rounds_are_run_without_it_as_the_control(far: Autodraft) -> None:
    knows(far, draft_s=1e-3, gain=3.0, rtt_s=0.02)
    rounds = far.run(PROMPT, method=spec(proactive=True, handover=False), max_new_tokens=240).rounds
    assert len(rounds) > 24
    assert [one.ahead_nodes for one in rounds[7:24:8]] == [0, 0, 0]


def test_drafting_ahead_survives_going_to_and_fro(
    far: Autodraft, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    knows(far, draft_s=1e-3, gain=3.0, rtt_s=0.02)
    monkeypatch.setattr(AdaptivePolicy, "cost_of", lambda self, outcome: 100 * self.plain)
    monkeypatch.setattr(Trials, "due", lambda self, loss: True)
    monkeypatch.setattr(AdaptivePolicy, "loss", property(lambda self: 0.0))
    result = far.run(PROMPT, method=spec(proactive=True), max_new_tokens=TOKENS)
    assert result.token_ids == expected
    assert result.request.handed_over_tokens
    assert result.request.ahead_nodes > 0
    again = far.run(PROMPT, method=spec(proactive=True), max_new_tokens=TOKENS)
    assert again.token_ids == expected  # over the cache that the first has left


def test_only_autodraft_at_the_user_drafts_ahead(engine: Autodraft) -> None:
    with pytest.raises(ValueError, match="proactive=True is for method='autodraft'"):
        engine.run(PROMPT, method="chain", proactive=True)
    with pytest.raises(ConfigError, match="proactive=True is for autodraft alone"):
        engine.run(PROMPT, method="autodraft@server", proactive=True)
    with pytest.raises(ConfigError, match="for autodraft alone"):
        MethodSpec(method="chain", width=1, max_depth=2, node_budget=2, proactive=True)
    with pytest.raises(ConfigError, match="drafting|drafts on the server waits for none"):
        spec(proactive=True, placement="server")


def test_nothing_of_it_runs_where_it_was_not_asked_for(
    engine: Autodraft, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("drafting ahead is off")

    for owner, name in ((Ahead, "__init__"), (AheadDrafter, "start"), (Link, "waiting")):
        monkeypatch.setattr(owner, name, fail)
    knows(engine, draft_s=1e-5, gain=3.0)
    result = engine.run(PROMPT, method="autodraft", cs=0.0, max_new_tokens=TOKENS)
    assert result.token_ids == expected
