"""The settings themselves: tags, defaults, ranges, methods. No files."""

import dataclasses
import json
import pickle
from typing import Any

import pytest

from autodraft.config import (
    AVAILABLE_METHODS,
    BLOCKS,
    METHOD_NAMES,
    AlgorithmsConfig,
    DatasetConfig,
    ExperimentConfig,
    MethodSpec,
    ModelsConfig,
    NetworkConfig,
    ObjectiveConfig,
    RunConfig,
    RuntimeConfig,
    SamplingConfig,
    SloConfig,
    TreeConfig,
)
from autodraft.errors import ConfigError

MODELS = ModelsConfig(base_model_path="big", draft_model_path="small")
REQUIRED = object()
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 150)

# Every tag that users know, its block, its default.
TAGS: dict[str, dict[str, Any]] = {
    "runtime": {
        "TARGET_HOST": "127.0.0.1",
        "TARGET_PORT": 26001,
        "SERVER_NAME": "autodraft",
        "DEVICE_MAP": "auto",
        "DRAFT_DEVICE_NAME": None,
        "TARGET_TOKEN_ENV": "AUTODRAFT_TOKEN",
    },
    "models": {
        "BASE_MODEL_PATH": REQUIRED,
        "DRAFT_MODEL_PATH": REQUIRED,
        "TOKENIZER_PATH": "big",
        "TARGET_QUANTIZATION": None,
        "DRAFT_QUANTIZATION": "none",
        "DTYPE": "auto",
        "TARGET_DTYPE": "auto",
    },
    "objective": {
        "OBJECTIVE_METRICS_CSV": ("total_cost",),
        "AUTODRAFT_CS_LIST": (0.0, 0.5, 1.0),
        "SERVER_ONLY_AUTODRAFT_CS_LIST": (0.0, 0.5, 1.0),
        "BASE_COST_SENSITIVITY": 0.5,
        "TARGET_PER_HOUR_COST": 1.208,
        "DRAFT_ELECTRICITY_COST_PER_KWH": 0.2,
        "USER_COMM_COST_PER_GB": 0.33,
        "CLOUD_OUTBOUND_COST_PER_GB": 0.09,
        "DRAFT_PER_HOUR_COST": None,
        "DRAFT_WATTS": 65.0,
        "DRAFT_IDLE_WATTS": 15.0,
        "TARGET_WATTS": 65.0,
        "TARGET_IDLE_WATTS": 15.0,
        "BILLING": "busy",
    },
    "dataset": {"BENCHES_CSV": ("mt_bench",), "QUESTION_LIMIT": None},
    "algorithms": {
        "ENABLE_HYBRID_AUTODRAFT": True,
        "ENABLE_HYBRID_NON_TREE_SD": False,
        "ENABLE_HYBRID_FIXED_TREE": False,
        "ENABLE_HYBRID_OPT_TREE": False,
        "ENABLE_SERVER_ONLY_AR": False,
        "ENABLE_SERVER_ONLY_NON_TREE_SD": False,
        "ENABLE_SERVER_ONLY_OPT_TREE": False,
        "ENABLE_SERVER_ONLY_AUTODRAFT": False,
        "AUTODRAFT_ABLATION_MODES_CSV": ("full",),
        "ENABLE_LOOKUP": False,
        "METHODS_CSV": None,
        "ENABLE_PROACTIVE": None,
        "RETRIEVAL_DRAFT": True,
        "ENABLE_HANDOVER": True,
        "EXACT": None,
        "CHAIN_D": None,
    },
    "tree": {
        "PROPOSED_NODES": 150,
        "PROPOSED_MAX_DEPTH": 15,
        "FIXED_TREE_WIDTH": 8,
        "FIXED_TREE_DEPTH": 6,
        "FIXED_TREE_NODES": 32,
        "OPT_TREE_WIDTH": 16,
        "DRAFT_PROFILE_WIDTH_LIST": SIZES,
        "TARGET_PROFILE_NODE_LIST": SIZES,
        "DRAFT_PROFILE_MODEL_CALLS_PER_COUNT": 10,
        "TARGET_PROFILE_MODEL_CALLS_PER_COUNT": 10,
        "FORCE_PROFILE_REFRESH": False,
        "DISABLE_ONLINE_PROFILE_UPDATE": False,
        "DISABLE_AUTO_PROFILE": False,
    },
    "network": {
        "RTT_MS": (0.0,),
        "JITTER_MS": (0.0,),
        "UPLINK_MBPS": (None,),
        "DOWNLINK_MBPS": (None,),
    },
    "slo": {
        "MIN_TOKENS_PER_S": None,
        "MAX_COST_PER_1M_TOKENS": None,
        "MAX_TPOT_MS": None,
        "MAX_TTFT_MS": None,
    },
    "sampling": {"TEMPERATURE": 0.0, "TOP_P": 1.0, "TOP_K": 0, "SEED": 4, "NUM_CHOICES": 1},
    "run": {"MAX_NEW_TOKENS": 256, "REPEATS": 1, "WARMUP_QUESTIONS": 1, "DRY_RUN": False},
}
ACTS = {
    *TAGS["runtime"],
    *TAGS["models"],
    *TAGS["objective"],
    *TAGS["dataset"],
    *TAGS["algorithms"],
    *TAGS["tree"],
    *TAGS["run"],
} - {
    "AUTODRAFT_CS_LIST",
    "SERVER_ONLY_AUTODRAFT_CS_LIST",
    "BASE_COST_SENSITIVITY",
    "AUTODRAFT_ABLATION_MODES_CSV",
    "ENABLE_PROACTIVE",
    "RETRIEVAL_DRAFT",
    "ENABLE_HANDOVER",
    "EXACT",
    "DRAFT_PROFILE_WIDTH_LIST",
    "TARGET_PROFILE_NODE_LIST",
    "DRAFT_PROFILE_MODEL_CALLS_PER_COUNT",
    "TARGET_PROFILE_MODEL_CALLS_PER_COUNT",
    "FORCE_PROFILE_REFRESH",
    "DISABLE_ONLINE_PROFILE_UPDATE",
    "DISABLE_AUTO_PROFILE",
}


def experiment(**blocks: Any) -> ExperimentConfig:
    return ExperimentConfig(**{"models": MODELS, **blocks})


def with_methods(*names: str, tree: TreeConfig | None = None, **details: Any) -> ExperimentConfig:
    algorithms = AlgorithmsConfig(method_names=names, **details)
    return experiment(algorithms=algorithms, tree=tree or TreeConfig())


def limits(config: ExperimentConfig) -> list[tuple[str, int, int, int]]:
    return [(m.label, m.width, m.max_depth, m.node_budget) for m in config.methods()]


def test_every_block_has_exactly_the_tags_that_users_know_in_their_order() -> None:
    known = {block: [k.tag for k in cls.knobs().values()] for block, cls in BLOCKS.items()}
    assert known == {block: list(tags) for block, tags in TAGS.items()}


@pytest.mark.parametrize(
    ("block", "tag", "default"),
    [
        (block, tag, value)
        for block, tags in TAGS.items()
        for tag, value in tags.items()
        if value is not REQUIRED
    ],
)
def test_each_tag_has_its_default(block: str, tag: str, default: Any) -> None:
    dumped = experiment().model_dump(by_alias=True)
    assert dumped[block][tag] == default
    assert type(dumped[block][tag]) is type(default)


def test_only_the_tags_that_act_today_say_so() -> None:
    acting = {k.tag for cls in BLOCKS.values() for k in cls.knobs().values() if k.acts}
    assert acting == ACTS


def test_every_tag_says_what_it_means_and_the_json_schema_carries_it() -> None:
    for cls in BLOCKS.values():
        properties = json.loads(json.dumps(cls.model_json_schema()))["properties"]
        for knob in cls.knobs().values():
            assert len(knob.meaning) > 10
            assert properties[knob.tag]["description"] == knob.meaning
            assert properties[knob.tag]["acts"] is knob.acts
            assert properties[knob.tag]["unit"] == knob.unit


def test_fields_take_names_and_tags_alike() -> None:
    assert RuntimeConfig(target_port=5) == RuntimeConfig(**{"TARGET_PORT": "5"})
    nested = ExperimentConfig(**{"models": {"BASE_MODEL_PATH": "big", "draft_model_path": "small"}})
    assert nested == experiment()


def test_defaults_that_follow_another_tag_follow_it() -> None:
    models = ModelsConfig(base_model_path="b", draft_model_path="d", dtype="float32")
    assert (models.tokenizer_path, models.target_dtype) == ("b", "float32")
    given = ModelsConfig(
        base_model_path="b", draft_model_path="d", tokenizer_path="t", target_dtype="float16"
    )
    assert (given.tokenizer_path, given.dtype, given.target_dtype) == ("t", "auto", "float16")
    objective = ObjectiveConfig(autodraft_cs_list=(0.25,))
    assert objective.server_only_autodraft_cs_list == (0.25,)


def test_a_configuration_cannot_be_changed_and_can_be_compared_hashed_and_pickled() -> None:
    config = experiment(tree=TreeConfig(proposed_nodes=64))
    with pytest.raises(ValueError, match="frozen"):
        config.tree.proposed_nodes = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(config)) == config
    assert hash(config) == hash(experiment(tree=TreeConfig(proposed_nodes=64)))
    assert config != experiment()


def test_python_values_are_read_like_text() -> None:
    assert DatasetConfig(benches=["quick", "spec_bench:qa"]).benches == ("quick", "spec_bench:qa")
    assert DatasetConfig(**{"benches": "quick, gsm8k humaneval"}).benches == (
        "quick",
        "gsm8k",
        "humaneval",
    )
    assert ObjectiveConfig(target_per_hour_cost=2).target_per_hour_cost == 2.0
    assert ObjectiveConfig(target_per_hour_cost=1e-7).target_per_hour_cost == 1e-7
    assert AlgorithmsConfig(**{"ENABLE_LOOKUP": "yes"}).enable_lookup is True
    assert AlgorithmsConfig(exact=None).exact is None
    assert NetworkConfig(uplink_mbps=(None,)).uplink_mbps == (None,)
    assert RuntimeConfig(target_host="::1").target_host == "::1"


WRONG: list[tuple[type, dict[str, Any], str]] = [
    (RuntimeConfig, {"target_port": 0}, "TARGET_PORT does not take '0'. Use an integer from 1 to"),
    (RuntimeConfig, {"target_port": 65536}, "TARGET_PORT does not take '65536'"),
    (RuntimeConfig, {"target_port": True}, "TARGET_PORT does not take 'True'"),
    (RuntimeConfig, {"target_port": 3.0}, "TARGET_PORT does not take '3.0'"),
    (RuntimeConfig, {"target_port": None}, "TARGET_PORT does not take 'None'"),
    (RuntimeConfig, {"target_port": {}}, "A value of type dict has no place here."),
    (RuntimeConfig, {"target_host": "http://a"}, "without scheme and port"),
    (RuntimeConfig, {"target_host": "a:26001"}, "TARGET_PORT holds the port"),
    (RuntimeConfig, {"server_name": "a\nb"}, "SERVER_NAME does not take"),
    (RuntimeConfig, {"device_map": "cdua:0"}, "DEVICE_MAP does not take 'cdua:0'. Use auto, cpu"),
    (RuntimeConfig, {"target_prt": 1}, "target_prt is not a field. Did you mean target_port?"),
    (RuntimeConfig, {"target_port": 1, "TARGET_PORT": 2}, "target_port is given twice, by its"),
    (ModelsConfig, {}, "ModelsConfig: DRAFT_MODEL_PATH is required."),
    (ModelsConfig, {"dtype": "float23"}, "Did you mean float32? Use one of auto, float32"),
    (ModelsConfig, {"draft_quantization": "8-bit"}, "Use one of none, 4bit, 8bit."),
    (ObjectiveConfig, {"objective_metrics": ["totl_cost"]}, "Did you mean total_cost?"),
    (ObjectiveConfig, {"objective_metrics": []}, "The list is empty."),
    (ObjectiveConfig, {"autodraft_cs_list": [0, 1.5]}, "'1.5'. Use a list"),
    (ObjectiveConfig, {"autodraft_cs_list": [0.5, 0.5]}, "It is in the list twice."),
    (ObjectiveConfig, {"base_cost_sensitivity": -0.1}, "Use a number from 0 to 1."),
    (ObjectiveConfig, {"draft_watts": float("nan")}, "DRAFT_WATTS does not take 'nan'"),
    (ObjectiveConfig, {"draft_watts": float("inf")}, "DRAFT_WATTS does not take 'inf'"),
    (ObjectiveConfig, {"draft_watts": -1}, "Use a number of at least 0."),
    (ObjectiveConfig, {"billing": "wall"}, "Use one of busy, held."),
    (DatasetConfig, {"benches": ["spec_bench:translaton"]}, "Did you mean spec_bench:translation?"),
    (DatasetConfig, {"question_limit": 0}, "Use an integer of at least 1, or all."),
    (AlgorithmsConfig, {"autodraft_ablation_modes": ["none"]}, "each one of full, no_proactive"),
    (AlgorithmsConfig, {"enable_lookup": 2}, "ENABLE_LOOKUP does not take '2'. Use 1 or 0."),
    (AlgorithmsConfig, {"method_names": ["opt_treee"]}, "Did you mean opt_tree?"),
    (AlgorithmsConfig, {"method_names": ["server_only@server"]}, "does not take 'server_only@serv"),
    (AlgorithmsConfig, {"chain_d": [0]}, "each an integer from 1 to 1024, or auto."),
    (AlgorithmsConfig, {"exact": True}, "EXACT does not act yet in this version, and 1 would"),
    (TreeConfig, {"proposed_nodes": 0}, "PROPOSED_NODES does not take '0'"),
    (NetworkConfig, {"rtt_ms": [20]}, "RTT_MS does not act yet in this version, and 20 would"),
    (NetworkConfig, {"jitter_ms": [1]}, "JITTER_MS does not act yet"),
    (NetworkConfig, {"uplink_mbps": [100]}, "leave the tag out or use unlimited."),
    (NetworkConfig, {"downlink_mbps": [None, 5]}, "DOWNLINK_MBPS does not act yet"),
    (SloConfig, {"min_tokens_per_s": 3}, "MIN_TOKENS_PER_S does not act yet"),
    (SloConfig, {"max_cost_per_1m_tokens": 3}, "MAX_COST_PER_1M_TOKENS does not act yet"),
    (SloConfig, {"max_tpot_ms": 3}, "MAX_TPOT_MS does not act yet"),
    (SloConfig, {"max_ttft_ms": 3}, "leave the tag out or use unset."),
    (SamplingConfig, {"temperature": 0.7}, "and 0.7 would change the results: leave the tag out"),
    (SamplingConfig, {"num_choices": 2}, "NUM_CHOICES does not act yet"),
    (SamplingConfig, {"top_p": 0}, "Use a number above 0, at most 1."),
    (SamplingConfig, {"seed": 2**32}, "SEED does not take"),
    (RunConfig, {"max_new_tokens": 0}, "MAX_NEW_TOKENS does not take '0'"),
    (RunConfig, {"warmup_questions": -1}, "WARMUP_QUESTIONS does not take '-1'"),
    (MethodSpec, {"method": "chian", "width": 1, "max_depth": 1, "node_budget": 1}, "mean chain?"),
    (MethodSpec, {"method": "chain", "width": -1, "max_depth": 1, "node_budget": 1}, "width: "),
]


@pytest.mark.parametrize(("cls", "values", "message"), WRONG, ids=[str(w[1]) for w in WRONG])
def test_a_wrong_value_is_a_config_error(cls: type, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        cls(**values)
    assert message in str(caught.value)


def test_a_wrong_value_inside_a_nested_block_is_a_config_error_too() -> None:
    with pytest.raises(ConfigError, match="TARGET_PORT does not take"):
        ExperimentConfig(**{"models": MODELS, "runtime": {"TARGET_PORT": "x"}})
    with pytest.raises(ConfigError, match="ExperimentConfig: models is required"):
        ExperimentConfig(**{})


def test_all_faults_of_a_block_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        TreeConfig(proposed_nodes=0, fixed_tree_depth=-3)
    assert [line.split()[1] for line in str(caught.value).splitlines()] == [
        "PROPOSED_NODES",
        "FIXED_TREE_DEPTH",
    ]


def test_a_token_pasted_where_its_name_belongs_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        RuntimeConfig(target_token_env="Zk3-secret_token")
    assert "secret" not in str(caught.value)
    assert "the NAME of an environment variable" in str(caught.value)


def test_values_that_change_nothing_are_accepted_though_they_do_not_act() -> None:
    assert SamplingConfig(top_p=0.9, top_k=5, seed=7).top_k == 5
    assert AlgorithmsConfig(exact=False).exact is False


def test_autodraft_is_the_method_by_default() -> None:
    assert limits(experiment()) == [("autodraft", 150, 15, 150)]


def test_switches_choose_methods_in_the_order_of_the_tables() -> None:
    switches = {name: True for name in AlgorithmsConfig.model_fields if name.startswith("enable_")}
    for other in ("enable_proactive", "enable_handover"):
        del switches[other]
    config = experiment(algorithms=AlgorithmsConfig(**switches))
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
    assert limits(with_methods(*names, tree=tree, chain_d=(3,))) == [
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
    config = with_methods(*METHOD_NAMES, tree=tree, chain_d=(2, 9, 8))
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
    with pytest.raises(ConfigError, match=r"no method 'fixedtree'. Did you mean fixed_tree\?"):
        config.method("fixedtree")


def test_no_method_at_all_is_an_error() -> None:
    config = experiment(algorithms=AlgorithmsConfig(enable_hybrid_autodraft=False))
    with pytest.raises(ConfigError, match="No method is switched on in the block algorithms"):
        config.methods()


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_methods_that_do_not_exist_yet_are_refused_by_name(name: str) -> None:
    method = experiment().method(name)
    if name in AVAILABLE_METHODS:
        method.require_available()
        return
    with pytest.raises(ConfigError) as caught:
        method.require_available()
    assert str(caught.value) == (
        f"The method {name} does not exist yet in this version. Those that do: server_only, chain, "
        "fixed_tree, opt_tree, lookup. Choose them with METHODS_CSV, for example "
        "--set algorithms.METHODS_CSV=server_only,chain,fixed_tree,opt_tree,lookup"
    )


def test_the_methods_that_run_today_are_these_five() -> None:
    assert set(AVAILABLE_METHODS) == {"server_only", "chain", "fixed_tree", "opt_tree", "lookup"}


def spec_of(method: str, **fields: Any) -> MethodSpec:
    return MethodSpec(**{"method": method, "width": 2, "max_depth": 2, "node_budget": 4, **fields})


@pytest.mark.parametrize(
    ("spec", "label"),
    [
        (spec_of("opt_tree"), "opt_tree"),
        (spec_of("opt_tree", retrieval=True), "opt_tree+retrieval"),
        (spec_of("chain", retrieval=True, variant="_d2"), "chain_d2+retrieval"),
        (spec_of("chain", retrieval=True, placement="server"), "chain+retrieval@server"),
        (spec_of("autodraft", retrieval=True), "autodraft"),
        (spec_of("autodraft"), "autodraft"),
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
    needing = {name for name in METHOD_NAMES if experiment().method(name).needs_draft_model}
    assert {name.removesuffix("@server") for name in needing} == {
        "chain",
        "fixed_tree",
        "opt_tree",
        "autodraft",
    }
    assert with_methods("server_only", "chain@server").needs_draft_model
    assert not with_methods("server_only", "lookup").needs_draft_model
    assert experiment().needs_draft_model


def test_a_chain_of_unsaid_length_is_noted_only_where_a_chain_runs() -> None:
    assert with_methods("opt_tree").notes() == ()
    assert with_methods("chain", chain_d=(3,)).notes() == ()
    assert with_methods("chain").notes() == (
        "CHAIN_D=auto is not tuned yet in this version: the chain takes d=4.",
    )


def test_what_the_ceilings_cut_is_noted_for_the_methods_that_run() -> None:
    tree = TreeConfig(proposed_nodes=20, proposed_max_depth=5)
    assert with_methods("server_only", tree=tree).notes() == ()
    notes = with_methods("chain", "fixed_tree", "opt_tree", tree=tree, chain_d=(3, 9)).notes()
    assert [note.split(" (")[0] for note in notes] == [
        "CHAIN_D=9 is cut to 5",
        "FIXED_TREE_DEPTH=6 is cut to 5",
        "FIXED_TREE_NODES=32 is cut to 20",
    ]


def test_a_knob_is_immutable() -> None:
    knob = RunConfig.knobs()["repeats"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        knob.acts = False  # type: ignore[misc]
