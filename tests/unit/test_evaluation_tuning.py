"""Which shape a stored tuning speaks for, and when it does not speak.

The best shapes are worked out in ``tuning_fakes.py``.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from autodraft.config import ExperimentConfig, NetworkSetting
from autodraft.cost import Quantities
from autodraft.errors import StoreError
from evaluation.plan import make_plan
from evaluation.tuning import (
    Measured,
    rank,
    read_tuning,
)
from tests.unit.tuning_fakes import (
    BARE,
    LONG,
    Bench,
    SpeedEngine,
    config_for,
)

# ------------------------------------------------------------ the choice


@pytest.mark.parametrize(
    ("objective", "cs", "network", "best"),
    [
        ("api_cost", 0.0, BARE, 1),
        ("api_cost", 0.0, LONG, 5),
        ("api_cost", 1.0, BARE, 5),  # and as good with 6, 8 and 10, which are larger
        ("api_cost", 0.5, BARE, 5),
        ("draft_energy", 1.0, BARE, 1),
        ("draft_energy", 1.0, LONG, 1),
        ("draft_energy", 0.5, LONG, 5),  # server-only's is zero: by time alone
    ],
)
def test_the_choice_follows_objective_cost_sensitivity_and_link(
    shared: Bench, objective: str, cs: float, network: NetworkSetting, best: int
) -> None:
    assert shared.best(config_for(objective, cs), network) == best


def test_the_choice_follows_prices_without_measuring_again(shared: Bench) -> None:
    # A drafted token costs 1 J: at 1 $ a joule the chain's C is (rounds + rounds · d) / 120.
    dear = {"draft_electricity_cost_per_kwh": 3.6e6}
    assert shared.best(config_for("total_cost", 1.0)) == 5
    assert shared.best(config_for("total_cost", 1.0, objective=dear)) == 1


def test_the_first_objective_decides(shared: Bench) -> None:
    metrics = {"objective_metrics": ("draft_energy", "api_cost")}
    assert shared.best(config_for("total_cost", 1.0, objective=metrics)) == 1
    metrics = {"objective_metrics": ("api_cost", "draft_energy")}
    assert shared.best(config_for("total_cost", 1.0, objective=metrics)) == 5


def make_measured(d: int, seconds: float, busy_s: float, draft_j: float | None) -> Measured:
    return Measured(
        method="chain" if d else "server_only",
        width=1 if d else 0,
        max_depth=d,
        node_budget=d,
        seconds=seconds,
        quantities=Quantities(
            output_tokens=100,
            target_busy_s=busy_s,
            target_held_s=seconds,
            total_s=seconds,
            draft_j=draft_j,
            target_j=None,
            uplink_bytes=0,
            downlink_bytes=0,
        ),
    )


def test_the_score_is_the_blend_of_time_and_objective_in_parts_of_server_only() -> None:
    reference = make_measured(0, seconds=100, busy_s=100, draft_j=0)
    slow, fast = make_measured(2, 90, 30, 5), make_measured(4, 50, 60, 9)
    objective = config_for("api_cost", 0.25).objective
    found = rank([slow, fast], reference, objective, "api_cost")
    assert [each.measured.max_depth for each in found] == [4, 2]
    # 0.75 · 0.5 + 0.25 · 0.6 and 0.75 · 0.9 + 0.25 · 0.3
    assert [each.score for each in found] == pytest.approx([0.525, 0.75])
    assert {each.basis for each in found} == {"blend"}


@pytest.mark.parametrize(
    ("name", "cs", "basis", "best", "score"),
    [
        ("draft_energy", 0.5, "time", 4, 0.5),  # κ = 0
        ("draft_energy", 1.0, "objective", 2, 0.05),
        ("target_energy", 0.5, "time", 4, 0.5),  # unknown for all
        ("target_energy", 1.0, "time", 4, 0.5),
    ],
)
def test_time_or_objective_alone_counts_where_no_blend_can_be_formed(
    name: str, cs: float, basis: str, best: int, score: float
) -> None:
    reference = make_measured(0, seconds=100, busy_s=100, draft_j=0)
    shapes = [make_measured(2, 90, 30, 5), make_measured(4, 50, 60, 9)]
    first = rank(shapes, reference, config_for(name, cs).objective, name)[0]
    assert (first.basis, first.measured.max_depth) == (basis, best)
    assert first.score == pytest.approx(score)


def test_one_candidate_of_unknown_cost_leaves_time_alone_for_all() -> None:
    reference = make_measured(0, seconds=100, busy_s=100, draft_j=0)
    shapes = [make_measured(2, 90, 30, None), make_measured(4, 50, 60, 9)]
    dear = {"draft_electricity_cost_per_kwh": 0.2}
    found = rank(
        shapes, reference, config_for("total_cost", 1.0, objective=dear).objective, "total_cost"
    )
    assert [(each.basis, each.score) for each in found] == [("time", 0.5), ("time", 0.9)]


def test_of_equally_good_shapes_the_smaller_is_taken() -> None:
    reference = make_measured(0, seconds=100, busy_s=100, draft_j=0)
    shapes = [make_measured(d, 50, 50, 5) for d in (8, 3, 5)]
    found = rank(shapes, reference, config_for("api_cost").objective, "api_cost")
    assert [each.measured.max_depth for each in found] == [3, 5, 8]


def test_nothing_beyond_the_ceilings_of_the_asking_configuration_is_chosen(shared: Bench) -> None:
    low = {"proposed_max_depth": (3,)}
    assert shared.best(config_for("total_cost", 0.0, tree=low), LONG) == 3
    assert shared.best(config_for("total_cost", 0.0, tree={"proposed_nodes": (2, 1)}), LONG) == 2


# ------------------------------------------------------------ the plan


def test_a_plan_takes_the_stored_shapes(shared: Bench) -> None:
    config = config_for("total_cost", 0.0)
    plan = make_plan(config, shared.tuned(config))
    assert not any("not tuned" in note for note in plan.notes)
    assert "the last 2 questions" in plan.notes[-1]
    assert plan.tuned_benches == {"quick"}
    shapes = [[(s.label, s.max_depth) for s in each.methods] for each in plan.conditions]
    assert shapes == [
        [("server_only", 0), ("chain", 1)],
        [("server_only", 0), ("chain", 5)],
    ]
    assert all(each.methods[1].tuned for each in plan.conditions)


def not_tuned(bench: Bench, config: ExperimentConfig) -> bool:
    """Return whether a plan says that the chain is not tuned, and takes what is usual."""
    plan = make_plan(config, bench.tuned(config))
    usual = all(each.methods[1].max_depth == 4 for each in plan.conditions)
    return usual and any("not tuned" in note for note in plan.notes)


@pytest.mark.parametrize(
    "changes",
    [
        {"dataset": {"validation_questions": 3}},
        {"models": {"dtype": "bfloat16"}},
        {"runtime": {"server_name": "another"}},
        {"runtime": {"device_map": "cuda:0"}},
        {"network": {"rtt_ms": (20,)}},
    ],
    ids=["questions", "dtype", "server", "device", "link"],
)
def test_what_was_measured_for_something_else_does_not_count(
    shared: Bench, changes: dict[str, dict[str, Any]]
) -> None:
    models = changes.pop("models", None)
    config = config_for(**changes)
    if models:
        fields = config.models.model_dump(exclude={"target_dtype"}) | models
        config = config.model_copy(update={"models": type(config.models)(**fields)})
    assert not_tuned(shared, config)


def test_a_method_that_was_not_measured_is_not_tuned(shared: Bench) -> None:
    config = config_for(algorithms={"method_names": ("server_only", "chain@server")})
    assert not_tuned(shared, config)


def test_a_limit_of_the_run_does_not_make_the_tuning_stale(shared: Bench) -> None:
    assert shared.best(config_for("total_cost", 0.0, dataset={"question_limit": 1}), LONG) == 5


def test_a_file_of_another_schema_version_counts_as_missing(bench: Bench) -> None:
    config = config_for()
    bench.tune(config, lambda _: SpeedEngine())
    path = bench.file(config)
    content = json.loads(path.read_bytes()) | {"schema_version": 99, "shapes": "of another form"}
    path.write_text(json.dumps(content))
    assert read_tuning(path) is None
    assert bench.best(config) is None
    assert bench.best(config, LONG) == 5  # another file


def without_reference(content: dict[str, Any]) -> str:
    return json.dumps(content | {"shapes": content["shapes"][1:]})


def without_tokens(content: dict[str, Any]) -> str:
    content["shapes"][1]["quantities"]["output_tokens"] = 0
    return json.dumps(content)


def without_time(content: dict[str, Any]) -> str:
    content["shapes"][0]["seconds"] = 0
    return json.dumps(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: json.dumps(content)[:-30],
        lambda _: "",
        lambda _: "[]",
        without_reference,
        without_tokens,
        without_time,
    ],
    ids=["cut off", "empty", "a list", "no reference", "no tokens", "no time"],
)
def test_a_damaged_file_is_named_with_the_way_out(
    bench: Bench, damage: Callable[[dict[str, Any]], str]
) -> None:
    config = config_for()
    bench.tune(config, lambda _: SpeedEngine())
    path = bench.file(config)
    path.write_text(damage(json.loads(path.read_bytes())))
    with pytest.raises(StoreError, match="Delete the file, and tune again") as caught:
        make_plan(config, bench.tuned(config))
    assert str(path) in str(caught.value)
