"""Every column of the tables, against numbers worked out by hand."""

import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.config import ObjectiveConfig
from autodraft.cost import Prices, quantities_of
from autodraft.errors import ContextLengthError
from evaluation.lines import RequestLine
from evaluation.metrics import (
    CATEGORY_COLUMNS,
    RELIABILITY_COLUMNS,
    SUMMARY_COLUMNS,
    TRADEOFF_COLUMNS,
    CurvePoint,
    SummaryRow,
    TradeoffRow,
    prices_of,
    summarise,
    summarise_categories,
    tradeoff,
)
from tests.unit.evaluation_fakes import make_case, make_line, make_record

PRICES = Prices(
    target_per_hour_usd=3.6,  # 0.001 $ a second
    electricity_usd_per_kwh=3.6,  # 1e-6 $ a joule
    uplink_usd_per_gb=1.0,
    downlink_usd_per_gb=2.0,
)


def rows_of(*lines: RequestLine, billing: str = "busy") -> dict[str, SummaryRow]:
    return {row.method: row for row in summarise(lines, PRICES, billing)}


def moved(line: RequestLine, **case: Any) -> RequestLine:
    """Return the line with other fields of its case."""
    return msgspec.structs.replace(line, case=msgspec.structs.replace(line.case, **case))


def failed_line(method: str = "chain", question_id: int = 1, turn: int = 1) -> RequestLine:
    error = ContextLengthError("too long")
    return RequestLine.failed(make_case(method, question_id, turn), error)


def server_line(question_id: int = 1, turn: int = 1, **changes: object) -> RequestLine:
    plain = {
        "total_s": 4.0,
        "rounds": 9,
        "round_tokens": 9,
        "drafted_nodes": 0,
        "target_forwards": 10,
        "draft_s": None,
        "draft_j": 0.0,
        "draft_net_j": 0.0,
    }
    return make_line("server_only", question_id, turn, **(plain | changes))


def test_throughput_is_all_tokens_over_all_seconds() -> None:
    row = rows_of(
        make_line(output_tokens=10, total_s=1.0),
        make_line(question_id=2, output_tokens=20, total_s=5.0),
    )["chain"]
    assert row.tokens_per_s == pytest.approx(30 / 6)  # not the mean of 10 and 4
    assert (row.questions, row.requests, row.errors, row.output_tokens) == (2, 2, 0, 30)


def test_two_turns_are_two_requests_of_one_question() -> None:
    row = rows_of(make_line(turn=1), make_line(turn=2))["chain"]
    assert (row.questions, row.requests) == (1, 2)


def test_first_token_and_later_tokens_are_timed_apart() -> None:
    row = rows_of(
        make_line(ttft_s=0.2, total_s=2.0, output_tokens=10),
        make_line(question_id=2, ttft_s=0.4, total_s=0.4, output_tokens=1),
    )["chain"]
    assert row.ttft_s == pytest.approx(0.3)
    assert row.tpot_s == pytest.approx(1.8 / 9)  # the one-token answer has no later token


def test_mat_is_tokens_per_round_with_the_bonus_token() -> None:
    row = rows_of(
        make_line(rounds=2, round_tokens=10), make_line(question_id=2, rounds=4, round_tokens=8)
    )["chain"]
    assert row.mat == pytest.approx(18 / 6)


def test_plain_decoding_has_a_mat_of_one_and_saves_no_call() -> None:
    row = rows_of(server_line())["server_only"]
    assert row.mat == 1.0
    assert row.calls_saved == 0.0


def test_calls_saved_counts_the_prefill_as_a_call() -> None:
    row = rows_of(make_line(output_tokens=100, target_forwards=24))["chain"]
    assert row.calls_saved == pytest.approx(0.76)


def test_speedup_compares_only_requests_that_both_finished() -> None:
    rows = rows_of(
        server_line(1, total_s=4.0),
        make_line("chain", 1, total_s=2.0),
        make_line("chain", 2, total_s=1000.0),
    )
    assert rows["chain"].speedup == pytest.approx(2.0)
    assert rows["server_only"].speedup == 1.0


def test_identical_share_compares_the_same_question_turn_and_repeat() -> None:
    rows = rows_of(
        server_line(1, output_ids=[1, 2, 3]),
        server_line(1, turn=2, output_ids=[4]),
        server_line(2, output_ids=[5]),
        make_line("chain", 1, output_ids=[1, 2, 3]),
        make_line("chain", 1, 2, output_ids=[4]),
        make_line("chain", 2, output_ids=[5, 6]),
        make_line("chain", 3, output_ids=[7]),
    )
    assert rows["chain"].identical_share == pytest.approx(2 / 3)
    assert rows["server_only"].identical_share == 1.0


def test_without_server_only_there_is_nothing_to_compare_with() -> None:
    row = rows_of(make_line())["chain"]
    assert row.speedup is None
    assert row.identical_share is None


def test_costs_are_per_million_tokens_by_both_billings() -> None:
    row = rows_of(make_line(output_tokens=10))["chain"]
    assert row.target_busy_usd_per_1m == pytest.approx(100.0)  # 1.0 s · 0.001 $/s / 10 · 1e6
    assert row.target_held_usd_per_1m == pytest.approx(250.0)
    assert row.draft_usd_per_1m == pytest.approx(3.6)
    assert row.uplink_usd_per_1m == pytest.approx(0.1)
    assert row.downlink_usd_per_1m == pytest.approx(0.1)
    assert row.total_busy_usd_per_1m == pytest.approx(103.8)
    assert row.total_held_usd_per_1m == pytest.approx(253.8)


@pytest.mark.parametrize(
    ("billing", "total", "api"), [("busy", 103.8, 100.0), ("held", 253.8, 250)]
)
def test_billing_decides_the_objective_columns_alone(
    billing: str, total: float, api: float
) -> None:
    row = rows_of(make_line(), billing=billing)["chain"]
    assert row.billing == billing
    assert row.total_cost_usd_per_1m == pytest.approx(total)
    assert row.api_cost_usd_per_1m == pytest.approx(api)
    assert row.total_busy_usd_per_1m == pytest.approx(103.8)
    assert row.total_held_usd_per_1m == pytest.approx(253.8)


def test_energy_and_bytes_are_per_token() -> None:
    row = rows_of(make_line(output_tokens=10))["chain"]
    assert row.draft_energy_j_per_token == pytest.approx(3.6)
    assert row.target_energy_j_per_token == pytest.approx(9.0)
    assert row.uplink_bytes_per_token == 100
    assert row.downlink_bytes_per_token == 50
    assert row.draft_energy_net_j_per_token == pytest.approx(0.6)
    assert row.target_energy_net_j_per_token == pytest.approx(5.0)


def test_each_side_says_how_its_joules_were_found() -> None:
    row = rows_of(
        make_line(draft_energy_method="rapl", target_energy_method="nvml"),
        make_line(question_id=2, target_energy_method="nvml_power"),
    )["chain"]
    assert row.draft_energy_method == "modelled rapl"
    assert row.target_energy_method == "nvml nvml_power"


def test_what_was_not_measured_stays_unknown() -> None:
    unknown = ("draft_j", "draft_net_j", "target_j", "target_net_j")
    methods = ("draft_energy_method", "target_energy_method")
    lines = [make_line(), make_line(question_id=2, **dict.fromkeys((*unknown, *methods)))]
    row = rows_of(*lines)["chain"]
    assert row.draft_energy_j_per_token is None
    assert row.target_energy_j_per_token is None
    assert row.draft_usd_per_1m is None
    assert row.draft_energy_net_j_per_token is None
    assert row.target_energy_net_j_per_token is None
    assert row.total_busy_usd_per_1m is None
    assert row.total_cost_usd_per_1m_ci_low is None
    assert row.total_cost_usd_per_1m_mean_of_questions is None
    assert row.target_busy_usd_per_1m == pytest.approx(100.0)
    assert row.api_cost_usd_per_1m_ci_low == pytest.approx(100.0)
    assert row.draft_energy_method == "modelled"


def test_failed_requests_are_counted_and_enter_no_figure() -> None:
    row = rows_of(make_line(), failed_line(question_id=2))["chain"]
    assert (row.requests, row.errors) == (1, 1)
    assert row.tokens_per_s == pytest.approx(5.0)


def test_a_method_that_never_finished_has_a_row_without_figures() -> None:
    row = rows_of(failed_line())["chain"]
    assert (row.requests, row.errors, row.output_tokens) == (0, 1, 0)
    assert row.tokens_per_s is None
    assert row.mat is None
    assert row.ttft_p99_s is None
    assert row.total_busy_usd_per_1m is None


def test_a_request_that_was_asked_again_is_what_its_last_line_says() -> None:
    row = rows_of(failed_line(), make_line(total_s=1.0), failed_line(question_id=2))["chain"]
    assert (row.questions, row.requests, row.errors) == (1, 1, 1)
    assert row.tokens_per_s == pytest.approx(10.0)
    row = rows_of(make_line(), failed_line())["chain"]
    assert (row.requests, row.errors) == (0, 1)


def test_a_rented_device_is_paid_where_the_user_drafts_and_only_there() -> None:
    assert quantities_of(make_record("chain")).total_s == 2.0
    assert quantities_of(make_record("lookup", draft_s=None)).total_s == 2.0
    # Nothing to propose in this request: the device was there all the same.
    assert quantities_of(make_record("lookup", draft_s=None, drafted_nodes=0)).total_s == 2.0
    for method in ("server_only", "chain@server", "chain_d2@server"):
        assert quantities_of(make_record(method)).total_s == 0.0
        assert quantities_of(make_record(method, draft_j=None)).draft_j == 0.0


def test_every_method_is_billed_by_the_same_rule() -> None:
    # 10 tokens each, 1 kB up and 0.5 kB down: 0.1 + 0.1 $ per 1M tokens of traffic.
    plain = server_line(target_busy_s=3.0, target_held_s=4.5)
    distributed = make_line("chain", target_busy_s=1.0, target_held_s=2.5, draft_j=36.0)
    # 1.0 s of verification and 0.5 s of drafting on the billed machine; nothing at the user.
    colocated = make_line(
        "chain@server",
        target_busy_s=1.5,
        target_held_s=2.0,
        draft_s=None,
        server_draft_s=0.5,
        draft_j=0.0,
        draft_net_j=0.0,
    )
    rows = rows_of(plain, distributed, colocated)
    found = {
        method: (
            row.target_busy_usd_per_1m,
            row.target_held_usd_per_1m,
            row.draft_usd_per_1m,
            row.total_busy_usd_per_1m,
            row.total_held_usd_per_1m,
        )
        for method, row in rows.items()
    }
    assert found["server_only"] == pytest.approx((300.0, 450.0, 0.0, 300.2, 450.2))
    assert found["chain"] == pytest.approx((100.0, 250.0, 3.6, 103.8, 253.8))
    assert found["chain@server"] == pytest.approx((150.0, 200.0, 0.0, 150.2, 200.2))
    assert rows["chain"].cost_ratio == pytest.approx(103.8 / 300.2)
    assert rows["chain@server"].cost_ratio == pytest.approx(150.2 / 300.2)
    held = rows_of(plain, distributed, colocated, billing="held")
    assert held["chain@server"].cost_ratio == pytest.approx(200.2 / 450.2)


_AMOUNTS = st.floats(0, 1e7)
_BYTES = st.integers(0, 10**12)


@given(
    records=st.lists(
        st.fixed_dictionaries(
            {
                "output_tokens": st.integers(1, 10**6),
                "target_busy_s": _AMOUNTS,
                "target_held_s": _AMOUNTS,
                "total_s": st.floats(1e-3, 1e7),
                "draft_j": _AMOUNTS,
                "uplink_bytes": _BYTES,
                "downlink_bytes": _BYTES,
            }
        ),
        min_size=1,
        max_size=6,
    ),
    method=st.sampled_from(["server_only", "chain", "opt_tree@server"]),
    prices=st.builds(
        Prices,
        target_per_hour_usd=st.floats(0, 1e3),
        electricity_usd_per_kwh=st.floats(0, 1e2),
        uplink_usd_per_gb=st.floats(0, 1e2),
        downlink_usd_per_gb=st.floats(0, 1e2),
        draft_per_hour_usd=st.none() | st.floats(0, 1e3),
    ),
    billing=st.sampled_from(["busy", "held"]),
)
def test_the_components_of_every_cost_add_up(
    records: list[dict[str, Any]], method: str, prices: Prices, billing: str
) -> None:
    lines = [make_line(method, number, **record) for number, record in enumerate(records)]
    for row in summarise(lines, prices, billing):
        others = (row.draft_usd_per_1m, row.uplink_usd_per_1m, row.downlink_usd_per_1m)
        for target, total in (
            (row.target_busy_usd_per_1m, row.total_busy_usd_per_1m),
            (row.target_held_usd_per_1m, row.total_held_usd_per_1m),
        ):
            assert None not in (target, total, *others)
            parts = sum(part for part in (target, *others) if part is not None)
            assert abs((total or 0.0) - parts) <= 1e-9 * max(1.0, total or 0.0)
        chosen = (row.total_busy_usd_per_1m, row.target_busy_usd_per_1m)
        if billing == "held":
            chosen = (row.total_held_usd_per_1m, row.target_held_usd_per_1m)
        assert (row.total_cost_usd_per_1m, row.api_cost_usd_per_1m) == chosen


# -------------------------------------------------------------------- means, intervals, percentiles


def test_every_headline_figure_is_given_as_a_mean_of_questions_too() -> None:
    rows = rows_of(
        server_line(1, total_s=4.0),
        server_line(2, total_s=10.0, output_tokens=20, rounds=19, round_tokens=19),
        make_line("chain", 1, total_s=2.0, target_busy_s=1.0),
        make_line("chain", 2, total_s=10.0, target_busy_s=4.0, output_tokens=20),
    )
    row = rows["chain"]
    assert row.tokens_per_s == pytest.approx(30 / 12)
    assert row.tokens_per_s_mean_of_questions == pytest.approx((5 + 2) / 2)
    assert row.mat == row.mat_mean_of_questions == pytest.approx(3.0)
    assert row.calls_saved == pytest.approx(1 - 8 / 30)
    assert row.calls_saved_mean_of_questions == pytest.approx(((1 - 4 / 10) + (1 - 4 / 20)) / 2)
    assert row.api_cost_usd_per_1m_mean_of_questions == pytest.approx((100 + 200) / 2)
    assert row.total_cost_usd_per_1m_mean_of_questions == pytest.approx((103.8 + 201.9) / 2)
    assert row.draft_energy_j_per_token_mean_of_questions == pytest.approx((3.6 + 1.8) / 2)
    assert row.target_energy_j_per_token_mean_of_questions == pytest.approx((9.0 + 4.5) / 2)
    assert row.speedup == pytest.approx((30 / 12) / (30 / 14))
    assert row.speedup_mean_of_questions == pytest.approx((2 + 1) / 2)
    # server_only: 1.0 s busy and its traffic each, 100.2 and 50.1 $ per 1M tokens.
    assert row.cost_ratio_mean_of_questions == pytest.approx((103.8 / 100.2 + 201.9 / 50.1) / 2)


def test_turns_and_repeats_of_a_question_are_drawn_together() -> None:
    lines = [
        moved(make_line("chain", question, turn, total_s=seconds), repeat=repeat)
        for question, turn, repeat, seconds in (
            (1, 1, 1, 1.0),
            (1, 2, 1, 3.0),
            (1, 1, 2, 2.0),
            (2, 1, 1, 5.0),
            (2, 2, 1, 5.0),
        )
    ]
    row = rows_of(*lines)["chain"]
    # Two questions: a quarter of the resamples is each of them alone, 30 / 6 s and 20 / 10 s.
    assert (row.tokens_per_s_ci_low, row.tokens_per_s_ci_high) == pytest.approx((2.0, 5.0))
    assert row.tokens_per_s_mean_of_questions == pytest.approx((2.0 + 5.0) / 2)


def test_one_question_has_no_interval_whatever_its_turns() -> None:
    rows = rows_of(
        *(server_line(1, turn) for turn in (1, 2)),
        *(make_line("chain", 1, turn) for turn in (1, 2)),
    )
    row = rows["chain"]
    intervals = [name for name in SUMMARY_COLUMNS if "_ci_" in name]
    assert len(intervals) == 18
    assert {getattr(row, name) for name in intervals} == {None}
    assert row.speedup == pytest.approx(2.0)


def test_intervals_of_comparisons_are_paired_by_question() -> None:
    # Both are ten times slower on question 2; chain takes half the time on each.
    rows = rows_of(
        *(server_line(question, total_s=seconds) for question, seconds in ((1, 4.0), (2, 40.0))),
        *(make_line("chain", question, total_s=s) for question, s in ((1, 2.0), (2, 20.0))),
    )
    row = rows["chain"]
    assert (row.speedup_ci_low, row.speedup_ci_high) == pytest.approx((2.0, 2.0))
    assert (row.tokens_per_s_ci_low, row.tokens_per_s_ci_high) == pytest.approx((0.5, 5.0))


def test_a_comparison_uses_the_questions_that_both_have() -> None:
    rows = rows_of(
        *(server_line(question) for question in (1, 2)),
        *(
            make_line("chain", question, total_s=s)
            for question, s in ((1, 2.0), (2, 2.0), (3, 9.0))
        ),
    )
    row = rows["chain"]
    assert (row.speedup, row.speedup_ci_low, row.speedup_ci_high) == pytest.approx((2.0, 2.0, 2.0))
    assert row.tokens_per_s == pytest.approx(30 / 13)


def test_server_only_compared_with_itself_is_one_and_no_matter_of_chance() -> None:
    row = rows_of(*(server_line(question) for question in (1, 2, 3)))["server_only"]
    assert (row.speedup, row.cost_ratio, row.identical_share) == (1.0, 1.0, 1.0)
    assert (row.speedup_ci_low, row.cost_ratio_ci_high) == (None, None)
    assert row.tokens_per_s_ci_low is not None


def test_delays_have_percentiles_over_requests() -> None:
    lines = [
        make_line(question_id=number, ttft_s=number / 10, total_s=number / 10 + number * 9)
        for number in range(1, 12)
    ]
    row = rows_of(*lines)["chain"]
    assert (row.ttft_p50_s, row.ttft_p90_s, row.ttft_p99_s) == pytest.approx((0.6, 1.0, 1.09))
    assert (row.tpot_p50_s, row.tpot_p90_s, row.tpot_p99_s) == pytest.approx((6.0, 10.0, 10.9))
    assert (row.latency_p50_s, row.latency_p90_s) == pytest.approx((54.6, 91.0))
    assert row.latency_p99_s == pytest.approx(99.19)
    assert row.ttft_s == pytest.approx(0.6)


# --------------------------------------------------------------------------------- groups and order


def test_benchmarks_and_networks_are_never_mixed() -> None:
    lines = [
        make_line(),
        moved(make_line(output_tokens=99), bench="mt_bench"),
        moved(make_line(output_tokens=20), rtt_ms=20.0),
        moved(make_line(output_tokens=30), rtt_ms=20.0, jitter_ms=5.0),
        moved(make_line(output_tokens=40), uplink_mbps=10.0),
        moved(make_line(output_tokens=50), downlink_mbps=10.0),
    ]
    rows = summarise(lines, PRICES, "busy")
    assert sorted(row.output_tokens for row in rows) == [10, 20, 30, 40, 50, 99]
    (slow,) = (row for row in rows if row.output_tokens == 30)
    assert (slow.rtt_ms, slow.jitter_ms, slow.uplink_mbps) == (20.0, 5.0, None)


def test_the_reference_is_that_of_the_same_network() -> None:
    lines = [
        server_line(total_s=4.0),
        moved(server_line(total_s=6.0, output_ids=[1]), rtt_ms=20.0),
        make_line("chain"),
        moved(make_line("chain"), rtt_ms=20.0),
        moved(make_line("chain"), rtt_ms=50.0),
    ]
    chain = [row for row in summarise(lines, PRICES, "busy") if row.method == "chain"]
    assert [row.rtt_ms for row in chain] == [0, 20, 50]
    assert [row.speedup for row in chain] == [2.0, 3.0, None]
    assert [row.identical_share for row in chain] == [1.0, 0.0, None]


def test_seeds_and_choices_are_added_up_and_each_is_compared_with_its_own() -> None:
    draws = [(4, 0, [1]), (4, 1, [2]), (7, 0, [3])]
    lines = [
        moved(line(output_ids=ids), seed=seed, choice=choice)
        for seed, choice, ids in draws
        for line in (server_line, make_line)
    ]
    lines += [
        moved(server_line(output_ids=[4]), seed=7, choice=1),
        moved(make_line("chain", output_ids=[3]), seed=7, choice=1),  # the answer of another choice
        moved(make_line("chain", total_s=99.0), seed=9),  # server_only has none of this seed
    ]
    row = rows_of(*lines)["chain"]
    assert (row.seeds, row.choices, row.questions, row.requests) == ("4 7 9", 2, 1, 5)
    assert row.output_tokens == 50
    assert row.identical_share == 3 / 4
    assert row.speedup == 2.0  # 4 s against 2 s, four times; the last one has no partner


def test_what_was_decided_again_is_told_per_exact_answer() -> None:
    row = rows_of(
        make_line(question_id=1, exact=True, redecided_tokens=3),
        make_line(question_id=2, exact=True, redecided_tokens=0),
        make_line(question_id=3),
        make_line(question_id=4),
    )["chain"]
    assert (row.exact_share, row.redecided_per_answer) == (0.5, 1.5)
    plain = rows_of(make_line())["chain"]
    assert (plain.exact_share, plain.redecided_per_answer) == (0.0, None)
    failed = rows_of(failed_line())["chain"]
    assert (failed.exact_share, failed.redecided_per_answer) == (None, None)


def many_lines() -> list[RequestLine]:
    generator = random.Random(5)
    return [
        moved(
            make_line(method, question, turn, total_s=generator.uniform(1, 9)),
            bench=bench,
            rtt_ms=rtt_ms,
            seed=seed,
            category=f"kind {question % 2}",
        )
        for bench in ("mt_bench", "quick")
        for rtt_ms in (20.0, 0.0)
        for seed in (7, 4)
        for method in ("server_only", "chain", "fixed_tree")
        for question in range(5)
        for turn in (1, 2)
    ]


def test_the_order_of_the_lines_changes_nothing() -> None:
    order = [
        (bench, network, method)
        for bench in ("quick", "mt_bench")
        for network in ("unshaped", "rtt20")
        for method in ("server_only", "fixed_tree", "chain")
    ]
    lines = many_lines()
    rows = summarise(lines, PRICES, "busy", order)
    parts = summarise_categories(lines, PRICES, "busy", order)
    random.Random(6).shuffle(lines)
    assert summarise(lines, PRICES, "busy", order) == rows
    assert summarise_categories(lines, PRICES, "busy", order) == parts
    assert {row.seeds for row in rows} == {"4 7"}
    assert [(row.bench, row.rtt_ms, row.method) for row in rows] == [
        (bench, rtt_ms, method)
        for bench in ("quick", "mt_bench")
        for rtt_ms in (0.0, 20.0)
        for method in ("server_only", "fixed_tree", "chain")
    ]


def test_without_an_order_rows_come_as_they_appear() -> None:
    lines = [make_line("opt_tree"), make_line("chain"), make_line("opt_tree", 2), server_line()]
    rows = summarise(lines, PRICES, "busy")
    assert [row.method for row in rows] == ["opt_tree", "chain", "server_only"]
    rows = summarise(lines, PRICES, "busy", [("quick", "unshaped", "chain")])
    assert [row.method for row in rows] == ["chain", "opt_tree", "server_only"]


def test_a_category_is_summarised_like_a_benchmark_of_its_own() -> None:
    lines = [
        moved(make_line("chain", 9), category="math"),
        moved(server_line(9, total_s=6.0), category="math"),
        moved(make_line("chain", 2, total_s=1.0), category="writing"),
        moved(failed_line("chain", 3), category="writing"),
    ]
    rows = summarise_categories(lines, PRICES, "busy")
    assert [(row.part, row.category, row.method) for row in rows] == [
        ("category", "writing", "chain"),
        ("category", "math", "chain"),
        ("category", "math", "server_only"),
    ]
    assert [row.errors for row in rows] == [1, 0, 0]
    assert [row.speedup for row in rows] == [None, 3.0, 1.0]
    assert rows[0].tokens_per_s == pytest.approx(10.0)


def test_spec_bench_has_its_sub_tasks_as_well() -> None:
    categories = ("writing", "math", "translation", "math_reasoning")
    lines = [
        moved(make_line(question_id=number), bench=bench, category=category)
        for bench in ("spec_bench", "spec_bench:qa")
        for number, category in enumerate(categories)
    ]
    rows = summarise_categories(lines, PRICES, "busy")
    found = [(row.part, row.category, row.questions) for row in rows if row.bench == "spec_bench"]
    assert found == [
        *(("category", category, 1) for category in categories),
        ("sub-task", "mt_bench", 2),
        ("sub-task", "translation", 1),
        ("sub-task", "math_reasoning", 1),
    ]
    assert {row.part for row in rows if row.bench == "spec_bench:qa"} == {"category"}


def test_prices_come_from_the_configuration() -> None:
    config = ObjectiveConfig(
        target_per_hour_cost=2,
        draft_electricity_cost_per_kwh=3,
        user_comm_cost_per_gb=4,
        cloud_outbound_cost_per_gb=5,
        draft_per_hour_cost=6,
    )
    assert prices_of(config) == Prices(
        target_per_hour_usd=2,
        electricity_usd_per_kwh=3,
        uplink_usd_per_gb=4,
        downlink_usd_per_gb=5,
        draft_per_hour_usd=6,
    )
    assert prices_of(ObjectiveConfig()).draft_per_hour_usd is None


# ------------------------------------------------------------------------------------- trade-offs


def points_of(
    *lines: RequestLine, objectives: tuple[str, ...], cs: float = 0.5
) -> dict[tuple[str, str], TradeoffRow]:
    points = tradeoff(summarise(lines, PRICES, "busy"), objectives, cs)
    return {(point.objective, point.method): point for point in points}


def test_a_trade_off_point_pairs_throughput_with_each_objective() -> None:
    rows = summarise([make_line(), make_line(question_id=2, total_s=4.0)], PRICES, "held")
    cost, energy = tradeoff(rows, ["total_cost", "draft_energy"], 0.5)
    assert cost.value == pytest.approx(253.8)
    assert energy.value == pytest.approx(3.6)
    assert (cost.unit, energy.unit) == ("usd_per_1m_tokens", "j_per_token")
    assert (cost.energy_method, energy.energy_method) == (None, "modelled")
    assert cost.tokens_per_s == energy.tokens_per_s == pytest.approx(20 / 6)
    assert (cost.tokens_per_s_ci_low, cost.tokens_per_s_ci_high) == pytest.approx((2.5, 5.0))
    assert (energy.value_ci_low, energy.value_ci_high) == pytest.approx((3.6, 3.6))


@pytest.mark.parametrize(("cs", "score"), [(0.0, 0.5), (0.25, 0.6345), (1.0, 1.038)])
def test_the_score_blends_time_and_objective(cs: float, score: float) -> None:
    # chain: 0.2 s and 103.8e-6 $ a token; server_only: 0.4 s and 100e-6 $.
    plain = server_line(uplink_bytes=0, downlink_bytes=0)
    points = points_of(plain, make_line("chain"), objectives=("total_cost",), cs=cs)
    assert points["total_cost", "chain"].score == pytest.approx(score)
    assert points["total_cost", "chain"].cs == cs
    assert points["total_cost", "server_only"].score == pytest.approx(1.0)


def test_what_adapts_is_scored_at_its_own_cost_sensitivity_by_every_objective() -> None:
    # autodraft: half of server_only's time, and 90 J in both: the same target energy a token.
    labels = ("autodraft_cs0", "autodraft_cs0.25", "autodraft_cs1")
    lines = [server_line(), make_line("chain"), *(make_line(label) for label in labels)]
    curves = {
        label: CurvePoint("autodraft", cs) for label, cs in zip(labels, (0, 0.25, 1), strict=True)
    }
    rows = summarise(lines, PRICES, "busy")
    points = tradeoff(rows, ["target_energy", "draft_energy"], 0.5, curves)
    found = [(point.method, point.curve, point.cs, point.score) for point in points]
    assert found[:5] == [
        ("server_only", None, 0.5, pytest.approx(1)),
        ("chain", None, 0.5, pytest.approx(0.75)),  # (0.5 + 1) / 2
        ("autodraft_cs0", "autodraft", 0, pytest.approx(0.5)),
        ("autodraft_cs0.25", "autodraft", 0.25, pytest.approx(0.625)),  # 0.75 · 0.5 + 0.25
        ("autodraft_cs1", "autodraft", 1, pytest.approx(1)),
    ]
    assert [(cs, score) for _, _, cs, score in found[5:]] == [
        (0.5, None),
        (0.5, None),
        (0, None),  # κ = 0: no score, whatever cs is
        (0.25, None),
        (1, None),
    ]


def test_the_share_that_the_server_decoded_alone_is_known_only_where_it_is_handed_over() -> None:
    rows = rows_of(
        make_line("chain"),
        make_line("autodraft", 1, handed_over_tokens=0),
        make_line("autodraft", 2, handed_over_tokens=6, output_tokens=20),
        make_line("mixed", 1, handed_over_tokens=5),
        make_line("mixed", 2),
    )
    assert rows["chain"].handed_over_share is None
    assert rows["autodraft"].handed_over_share == pytest.approx(6 / 30)
    assert rows["mixed"].handed_over_share is None


def test_drafting_ahead_is_summed_up_where_something_was_drafted_ahead() -> None:
    rows = rows_of(
        make_line("chain"),
        make_line(
            "autodraft",
            1,
            output_tokens=10,
            ahead_s=0.4,
            ahead_nodes=40,
            ahead_rounds=4,
            ahead_hits=3,
            saved_s=0.2,
            wasted_s=0.1,
            draft_s=0.6,
            draft_net_j=6.0,
        ),
        make_line("autodraft", 2, output_tokens=10, draft_net_j=None),  # drafted nothing ahead
        make_line("unmetered", ahead_s=0.4, ahead_nodes=40, wasted_s=0.1, draft_net_j=None),
    )
    row = rows["autodraft"]
    assert row.ahead_hit_share == pytest.approx(3 / 4)
    assert row.ahead_used_share == pytest.approx(0.75)
    assert row.ahead_saved_ms_per_token == pytest.approx(10.0)
    assert row.ahead_wasted_j_per_token == pytest.approx(6.0 * 0.1 / 1.0 / 20)
    assert rows["unmetered"].ahead_hit_share is None  # no round came after
    assert rows["unmetered"].ahead_used_share == pytest.approx(0.75)
    assert rows["unmetered"].ahead_wasted_j_per_token is None
    assert rows["chain"].ahead_hit_share is None
    assert rows["chain"].ahead_used_share is None
    assert rows["chain"].ahead_saved_ms_per_token is None
    assert rows["chain"].ahead_wasted_j_per_token is None


def test_without_a_normaliser_there_is_no_score() -> None:
    objectives = ("draft_energy", "target_energy")
    points = points_of(server_line(), make_line("chain"), objectives=objectives)
    assert points["draft_energy", "chain"].score is None  # server_only drafts nothing: κ = 0
    assert points["target_energy", "chain"].score == pytest.approx((0.5 + 1.0) / 2)
    unknown = points_of(
        server_line(target_j=None), make_line("chain"), objectives=("target_energy",)
    )
    assert unknown["target_energy", "chain"].score is None
    alone = points_of(make_line("chain"), objectives=("total_cost",))
    assert alone["total_cost", "chain"].score is None


def test_a_score_is_taken_against_the_same_network() -> None:
    lines = [
        server_line(total_s=4.0),
        make_line("chain"),
        moved(server_line(total_s=8.0), rtt_ms=20.0),
        moved(make_line("chain"), rtt_ms=20.0),
    ]
    points = tradeoff(summarise(lines, PRICES, "busy"), ["api_cost", "target_energy"], 0.0)
    assert [(point.rtt_ms, point.objective, point.method) for point in points] == [
        (rtt_ms, objective, method)
        for rtt_ms in (0.0, 20.0)
        for objective in ("api_cost", "target_energy")
        for method in ("server_only", "chain")
    ]
    scores = [point.score for point in points if point.method == "chain"]
    assert scores == pytest.approx([0.5, 0.5, 0.25, 0.25])


def test_the_documentation_defines_every_column() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## (\S+\.csv)\n(.*?)(?=^## )", text, re.DOTALL | re.MULTILINE))
    defined = {
        name: [
            column
            for line in part.splitlines()
            if line.startswith("| `")
            for column in re.findall(r"`(\w+)`", line.split("|")[1])
        ]
        for name, part in parts.items()
    }
    assert defined == {
        "summary.csv": list(SUMMARY_COLUMNS),
        "categories.csv": [name for name in CATEGORY_COLUMNS if name not in SUMMARY_COLUMNS],
        "tradeoff.csv": list(TRADEOFF_COLUMNS),
        "reliability.csv": list(RELIABILITY_COLUMNS),
    }
