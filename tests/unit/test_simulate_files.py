"""Files of the simulator: traces, latency tables, curves."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from autodraft.cost import Prices, Quantities, Timed, curve_point
from autodraft.errors import ConfigError, StoreError
from autodraft.simulate import (
    Devices,
    Trace,
    devices_content,
    encode_trace,
    load_devices,
    read_traces,
    scaled,
)

TRACE = Trace(
    prompt_ids=[1, 2],
    output_ids=[3, 4],
    tokens=[[3, 9], [8, 4]],
    log_probs=[[-0.5, -1.0], [-0.1, -2.5]],
    bench="quick",
    question_id="a",
    turn=2,
)
TABLES: dict[str, Any] = {
    "kind": "autodraft tables",
    "source": "a stop-watch",
    "assumptions": ["a cold room"],
    "round_ms": 0.5,
    "token_ms": 0.25,
    "draft": {"rows": [1, 8], "contexts": [128], "ms": [[2.0, 4.0]]},
    "target": {"rows": [1, 64], "contexts": [128], "ms": [[20.0, 40.0]], "padding": [1, 64]},
}


def written(folder: Path, content: Any, name: str = "tables.json") -> Path:
    path = folder / name
    dump = yaml.safe_dump if name.endswith(".yaml") else json.dumps
    path.write_text(dump(content))
    return path


# ------------------------------------------------------------------------------------- traces


def test_traces_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    other = msgspec.structs.replace(TRACE, question_id=7)
    path.write_bytes(encode_trace(TRACE) + encode_trace(other))
    assert read_traces(path) == [TRACE, other]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"output_ids": [3]}, "1 tokens, but candidates at 2 places"),
        ({"output_ids": [], "tokens": [], "log_probs": []}, "needs a prompt and an answer"),
        ({"prompt_ids": []}, "needs a prompt and an answer"),
        ({"tokens": [[3, 9], [8]]}, "same number of candidates"),
        ({"schema": 99}, "schema 99"),
    ],
)
def test_a_wrong_trace_is_named_with_its_line(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(encode_trace(TRACE) + encode_trace(msgspec.structs.replace(TRACE, **changes)))
    with pytest.raises(StoreError, match=r"trace\.jsonl:2: ") as found:
        read_traces(path)
    assert said in str(found.value)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with pytest.raises(StoreError, match="cannot be read.*SAVE_TRACE=1"):
        read_traces(path)
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="is empty"):
        read_traces(path)
    path.write_bytes(b'{"prompt_ids": 1}\n')
    with pytest.raises(StoreError, match=r"trace\.jsonl:1: not a line of a trace"):
        read_traces(path)


# ------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize("name", ["tables.json", "tables.yaml"])
def test_tables_by_hand_are_read_and_written_again(tmp_path: Path, name: str) -> None:
    found = load_devices(written(tmp_path, TABLES, name))
    assert found.source == "a stop-watch"
    assert found.assumptions == ("a cold room",)
    assert (found.round_s, found.token_s) == (0.0005, 0.00025)
    assert found.draft.at(8, 128) == pytest.approx(0.004)
    assert found.target.at(2, 128) == pytest.approx(0.040)  # padded to 64 rows
    assert found.prefill_s(1) == pytest.approx(0.020)
    again = load_devices(written(tmp_path, devices_content(found)))
    assert devices_content(again) == devices_content(found)


def test_a_table_of_prompts_goes_before_that_of_trees(tmp_path: Path) -> None:
    prefill = {"rows": [10, 20], "contexts": [0], "ms": [[5.0, 10.0]]}
    found = load_devices(written(tmp_path, {**TABLES, "prefill": prefill}))
    assert found.prefill_s(15) == pytest.approx(0.0075)
    again = load_devices(written(tmp_path, devices_content(found)))
    assert again.prefill_s(15) == pytest.approx(0.0075)


def test_other_machines_are_so_many_times_as_slow_and_say_so(tmp_path: Path) -> None:
    found = load_devices(written(tmp_path, TABLES))
    slower = scaled(found, 2.0, 3.0)
    assert slower.draft.at(1, 128) == pytest.approx(0.004)
    assert slower.target.at(1, 128) == pytest.approx(0.060)
    assert slower.target.padding.tolist() == [1, 64]
    assert "draft steps 2 and target forwards 3 times" in slower.assumptions[-1]
    assert scaled(found, 1.0, 1.0) is found


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "recipes"}, "its kind is 'recipes'"),
        ({"source": " "}, "say in source where the tables come from"),
        ({"colour": "red"}, "unknown colour. Allowed: assumptions"),
        ({"round_ms": -1}, "round_ms is -1"),
        ({"token_ms": True}, "token_ms is True"),
        ({"draft": {"rows": [8, 1], "contexts": [1], "ms": [[1, 2]]}}, "the table draft is wrong"),
        ({"target": {"rows": [1], "contexts": [1], "ms": [[0]]}}, "the table target is wrong"),
        ({"target": None}, "the table target is wrong"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = written(tmp_path, {**TABLES, **changes})
    with pytest.raises(ConfigError) as found:
        load_devices(path)
    assert str(path) in str(found.value)
    assert said in str(found.value)


@pytest.mark.parametrize("text", ["[1, 2]", "{", ""])
def test_what_holds_no_tables_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tables.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"tables\.json"):
        load_devices(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_devices(tmp_path / "nowhere.json")


def gpu_report() -> dict[str, Any]:
    def cells(label: str, sizes: tuple[int, ...], contexts: tuple[int, ...]) -> list[Any]:
        return [
            {label: size, "context": context, "ms": 10.0 * size + context / 100}
            for context in contexts
            for size in sizes
        ]

    return {
        "check": "gpu",
        "device": {"label": "a GPU"},
        "dtype": "bfloat16",
        "models": {"target": {"name": "large"}, "draft": {"name": "small"}},
        "tables": {
            "draft_step_ms": {"eager": cells("width", (1, 8), (128, 1024)), "compiled": []},
            # a cell that time did not allow for
            "verify_ms": {"eager": cells("rows", (1, 8, 64), (128, 1024))[:-1], "compiled": []},
            "prefill_ms": {"eager": [{"tokens": 128, "ms": 50.0}, {"tokens": 512, "ms": 150.0}]},
        },
    }


def test_the_report_of_a_gpu_check_is_read(tmp_path: Path) -> None:
    found = load_devices(written(tmp_path, gpu_report()))
    assert found.source == "gpu_check.sh on a GPU: large and small, random weights, bfloat16, eager"
    assert found.draft.rows.tolist() == [1, 8]
    assert found.target.rows.tolist() == [1, 8]  # 64 rows lack a context
    assert found.draft.at(8, 1024) == pytest.approx((80 + 10.24) / 1e3)
    assert found.prefill_s(320) == pytest.approx(0.100)


def test_a_gpu_check_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no whole tables"):
        load_devices(written(tmp_path, {**gpu_report(), "tables": None}))


def test_devices_need_no_prefill_table() -> None:
    from autodraft.profiling.tables import LatencyTable

    table = LatencyTable([1, 10], [5], [[1.0, 10.0]])
    assert Devices(table, table, "hand").prefill_s(20) == pytest.approx(20.0)


# ------------------------------------------------------------------------------------- points

PRICES = Prices(
    target_per_hour_usd=3.6,  # 0.001 $ a second
    electricity_usd_per_kwh=3.6,  # 1e-6 $ a joule
    uplink_usd_per_gb=0.0,
    downlink_usd_per_gb=0.0,
)


def answer(
    tokens: int, busy_s: float, ttft_s: float, total_s: float, joules: float | None
) -> Timed:
    used = Quantities(
        output_tokens=tokens,
        target_busy_s=busy_s,
        target_held_s=total_s,
        total_s=total_s,
        draft_j=joules,
        target_j=None,
        uplink_bytes=0,
        downlink_bytes=0,
    )
    return Timed(used, ttft_s, total_s)


def test_a_point_is_totals_over_totals() -> None:
    answers = [answer(10, 2.0, 1.0, 4.0, 100.0), answer(30, 4.0, 2.0, 6.0, 300.0)]
    point = curve_point(0.5, answers, "total_cost", PRICES, "busy")
    assert point is not None
    assert point.tokens_per_s == pytest.approx(4.0)
    dollars = (0.001 * 6 + 1e-6 * 400) / 40 * 1e6
    assert point.units_per_1m == pytest.approx(dollars) == pytest.approx(point.usd_per_1m)
    assert point.ttft_s == pytest.approx(1.5)
    assert point.tpot_s == pytest.approx(7.0 / 38)
    energy = curve_point(0.5, answers, "draft_energy", PRICES, "busy")
    assert energy is not None
    assert energy.units_per_1m == pytest.approx(10e6)


def test_what_was_not_measured_has_no_point() -> None:
    known = answer(10, 2.0, 1.0, 4.0, 100.0)
    assert curve_point(0.0, [known], "target_energy", PRICES, "busy") is None
    assert curve_point(0.0, [answer(10, 2.0, 1.0, 4.0, None)], "api_cost", PRICES, "busy") is None
    assert math.isfinite(known.total_s)
