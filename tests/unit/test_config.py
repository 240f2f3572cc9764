"""The settings themselves: tags, defaults, ranges. No files and no methods."""

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from autodraft.config import (
    BLOCKS,
    AlgorithmsConfig,
    DatasetConfig,
    ExperimentConfig,
    MethodSpec,
    ModelsConfig,
    NetworkConfig,
    NetworkSetting,
    ObjectiveConfig,
    RunConfig,
    RuntimeConfig,
    SamplingConfig,
    ServerConfig,
    SloConfig,
    TreeConfig,
)
from autodraft.config.methods import MAX_TEMPERATURE
from autodraft.decoding import sampling
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
    "dataset": {
        "BENCHES_CSV": ("mt_bench",),
        "QUESTION_LIMIT": None,
        "BENCH_DIR": None,
        "DOWNLOAD": True,
        "VALIDATION_QUESTIONS": 8,
    },
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
        "PROPOSED_NODES": (150,),
        "PROPOSED_MAX_DEPTH": (15,),
        "FIXED_TREE_WIDTH": (8,),
        "FIXED_TREE_DEPTH": (6,),
        "FIXED_TREE_NODES": (32,),
        "OPT_TREE_WIDTH": (16,),
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
    "sampling": {"TEMPERATURE": 0.0, "TOP_P": 1.0, "TOP_K": 0, "SEED": (4,), "NUM_CHOICES": 1},
    "run": {
        "MAX_NEW_TOKENS": 256,
        "REPEATS": 1,
        "WARMUP_QUESTIONS": 1,
        "RETRIES": 5,
        "SAVE_TRACE": False,
        "DRY_RUN": False,
    },
}
ACTS = {
    *TAGS["runtime"],
    *TAGS["models"],
    *TAGS["objective"],
    *TAGS["dataset"],
    *TAGS["algorithms"],
    *TAGS["tree"],
    *TAGS["network"],
    *TAGS["slo"],
    *TAGS["sampling"],
    *TAGS["run"],
}


def experiment(**blocks: Any) -> ExperimentConfig:
    return ExperimentConfig(**{"models": MODELS, **blocks})


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
    assert DatasetConfig(bench_dir=Path("a") / "b").bench_dir == str(Path("a") / "b")
    assert TreeConfig(proposed_nodes=24, fixed_tree_width=(2, 4)) == TreeConfig(
        **{"PROPOSED_NODES": "24", "FIXED_TREE_WIDTH": "2 4"}
    )
    assert SamplingConfig(seeds=7).seeds == SamplingConfig(seeds=[7]).seeds == (7,)
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
    (AlgorithmsConfig, {"exact": "on and off"}, "EXACT does not take 'on and off'. Use 1 or 0, or"),
    (TreeConfig, {"proposed_nodes": 0}, "PROPOSED_NODES does not take '0'"),
    (TreeConfig, {"proposed_max_depth": "auto"}, "does not take 'auto'. Use a list (commas or"),
    (TreeConfig, {"opt_tree_width": [8, None]}, "'auto'. It stands alone, not in a list. Use"),
    (TreeConfig, {"fixed_tree_nodes": "8,auto"}, "'auto'. It stands alone, not in a list. Use"),
    (DatasetConfig, {"bench_dir": "a\nb"}, "Use a folder, relative to where the command runs"),
    (DatasetConfig, {"validation_questions": 0}, "Use an integer from 1 to 10000."),
    (RunConfig, {"retries": -1}, "RETRIES does not take '-1'. Use an integer from 0 to 1000."),
    (NetworkConfig, {"rtt_ms": [-20]}, "RTT_MS does not take '-20'. Use a list (commas or spaces"),
    (NetworkConfig, {"jitter_ms": "5ms"}, "each a number of at least 0."),
    (NetworkConfig, {"uplink_mbps": [0]}, "each a number above 0, or unlimited."),
    (NetworkConfig, {"downlink_mbps": [5, 5.0]}, "'5.0'. It is in the list twice."),
    (NetworkConfig, {"rtt_ms": range(101)}, "A value of type range has no place here."),
    (NetworkSetting, {"rtt_ms": -1}, "rtt_ms: Input should be greater than or equal to 0."),
    (NetworkSetting, {"uplink_mbps": 0}, "uplink_mbps: Input should be greater than 0."),
    (SloConfig, {"min_tokens_per_s": 0}, "MIN_TOKENS_PER_S does not take '0'"),
    (SloConfig, {"max_cost_per_1m_tokens": -3}, "MAX_COST_PER_1M_TOKENS does not take '-3'"),
    (SloConfig, {"max_tpot_ms": "soon"}, "MAX_TPOT_MS does not take 'soon'"),
    (SloConfig, {"max_ttft_ms": 0}, "Use a number above 0, or unset."),
    (SamplingConfig, {"temperature": 100.5}, "Use a number from 0 to 100."),
    (SamplingConfig, {"temperature": -0.5}, "TEMPERATURE does not take '-0.5'"),
    (SamplingConfig, {"num_choices": 0}, "Use an integer from 1 to 1000."),
    (SamplingConfig, {"top_k": -1}, "Use an integer from 0 to 2147483647."),
    (SamplingConfig, {"top_p": 0}, "Use a number above 0, at most 1."),
    (SamplingConfig, {"seeds": 2**32}, "SEED does not take"),
    (SamplingConfig, {"seeds": [1, 1]}, "'1'. It is in the list twice."),
    (RunConfig, {"max_new_tokens": 0}, "MAX_NEW_TOKENS does not take '0'"),
    (RunConfig, {"warmup_questions": -1}, "WARMUP_QUESTIONS does not take '-1'"),
    (MethodSpec, {"method": "chian", "width": 1, "max_depth": 1, "node_budget": 1}, "mean chain?"),
    (MethodSpec, {"method": "chain", "width": -1, "max_depth": 1, "node_budget": 1}, "width: "),
]


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 100, "top_p": 1, "top_k": 2**31 - 1, "seed": 2**32 - 1, "choice": 999},
        {"temperature": 0, "top_p": 1e-9, "top_k": 0, "seed": 0, "choice": 0},
    ],
    ids=["highest", "lowest"],
)
def test_what_the_block_sampling_takes_can_be_sampled_with(values: dict[str, Any]) -> None:
    SamplingConfig(
        temperature=values["temperature"],
        top_p=values["top_p"],
        top_k=values["top_k"],
        seeds=(values["seed"],),
        num_choices=values["choice"] + 1,
    )
    sampling.Sampling(**values)
    assert MAX_TEMPERATURE == sampling.MAX_TEMPERATURE


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
    assert SamplingConfig(top_p=0.9, top_k=5, seeds=7).top_k == 5
    assert AlgorithmsConfig(exact=False).exact is False


def test_a_knob_is_immutable() -> None:
    knob = RunConfig.knobs()["repeats"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        knob.acts = False  # type: ignore[misc]


# -------------------------------------------------------------------------------------- the link


def test_every_combination_of_the_link_is_a_setting_the_round_trip_varying_slowest() -> None:
    network = NetworkConfig(rtt_ms=(0, 20), uplink_mbps=(None, 10))
    assert [setting.label for setting in network.settings()] == [
        "unshaped",
        "up10",
        "rtt20",
        "rtt20_up10",
    ]
    assert NetworkConfig().settings() == (NetworkSetting(),)


def test_a_label_of_a_setting_names_everything_that_is_shaped() -> None:
    setting = NetworkSetting(rtt_ms=20.5, jitter_ms=5, uplink_mbps=0.5, downlink_mbps=100)
    assert setting.label == "rtt20.5_jitter5_up0.5_down100"


def test_too_many_settings_of_the_link_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        NetworkConfig(rtt_ms=tuple(range(51)), jitter_ms=tuple(range(20)))
    assert str(caught.value) == (
        "NetworkConfig: the lists of the block network have 1020 combinations, and at most 1000 "
        "are swept in one experiment. Shorten RTT_MS first."
    )


# -------------------------------------------------------------------------- between two fields


def test_a_fixed_tree_is_tuned_as_a_whole_or_not_at_all() -> None:
    with pytest.raises(ConfigError) as caught:
        TreeConfig(fixed_tree_depth="auto")
    assert str(caught.value) == (
        "TreeConfig: FIXED_TREE_DEPTH=auto needs the whole shape tuned: set FIXED_TREE_WIDTH, "
        "FIXED_TREE_NODES to auto too, or give numbers to all three."
    )
    assert TreeConfig(fixed_tree_width=None, fixed_tree_depth=None, fixed_tree_nodes="auto")


def test_too_many_shapes_are_refused() -> None:
    widths, nodes = tuple(range(1, 11)), tuple(range(1, 102))
    assert TreeConfig(fixed_tree_width=widths, fixed_tree_nodes=nodes[:100])
    with pytest.raises(ConfigError) as caught:
        TreeConfig(fixed_tree_width=widths, fixed_tree_nodes=nodes)
    assert str(caught.value) == (
        "TreeConfig: the lists of the block tree have 1010 combinations, and at most 1000 are "
        "swept in one experiment. Shorten FIXED_TREE_NODES first."
    )


def test_a_server_may_name_the_draft_of_its_co_located_methods() -> None:
    server = ServerConfig()
    assert server.draft_model_path is None
    assert (server.draft_quantization, server.draft_dtype) == ("none", "auto")
    with pytest.raises(ConfigError, match="ServerConfig: draft_quantization: Input should be"):
        ServerConfig(draft_quantization="5bit")
