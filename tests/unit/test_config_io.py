"""Configuration files: reading twins, overrides, warnings, writing back."""

import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodraft.config import (
    BLOCKS,
    AlgorithmsConfig,
    DatasetConfig,
    ExperimentConfig,
    ModelsConfig,
    ObjectiveConfig,
    RuntimeConfig,
)
from autodraft.config_io import dump_yaml, load_config
from autodraft.config_io.names import TARGETS
from tests.unit.config_texts import (
    ALL_BLOCKS,
    MODELS,
    Blocks,
    Load,
    as_xml,
    as_yaml,
    fault,
    loader_in,
)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader_in(tmp_path, monkeypatch)


# ------------------------------------------------------------------------------------------ reading

TWIN: Blocks = [
    ("runtime", [("TARGET_HOST", "10.0.0.7"), ("TARGET_PORT", "5000"), ("SERVER_NAME", "lab a")]),
    (
        "models",
        [("BASE_MODEL_PATH", "Qwen/Qwen2.5-14B-Instruct"), ("DRAFT_MODEL_PATH", "./d")]
        + [("DTYPE", "float32"), ("TARGET_QUANTIZATION", "8bit"), ("DRAFT_QUANTIZATION", "none")],
    ),
    (
        "objective",
        [("OBJECTIVE_METRICS_CSV", "draft_energy,total_cost"), ("AUTODRAFT_CS_LIST", "0 1")]
        + [("TARGET_PER_HOUR_COST", "1.5e0"), ("DRAFT_PER_HOUR_COST", "0.25")],
    ),
    ("dataset", [("BENCHES_CSV", "quick, spec_bench:qa"), ("QUESTION_LIMIT", "7")]),
    ("algorithms", [("METHODS_CSV", "server_only,chain"), ("CHAIN_D", "2 5")]),
    ("tree", [("PROPOSED_NODES", "64")]),
    ("run", [("DRY_RUN", "1"), ("REPEATS", "3")]),
]


def test_xml_and_yaml_twins_load_equal(load: Load) -> None:
    config = load(as_xml(TWIN), "xml").config
    assert load(as_yaml(TWIN), "yaml").config == config
    assert config.runtime == RuntimeConfig(
        target_host="10.0.0.7", target_port=5000, server_name="lab a"
    )
    assert config.models.target_quantization == "8bit"
    assert config.models.target_dtype == "float32"
    assert config.objective == ObjectiveConfig(
        objective_metrics=("draft_energy", "total_cost"),
        autodraft_cs_list=(0, 1),
        target_per_hour_cost=1.5,
        draft_per_hour_cost=0.25,
    )
    assert config.dataset == DatasetConfig(benches=("quick", "spec_bench:qa"), question_limit=7)
    assert [method.label for method in config.methods()] == ["server_only", "chain_d2", "chain_d5"]
    assert config.run.dry_run is True


def test_a_loaded_file_keeps_its_text_and_its_path(load: Load) -> None:
    loaded = load(as_yaml([MODELS]), "yml", "tree.PROPOSED_NODES=9")
    assert loaded.text == as_yaml([MODELS])
    assert loaded.source == Path("c.yml")
    assert loaded.config.tree.proposed_nodes == (9,)


def test_yaml_takes_native_values_lists_and_blocks_without_a_root(load: Load) -> None:
    text = """
models: {BASE_MODEL_PATH: big, DRAFT_MODEL_PATH: small}
objective: {AUTODRAFT_CS_LIST: [0, 0.25], TARGET_PER_HOUR_COST: 2}
algorithms: {METHODS_CSV: [server_only, chain], CHAIN_D: [2, 5], ENABLE_LOOKUP: true}
runtime:
slo: {MAX_TPOT_MS: unset}
"""
    config = load(text).config
    assert config.objective.autodraft_cs_list == (0.0, 0.25)
    assert config.objective.target_per_hour_cost == 2.0
    assert config.algorithms.method_names == ("server_only", "chain")
    assert config.algorithms.chain_d == (2, 5)
    assert config.algorithms.enable_lookup is True
    assert config.runtime == RuntimeConfig()


def test_xml_parameters_comments_cdata_and_spaces_are_read_like_plain_tags(load: Load) -> None:
    text = """<?xml version="1.0" encoding="ISO-8859-1"?>
<!-- <!DOCTYPE a comment is no DOCTYPE> -->
<experiment_config xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
                   xsi:noNamespaceSchemaLocation="experiment.xsd">
  <models>
    <parameter name="BASE_MODEL_PATH"> big </parameter>
    <DRAFT_MODEL_PATH>sm<!-- in the middle -->all</DRAFT_MODEL_PATH>
  </models>
  <runtime><SERVER_NAME><![CDATA[ä & b]]></SERVER_NAME></runtime>
  <tree/>
</experiment_config>"""
    config = load(text, "xml").config
    assert config.models == ModelsConfig(base_model_path="big", draft_model_path="small")
    assert config.runtime.server_name == "ä & b"


def test_a_byte_order_mark_is_no_part_of_the_text(load: Load) -> None:
    assert load(b"\xef\xbb\xbf" + as_xml([MODELS]).encode(), "xml").config
    assert load(b"\xef\xbb\xbf" + as_yaml([MODELS]).encode()).config


# ---------------------------------------------------------------------------------------- overrides


def test_an_override_replaces_what_the_file_says(load: Load) -> None:
    text = as_xml([MODELS, ("run", [("REPEATS", "3")])])
    loaded = load(
        text,
        "xml",
        "run.REPEATS=5",
        "models.BASE_MODEL_PATH=embedded:a=b",
        "algorithms.METHODS_CSV=server_only, opt_tree",
        "objective.AUTODRAFT_CS_LIST=0 1",
    )
    config = loaded.config
    assert config.run.repeats == 5
    assert config.models.base_model_path == "embedded:a=b"
    assert config.models.tokenizer_path == "embedded:a=b"
    assert config.algorithms.method_names == ("server_only", "opt_tree")
    assert config.objective.autodraft_cs_list == (0.0, 1.0)


def test_an_override_gives_what_the_file_lacks_and_mends_what_it_has_wrong(load: Load) -> None:
    text = as_yaml([("models", [("BASE_MODEL_PATH", "b")]), ("run", [("REPEATS", "x")])])
    loaded = load(text, "yaml", "models.DRAFT_MODEL_PATH=d", "run.REPEATS=2")
    assert loaded.config.models.draft_model_path == "d"
    assert loaded.config.run.repeats == 2


def test_of_several_overrides_of_a_tag_the_last_holds(load: Load) -> None:
    assert load(as_yaml([MODELS]), "yaml", "run.REPEATS=2", "run.REPEATS=4").config.run.repeats == 4


@pytest.mark.parametrize(
    ("tags", "override", "field", "value"),
    [
        (("tree", "NON_TREE_DEPTH", "2"), "algorithms.CHAIN_D=5,6", "chain_d", (5, 6)),
        (("algorithms", "CHAIN_D", "2"), "tree.NON_TREE_DEPTH=5", "chain_d", (5,)),
        (
            ("objective", "OBJECTIVE_METRICS_CSV", "api_cost"),
            "objective.OBJECTIVE_METRIC=draft_energy",
            "objective_metrics",
            ("draft_energy",),
        ),
    ],
)
def test_an_override_replaces_the_alias_as_well(
    load: Load, tags: tuple[str, str, str], override: str, field: str, value: Any
) -> None:
    block, tag, text = tags
    config = load(as_yaml([MODELS, (block, [(tag, text)])]), "yaml", override).config
    found = [getattr(config, name) for name in BLOCKS]
    assert [getattr(block, field) for block in found if hasattr(block, field)] == [value]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "tree.PROPOSED_NODES",
            "--set tree.PROPOSED_NODES: not of the form block.TAG=value, for example "
            "tree.PROPOSED_NODES=64.",
        ),
        (
            "PROPOSED_NODES=4",
            "--set PROPOSED_NODES=4: not of the form block.TAG=value, for example "
            "tree.PROPOSED_NODES=64.",
        ),
        (
            "tre.PROPOSED_NODES=4",
            "--set tre.PROPOSED_NODES=4: unknown block tre. Did you mean tree? "
            f"Blocks: {ALL_BLOCKS}.",
        ),
        (
            "run.PROPOSED_NODES=4",
            "--set run.PROPOSED_NODES=4: PROPOSED_NODES belongs to the block tree, not to run. "
            "Move it there.",
        ),
        (
            "run.REPEAT=4",
            "--set run.REPEAT=4: unknown tag REPEAT in the block run. Did you mean REPEATS? "
            "Allowed in run: MAX_NEW_TOKENS, REPEATS, WARMUP_QUESTIONS, RETRIES, "
            "SAVE_TRACE, DRY_RUN.",
        ),
        (
            "run.REPEATS=",
            "--set run.REPEATS=: REPEATS is empty. Give it a value or remove it.",
        ),
        (
            "models.DTYPE=float31",
            "--set models.DTYPE=float31: DTYPE does not take 'float31'. Did you mean float32? "
            "Use one of auto, float32, bfloat16, float16.",
        ),
        (
            "slo.MAX_TPOT_MS=-2",
            "--set slo.MAX_TPOT_MS=-2: MAX_TPOT_MS does not take '-2'. Use a number above 0, or "
            "unset.",
        ),
        (
            "runtime.TARGET_TOKEN_ENV=my-secret",
            "--set runtime.TARGET_TOKEN_ENV=…: TARGET_TOKEN_ENV does not take the value (not "
            "shown). Use the NAME of an environment variable (capitals, digits, _), never the "
            "token itself.",
        ),
    ],
)
def test_a_wrong_override_is_named(load: Load, override: str, message: str) -> None:
    assert fault(load, as_yaml([MODELS]), "yaml", override) == message


def test_faults_of_the_file_and_of_overrides_come_together(load: Load) -> None:
    text = as_yaml([MODELS, ("run", [("REPEATS", "x")])])
    places = [line.split(": ")[0] for line in fault(load, text, "yaml", "run.A=1").splitlines()]
    assert places == ["c.yaml:6", "--set run.A=1"]


# ----------------------------------------------------------------------------------------- warnings

LEGACY = re.findall(
    r"\w+",
    "NON_TREE_WIDTH, NON_TREE_NODES, ACCEPT_LENGTH_MARGIN, PROACTIVE_THRESHOLD, "
    "JOIN_CANCELED_PROACTIVE_BEFORE_TREE_BUILD, DISABLE_PROACTIVE_BUDGET, ENABLE_GPU_MONITOR, "
    "GPU_MONITOR_INTERVAL, REFERENCE_FORCE_REFRESH, REFERENCE_CS_CURVE_ROUNDS, "
    "REFERENCE_MAX_STEPS_LIMIT, SERVER_DRAFT_PROFILE_WIDTH_LIST, SERVER_DRAFT_PROFILE_X, "
    "SERVER_ONLY_AR_MAX_NEW_TOKENS, SERVER_ONLY_AR_TURN_RPC, "
    "RUN_METRIC_INVARIANT_ONLY_ON_FIRST_OBJECTIVE, SKIP_SERVER_ONLY_AUTODRAFT_DRAFT_ENERGY, "
    "SKIP_SELECTED_EXISTING_AUTODRAFT, SELECTED_RESULT_ROOT, DRAFT_ENTRYPOINT, DETERMINISTIC, "
    "SKIP_SLEEP, SLEEP_SECONDS",
)


@pytest.mark.parametrize("block", ["runtime", "tree"])
def test_tags_of_the_published_runner_give_one_warning_each_in_any_block(
    load: Load, block: str
) -> None:
    tags = [(tag, "1") for tag in LEGACY]
    loaded = load(as_xml([MODELS, (block, tags)]), "xml")
    assert len(loaded.warnings) == len(LEGACY)
    for line, (tag, warning) in enumerate(zip(LEGACY, loaded.warnings, strict=True), start=6):
        assert re.fullmatch(rf"c\.xml:{line}: {tag} has no meaning here: .{{20,}}\.", warning)
    assert loaded.config == load(as_xml([MODELS]), "xml").config


def test_a_legacy_tag_says_what_to_use_instead(load: Load) -> None:
    (warning,) = load(as_yaml([MODELS]), "yaml", "run.SERVER_ONLY_AR_MAX_NEW_TOKENS=8").warnings
    assert warning == (
        "--set run.SERVER_ONLY_AR_MAX_NEW_TOKENS=8: SERVER_ONLY_AR_MAX_NEW_TOKENS has no meaning "
        "here: every method has the same limit; set MAX_NEW_TOKENS."
    )


@pytest.fixture
def inert() -> Iterator[None]:
    """Let three tags wait for a later version; in this one all act."""
    tags = (("algorithms", "ENABLE_PROACTIVE"), ("slo", "MAX_TPOT_MS"), ("slo", "MAX_TTFT_MS"))
    knobs = [TARGETS[block][tag].knob for block, tag in tags]
    for one in knobs:
        object.__setattr__(one, "acts", False)
    yield
    for one in knobs:
        object.__setattr__(one, "acts", True)


@pytest.mark.usefixtures("inert")
def test_a_tag_that_does_not_act_yet_is_named_and_defaults_are_named_on_one_line(
    load: Load,
) -> None:
    text = as_yaml(
        [
            MODELS,
            ("algorithms", [("ENABLE_PROACTIVE", "0"), ("EXACT", "1")]),
            ("network", [("RTT_MS", "0"), ("UPLINK_MBPS", "unlimited")]),
            ("slo", [("MAX_TPOT_MS", "unset"), ("MAX_TTFT_MS", "unset")]),
            ("sampling", [("SEED", "5"), ("TOP_K", "0")]),
            ("run", [("REPEATS", "1")]),
        ]
    )
    assert load(text).warnings == (
        "c.yaml:6: ENABLE_PROACTIVE is checked but does not act yet in this version.",
        "c.yaml: MAX_TPOT_MS, MAX_TTFT_MS are checked but do not act yet in this version (at the "
        "default).",
    )


@pytest.mark.usefixtures("inert")
def test_a_single_tag_at_its_default_is_named_in_the_singular(load: Load) -> None:
    assert load(as_yaml([MODELS]), "yaml", "slo.MAX_TTFT_MS=unset").warnings == (
        "c.yaml: MAX_TTFT_MS is checked but does not act yet in this version (at the default).",
    )


def test_what_acts_gives_no_warning(load: Load) -> None:
    link = ("network", [("RTT_MS", "20"), ("JITTER_MS", "5"), ("UPLINK_MBPS", "unlimited 10")])
    chain = ("tree", [("NON_TREE_DEPTH", "3")])
    text = as_yaml([MODELS, chain, link, ("run", [("REPEATS", "2"), ("RETRIES", "0")])])
    assert load(text, "yaml", "algorithms.METHODS_CSV=chain").warnings == ()


def test_notes_on_the_methods_are_among_the_warnings(load: Load) -> None:
    assert load(as_yaml([MODELS]), "yaml", "algorithms.METHODS_CSV=chain").warnings == (
        "c.yaml: CHAIN_D=auto takes what `python -m evaluation tune` chose for the benchmark and "
        "the link, else d=4.",
    )


def test_switches_that_methods_csv_overrides_are_named(load: Load) -> None:
    switches = [("ENABLE_HYBRID_AUTODRAFT", "1"), ("ENABLE_SERVER_ONLY_AR", "1")]
    text = as_yaml([MODELS, ("algorithms", [*switches, ("METHODS_CSV", "server_only")])])
    assert load(text).warnings == ("c.yaml: METHODS_CSV overrides ENABLE_HYBRID_AUTODRAFT.",)


# ------------------------------------------------------------------------------------------ writing


def loaded_again(config: ExperimentConfig) -> ExperimentConfig:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_text(dump_yaml(config), encoding="utf-8")
        return load_config(path).config


def test_a_dumped_configuration_loads_equal(load: Load) -> None:
    config = load(as_xml(TWIN), "xml").config
    assert loaded_again(config) == config
    again = load(dump_yaml(config))
    assert dump_yaml(again.config) == dump_yaml(config)


def test_a_dump_has_every_tag_once() -> None:
    models = ModelsConfig(base_model_path="b", draft_model_path="d")
    lines = [line.strip() for line in dump_yaml(ExperimentConfig(models=models)).splitlines()]
    tags = [knob.tag for cls in BLOCKS.values() for knob in cls.knobs().values()]
    assert [line.split(":")[0] for line in lines if line[0].isupper()] == tags
    assert "TOKENIZER_PATH: b" in lines
    assert "CHAIN_D: auto" in lines
    assert "UPLINK_MBPS: [unlimited]" in lines


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=30)
WATTS = st.floats(0, 1e9, allow_nan=False)


@settings(max_examples=40, deadline=None)
@given(
    st.builds(RuntimeConfig, server_name=NAMES, draft_device_name=st.none() | NAMES),
    st.builds(lambda b, d: ModelsConfig(base_model_path=b, draft_model_path=d), NAMES, NAMES),
    st.builds(ObjectiveConfig, draft_watts=WATTS, draft_per_hour_cost=st.none() | WATTS),
    st.builds(
        AlgorithmsConfig,
        chain_d=st.none() | st.lists(st.integers(1, 1024), min_size=1, unique=True).map(tuple),
        enable_proactive=st.none() | st.booleans(),
    ),
)
def test_any_configuration_survives_the_round_trip(
    runtime: RuntimeConfig,
    models: ModelsConfig,
    objective: ObjectiveConfig,
    algorithms: AlgorithmsConfig,
) -> None:
    config = ExperimentConfig(
        runtime=runtime, models=models, objective=objective, algorithms=algorithms
    )
    assert loaded_again(config) == config
