"""How long a run takes, by rates that were measured or are assumed: hand-worked figures."""

import json
from pathlib import Path

import pytest

from autodraft.config import MethodSpec, NetworkSetting
from autodraft.config_io import dump_yaml
from evaluation.estimate import Rates, basis, find_rates, target_cost_usd
from tests.unit.evaluation_fakes import make_config

SERVER_ONLY = MethodSpec(method="server_only", width=0, max_depth=0, node_budget=0)
CHAIN = MethodSpec(method="chain", width=1, max_depth=4, node_budget=4)
AT_SERVER = CHAIN.model_copy(update={"placement": "server"})
NEAR, FAR = NetworkSetting(), NetworkSetting(rtt_ms=100)


@pytest.mark.parametrize(
    ("spec", "network", "seconds"),
    [
        (SERVER_ONLY, NEAR, 50.0),  # 1000 tokens at 20 tokens/s
        (SERVER_ONLY, FAR, 50.0 + 10 * 0.1),  # one round trip a request
        (AT_SERVER, FAR, 50.0 + 10 * 0.1),
        (CHAIN, NEAR, 50.0),
        (CHAIN, FAR, 50.0 + 10 * 0.1 + 500 * 0.1),  # and one every two tokens
    ],
)
def test_an_assumed_rate_and_its_round_trips(
    spec: MethodSpec, network: NetworkSetting, seconds: float
) -> None:
    found, measured = Rates().seconds(spec, network, requests=10, tokens=1000)
    assert found == pytest.approx(seconds)
    assert not measured


def test_a_rate_that_was_measured_over_the_link_has_its_round_trips_in_it() -> None:
    rates = Rates(measured={("chain", 100.0): 4.0, ("chain", 0.0): 10.0})
    assert rates.seconds(CHAIN, FAR, requests=10, tokens=1000) == (250.0, True)
    assert rates.seconds(CHAIN, NEAR, requests=10, tokens=1000) == (100.0, True)
    nearby = NetworkSetting(rtt_ms=20)
    assert rates.seconds(CHAIN, nearby, requests=10, tokens=1000)[0] == pytest.approx(110.2)


def test_the_target_costs_its_price_for_all_of_the_time() -> None:
    config = make_config(objective={"target_per_hour_cost": 1.2})
    assert target_cost_usd(config, seconds=1800) == pytest.approx(0.6)


def make_run(root: Path, name: str, ended_at: str, rows: str, status: str = "finished") -> None:
    folder = root / "example" / name
    folder.mkdir(parents=True)
    manifest = {"status": status, "sessions": [{"ended_at": ended_at}]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "config.resolved.yaml").write_text(dump_yaml(make_config()))
    (folder / "summary.csv").write_text(f"method,rtt_ms,output_tokens,tokens_per_s\n{rows}")


def test_the_newest_finished_run_of_the_same_models_gives_the_rates(tmp_path: Path) -> None:
    make_run(tmp_path, "old", "2026-01-02", "chain,0,10,1\n")
    make_run(tmp_path, "new", "2026-02-01", "chain,0.0,100,10\nchain,0.0,100,40\nlookup,20,,\n")
    make_run(tmp_path, "newest", "2026-03-01", "chain,0,10,9\n", status="stopped")
    (tmp_path / "example" / "damaged").mkdir()
    (tmp_path / "example" / "damaged" / "manifest.json").write_text("{")
    rates = find_rates(tmp_path, make_config(), assumed=7.0)
    assert rates.run == "example/new"
    assert rates.measured == {("chain", 0.0): 200 / (10 + 2.5)}
    assert rates.assumed == 7.0


def test_a_run_of_other_models_tells_nothing(tmp_path: Path) -> None:
    make_run(tmp_path, "one", "2026-01-02", "chain,0,10,1\n")
    config = make_config()
    models = config.models.model_copy(update={"dtype": "float32"})
    other = config.model_copy(update={"models": models})
    assert find_rates(tmp_path, other, assumed=7.0) == Rates(7.0)
    assert find_rates(tmp_path / "nowhere", config, assumed=7.0) == Rates(7.0)


def test_what_an_estimate_rests_on_is_said() -> None:
    rates = Rates(5.0, {}, "example/one")
    assert basis(rates, ["chain"], []) == "rates of the run example/one"
    assert basis(rates, ["chain"], ["chain"]).startswith("an assumption: 5 tokens/s")
    mixed = basis(rates, ["chain", "lookup"], ["lookup"])
    assert mixed.startswith("rates of the run example/one; an assumption for lookup: 5 tokens/s")
