"""The arithmetic of ``scripts/gpu_check.sh``: wheels, sizes, time, acceptance, verdicts."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpu_checks import command, lossless, rounds, shapes, tables, wheels
from gpu_checks.budget import Budget, Part
from gpu_checks.command import Check
from gpu_checks.decoding import decode_in_rounds, decode_plainly
from gpu_checks.lossless import CHAIN, TINY_PLAN, TREE, Comparison, Difference, Prover, Scripted
from gpu_checks.models import random_model
from gpu_checks.replay import SHAPES, ReplayingRunner, load_trace, steer
from gpu_checks.report import PairTables, Settings, table_lines
from gpu_checks.shapes import GIB, PAIRS, TINY_PAIRS, CannotCheck, choose_pair, small_shape
from gpu_checks.tables import Cells, Grid, random_parents, time_cells

from autodraft.decoding.verification import walk
from autodraft.records import RequestRecord, RoundRecord
from autodraft.tree.attention import ancestor_mask
from autodraft.tree.draft_tree import node_depths, received_tree

CPU = torch.device("cpu")
PARENTS = np.array([-1, 0, 0, 1, 1, 2, 3])  # 0 - 1 - 3 - 6; 1 - 4; 0 - 2 - 5
TOKENS = np.array([9, 1, 2, 3, 4, 5, 6])


class FakeClock:
    """A clock that goes on only where it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# Wheels


def test_what_the_check_must_be_given_is_pinned_and_has_a_range() -> None:
    pinned = wheels.pins((wheels.ROOT / "requirements.txt").read_text("utf-8"))
    least = wheels.minimums((wheels.ROOT / "pyproject.toml").read_text("utf-8"))
    assert set(wheels.GIVEN) <= pinned.keys()
    assert least.keys() >= {"torch", "transformers", "pydantic", "websockets", "msgspec"}
    assert all(
        wheels.as_numbers(pinned[name]) >= wheels.as_numbers(least[name])
        for name in set(wheels.GIVEN) & least.keys()
    )


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("2.11.0+cu130", (2, 11, 0)), ("5.17", (5, 17)), ("13.0rc1", (13, 0)), ("", ())],
)
def test_versions_are_compared_by_their_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert wheels.as_numbers(version) == numbers


@pytest.mark.parametrize(
    ("have", "lacking"),
    [
        ({"a": "1.2", "b": "0.9"}, ()),
        ({"a": "1.2"}, ("b",)),
        ({"a": "1.10", "b": "0.9"}, ()),
        ({"a": "0.9", "b": "0.9"}, ("a",)),
    ],
)
def test_absent_and_too_old_packages_are_lacking(
    have: dict[str, str], lacking: tuple[str, ...]
) -> None:
    assert wheels.lacking(("a", "b"), have, {"a": "1.2"}) == lacking


def test_pydantic_comes_with_its_core_even_where_there_is_one() -> None:
    have = dict.fromkeys(wheels.GIVEN, "99") | {"pydantic": "1.10"}
    found = wheels.lacking(wheels.GIVEN, have, {"pydantic": "2.10"})
    assert found == ("pydantic", "pydantic-core", "annotated-types", "typing-inspection")


def test_the_download_command_names_platform_and_python() -> None:
    tags = wheels.platforms("linux-x86_64", "x86_64", "2.28")
    assert tags == [f"manylinux{tag}_x86_64" for tag in ("_2_28", "_2_27", "_2_17", "2014")]
    assert wheels.platforms("macosx-14.0-arm64", "arm64", "") == ["macosx_14_0_arm64"]
    told = wheels.download_command(["x==1"], ["manylinux2014_x86_64"], (3, 12))
    assert told == (
        "python3 -m pip download --no-deps --only-binary=:all: --implementation cp "
        "--python-version 3.12 --platform manylinux2014_x86_64 --dest wheels x==1"
    )


# Sizes


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen2.5-14B", 14_770_033_664),
        ("Qwen2.5-7B", 7_615_616_512),
        ("Qwen2.5-3B", 3_085_938_688),
        ("Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen2.5-0.5B", 494_032_768),
        ("Llama-3.1-8B", 8_030_261_248),
        ("Llama-3.2-3B", 3_212_749_824),
        ("Llama-3.2-1B", 1_235_814_400),
    ],
)
def test_shapes_are_those_of_the_published_models(name: str, parameters: int) -> None:
    models = [model for pairs in PAIRS.values() for p in pairs for model in (p.target, p.draft)]
    shape = next(model for model in models if model.name == name)
    assert shape.parameters == parameters


@pytest.mark.parametrize("family", TINY_PAIRS)
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_random_model_has_the_size_of_its_shape(family: str, role: str) -> None:
    shape = getattr(TINY_PAIRS[family][0], role)
    model = random_model(shape, CPU, torch.bfloat16, 0)
    assert sum(weight.numel() for weight in model.parameters()) == shape.parameters
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    embedding = model.get_input_embeddings().weight
    unread = 0 if shape.tied else embedding.numel() - embedding.shape[1]
    assert shape.parameters_read == shape.parameters - unread


def test_a_model_with_fewer_layers_is_the_other_one_cut_short() -> None:
    shape = small_shape("llama", tiny=True)
    whole = random_model(shape, CPU, torch.float32, 3).state_dict()
    cut = random_model(replace(shape, layers=1), CPU, torch.float32, 3).state_dict()
    assert all(torch.equal(weight, whole[name]) for name, weight in cut.items())
    other = random_model(shape, CPU, torch.float32, 4).state_dict()
    assert not torch.equal(other["lm_head.weight"], whole["lm_head.weight"])


@pytest.mark.parametrize(
    ("free_gib", "target"),
    [(139, "Qwen2.5-14B"), (38, "Qwen2.5-14B"), (30, "Qwen2.5-7B"), (16, "Qwen2.5-3B")],
)
def test_the_largest_pair_that_fits_is_chosen(free_gib: int, target: str) -> None:
    pair, why = choose_pair(PAIRS["qwen2"], free_gib * GIB, 2, 4300)
    assert pair.target.name == target
    assert f"of {free_gib}.0 GiB free" in why
    assert ("that fits" in why) == (target != "Qwen2.5-14B")


def test_too_little_memory_for_any_pair_is_told() -> None:
    with pytest.raises(CannotCheck, match=r"and 4.0 GiB are free"):
        choose_pair(PAIRS["qwen2"], 4 * GIB, 2, 4300)


# Time


def test_a_part_gets_its_share_or_what_is_left() -> None:
    clock = FakeClock()
    budget = Budget(400.0, clock, began=-20.0)  # 15 s are kept for the end
    assert budget.spent_s == 20.0
    assert budget.left_s == 365.0
    assert budget.part(0.25).left_s == 100.0
    clock.now = 300.0
    part = budget.part(0.25)
    assert part.left_s == 65.0
    clock.now = 370.0
    assert part.left_s == -5.0


def measured(grid: Grid, seconds: float, call_s: Callable[[int], float]) -> tuple[Cells, list[str]]:
    """Time calls that take as long as ``call_s`` says of their rows."""
    clock = FakeClock()
    budget = Budget(1e6, clock)
    budget_part = Part(budget, seconds, clock)

    def call(rows: int) -> None:
        clock.now += call_s(rows)

    cells = Cells("toys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpu_checks.tables.time.perf_counter", clock)
        time_cells(cells, CPU, grid, lambda _: call, budget_part)
    return cells, budget.dropped


GRID = Grid(rows=(1, 4), contexts=(8, 2), prefills=(), turns=5)


def test_with_enough_time_every_cell_gets_all_its_turns() -> None:
    cells, dropped = measured(GRID, 1000.0, lambda rows: float(rows))
    assert dropped == []
    assert cells.as_rows("width") == [
        {"width": rows, "context": context, "ms": rows * 1e3, "least_ms": rows * 1e3, "repeats": 5}
        for context in (2, 8)
        for rows in (1, 4)
    ]


def test_repeats_go_first_when_time_runs_short() -> None:
    # A context takes 15 s to warm up and 5 s a turn.
    cells, dropped = measured(GRID, 50.0, lambda rows: float(rows))
    assert {key: len(times) for key, times in cells.times.items()} == {
        (8, 1): 2,
        (8, 4): 2,
        (2, 1): 2,
        (2, 4): 2,
    }
    assert dropped == ["toys, context 8: 3 of 5 repeats", "toys, context 2: 3 of 5 repeats"]


def test_then_contexts_go_the_less_telling_ones_first() -> None:
    cells, dropped = measured(GRID, 16.0, lambda rows: float(rows))
    assert set(cells.times) == {(8, 1), (8, 4)}
    assert dropped[-1] == "toys: contexts 2"


def test_rows_that_would_not_end_in_time_are_not_begun() -> None:
    grid = replace(GRID, rows=(8, 9, 10), contexts=(4,), turns=1)
    cells, dropped = measured(grid, 30.0, lambda rows: 8.0)
    assert set(cells.times) == {(4, 8)}
    assert dropped == ["toys, context 4: 9, 10 rows"]


def test_without_time_nothing_is_begun() -> None:
    cells, dropped = measured(GRID, 0.0, lambda rows: 1.0)
    assert cells.times == {}
    assert dropped == ["toys: all of it"]


# Tables


def test_a_pair_s_tables_say_how_near_one_row_comes_to_the_memory_s_speed() -> None:
    pair = TINY_PAIRS["qwen2"][0]
    found = PairTables(pair, "it fits", itemsize=2)
    found.verifications["eager"].times[64, 1] = [0.001, 0.003, 0.002]
    found.verifications["eager"].times[64, 9] = [0.004]
    found.prefills.times[0, 64] = [0.005]
    shown = found.tables(copied=0.1)
    rate = pair.target.parameters_read * 2 / 0.002 / 1e9
    assert shown["verify_ms"]["eager"] == [
        {
            "nodes": 0,
            "rows": 1,
            "context": 64,
            "ms": 2.0,
            "least_ms": 1.0,
            "repeats": 3,
            "weights_gb_per_s": round(rate, 3),
            "share_of_bandwidth": round(rate / 0.1, 4),
        },
        {"nodes": 8, "rows": 9, "context": 64, "ms": 4.0, "least_ms": 4.0, "repeats": 1},
    ]
    assert shown["prefill_ms"] == {
        "eager": [{"tokens": 64, "ms": 5.0, "least_ms": 5.0, "repeats": 1}]
    }
    assert shown["draft_step_ms"] == {"eager": [], "compiled": []}
    assert found.tables(None)["verify_ms"]["eager"][0]["share_of_bandwidth"] is None


def test_tables_for_people_show_what_was_not_measured() -> None:
    rows = [
        {"width": 1, "context": 8, "ms": 1.5},
        {"width": 2, "context": 16, "ms": 2.25},
    ]
    assert [line.split() for line in table_lines(rows, "width")] == [
        ["width", "8", "16"],
        ["1", "1.500", "-"],
        ["2", "-", "2.250"],
    ]


@pytest.mark.parametrize("count", [1, 2, 9, 150])
def test_random_trees_have_a_path_of_full_depth(count: int) -> None:
    import random

    parents = random_parents(random.Random(0), count)
    assert len(parents) == count
    assert int(node_depths(parents).max()) == min(tables.DEPTH, count - 1)


# Replayed acceptance


@pytest.mark.parametrize("length", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_steering_makes_exactly_so_many_tokens_right(length: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(length)
    logits = torch.randn(len(TOKENS), 16, generator=generator).to(dtype)
    # By themselves the logits would accept 2 - 5 and go on below whatever is kept.
    logits[0, 2] = logits[2, 5] = logits[1, 4] = logits[3, 6] = 50.0
    steer(logits, TOKENS, ancestor_mask(PARENTS), length)
    path, bonus = walk(TOKENS, PARENTS, logits.argmax(-1).numpy())
    assert path.tolist() == [[], [1], [1, 3], [1, 3, 6]][length]
    assert bonus not in [{1, 2}, {3, 4}, {6}, set()][length]


def test_steering_keeps_to_the_depth_of_the_tree() -> None:
    logits = torch.zeros(len(TOKENS), 16)
    steer(logits, TOKENS, ancestor_mask(PARENTS), 7)
    path, _ = walk(TOKENS, PARENTS, logits.argmax(-1).numpy())
    assert path.tolist() == [1, 3, 6]


def test_a_replaying_target_accepts_the_recorded_lengths_and_else_decodes_as_ever() -> None:
    shape = small_shape("qwen2", tiny=True)
    runner = ReplayingRunner(random_model(shape, CPU, torch.float32, 0), "toy")
    plain = decode_plainly(runner, [1, 2, 3], 20)
    runner.replay([0, 3, 1, 6, 2])
    wrong = Scripted([], shape.vocab, 0.0, seed=0)
    answer = decode_in_rounds(runner, wrong, CHAIN, [1, 2, 3], 5 + 12 + 1)
    assert [round_.accepted_length for round_ in answer.rounds] == [0, 3, 1, 6, 2]
    assert decode_plainly(runner, [1, 2, 3], 20) == plain


def test_the_trace_is_of_the_shapes_that_are_replayed() -> None:
    trace = load_trace()
    assert tuple(trace.accepted) == SHAPES
    for shape, lengths in trace.accepted.items():
        assert len(lengths) > 100
        assert set(lengths) <= set(range(shape.max_depth + 1))
    assert "embedded:smollm2-135m-instruct" in trace.source


def test_turns_take_one_stretch_of_the_trace_after_another() -> None:
    assert rounds.take([1, 2, 3], turn=0, count=2) == [1, 2]
    assert rounds.take([1, 2, 3], turn=1, count=2) == [3, 1]


def test_where_a_round_s_time_goes_adds_up() -> None:
    shared: dict[str, Any] = {
        "context_tokens": 9,
        "width": 2,
        "drafted_nodes": 4,
        "queue_s": 0.001,
        "verify_s": 0.010,
        "uplink_bytes": 1,
        "downlink_bytes": 1,
    }
    answers = rounds.Answers()
    for number, accepted in enumerate((0, 2)):
        answers.rounds.append(
            RoundRecord(
                round=number + 1,
                depth=2 + number,
                num_nodes=4,
                accepted_length=accepted,
                emitted_tokens=accepted + 1,
                draft_s=0.020,
                wait_s=0.015,
                round_s=0.036,
                **shared,
            )
        )
    answers.requests.append(request_record(round_tokens=4, ttft_s=0.5, total_s=2.5))
    assert answers.as_dict() == {
        "answers": 1,
        "rounds": 2,
        "mean_accepted_tokens": 2.0,
        "mean_nodes": 4.0,
        "mean_depth": 2.5,
        "shorter_trees": 0,
        "round_ms": 36.0,
        "draft_ms": 20.0,
        "wait_ms": 15.0,
        "verify_ms": 10.0,
        "queue_ms": 1.0,
        "link_ms": 4.0,
        "rest_ms": 1.0,
        "tokens_per_s": 2.0,
    }
    assert rounds.Answers().as_dict()["round_ms"] is None


def request_record(**known: Any) -> RequestRecord:
    fields: dict[str, Any] = {
        "method": "chain",
        "prompt_tokens": 3,
        "output_tokens": 5,
        "finish_reason": "length",
        "rounds": 2,
        "drafted_nodes": 8,
        "sent_nodes": 8,
        "accepted_tokens": 2,
        "target_forwards": 3,
        "draft_s": 0.04,
        "server_draft_s": None,
        "target_busy_s": 0.02,
        "target_held_s": 2.5,
        "queue_s": 0.002,
        "uplink_bytes": 2,
        "downlink_bytes": 2,
        "draft_j": None,
        "draft_net_j": None,
        "target_j": None,
        "target_net_j": None,
        "draft_energy_method": None,
        "target_energy_method": None,
        "output_ids": [],
    }
    return RequestRecord(**{**fields, **known})


# Losslessness


def test_a_difference_at_a_tie_is_no_fault_and_another_is() -> None:
    found = Comparison("llama", "eager", "chain_wrong")
    found.compare([5, 6, 7], [5, 6, 7], [1.0, 1.0, 1.0], seed=0, context=4)
    found.compare([5, 6, 7], [5, 9, 9], [1.0, 0.9e-4, 1.0], seed=0, context=8)
    assert (found.answers, found.tokens, found.ties, found.faults) == (2, 5, 1, [])
    assert lossless.verdict([found])["held"]
    found.compare([5, 6, 7], [5, 9, 7], [1.0, 1.1e-4, 1.0], seed=1, context=8)
    assert found.faults == [Difference(seed=1, context=8, token=1, gap=1.1e-4)]
    judged = lossless.verdict([found])
    assert not judged["held"]
    assert judged["comparisons"][0]["num_faults"] == 1


def test_nothing_compared_has_not_held() -> None:
    assert not lossless.verdict([])["held"]
    assert not lossless.verdict([Comparison("llama", "eager", "stock")])["held"]


@pytest.mark.parametrize("policy", [CHAIN, TREE], ids=["chain", "tree"])
def test_scripted_drafts_are_as_right_as_they_should_be(policy: Any) -> None:
    known = list(range(40))
    depth = policy.limits.max_depth
    for right, kept in ((1.0, depth), (0.0, 0)):
        source = Scripted(known, 4096, right, seed=1)
        tree = source.draft(known[:10], policy, 99, 99).tree
        received_tree(int(tree.tokens[0]), tree.tokens[1:], tree.parents[1:])
        assert (tree.num_nodes, tree.depth) == (policy.limits.node_budget, depth)
        path, _ = walk(tree.tokens, tree.parents, np.array(known)[10 + tree.depths])
        assert len(path) == kept


def prove(family: str) -> list[Comparison]:
    found: list[Comparison] = []
    part = Budget(1e6).part(1.0)
    plan = replace(TINY_PLAN, contexts=(5,), tokens=16)
    Prover(small_shape(family, tiny=True), CPU, 0, compile=False).prove(plan, part, found)
    return found


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("family", TINY_PAIRS)
def test_trees_give_what_plain_decoding_gives(family: str) -> None:
    found = {comparison.draft: comparison for comparison in prove(family)}
    assert tuple(found) == lossless.KINDS
    assert lossless.verdict(list(found.values()))["held"]
    assert found["chain_half_right"].accepted > 0
    assert found["tree_half_right"].accepted > 0
    assert found["cut"].accepted > 0


@pytest.mark.usefixtures("one_thread")
def test_a_mask_that_is_wrong_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_see_all(parents: Any) -> Any:
        return np.ones((len(parents), len(parents)), dtype=np.bool_)

    monkeypatch.setattr("autodraft.engine.verifier.ancestor_mask", all_see_all)
    judged = lossless.verdict(prove("llama"))
    assert not judged["held"]
    assert judged["faults"] > 0


# The command


def settings(**known: Any) -> Settings:
    fields = {
        "device": CPU,
        "dtype": torch.float32,
        "tiny": True,
        "compiled": "no",
        "seed": 0,
        "out": None,
    }
    return Settings(**{**fields, **known})


def test_without_time_every_part_is_dropped_and_nothing_has_held(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    check = Check(settings(out=out), Budget(1e-6))
    check.run()
    report = json.loads(check.finish(complete=True))
    assert report == json.loads(out.read_text())
    assert report["dropped"] == ["losslessness", "memory copy", "choice of models"]
    assert report["held"] is False
    assert report["models"] is None
    assert report["round"] is None
    assert report["compiled_skipped"] == "--compiled no"


@pytest.mark.usefixtures("one_thread")
def test_a_part_that_breaks_is_reported_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_: torch.device) -> float:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(tables, "copy_gb_per_s", broken)
    monkeypatch.setattr(rounds.Outcome, "measure", lambda *_: None)
    monkeypatch.setattr(lossless, "TINY_PLAN", replace(TINY_PLAN, contexts=(5,), tokens=6))
    check = Check(settings(), Budget(600.0))
    check.run()
    report = check.report
    assert report.failed == [{"part": "memory copy", "reason": "OutOfMemoryError: no room"}]
    assert lossless.verdict(report.comparisons)["held"]
    assert not report.held
    figures = report.as_dict()
    assert figures["bandwidth_gb_per_s"] is None
    assert len(figures["tables"]["verify_ms"]["eager"]) == len(tables.TINY_GRID.rows) * 2
    assert [pair["models"]["target"]["family"] for pair in figures["more_pairs"]] == ["llama"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--device", "cuda:99"], "CUDA devices here"),
        (["--device", "tpu"], "cuda:N or cpu is allowed"),
        (["--device", "meta"], "cuda:N or cpu is allowed"),
        (["--device", "cpu", "--out", "/nowhere/at/all.json"], "there is no such folder"),
    ],
)
def test_what_cannot_be_checked_is_said_at_once(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    assert told in capsys.readouterr().err


def test_a_large_pair_needs_its_reserve() -> None:
    pair = PAIRS["llama"][0]
    needed = shapes.pair_bytes(pair, 2, 4300) + shapes.RESERVE_BYTES
    free = int(needed / (1 - shapes.RESERVE_SHARE))
    assert choose_pair(PAIRS["llama"], free + 2, 2, 4300)[0] == pair
    assert choose_pair(PAIRS["llama"], free - 2, 2, 4300)[0] != pair
