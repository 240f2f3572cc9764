"""The benchmarks measure what they say and end with the line others read; no time is judged."""

import json
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from autodraft.decoding.verification import walk
from autodraft.policy import FixedTreePolicy, TreeLimits
from autodraft.tree.draft_tree import node_depths, received_tree
from tests.benchmark_process import run


def figures_of(script: str, *options: str) -> dict[str, Any]:
    done = run(script, *options)
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


@pytest.fixture
def benchmarks(benchmark_folder: None) -> dict[str, ModuleType]:
    """The benchmarks' modules, imported as their scripts import them."""
    import _common
    import _stub_models
    import forward
    import link_shaping
    import round_overhead

    return {m.__name__: m for m in (_common, _stub_models, forward, link_shaping, round_overhead)}


@pytest.mark.parametrize("script", ["round_overhead.py", "forward.py", "link_shaping.py"])
def test_help_names_the_options_that_every_benchmark_has(script: str) -> None:
    done = run(script, "--help")
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout
    assert "--seed" in done.stdout


def test_round_overhead_ends_with_every_figure_and_the_exact_bytes() -> None:
    figures = figures_of("round_overhead.py", "--rounds", "20", "--seed", "3")
    assert figures["benchmark"] == "round_overhead"
    assert figures["rounds"] == 20
    assert figures["seed"] == 3
    assert 0 < figures["min_ms"] <= figures["median_ms"] <= figures["p95_ms"]
    # Array, type, a round below 128 in a byte each, and three bytes of length before the nodes.
    assert figures["uplink_bytes_per_node"] == 4
    assert figures["uplink_header_bytes"] == 6
    assert figures["uplink_bytes"] == 64 * 4 + 6
    # Eight path bytes, a bonus token above 65,535 in five, and two times of three bytes or more.
    assert 8 + 5 < figures["downlink_bytes"] <= 64


@pytest.mark.embedded
def test_forward_ends_with_the_worst_ratio_of_the_cases_it_ran() -> None:
    options = ("--repeats", "2", "--sizes", "1", "9", "--contexts", "16")
    figures = figures_of("forward.py", *options)
    assert figures["benchmark"] == "forward"
    assert figures["turns"] == 2
    assert set(figures["cases"]) == {"1@16", "9@16"}
    ratios = [case["ratio"] for case in figures["cases"].values()]
    assert figures["worst_ratio"] == max(ratios)
    assert min(ratios) > 0


@pytest.mark.parametrize("option", ["--repeats=0", "--sizes=-1", "--dtype=float8"])
def test_a_bad_value_ends_with_the_usage_and_no_json(option: str) -> None:
    done = run("forward.py", option)
    assert done.returncode == 2
    assert "usage:" in done.stderr
    assert done.stdout == ""


def test_what_cannot_be_measured_ends_with_a_reason_and_no_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a_file"
    blocked.write_text("")
    monkeypatch.setenv("AUTODRAFT_CACHE_DIR", str(blocked / "cache"))
    done = run("forward.py", "--repeats", "1")
    assert done.returncode == 1
    assert done.stderr.startswith("forward: ")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_the_stub_target_accepts_one_path_of_full_depth_and_no_other(
    benchmarks: dict[str, ModuleType],
) -> None:
    stub = benchmarks["_stub_models"]
    policy = FixedTreePolicy(TreeLimits(8, 8, 64))
    drafter = stub.StubDrafter(seed=5)
    drafter.start([stub.FIRST_ID] * 4, 1000, policy.limits)
    context = [stub.FIRST_ID] * 4
    for _ in range(50):
        sent = drafter.draft(context, policy, 8, 64).tree
        tree = received_tree(context[-1], sent.tokens[1:], sent.parents[1:])  # no twin siblings
        assert tree.num_nodes == 64
        assert tree.depth == 8
        assert sent.tokens.min() >= stub.FIRST_ID
        assert sent.tokens.max() < stub.VOCAB_SIZE
        path, bonus = walk(tree.tokens, tree.parents, stub.next_tokens(tree.tokens))
        block = [*tree.tokens[path].tolist(), bonus]
        assert block == stub.follow(context[-1], 9)
        drafter.commit(path)
        context += block


@pytest.mark.parametrize("count", [1, 2, 8, 9, 32, 64])
def test_a_timed_tree_is_in_level_order_and_as_deep_as_it_can_be(
    benchmarks: dict[str, ModuleType], count: int
) -> None:
    forward = benchmarks["forward"]
    parents = forward.random_parents(random.Random(count), count)
    received_tree(0, np.arange(1, count), parents[1:])  # raises unless parents come first
    depths = node_depths(parents)
    assert len(parents) == count
    assert depths.max() == min(forward.DEPTH, count - 1)
    assert (np.diff(depths) >= 0).all()
    path = forward.deepest_path(parents)
    assert path[0] == 0
    assert parents[path[1:]].tolist() == path[:-1].tolist()
    assert len(path) == depths.max() + 1


def test_ratios_come_from_medians_and_their_spread_from_parts_of_the_run(
    benchmarks: dict[str, ModuleType],
) -> None:
    forward = benchmarks["forward"]
    case = forward.Case(128, 8, lambda: None, lambda: None)
    ours = [forward.Span(wall, 1.0) for wall in (2.0, 2.0, 3.0, 90.0, 2.0)]
    stock = [forward.Span(2.0, 4.0)] * 5
    timing = forward.Timing(case, ours, stock)
    assert timing.medians == (forward.Span(2.0, 1.0), forward.Span(2.0, 4.0))
    assert timing.spread == (1.0, 45.0)


def test_turns_alternate_and_end_with_the_time_budget(benchmarks: dict[str, ModuleType]) -> None:
    forward, calls = benchmarks["forward"], []
    case = forward.Case(1, 1, lambda: calls.append("ours"), lambda: calls.append("stock"))
    (timing,) = forward.measure([case], repeats=2, budget_s=60.0)
    assert calls[-4:] == ["ours", "stock", "stock", "ours"]
    assert len(timing.ours) == len(timing.stock) == 2
    (cut_short,) = forward.measure([case], repeats=1000, budget_s=0.0)
    assert len(cut_short.ours) == 1


def test_the_closing_line_holds_no_figure_that_is_not_a_number(
    benchmarks: dict[str, ModuleType],
) -> None:
    with pytest.raises(ValueError, match="JSON"):
        benchmarks["_common"].print_json("x", {"median_ms": float("nan")})


def test_a_percentile_is_the_nearest_rank(benchmarks: dict[str, ModuleType]) -> None:
    percentile = benchmarks["_common"].percentile
    assert percentile(range(100, 0, -1), 0.95) == 95
    assert percentile([7.0], 0.95) == 7.0


@pytest.mark.embedded
def test_link_shaping_ends_with_every_figure_of_every_round_trip() -> None:
    figures = figures_of(
        "link_shaping.py", "--turns", "1", "--tokens", "4", "--rtt", "30", "--seed", "3"
    )
    assert figures["benchmark"] == "link_shaping"
    assert (figures["turns"], figures["tokens"], figures["seed"]) == (1, 4, 3)
    assert set(figures["rtts_ms"]) == {"0", "30"}
    bare, shaped = figures["rtts_ms"]["0"], figures["rtts_ms"]["30"]
    assert shaped["ping_ms"] >= 30 > bare["ping_ms"]
    assert shaped["round_link_ms"] >= 30
    assert "round_error_ms" not in bare
    assert set(shaped["methods"]) == {"server_only", "chain", "chain@server"}
    assert all(method["ttft_ms"] >= 30 for method in shaped["methods"].values())


def turn_of(shaping: ModuleType, added_s: float) -> Any:
    """Return five tokens in 0.5 s at RTT 0, ``chain`` in two rounds; more at 100 ms."""

    def answer(ttft_s: float, total_s: float, *link_s: float) -> Any:
        return shaping.Answer((1, 2, 3, 4, 5), ttft_s, total_s, link_s)

    return {
        ("server_only", 0): answer(0.1, 0.5),
        ("chain", 0): answer(0.1, 0.3, 0.002, 0.002),
        ("chain@server", 0): answer(0.1, 0.3, 0.0, 0.0),
        ("server_only", 100): answer(0.2 + added_s, 0.6 + added_s),
        ("chain", 100): answer(0.2, 0.6, 0.102 + added_s, 0.102 + added_s),
        ("chain@server", 100): answer(0.2, 0.4, 0.0, 0.0),
    }


@pytest.mark.parametrize(
    ("added_s", "as_wanted"), [(0.0, True), (0.004, True), (0.006, False), (-0.006, False)]
)
def test_link_shaping_compares_with_the_bare_link(
    benchmarks: dict[str, ModuleType], added_s: float, as_wanted: bool
) -> None:
    shaping = benchmarks["link_shaping"]
    pings = {0: [0.001], 100: [0.103, 0.104, 0.199]}
    turns = [turn_of(shaping, added_s)] * 2
    figures = shaping.figures(shaping.Measured(turns, pings), [100])
    link = figures["rtts_ms"]["100"]
    assert link["ping_ms"] == 104.0
    assert link["ping_error_ms"] == 3.0
    assert link["round_error_ms"] == pytest.approx(added_s * 1e3)
    assert link["round_error_share"] == pytest.approx(added_s * 10)
    assert figures["worst_round_error_ms"] == pytest.approx(added_s * 1e3)
    assert figures["rounds_as_wanted"] is as_wanted
    assert figures["worst_server_only_tpot_change"] == 0.0
    assert figures["worst_server_only_ttft_error_ms"] == pytest.approx(added_s * 1e3)


def test_link_shaping_takes_speeds_over_totals_and_changes_over_pairs(
    benchmarks: dict[str, ModuleType],
) -> None:
    shaping = benchmarks["link_shaping"]
    figures = shaping.figures(
        shaping.Measured([turn_of(shaping, 0.0)] * 2, {0: [0.001], 100: [0.101]}), [100]
    )
    chain = figures["rtts_ms"]["100"]["methods"]["chain"]
    assert chain["tokens_per_s"] == pytest.approx(10 / 1.2, abs=1e-4)
    assert chain["tpot_ms"] == 100.0
    assert chain["tpot_change"] == 1.0  # 0.4 s for four tokens, 0.2 s without a round trip
    assert chain["ttft_added_ms"] == 100.0
    assert chain["mat"] == 2.0
    at_server = figures["rtts_ms"]["100"]["methods"]["chain@server"]
    assert at_server["speedup"] == 1.5
    assert at_server["ttft_over_server_only_ms"] == 0.0


def test_link_shaping_refuses_answers_that_differ_or_cannot_be_timed(
    benchmarks: dict[str, ModuleType],
) -> None:
    shaping, common = benchmarks["link_shaping"], benchmarks["_common"]
    turn = turn_of(shaping, 0.0)
    shaping.require_equal(turn)
    turn["chain", 100] = shaping.Answer((1, 2, 3, 4, 6), 0.1, 0.2, (0.1,))
    with pytest.raises(common.CannotMeasure, match="^chain at 100 ms does not answer as"):
        shaping.require_equal(turn)
    short = dict.fromkeys(turn, shaping.Answer((1,), 0.1, 0.1, ()))
    with pytest.raises(common.CannotMeasure, match="one token"):
        shaping.require_equal(short)
