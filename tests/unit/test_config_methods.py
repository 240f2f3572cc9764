"""Which methods a configuration asks for: limits, labels, sweeps, notes. No files."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodraft.config import (
    AVAILABLE_METHODS,
    METHOD_NAMES,
    AlgorithmsConfig,
    ExperimentConfig,
    MethodSpec,
    ModelsConfig,
    NetworkConfig,
    ObjectiveConfig,
    SamplingConfig,
    TreeConfig,
)
from autodraft.errors import ConfigError

MODELS = ModelsConfig(base_model_path="big", draft_model_path="small")
Sizes = tuple[int, ...]


def experiment(**blocks: Any) -> ExperimentConfig:
    return ExperimentConfig(**{"models": MODELS, **blocks})


def with_methods(
    *names: str, tree: TreeConfig | None = None, cs: tuple[float, ...] = (0, 0.5, 1), **details: Any
) -> ExperimentConfig:
    algorithms = AlgorithmsConfig(method_names=names, **details)
    objective = ObjectiveConfig(autodraft_cs_list=cs)
    return experiment(algorithms=algorithms, objective=objective, tree=tree or TreeConfig())


def limits(config: ExperimentConfig) -> list[tuple[str, int, int, int]]:
    return [(m.label, m.width, m.max_depth, m.node_budget) for m in config.methods()]


def test_autodraft_is_the_method_by_default() -> None:
    assert limits(experiment()) == [
        ("autodraft_cs0", 64, 15, 150),
        ("autodraft_cs0.5", 64, 15, 150),
        ("autodraft_cs1", 64, 15, 150),
    ]


def test_switches_choose_methods_in_the_order_of_the_tables() -> None:
    switches = {name: True for name in AlgorithmsConfig.model_fields if name.startswith("enable_")}
    for other in ("enable_proactive", "enable_handover"):
        del switches[other]
    one = ObjectiveConfig(autodraft_cs_list=(0.5,))
    config = experiment(algorithms=AlgorithmsConfig(**switches), objective=one)
    assert [m.label for m in config.methods()] == [
        "server_only",
        "chain",
        "fixed_tree",
        "opt_tree",
        "autodraft",
        "lookup",
        "chain@server",
        "opt_tree@server",
        "autodraft@server",
    ]
    assert [m.placement for m in config.methods()] == ["user"] * 6 + ["server"] * 3


def test_methods_csv_overrides_the_switches_and_keeps_its_order() -> None:
    config = with_methods("opt_tree", "server_only", "chain@server", enable_hybrid_fixed_tree=True)
    assert limits(config) == [
        ("opt_tree", 16, 15, 150),
        ("server_only", 0, 0, 0),
        ("chain@server", 1, 4, 4),
    ]


def test_each_method_has_its_own_limits() -> None:
    tree = TreeConfig(
        proposed_nodes=24,
        proposed_max_depth=5,
        fixed_tree_width=4,
        fixed_tree_depth=3,
        fixed_tree_nodes=12,
        opt_tree_width=8,
    )
    names = ("server_only", "chain", "fixed_tree", "opt_tree", "autodraft", "lookup")
    assert limits(with_methods(*names, tree=tree, cs=(0.5,), chain_d=(3,))) == [
        ("server_only", 0, 0, 0),
        ("chain", 1, 3, 3),
        ("fixed_tree", 4, 3, 12),
        ("opt_tree", 8, 5, 24),
        ("autodraft", 24, 5, 24),
        ("lookup", 0, 5, 24),
    ]


def test_the_ceilings_hold_for_every_method() -> None:
    tree = TreeConfig(
        proposed_nodes=6,
        proposed_max_depth=4,
        fixed_tree_width=9,
        fixed_tree_depth=9,
        fixed_tree_nodes=99,
        opt_tree_width=99,
    )
    config = with_methods(*METHOD_NAMES, tree=tree, cs=(0.5,), chain_d=(2, 9, 8))
    assert len(config.methods()) == len(METHOD_NAMES) + 2
    for method in config.methods():
        assert method.node_budget <= 6
        assert method.max_depth <= 4
        assert method.width <= 6
    assert limits(config)[1:4] == [
        ("chain_d2", 1, 2, 2),
        ("chain_d4", 1, 4, 4),  # 9 and 8 are both cut to 4: one method
        ("fixed_tree", 6, 4, 6),
    ]


def test_a_tree_of_few_nodes_is_no_deeper_and_no_wider_than_it_has_nodes() -> None:
    tree = TreeConfig(proposed_nodes=3)
    names = ("chain", "fixed_tree", "opt_tree")
    assert [m[1:] for m in limits(with_methods(*names, tree=tree))] == [
        (1, 3, 3),
        (3, 3, 3),
        (3, 3, 3),
    ]


def test_several_lengths_of_a_chain_are_several_methods_with_labels_of_their_own() -> None:
    config = with_methods("chain", "chain@server", chain_d=(2, 5))
    assert [m.label for m in config.methods()] == [
        "chain_d2",
        "chain_d5",
        "chain_d2@server",
        "chain_d5@server",
    ]
    assert {m.name for m in config.methods()} == {"chain", "chain@server"}


def test_a_method_can_be_asked_for_by_name_or_label_though_it_is_not_switched_on() -> None:
    config = experiment(algorithms=AlgorithmsConfig(chain_d=(2, 5)))
    assert config.method("opt_tree").width == 16
    assert config.method("chain_d5").max_depth == 5
    with pytest.raises(ConfigError, match="so say which: chain_d2, chain_d5"):
        config.method("chain")
    with pytest.raises(ConfigError, match="chain@server has several shapes here, so say which"):
        config.method("chain@server")
    with pytest.raises(ConfigError, match=r"no method 'fixedtree'. Did you mean fixed_tree\?"):
        config.method("fixedtree")


def test_no_method_at_all_is_an_error() -> None:
    config = experiment(algorithms=AlgorithmsConfig(enable_hybrid_autodraft=False))
    with pytest.raises(ConfigError, match="No method is switched on in the block algorithms"):
        config.methods()


def test_methods_that_do_not_exist_yet_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    available = {"server_only", "chain", "chain@server"}
    monkeypatch.setattr("autodraft.config.spec.AVAILABLE_METHODS", available)
    experiment().method("chain").require_available()
    with pytest.raises(ConfigError) as caught:
        experiment().method("opt_tree@server").require_available()
    assert str(caught.value) == (
        "The method opt_tree@server does not exist yet in this version. Those that do: "
        "server_only, chain, chain@server. Choose them with METHODS_CSV, for example "
        "--set algorithms.METHODS_CSV=server_only,chain,chain@server"
    )


def test_every_method_but_one_runs_today() -> None:
    assert set(METHOD_NAMES) - AVAILABLE_METHODS == {"autodraft@server"}
    for spec in with_methods(*sorted(AVAILABLE_METHODS)).methods():
        spec.require_available()


def spec_of(method: str, **fields: Any) -> MethodSpec:
    return MethodSpec(**{"method": method, "width": 2, "max_depth": 2, "node_budget": 4, **fields})


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        (spec_of("opt_tree"), "opt_tree"),
        (spec_of("opt_tree", retrieval=True), "opt_tree+retrieval"),
        (spec_of("chain", retrieval=True, variant="_d2"), "chain_d2+retrieval"),
        (spec_of("chain", retrieval=True, placement="server"), "chain+retrieval@server"),
        (spec_of("autodraft", retrieval=True, cs=0.5), "autodraft"),
        (spec_of("autodraft", cs=0.5), "autodraft"),
    ],
)
def test_a_baseline_with_retrieval_has_a_label_of_its_own(spec: MethodSpec, label: str) -> None:
    assert spec.label == label
    assert spec.name in METHOD_NAMES


@pytest.mark.parametrize("method", ["server_only", "lookup"])
def test_retrieval_cannot_be_grafted_where_there_is_no_draft_model(method: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec_of(method, retrieval=True)
    assert str(caught.value) == (
        "MethodSpec: retrieval=True grafts retrieved continuations into the tree of a draft model, "
        f"and {method} has none. Leave it out, or use it with one of chain, fixed_tree, opt_tree, "
        "autodraft."
    )


@pytest.mark.parametrize("retrieval", [True, False])
def test_retrieval_draft_acts_on_autodraft_only(retrieval: bool) -> None:
    config = with_methods(*METHOD_NAMES, retrieval_draft=retrieval)
    assert {spec.name for spec in config.methods() if spec.retrieval} == (
        {"autodraft", "autodraft@server"} if retrieval else set()
    )


def test_only_some_methods_need_a_draft_model() -> None:
    specs = with_methods(*METHOD_NAMES).methods()
    assert {spec.method for spec in specs if spec.needs_draft_model} == {
        "chain",
        "fixed_tree",
        "opt_tree",
        "autodraft",
    }
    assert with_methods("server_only", "chain@server").draft_placements == {"server"}
    assert with_methods("chain", "chain@server", "lookup").draft_placements == {"user", "server"}
    assert with_methods("server_only", "lookup@server").draft_placements == set()
    assert experiment().draft_placements == {"user"}


TUNE = "what `python -m evaluation tune` chose for the benchmark and the link, else"
NOTE_CHAIN = f"CHAIN_D=auto takes {TUNE} d=4."


def test_a_chain_of_unsaid_length_is_noted_only_where_a_chain_runs() -> None:
    assert with_methods("opt_tree").notes() == ()
    assert with_methods("chain", chain_d=(3,)).notes() == ()
    assert with_methods("chain").notes() == (NOTE_CHAIN,)
    assert with_methods("chain", "chain@server").notes() == (NOTE_CHAIN,)


def test_shapes_that_are_tuned_say_so_and_hold_what_is_taken_otherwise() -> None:
    auto = TreeConfig(
        proposed_nodes=(20, 60),
        proposed_max_depth=(5, 9),
        fixed_tree_width=None,
        fixed_tree_depth=None,
        fixed_tree_nodes=None,
        opt_tree_width=None,
    )
    config = with_methods("chain", "fixed_tree", "opt_tree", "opt_tree@server", tree=auto)
    assert limits(config) == [
        ("chain", 1, 4, 4),
        ("fixed_tree", 8, 6, 32),
        ("opt_tree", 16, 9, 60),
        ("opt_tree@server", 16, 9, 60),
    ]
    assert all(spec.tuned for spec in config.methods())
    assert config.notes() == (
        NOTE_CHAIN,
        f"FIXED_TREE_*=auto takes {TUNE} width 8, depth 6 and 32 nodes.",
        f"OPT_TREE_WIDTH=auto takes {TUNE} width 16 and the ceilings.",
    )


def test_numbers_are_not_tuned() -> None:
    config = with_methods("server_only", "chain", "fixed_tree", "opt_tree", "lookup", chain_d=(4,))
    assert not any(spec.tuned for spec in config.methods())


def test_a_tuned_shape_is_cut_to_the_highest_ceilings() -> None:
    config = with_methods("chain", tree=TreeConfig(proposed_nodes=(3, 6), proposed_max_depth=4))
    (spec,) = config.methods()
    assert config.reshaped(spec, width=1, max_depth=2, node_budget=2) == MethodSpec(
        method="chain", width=1, max_depth=2, node_budget=2, tuned=True
    )
    cut = config.reshaped(spec, width=9, max_depth=9, node_budget=9)
    assert (cut.width, cut.max_depth, cut.node_budget) == (6, 4, 6)


@pytest.mark.parametrize(
    ("method", "tree", "labels"),
    [
        ("fixed_tree", {"fixed_tree_width": (2, 4)}, ["fixed_tree_w2", "fixed_tree_w4"]),
        ("fixed_tree", {"fixed_tree_depth": (2, 3)}, ["fixed_tree_d2", "fixed_tree_d3"]),
        (
            "fixed_tree",
            {"fixed_tree_width": (2, 4), "fixed_tree_nodes": (16, 32)},
            ["fixed_tree_w2_n16", "fixed_tree_w2_n32", "fixed_tree_w4_n16", "fixed_tree_w4_n32"],
        ),
        ("opt_tree", {"opt_tree_width": (8, 4)}, ["opt_tree_w8", "opt_tree_w4"]),
        ("opt_tree", {"proposed_nodes": (20, 40)}, ["opt_tree_n20", "opt_tree_n40"]),
        ("lookup", {"proposed_max_depth": (3, 5)}, ["lookup_d3", "lookup_d5"]),
        # Autodraft's width follows from its nodes.
        ("autodraft", {"proposed_nodes": (20, 40)}, ["autodraft_n20", "autodraft_n40"]),
        ("autodraft", {"proposed_nodes": (32, 150)}, ["autodraft_n32", "autodraft_n150"]),
        ("server_only", {"proposed_nodes": (20, 40)}, ["server_only"]),
    ],
)
def test_a_label_names_what_varies_among_the_shapes_of_a_method(
    method: str, tree: dict[str, Any], labels: list[str]
) -> None:
    config = with_methods(method, tree=TreeConfig(**tree), cs=(0.5,))
    assert [spec.label for spec in config.methods()] == labels


def test_ceilings_sweep_and_shapes_that_they_make_equal_run_once() -> None:
    tree = TreeConfig(proposed_nodes=(4, 40), fixed_tree_width=2, fixed_tree_depth=(3, 6, 9))
    assert limits(with_methods("chain", "fixed_tree", tree=tree, chain_d=(2, 6))) == [
        ("chain_d2", 1, 2, 2),
        ("chain_d4", 1, 4, 4),
        ("chain_d6", 1, 6, 6),
        ("fixed_tree_d3_n4", 2, 3, 4),
        ("fixed_tree_d4_n4", 2, 4, 4),  # 6 and 9 are both cut to 4
        ("fixed_tree_d3_n32", 2, 3, 32),
        ("fixed_tree_d6_n32", 2, 6, 32),
        ("fixed_tree_d9_n32", 2, 9, 32),
    ]


SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True).map(tuple)


@settings(max_examples=60, deadline=None)
@given(SIZES, SIZES, SIZES, SIZES, SIZES, SIZES, SIZES)
def test_whatever_sweeps_labels_are_unique_and_ceilings_hold(
    chain: Sizes, nodes: Sizes, depth: Sizes, width: Sizes, deep: Sizes, many: Sizes, opt: Sizes
) -> None:
    tree = TreeConfig(
        proposed_nodes=nodes,
        proposed_max_depth=depth,
        fixed_tree_width=width,
        fixed_tree_depth=deep,
        fixed_tree_nodes=many,
        opt_tree_width=opt,
    )
    config = with_methods(*METHOD_NAMES, tree=tree, chain_d=chain)
    specs = config.methods()
    assert len({spec.label for spec in specs}) == len(specs)
    for spec in specs:
        assert config.method(spec.label) == spec
        assert spec.node_budget <= max(nodes)
        assert spec.max_depth <= min(max(depth), spec.node_budget)
        assert spec.width <= spec.node_budget


def test_only_seeds_that_make_a_difference_are_run() -> None:
    greedy = experiment(sampling=SamplingConfig(seeds=(3, 4), num_choices=5))
    assert (greedy.seeds(), greedy.choices()) == ((3,), range(1))
    assert greedy.notes() == (
        "SEED: 3 alone is run, because with TEMPERATURE=0 the answers do not depend on it.",
        "NUM_CHOICES: one answer instead of 5 is run, because with TEMPERATURE=0 all are equal.",
    )
    drawn = SamplingConfig(temperature=0.7, seeds=(3, 4), num_choices=5)
    sampled = experiment(sampling=drawn)
    assert (sampled.seeds(), sampled.choices()) == ((3, 4), range(5))
    assert sampled.notes() == ()
    assert (experiment().seeds(), experiment().choices()) == ((4,), range(1))
    assert experiment().notes() == ()


def test_jitter_beyond_the_round_trip_is_noted() -> None:
    network = NetworkConfig(rtt_ms=(20, 100), jitter_ms=(20, 30))
    assert experiment(network=network).notes() == (
        "JITTER_MS=30 is above RTT_MS=20: delays are cut at 0, so their mean is longer than half "
        "of RTT_MS each way.",
    )
    equal = NetworkConfig(rtt_ms=(20,), jitter_ms=(20,))
    assert experiment(network=equal).notes() == ()


def test_what_the_ceilings_cut_is_noted_for_the_methods_that_run() -> None:
    tree = TreeConfig(proposed_nodes=20, proposed_max_depth=5)
    assert with_methods("server_only", tree=tree).notes() == ()
    notes = with_methods("chain", "fixed_tree", "opt_tree", tree=tree, chain_d=(3, 9)).notes()
    assert [note.split(" (")[0] for note in notes] == [
        "CHAIN_D=9 is cut to 5",
        "FIXED_TREE_DEPTH=6 is cut to 5",
        "FIXED_TREE_NODES=32 is cut to 20",
    ]


def test_a_value_that_several_ceilings_cut_is_noted_for_each_length_that_is_left() -> None:
    tree = TreeConfig(proposed_nodes=(4, 40, 50), proposed_max_depth=5)
    notes = with_methods("chain", tree=tree, chain_d=(4, 9)).notes()
    assert [note.split(", and")[0] for note in notes] == [
        "CHAIN_D=9 is cut to 4 (PROPOSED_NODES=4, PROPOSED_MAX_DEPTH=5",
        "CHAIN_D=9 is cut to 5 (PROPOSED_NODES=40, PROPOSED_MAX_DEPTH=5",
    ]
