"""Every column of the tables, against numbers worked out by hand."""

import re
from pathlib import Path

import pytest

from autodraft.config import ObjectiveConfig
from autodraft.cost import Prices
from autodraft.errors import ContextLengthError
from evaluation.lines import RequestLine
from evaluation.metrics import (
    SUMMARY_COLUMNS,
    TRADEOFF_COLUMNS,
    SummaryRow,
    prices_of,
    quantities_of,
    summarise,
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


def server_line(question_id: int = 1, turn: int = 1, **changes: object) -> RequestLine:
    plain = {
        "total_s": 4.0,
        "rounds": 9,
        "round_tokens": 9,
        "drafted_nodes": 0,
        "target_forwards": 10,
        "draft_s": None,
        "draft_j": 0.0,
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
    assert row.energy_method == "modelled"


def test_what_was_not_measured_stays_unknown() -> None:
    row = rows_of(make_line(draft_j=None, target_j=None, energy_method=None))["chain"]
    assert row.draft_energy_j_per_token is None
    assert row.target_energy_j_per_token is None
    assert row.draft_usd_per_1m is None
    assert row.total_busy_usd_per_1m is None
    assert row.target_busy_usd_per_1m == pytest.approx(100.0)
    assert row.energy_method is None


def test_failed_requests_are_counted_and_enter_no_figure() -> None:
    failed = RequestLine.failed(make_case(question_id=2), ContextLengthError("too long"))
    row = rows_of(make_line(), failed)["chain"]
    assert (row.requests, row.errors) == (1, 1)
    assert row.tokens_per_s == pytest.approx(5.0)


def test_a_method_that_never_finished_has_a_row_without_figures() -> None:
    row = rows_of(RequestLine.failed(make_case(), ContextLengthError("too long")))["chain"]
    assert (row.requests, row.errors, row.output_tokens) == (0, 1, 0)
    assert row.tokens_per_s is None
    assert row.mat is None
    assert row.total_busy_usd_per_1m is None


def test_a_rented_device_is_paid_where_the_user_drafts_and_only_there() -> None:
    assert quantities_of(make_record("chain")).total_s == 2.0
    assert quantities_of(make_record("lookup", draft_s=None)).total_s == 2.0
    assert quantities_of(make_record("server_only", draft_s=None, drafted_nodes=0)).total_s == 0.0
    assert quantities_of(make_record("chain@server")).total_s == 0.0


def test_benchmarks_are_never_mixed() -> None:
    other = make_line()
    moved = RequestLine(
        case=type(other.case)(
            bench="mt_bench", question_id=1, category="x", turn=1, repeat=1, method="chain"
        ),
        status="ok",
        record=make_record(output_tokens=99),
    )
    rows = summarise([make_line(), moved], PRICES, "busy")
    assert [(row.bench, row.output_tokens) for row in rows] == [("quick", 10), ("mt_bench", 99)]


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


def test_a_trade_off_point_pairs_throughput_with_each_objective() -> None:
    rows = summarise([make_line()], PRICES, "held")
    cost, energy = tradeoff(rows, ["total_cost", "draft_energy"])
    assert cost.value == pytest.approx(253.8)
    assert energy.value == pytest.approx(3.6)
    assert (cost.unit, energy.unit) == ("usd_per_1m_tokens", "j_per_token")
    assert cost.tokens_per_s == energy.tokens_per_s == pytest.approx(5.0)


def test_the_documentation_defines_every_column() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    summary = text[text.index("## summary.csv") : text.index("## tradeoff.csv")]
    points = text[text.index("## tradeoff.csv") : text.index("## requests.jsonl")]
    for section, columns in ((summary, SUMMARY_COLUMNS), (points, TRADEOFF_COLUMNS)):
        defined = {
            name
            for line in section.splitlines()
            if line.startswith("| `")
            for name in re.findall(r"`(\w+)`", line.split("|")[1])
        }
        assert defined == set(columns)
