"""Which specs of autodraft a configuration asks for: objectives, cost sensitivities, ablations."""

from typing import Any

import pytest

from autodraft.config import (
    ABLATION_MODES,
    AlgorithmsConfig,
    ExperimentConfig,
    MethodSpec,
    ModelsConfig,
    ObjectiveConfig,
    TreeConfig,
)
from autodraft.errors import ConfigError

MODELS = ModelsConfig(base_model_path="big", draft_model_path="small")


def config_of(
    objective: dict[str, Any] | None = None, tree: dict[str, Any] | None = None, **details: Any
) -> ExperimentConfig:
    return ExperimentConfig(
        models=MODELS,
        objective=ObjectiveConfig(**(objective or {"autodraft_cs_list": (0.5,)})),
        algorithms=AlgorithmsConfig(**({"method_names": ("autodraft",)} | details)),
        tree=TreeConfig(**(tree or {})),
    )


def labels(config: ExperimentConfig) -> list[str]:
    return [spec.label for spec in config.methods()]


def test_what_varies_is_in_the_label_in_the_order_objective_cs_mode_shape() -> None:
    config = config_of(
        {"objective_metrics": ("total_cost", "api_cost"), "autodraft_cs_list": (0, 1)},
        {"proposed_nodes": (32, 150)},
        autodraft_ablation_modes=("full", "no_depth"),
    )
    assert len(config.methods()) == 2 * 2 * 2 * 2
    assert labels(config)[:5] == [
        "autodraft_total_cost_cs0_n32",
        "autodraft_total_cost_cs0_n150",
        "autodraft_total_cost_cs0_no_depth_n32",
        "autodraft_total_cost_cs0_no_depth_n150",
        "autodraft_total_cost_cs1_n32",
    ]
    last = config.methods()[-1]
    assert last.label == "autodraft_api_cost_cs1_no_depth_n150"
    assert (last.objective, last.cs, last.mode) == ("api_cost", 1.0, "no_depth")
    assert config.method(last.label) == last


@pytest.mark.parametrize(
    ("cs", "expected"),
    [
        ((0.5,), ["autodraft"]),
        ((0, 0.25, 1), ["autodraft_cs0", "autodraft_cs0.25", "autodraft_cs1"]),
        # Close values keep labels of their own.
        ((0.3333333, 0.33333331), ["autodraft_cs0.3333333", "autodraft_cs0.33333331"]),
    ],
)
def test_one_value_of_cs_is_left_out_and_several_are_named(
    cs: tuple[float, ...], expected: list[str]
) -> None:
    config = config_of({"autodraft_cs_list": cs})
    assert labels(config) == expected
    assert [spec.cs for spec in config.methods()] == list(cs)
    assert {spec.curve for spec in config.methods()} == {"autodraft"}


def test_a_curve_is_the_label_without_cs() -> None:
    config = config_of(
        {"objective_metrics": ("total_cost", "api_cost"), "autodraft_cs_list": (0, 0.5)},
        method_names=("chain", "autodraft", "autodraft@server"),
        autodraft_ablation_modes=("no_depth",),
    )
    assert [spec.curve for spec in config.methods()] == [
        "chain",
        *["autodraft_total_cost_no_depth"] * 2,
        *["autodraft_api_cost_no_depth"] * 2,
        *["autodraft_total_cost_no_depth@server"] * 2,
        *["autodraft_api_cost_no_depth@server"] * 2,
    ]


def test_a_single_ablation_is_not_called_autodraft() -> None:
    assert labels(config_of(autodraft_ablation_modes=("no_width",))) == ["autodraft_no_width"]


def test_at_the_server_the_list_of_the_server_holds() -> None:
    config = config_of(
        {"autodraft_cs_list": (0, 1), "server_only_autodraft_cs_list": (0.25,)},
        method_names=("autodraft", "autodraft@server"),
    )
    assert [(s.label, s.placement, s.cs) for s in config.methods()] == [
        ("autodraft_cs0", "user", 0.0),
        ("autodraft_cs1", "user", 1.0),
        ("autodraft@server", "server", 0.25),
    ]


def test_an_ablation_leaves_out_what_its_name_says() -> None:
    modes = ABLATION_MODES
    specs = {spec.mode: spec for spec in config_of(autodraft_ablation_modes=modes).methods()}
    assert list(specs) == list(ABLATION_MODES)
    without_retrieval = {mode for mode, spec in specs.items() if not spec.retrieval}
    assert without_retrieval == {"adaptive_only", "no_retrieval"}
    assert {mode for mode, spec in specs.items() if not spec.handover} == {"adaptive_only"}
    waiting = {mode for mode, spec in specs.items() if not spec.proactive}
    assert waiting == {"no_proactive", "adaptive_only"}
    off = config_of(
        retrieval_draft=False,
        enable_handover=False,
        enable_proactive=False,
        autodraft_ablation_modes=modes,
    )
    assert not any(spec.retrieval or spec.handover or spec.proactive for spec in off.methods())


def test_drafting_ahead_that_is_switched_on_holds_for_every_mode_and_at_the_user_alone() -> None:
    names = ("autodraft", "autodraft@server", "chain")
    on = config_of(
        enable_proactive=True, autodraft_ablation_modes=ABLATION_MODES, method_names=names
    )
    for spec in on.methods():
        assert spec.proactive == (spec.name == "autodraft")


def test_a_single_request_drafts_ahead_only_where_it_asks_to() -> None:
    config = config_of(enable_proactive=True)
    assert not config.adaptive(0.5).proactive
    assert config.adaptive(0.5, proactive=True).proactive
    with pytest.raises(ConfigError, match="^proactive=True is for autodraft alone: "):
        config.adaptive(0.5, name="autodraft@server", proactive=True)


def test_ablations_that_change_nothing_are_noted() -> None:
    modes = ("full", "no_proactive", "no_retrieval")
    assert config_of(autodraft_ablation_modes=modes).notes() == ()
    for switch in (0, 1):
        assert config_of(autodraft_ablation_modes=modes, enable_proactive=bool(switch)).notes() == (
            "AUTODRAFT_ABLATION_MODES_CSV: no_proactive is the same as full, because "
            f"ENABLE_PROACTIVE={switch}.",
        )
    assert config_of(autodraft_ablation_modes=modes, retrieval_draft=False).notes() == (
        "AUTODRAFT_ABLATION_MODES_CSV: no_retrieval is the same as full, because "
        "RETRIEVAL_DRAFT=0.",
    )
    chain = config_of(method_names=("chain",), chain_d=(2,), autodraft_ablation_modes=modes)
    assert chain.notes() == ()


@pytest.mark.parametrize(
    ("tree", "limits", "fixed"),
    [
        ({}, (64, 15, 150), (8, 6, 32)),
        ({"proposed_nodes": 24, "proposed_max_depth": 5}, (24, 5, 24), (8, 5, 24)),
        # Each by itself: a fixed number of 4 nodes does not make the fixed depth 4.
        ({"fixed_tree_width": (3, 9), "fixed_tree_nodes": 4}, (64, 15, 150), (3, 6, 4)),
        ({"fixed_tree_width": 100, "fixed_tree_depth": 20}, (64, 15, 150), (64, 15, 32)),
    ],
)
def test_what_ablations_hold_fixed_lies_within_the_ceilings(
    tree: dict[str, Any], limits: tuple[int, int, int], fixed: tuple[int, int, int]
) -> None:
    (spec,) = config_of(tree=tree).methods()
    assert (spec.width, spec.max_depth, spec.node_budget) == limits
    assert spec.fixed == fixed


def test_a_fixed_tree_that_is_tuned_leaves_the_usual_values() -> None:
    auto = dict.fromkeys(("fixed_tree_width", "fixed_tree_depth", "fixed_tree_nodes"))
    (spec,) = config_of(tree=auto).methods()
    assert spec.fixed == (8, 6, 32)
    assert not spec.tuned


# -------------------------------------------------------------------------------- single requests


def test_a_single_request_takes_the_first_objective_and_the_first_ceilings() -> None:
    config = config_of(
        {"objective_metrics": ("api_cost", "total_cost"), "autodraft_cs_list": (0, 1)},
        {"proposed_nodes": (40, 80), "proposed_max_depth": (7, 9)},
        autodraft_ablation_modes=("no_depth",),
    )
    assert config.adaptive(0.3) == MethodSpec(
        method="autodraft",
        width=40,
        max_depth=7,
        node_budget=40,
        retrieval=True,
        objective="api_cost",
        cs=0.3,
        mode="full",
        handover=True,
        fixed=(8, 6, 32),
    )
    other = config.adaptive(1, "draft_energy", "autodraft@server")
    assert (other.objective, other.cs, other.label) == ("draft_energy", 1.0, "autodraft@server")


@pytest.mark.parametrize("cs", [-0.1, 1.01, float("nan"), True, "0.5", None])
def test_a_cost_sensitivity_is_a_number_from_0_to_1(cs: Any) -> None:
    with pytest.raises(ConfigError, match="is no cost sensitivity. Use a number from 0"):
        config_of().adaptive(cs)


def test_an_unknown_objective_or_method_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no objective 'total'. Did you mean total_cost\?"):
        config_of().adaptive(0.5, "total")
    with pytest.raises(ConfigError, match="chain takes no cs: only autodraft and autodraft@server"):
        config_of().adaptive(0.5, name="chain")


def test_a_name_that_stands_for_several_is_refused_with_their_labels() -> None:
    config = config_of({"autodraft_cs_list": (0, 1)})
    with pytest.raises(ConfigError, match="so say which: autodraft_cs0, autodraft_cs1"):
        config.method("autodraft")


# -------------------------------------------------------------------------------------- the spec


def spec_of(**fields: Any) -> MethodSpec:
    limits = {"width": 2, "max_depth": 2, "node_budget": 4}
    return MethodSpec(**({"method": "autodraft"} | limits | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "autodraft needs cs, from 0"),
        ({"cs": 1.5}, "cs: Input should be less than or equal to 1"),
        ({"cs": float("nan")}, "cs: Input should be"),
        ({"cs": 0.5, "mode": "no_dept"}, "no mode 'no_dept'. Did you mean no_depth"),
        ({"cs": 0.5, "objective": "price"}, "There is no objective 'price'"),
        ({"method": "chain", "cs": 0.0}, "cs=0.0 is for autodraft alone, and the method is chain"),
        ({"method": "opt_tree", "handover": True}, "handover=True is for autodraft alone"),
        ({"method": "opt_tree", "mode": "no_depth"}, "mode='no_depth' is for autodraft alone"),
    ],
)
def test_only_autodraft_has_a_cost_sensitivity_and_it_must_have_one(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(**fields)


def test_both_ends_of_the_range_are_allowed() -> None:
    assert [spec_of(cs=cs).cs for cs in (0, 1)] == [0.0, 1.0]
