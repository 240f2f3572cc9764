"""``adaptivity``: its scores and its cells, worked out by hand."""

import json
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import msgspec
import pytest

from autodraft.config import ObjectiveConfig
from autodraft.cost import Prices, quantities_of, sum_quantities
from autodraft.errors import LinkError
from autodraft.records import RoundRecord
from evaluation.lines import RequestLine
from evaluation.tuning import Measured as Shape
from evaluation.tuning import rank
from tests.unit.evaluation_fakes import ROUND, make_case, make_line

OWN = "autodraft_cs0.5"
DOLLAR_A_SECOND = Prices(
    target_per_hour_usd=3600, electricity_usd_per_kwh=0, uplink_usd_per_gb=0, downlink_usd_per_gb=0
)


@pytest.fixture
def parts(benchmark_folder: None) -> dict[str, ModuleType]:
    """The benchmark's modules, imported as the script imports them."""
    import _adaptivity_cells
    import _adaptivity_report
    import _common

    return {"cells": _adaptivity_cells, "report": _adaptivity_report, "common": _common}


# ----------------------------------------------------------------------------------------- scores

# Seconds and busy seconds (dollars) of two questions, 10 tokens each. Server-only takes 6 s and
# 6 $ for 20 tokens: τ = 0.3 s, κ = 0.3 $.
USED = {
    "server_only": ((2.0, 2.0), (4.0, 4.0)),
    "chain_d4": ((3.0, 0.9), (3.0, 1.5)),
    "opt_tree_w4_d5_n16": ((2.4, 3.0), (2.4, 3.0)),
    OWN: ((1.5, 0.9), (1.5, 1.5)),
}


def lines(**changes: Any) -> list[RequestLine]:
    return [
        make_line(method, number, total_s=total_s, target_busy_s=busy_s, **changes)
        for method, questions in USED.items()
        for number, (total_s, busy_s) in enumerate(questions, start=1)
    ]


def measured(
    parts: Mapping[str, ModuleType],
    requests: Sequence[RequestLine],
    rounds: Mapping[Any, Sequence[RoundRecord]] | None = None,
) -> Any:
    return parts["cells"].Measured(
        bench="quick",
        rtt_ms=20.0,
        lines=requests,
        rounds=rounds or {},
        failed=0,
        prices=DOLLAR_A_SECOND,
    )


def test_a_score_is_the_blend_per_token_in_parts_of_server_only(
    parts: dict[str, ModuleType],
) -> None:
    found, blended = measured(parts, lines()), parts["cells"].blended
    chain = blended(found, "chain_d4", 0.5)
    # 0.5 · 3 / 0.3 + 0.5 · 0.9 / 0.3 = 6.5, and 5 + 2.5.
    assert chain.numerators == pytest.approx([6.5, 7.5])
    assert chain.denominators == [10, 10]
    assert chain.value == pytest.approx(0.7)
    assert blended(found, "chain_d4", 0).value == pytest.approx(1.0)  # 6 s, as server-only
    assert blended(found, "chain_d4", 1).value == pytest.approx(0.4)  # 2.4 $ of 6 $
    for cs in (0, 0.3, 1):
        assert blended(found, "server_only", cs).value == pytest.approx(1.0)


def test_the_score_is_the_one_that_shapes_are_tuned_by(parts: dict[str, ModuleType]) -> None:
    found = measured(parts, lines())

    def shape(label: str) -> Shape:
        records = [one for question in found.questions(label) for one in question]
        used = sum_quantities(map(quantities_of, records))
        seconds = sum(one.total_s for one in records)
        return Shape(
            method=label, width=1, max_depth=1, node_budget=1, seconds=seconds, quantities=used
        )

    objective = ObjectiveConfig(
        base_cost_sensitivity=0.5,
        target_per_hour_cost=3600,
        draft_electricity_cost_per_kwh=0,
        user_comm_cost_per_gb=0,
        cloud_outbound_cost_per_gb=0,
    )
    shapes = [shape(label) for label in USED]
    for scored in rank(shapes, shape("server_only"), objective, "total_cost"):
        own = parts["cells"].blended(found, scored.measured.method, 0.5).value
        assert own == pytest.approx(scored.score)


def test_a_cell_compares_with_the_static_method_that_scores_best_there(
    parts: dict[str, ModuleType],
) -> None:
    statics = ("opt_tree_w4_d5_n16", "chain_d4")
    compared = parts["cells"].Compared(0.5, OWN, statics)
    found = parts["cells"].cell(measured(parts, lines()), compared)
    # opt_tree: 0.5 · 4.8 / 6 + 0.5 · 6 / 6 = 0.9; chain 0.7; autodraft 0.25 + 0.2.
    assert found["static_scores"] == {"opt_tree_w4_d5_n16": 0.9, "chain_d4": 0.7}
    assert found["best_static"] == "chain_d4"
    assert found["score"] == 0.45
    assert found["vs_best_static"] == pytest.approx(0.7 / 0.45, abs=1e-4)
    # A quarter of the resamples each draws one question twice: 6.5 / 4 and 7.5 / 5.
    assert (found["vs_best_static_low"], found["vs_best_static_high"]) == (1.5, 1.625)
    assert found["vs_server_only"] == pytest.approx(1 / 0.45, abs=1e-4)
    assert found["vs_server_only_low"] == pytest.approx(20 / 3 / 4, abs=1e-4)
    assert found["vs_server_only_high"] == pytest.approx(40 / 3 / 5, abs=1e-4)
    assert found["tokens_per_s_ratio"] == 2.0  # 3 s against 6 s
    assert found["busy_cost_ratio"] == 0.4
    assert found["held_cost_ratio"] == 1.0  # every record's session is held for 2.5 s
    assert found["questions"] == 2
    # At cs 0 opt_tree's 4.8 s beat chain's 6 s.
    fastest = parts["cells"].cell(
        measured(parts, lines()), parts["cells"].Compared(0.0, OWN, statics)
    )
    assert fastest["best_static"] == "opt_tree_w4_d5_n16"
    assert fastest["vs_best_static"] == pytest.approx(4.8 / 3, abs=1e-4)


def test_a_cell_says_what_autodraft_did(parts: dict[str, ModuleType]) -> None:
    requests = [
        *lines(),
        make_line(OWN, 2, total_s=1.5, target_busy_s=1.5, output_ids=[7], handed_over_tokens=5),
    ]
    requests = parts["cells"].common_lines(requests, USED)
    found = parts["cells"].cell(
        measured(parts, requests), parts["cells"].Compared(0.5, OWN, ("chain_d4",))
    )
    assert found["identical_share"] == 0.5
    assert found["calls_saved"] == 0.6  # 4 forwards for 10 tokens
    assert found["handed_over_share"] is None  # of one request it is not known


def test_a_cost_that_is_not_known_is_no_score(parts: dict[str, ModuleType]) -> None:
    with pytest.raises(parts["common"].CannotMeasure, match="DRAFT_WATTS"):
        parts["cells"].blended(measured(parts, lines(draft_j=None)), "chain_d4", 0.5)


def test_only_requests_that_every_method_finished_are_compared(
    parts: dict[str, ModuleType],
) -> None:
    failed = RequestLine.failed(make_case("chain_d4", 2), LinkError("gone"))
    kept = parts["cells"].common_lines([*lines(), failed], USED)
    assert {line.case.question_id for line in kept} == {1}
    assert {line.case.method for line in kept} == set(USED)
    again = [*lines()[:3], failed, *lines()[3:]]  # answered when it was asked again
    assert len(parts["cells"].common_lines(again, USED)) == 8


# ----------------------------------------------------------------------------------------- rounds


def one_round(**changes: Any) -> RoundRecord:
    return msgspec.structs.replace(ROUND, **changes)


def test_rounds_have_a_mean_shape_and_an_error_of_their_predictions(
    parts: dict[str, ModuleType],
) -> None:
    rounds = {
        make_case(OWN, 1): [
            one_round(width=2, depth=3, num_nodes=4, predicted_s=1.1, predicted_tokens=4.0),
            one_round(width=4, depth=5, num_nodes=10, predicted_s=0.8, predicted_tokens=5.0),
        ],
        make_case(OWN, 2): [
            one_round(width=6, depth=1, num_nodes=1, predicted_s=1.0, predicted_tokens=6.5),
        ],
        make_case("chain_d4", 1): [one_round(width=1)],
    }
    found = parts["cells"].round_figures(measured(parts, lines(), rounds), OWN)
    assert found["rounds"] == 3
    assert (found["mean_width"], found["mean_depth"], found["mean_nodes"]) == (4, 3, 5)
    assert found["time_error"] == 0.1  # of 0.1, 0.2 and 0
    assert found["tokens_error"] == 0.2  # 9 of 10 emitted, and 6.5 of 5: of 0.1 and 0.3


def test_methods_without_rounds_or_predictions_have_no_such_figures(
    parts: dict[str, ModuleType],
) -> None:
    rounds = {make_case("chain_d4", 1): [one_round(width=1)]}
    found = measured(parts, lines(), rounds)
    own = parts["cells"].round_figures(found, OWN)
    assert own.pop("rounds") == 0
    assert set(own.values()) == {None}
    chain = parts["cells"].round_figures(found, "chain_d4")
    assert (chain["rounds"], chain["mean_width"]) == (1, 1)
    assert chain["time_error"] is chain["tokens_error"] is None


# -------------------------------------------------------------------------------------- all cells


def some_cell(static: tuple[float, float | None], plain: tuple[float, float | None]) -> Any:
    found = {
        "bench": "quick",
        "rtt_ms": 20.0,
        "cs": 0.5,
        "best_static": "chain_d4",
        "vs_best_static": static[0],
        "vs_best_static_low": static[1] and 0.5,
        "vs_best_static_high": static[1],
        "vs_server_only": plain[0],
        "vs_server_only_low": plain[1] and 0.5,
        "vs_server_only_high": plain[1],
    }
    names = ("tokens_per_s_ratio", "busy_cost_ratio", "held_cost_ratio", "calls_saved")
    names += ("handed_over_share", "identical_share", "mean_width", "mean_depth", "mean_nodes")
    return found | dict.fromkeys((*names, "time_error", "tokens_error")) | {"rounds": 0}


def test_a_cell_is_lost_where_its_whole_interval_is_below_what_is_wanted(
    parts: dict[str, ModuleType],
) -> None:
    cells = [
        some_cell((0.9, 0.979), (1.5, 2.0)),
        some_cell((0.7, 0.98), (0.8, 0.9)),
        some_cell((1.4, None), (0.85, 0.95)),
    ]
    assert parts["cells"].overall(cells) == {
        "worst_vs_best_static": 0.7,
        "mean_vs_best_static": 1.0,
        "worst_vs_server_only": 0.8,
        "mean_vs_server_only": 1.05,
        "cells_below_0.98": 1,
        "cells_below_0.98_server_only": 2,
    }


def test_the_report_ends_with_the_json_line(
    parts: dict[str, ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [some_cell((0.9, 0.95), (1.5, 2.0)), some_cell((1.4, None), (1.1, 1.2))]
    parts["report"].report(cells, {"shapes": "small"})
    printed = capsys.readouterr().out
    found = json.loads(printed.splitlines()[-1])
    assert found["benchmark"] == "adaptivity"
    assert found["cells"] == cells
    assert found["shapes"] == "small"
    assert {"worst_vs_best_static", "mean_vs_best_static", "worst_vs_server_only"} <= set(found)
    assert found["cells_below_0.98"] == 1
    assert "quick, 20 ms, 0.5" in printed
    assert "0.900 [0.500, 0.950]" in printed
    assert "1.400 [–]" in printed
