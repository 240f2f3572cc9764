"""Configuration files: twins, faults with their lines, overrides, warnings, the example files."""

import re
import time
from collections.abc import Callable, Sequence
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
    TreeConfig,
)
from autodraft.config_io import LoadedConfig, dump_yaml, key_table, load_config
from autodraft.errors import ConfigError

ROOT = Path(__file__).parents[2]
EXAMPLES = (
    "evaluation/overall_performance_total_cost_mt_bench_example.xml",
    "evaluation/overall_performance_draft_energy_humaneval_example.xml",
)
MODELS = ("models", [("BASE_MODEL_PATH", "big"), ("DRAFT_MODEL_PATH", "small")])
Blocks = Sequence[tuple[str, Sequence[tuple[str, str]]]]
Load = Callable[..., LoadedConfig]


def as_xml(blocks: Blocks) -> str:
    """One line for the root, for each block and for each tag, as `as_yaml` has them."""
    lines = ["<experiment_config>"]
    for block, tags in blocks:
        lines.append(f"<{block}>")
        lines += [f"  <{tag}>{value}</{tag}>" for tag, value in tags]
        lines[-1] += f"</{block}>"
    return "\n".join(lines) + "</experiment_config>\n"


def as_yaml(blocks: Blocks) -> str:
    lines = ["experiment_config:"]
    for block, tags in blocks:
        lines.append(f"  {block}:")
        lines += [f"    {tag}: {value}" for tag, value in tags]
    return "\n".join(lines) + "\n"


WRITERS: dict[str, Callable[[Blocks], str]] = {"xml": as_xml, "yaml": as_yaml}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a text by a short name, so that messages can be compared as a whole."""
    monkeypatch.chdir(tmp_path)

    def loader(text: str | bytes, suffix: str = "yaml", *overrides: str) -> LoadedConfig:
        path = Path(f"c.{suffix}")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(path, overrides)

    return loader


def fault(load: Load, text: str | bytes, suffix: str = "yaml", *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, suffix, *overrides)
    return str(caught.value)


# ------------------------------------------------------------------------------------- reading

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
    assert loaded.config.tree.proposed_nodes == 9


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


# -------------------------------------------------------------------- faults, alike in XML and YAML

RUNTIME_TAGS = (
    "TARGET_HOST, TARGET_PORT, SERVER_NAME, DEVICE_MAP, DRAFT_DEVICE_NAME, TARGET_TOKEN_ENV"
)
ALL_BLOCKS = "runtime, models, objective, dataset, algorithms, tree, network, slo, sampling, run"
LIST = "Use a list (commas or spaces between), each"
FAULTS: dict[str, tuple[str, list[tuple[str, str]], list[str]]] = {
    "misspelt tag": (
        "runtime",
        [("SERVER_NAME", "a"), ("TARGT_PORT", "1")],
        [
            "7: unknown tag TARGT_PORT in the block runtime. Did you mean TARGET_PORT? "
            f"Allowed in runtime: {RUNTIME_TAGS}."
        ],
    ),
    "misspelt tag of another block": (
        "runtime",
        [("DRAFT_WAT", "1")],
        [
            "6: unknown tag DRAFT_WAT in the block runtime. Did you mean DRAFT_WATTS (block "
            f"objective)? Allowed in runtime: {RUNTIME_TAGS}."
        ],
    ),
    "tag in lower case": (
        "runtime",
        [("target_port", "1")],
        [
            "6: unknown tag target_port in the block runtime. Did you mean TARGET_PORT? "
            f"Allowed in runtime: {RUNTIME_TAGS}."
        ],
    ),
    "unlike any tag": (
        "run",
        [("zzzz", "1")],
        [
            "6: unknown tag zzzz in the block run. "
            "Allowed in run: MAX_NEW_TOKENS, REPEATS, WARMUP_QUESTIONS, DRY_RUN."
        ],
    ),
    "misspelt block": (
        "algoritms",
        [("CHAIN_D", "1")],
        [f"5: unknown block algoritms. Did you mean algorithms? Blocks: {ALL_BLOCKS}."],
    ),
    "tag as a block": (
        "DTYPE",
        [("x", "float32")],
        [
            "5: unknown block DTYPE. It is a tag of the block models: put it there. "
            f"Blocks: {ALL_BLOCKS}."
        ],
    ),
    "tag in a wrong block": (
        "tree",
        [("MAX_NEW_TOKENS", "5")],
        ["6: MAX_NEW_TOKENS belongs to the block run, not to tree. Move it there."],
    ),
    "second tag": (
        "run",
        [("REPEATS", "1"), ("REPEATS", "1")],
        ["7: second REPEATS; the first is at c.EXT:6. Keep one."],
    ),
    "second block": (
        "models",
        [("DTYPE", "auto")],
        ["5: second block models; the first is at c.EXT:2. Join them."],
    ),
    "empty tag": ("run", [("REPEATS", "")], ["6: REPEATS is empty. Give it a value or remove it."]),
    "not an integer": (
        "runtime",
        [("TARGET_PORT", "abc")],
        ["6: TARGET_PORT does not take 'abc'. Use an integer from 1 to 65535."],
    ),
    "out of range": (
        "runtime",
        [("TARGET_PORT", "70000")],
        ["6: TARGET_PORT does not take '70000'. Use an integer from 1 to 65535."],
    ),
    "below zero": (
        "objective",
        [("USER_COMM_COST_PER_GB", "-0.1")],
        ["6: USER_COMM_COST_PER_GB does not take '-0.1'. Use a number of at least 0."],
    ),
    "a price with its sign": (
        "objective",
        [("TARGET_PER_HOUR_COST", "$1.2")],
        ["6: TARGET_PER_HOUR_COST does not take '$1.2'. Use a number of at least 0."],
    ),
    "not a number": (
        "objective",
        [("DRAFT_WATTS", ".nan")],
        ["6: DRAFT_WATTS does not take '.nan'. Use a number of at least 0."],
    ),
    "cost sensitivity above one": (
        "objective",
        [("AUTODRAFT_CS_LIST", "0 0.5 2")],
        [f"6: AUTODRAFT_CS_LIST does not take '2'. {LIST} a number from 0 to 1."],
    ),
    "misspelt objective": (
        "objective",
        [("OBJECTIVE_METRIC", "api_cots")],
        [
            f"6: OBJECTIVE_METRIC does not take 'api_cots'. Did you mean api_cost? {LIST} "
            "one of total_cost, api_cost, draft_energy, target_energy."
        ],
    ),
    "negative count": (
        "dataset",
        [("QUESTION_LIMIT", "-3")],
        ["6: QUESTION_LIMIT does not take '-3'. Use an integer of at least 1, or all."],
    ),
    "misspelt benchmark": (
        "dataset",
        [("BENCHES_CSV", "mt_bench humanevil")],
        [
            f"6: BENCHES_CSV does not take 'humanevil'. Did you mean humaneval? {LIST} one of "
            "mt_bench, humaneval, spec_bench, spec_bench:mt_bench, spec_bench:translation, "
            "spec_bench:summarization, spec_bench:qa, spec_bench:math_reasoning, spec_bench:rag, "
            "gsm8k, cnn_dailymail, quick."
        ],
    ),
    "misspelt method": (
        "algorithms",
        [("METHODS_CSV", "server_only,chian")],
        [
            f"6: METHODS_CSV does not take 'chian'. Did you mean chain? {LIST} one of "
            "server_only, chain, fixed_tree, opt_tree, autodraft, lookup, chain@server, "
            "fixed_tree@server, opt_tree@server, autodraft@server, lookup@server, or unset."
        ],
    ),
    "a length twice": (
        "algorithms",
        [("CHAIN_D", "3,3")],
        [
            "6: CHAIN_D does not take '3'. It is in the list twice. "
            f"{LIST} an integer from 1 to 1024, or auto."
        ],
    ),
    "neither on nor off": (
        "run",
        [("DRY_RUN", "maybe")],
        ["6: DRY_RUN does not take 'maybe'. Use 1 or 0."],
    ),
    "temperature": (
        "sampling",
        [("TEMPERATURE", "0.8")],
        [
            "6: TEMPERATURE does not act yet in this version, and 0.8 would change the results: "
            "leave the tag out or use 0."
        ],
    ),
    "shaped link": (
        "network",
        [("RTT_MS", "20 40"), ("UPLINK_MBPS", "unlimited 10")],
        [
            "6: RTT_MS does not act yet in this version, and 20, 40 would change the results: "
            "leave the tag out or use 0.",
            "7: UPLINK_MBPS does not act yet in this version, and unlimited, 10 would change the "
            "results: leave the tag out or use unlimited.",
        ],
    ),
    "exact": (
        "algorithms",
        [("EXACT", "1")],
        [
            "6: EXACT does not act yet in this version, and 1 would change the results: "
            "leave the tag out or use auto or 0."
        ],
    ),
    "limit": (
        "slo",
        [("MAX_TPOT_MS", "50"), ("MIN_TOKENS_PER_S", "0")],
        [
            "6: MAX_TPOT_MS does not act yet in this version, and 50 would change the results: "
            "leave the tag out or use unset.",
            "7: MIN_TOKENS_PER_S does not take '0'. Use a number above 0, or unset.",
        ],
    ),
    "alias with several values": (
        "tree",
        [("NON_TREE_DEPTH", "2,3")],
        ["6: NON_TREE_DEPTH does not take '2,3'. Use an integer from 1 to 1024."],
    ),
    "alias that contradicts": (
        "objective",
        [("OBJECTIVE_METRICS_CSV", "total_cost"), ("OBJECTIVE_METRIC", "api_cost")],
        ["7: OBJECTIVE_METRIC contradicts OBJECTIVE_METRICS_CSV at c.EXT:6. Keep one of them."],
    ),
    "several at once": (
        "runtime",
        [("TARGET_PORT", "0"), ("SKIP_SLEEP", "1"), ("DTYPE", "auto"), ("DEVICE_MAP", "gpu")],
        [
            "6: TARGET_PORT does not take '0'. Use an integer from 1 to 65535.",
            "8: DTYPE belongs to the block models, not to runtime. Move it there.",
            "9: DEVICE_MAP does not take 'gpu'. Use auto, cpu, mps, cuda, cuda:N, xpu, xpu:N, npu, "
            "npu:N, balanced, balanced_low_0 or sequential.",
        ],
    ),
}


@pytest.mark.parametrize("suffix", ["xml", "yaml"])
@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_named_with_file_line_and_what_is_allowed(
    load: Load, case: str, suffix: str
) -> None:
    block, tags, expected = FAULTS[case]
    message = fault(load, WRITERS[suffix]([MODELS, (block, tags)]), suffix)
    assert message.splitlines() == [f"c.{suffix}:{e}".replace("EXT", suffix) for e in expected]


@pytest.mark.parametrize("suffix", ["xml", "yaml"])
def test_chain_d_and_its_alias_may_agree_but_not_contradict(load: Load, suffix: str) -> None:
    def text(depth: str) -> str:
        tags = [("NON_TREE_DEPTH", depth)]
        return WRITERS[suffix]([MODELS, ("algorithms", [("CHAIN_D", "2")]), ("tree", tags)])

    assert load(text("2"), suffix).config.algorithms.chain_d == (2,)
    assert fault(load, text("3"), suffix) == (
        f"c.{suffix}:8: NON_TREE_DEPTH contradicts CHAIN_D at c.{suffix}:6. Keep one of them."
    )


@pytest.mark.parametrize("suffix", ["xml", "yaml"])
def test_the_alias_alone_sets_the_length_of_the_chain(load: Load, suffix: str) -> None:
    text = WRITERS[suffix]([MODELS, ("tree", [("NON_TREE_DEPTH", "7")])])
    assert load(text, suffix).config.algorithms.chain_d == (7,)


@pytest.mark.parametrize("suffix", ["xml", "yaml"])
def test_both_models_are_required_and_the_way_to_give_them_is_named(
    load: Load, suffix: str
) -> None:
    message = fault(load, WRITERS[suffix]([("run", [("REPEATS", "1")])]), suffix)
    assert message.splitlines() == [
        f"c.{suffix}: models.BASE_MODEL_PATH is required: The target model (the name is "
        "historical). Set it in the file or with --set models.BASE_MODEL_PATH=…",
        f"c.{suffix}: models.DRAFT_MODEL_PATH is required: The draft model, which runs at the "
        "user. Set it in the file or with --set models.DRAFT_MODEL_PATH=…",
    ]


def test_a_flood_of_faults_is_cut(load: Load) -> None:
    text = as_yaml([MODELS, ("run", [(f"X{n}", "1") for n in range(200)])])
    lines = fault(load, text).splitlines()
    assert len(lines) == 51
    assert lines[-1] == "… and 150 more."


# ------------------------------------------------------------------------- faults of one form only

MODELS_XML = "<models><BASE_MODEL_PATH>b</BASE_MODEL_PATH><DRAFT_MODEL_PATH>d</DRAFT_MODEL_PATH>"
XML_FAULTS: dict[str, tuple[str | bytes, str]] = {
    "wrong root": ("<experiment/>", "c.xml:1: the root is <experiment>. Use <experiment_config>."),
    "empty": ("", "c.xml:1: not well-formed XML: "),
    "not closed": ("<experiment_config>\n<run>\n</experiment_config>", "c.xml:3: not well-formed"),
    "unknown entity": ("<experiment_config>\n&x;</experiment_config>", "c.xml:2: not well-formed"),
    "loose text": (
        f"<experiment_config>{MODELS_XML}</models>\noops</experiment_config>",
        "c.xml:1: text outside of a tag: 'oops'. Remove it.",
    ),
    "nested": (
        f"<experiment_config>{MODELS_XML}</models>\n<run><REPEATS><x>1</x></REPEATS></run>"
        "</experiment_config>",
        "c.xml:2: <REPEATS> holds other elements. Use a value only.",
    ),
    "attribute of a tag": (
        f"<experiment_config>{MODELS_XML}</models>\n<run><REPEATS value='1'/></run>"
        "</experiment_config>",
        "c.xml:2: <REPEATS> has wrong attributes. Use <TAG>value</TAG> or "
        '<parameter name="TAG">value</parameter>.',
    ),
    "parameter without a name": (
        f"<experiment_config>{MODELS_XML}</models>\n<run><parameter>1</parameter></run>"
        "</experiment_config>",
        "c.xml:2: <parameter> has wrong attributes. Use <TAG>value</TAG> or "
        '<parameter name="TAG">value</parameter>.',
    ),
    "parameter and tag": (
        f"<experiment_config>{MODELS_XML}</models>\n"
        '<run><REPEATS>1</REPEATS>\n<parameter name="REPEATS">2</parameter></run>'
        "</experiment_config>",
        "c.xml:3: second REPEATS; the first is at c.xml:2. Keep one.",
    ),
    "attribute of a block": (
        f"<experiment_config>{MODELS_XML}</models>\n<run a='1'/></experiment_config>",
        "c.xml:2: <run> takes no attribute a.",
    ),
    "attribute of the root": (
        f"<experiment_config version='1'>{MODELS_XML}</models></experiment_config>",
        "c.xml:1: <experiment_config> takes no attribute version.",
    ),
    "not UTF-8": (b"<experiment_config>\n\xff</experiment_config>", "c.xml:2: not UTF-8 text."),
}
MODELS_YAML = "models: {BASE_MODEL_PATH: b, DRAFT_MODEL_PATH: d}\n"
YAML_FAULTS = {
    "not YAML": ("run: [", "c.yaml:1: not valid YAML: "),
    "tab": (MODELS_YAML + "run:\n\tREPEATS: 1", "c.yaml:3: not valid YAML: "),
    "two documents": (MODELS_YAML + "---\nrun: {}", "c.yaml:2: not valid YAML: but found another"),
    "control character": (MODELS_YAML + "run: \0", "c.yaml:2: a control character is in the text."),
    "a list at the top": ("- a", "c.yaml:1: the file is not a mapping. Use lines of NAME: value."),
    "a value as a block": (
        MODELS_YAML + "run: 5",
        "c.yaml:2: the block run is not a mapping. Use lines of NAME: value.",
    ),
    "a mapping as a value": (
        MODELS_YAML + "run: {REPEATS: {a: 1}}",
        "c.yaml:2: REPEATS is neither a value nor a list of values.",
    ),
    "a list in a list": (
        MODELS_YAML + "algorithms: {CHAIN_D: [[1]]}",
        "c.yaml:2: CHAIN_D is neither a value nor a list of values.",
    ),
    "null in a list": (
        MODELS_YAML + "algorithms: {CHAIN_D: [1, null]}",
        "c.yaml:2: CHAIN_D is neither a value nor a list of values.",
    ),
    "a list for one value": (
        MODELS_YAML + "run: {REPEATS: [1, 2]}",
        "c.yaml:2: REPEATS does not take '1, 2'. One value is expected here, not a list. "
        "Use an integer from 1 to 10000.",
    ),
    "an empty list": (
        MODELS_YAML + "algorithms: {CHAIN_D: []}",
        "c.yaml:2: CHAIN_D is empty. Give it a value or remove it.",
    ),
    "null": (
        MODELS_YAML + "dataset: {QUESTION_LIMIT: null}",
        "c.yaml:2: QUESTION_LIMIT is empty. Give it a value or remove it.",
    ),
    "a key that is no name": (
        MODELS_YAML + "run: {[a]: 1}",
        "c.yaml:2: a key of the block run is not a name.",
    ),
    "a merge key": (
        MODELS_YAML + "run: {<<: {REPEATS: 2}}",
        "c.yaml:2: << is neither a value nor a list of values.",
    ),
    "a Python object": (
        MODELS_YAML + "run: {REPEATS: !!python/object/apply:os.getpid []}",
        "c.yaml:2: REPEATS is neither a value nor a list of values.",
    ),
    "a block beside the root": (
        "experiment_config: {" + MODELS_YAML.strip() + "}\nrun: {}",
        "c.yaml:2: run stands beside experiment_config. Move it inside.",
    ),
    "two roots": (
        "experiment_config: {" + MODELS_YAML.strip() + "}\nexperiment_config: {run: {REPEATS: 5}}",
        "c.yaml:2: second experiment_config. Join them.",
    ),
    "nested too deeply": ("[" * 5000, "c.yaml: nested too deeply for a configuration."),
}


@pytest.mark.parametrize("case", XML_FAULTS)
def test_a_fault_of_the_xml_form_is_named(load: Load, case: str) -> None:
    text, expected = XML_FAULTS[case]
    assert fault(load, text, "xml").startswith(expected)


@pytest.mark.parametrize("case", YAML_FAULTS)
def test_a_fault_of_the_yaml_form_is_named(load: Load, case: str) -> None:
    text, expected = YAML_FAULTS[case]
    message = fault(load, text)
    assert message.startswith(expected)
    assert case == "a list at the top" or len(message.splitlines()) == 1


BILLION = "".join(f"<!ENTITY l{n} '{f'&l{n - 1};' * 10}'>" for n in range(1, 20))
DOCTYPES = {
    "entity bomb": f"<!DOCTYPE r [<!ENTITY l0 'ha'>{BILLION}]>\n<experiment_config>&l19;",
    "file entity": "<!DOCTYPE r [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><experiment_config>&x;",
    "remote": "<!DOCTYPE r SYSTEM 'http://192.0.2.1/x.dtd'><experiment_config>",
    "after comments": "<?xml version='1.0'?><!-- a --><?p i?><!-- b --> <!DOCTYPE r>",
}


@pytest.mark.parametrize("case", DOCTYPES)
def test_a_doctype_is_refused_at_once(load: Load, case: str) -> None:
    began = time.perf_counter()
    message = fault(load, DOCTYPES[case], "xml")
    assert message.startswith("c.xml:1: a DOCTYPE is not allowed (entities are not resolved).")
    assert time.perf_counter() - began < 1


def test_a_doctype_in_another_encoding_does_not_pass(load: Load) -> None:
    text = "<?xml version='1.0' encoding='utf-16'?><!DOCTYPE r><experiment_config/>"
    assert "not UTF-8 text" in fault(load, text.encode("utf-16"), "xml")


@pytest.mark.parametrize("suffix", ["xml", "yaml"])
def test_a_huge_file_is_refused_unread(load: Load, suffix: str) -> None:
    message = fault(load, b" " * (128 * 1024 + 1), suffix)
    assert message == (
        f"c.{suffix}: larger than 128 KiB, so it is not a configuration. Check the path."
    )


def test_a_file_that_is_missing_a_folder_or_of_unknown_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.xml").mkdir()
    with pytest.raises(ConfigError, match=r"none.xml: the configuration cannot be read \(No such"):
        load_config(tmp_path / "none.xml")
    with pytest.raises(ConfigError, match=r"folder.xml: the configuration cannot be read"):
        load_config(tmp_path / "folder.xml")
    with pytest.raises(ConfigError, match=r"Use a name that ends in .xml or .yaml"):
        load_config(tmp_path / "c.json")


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(st.binary(max_size=80), st.text(max_size=80).map(str.encode)),
    st.sampled_from(["xml", "yaml"]),
    st.sampled_from([b"", b"<experiment_config>", b"run:\n  REPEATS: ", b"models: {"]),
)
def test_whatever_a_file_holds_it_loads_or_is_a_config_error(
    content: bytes, suffix: str, head: bytes
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"c.{suffix}"
        path.write_bytes(head + content)
        try:
            load_config(path)
        except ConfigError as error:
            assert str(error).startswith(str(path))  # noqa: PT017 - either way is right


# --------------------------------------------------------------------------------------- overrides


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
            "Allowed in run: MAX_NEW_TOKENS, REPEATS, WARMUP_QUESTIONS, DRY_RUN.",
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
            "sampling.NUM_CHOICES=2",
            "--set sampling.NUM_CHOICES=2: NUM_CHOICES does not act yet in this version, and 2 "
            "would change the results: leave the tag out or use 1.",
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


# ---------------------------------------------------------------------------------------- warnings

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


def test_a_tag_that_does_not_act_yet_is_named_and_defaults_are_named_on_one_line(
    load: Load,
) -> None:
    text = as_yaml(
        [
            MODELS,
            ("objective", [("AUTODRAFT_CS_LIST", "0"), ("SERVER_ONLY_AUTODRAFT_CS_LIST", "0")]),
            ("network", [("RTT_MS", "0"), ("UPLINK_MBPS", "unlimited")]),
            ("sampling", [("SEED", "5"), ("TOP_K", "0")]),
            ("run", [("REPEATS", "1")]),
        ]
    )
    assert load(text).warnings == (
        "c.yaml:6: AUTODRAFT_CS_LIST is checked but does not act yet in this version.",
        "c.yaml:12: SEED is checked but does not act yet in this version.",
        "c.yaml: SERVER_ONLY_AUTODRAFT_CS_LIST, RTT_MS, UPLINK_MBPS, TOP_K are checked but do not "
        "act yet in this version (at the default).",
    )


def test_a_single_tag_at_its_default_is_named_in_the_singular(load: Load) -> None:
    assert load(as_yaml([MODELS]), "yaml", "algorithms.EXACT=auto").warnings == (
        "c.yaml: EXACT is checked but does not act yet in this version (at the default).",
    )


def test_what_acts_gives_no_warning(load: Load) -> None:
    text = as_yaml([MODELS, ("tree", [("NON_TREE_DEPTH", "3")]), ("run", [("REPEATS", "2")])])
    assert load(text, "yaml", "algorithms.METHODS_CSV=chain").warnings == ()


def test_notes_on_the_methods_are_among_the_warnings(load: Load) -> None:
    assert load(as_yaml([MODELS]), "yaml", "algorithms.METHODS_CSV=chain").warnings == (
        "c.yaml: CHAIN_D=auto is not tuned yet in this version: the chain takes d=4.",
    )


def test_switches_that_methods_csv_overrides_are_named(load: Load) -> None:
    switches = [("ENABLE_HYBRID_AUTODRAFT", "1"), ("ENABLE_SERVER_ONLY_AR", "1")]
    text = as_yaml([MODELS, ("algorithms", [*switches, ("METHODS_CSV", "server_only")])])
    assert load(text).warnings == ("c.yaml: METHODS_CSV overrides ENABLE_HYBRID_AUTODRAFT.",)


# -------------------------------------------------------------------------- writing, documentation


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


def test_the_documentation_holds_the_generated_table() -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert text.partition("<!-- key table -->\n\n")[2] == key_table(), (
        "put what autodraft.config_io.key_table() returns after <!-- key table --> in "
        "docs/configuration.md"
    )


def test_the_table_names_every_tag_with_its_default_and_state() -> None:
    rows = [line for line in key_table().splitlines() if line.startswith("| `")]
    for cls in BLOCKS.values():
        for knob in cls.knobs().values():
            (row,) = [row for row in rows if row.startswith(f"| `{knob.tag}` |")]
            assert (" | yes | " in row) is knob.acts
    assert any(row.startswith("| `TARGET_PER_HOUR_COST` | `1.208` | $/h |") for row in rows)
    assert any(row.startswith("| `TOKENIZER_PATH` | = BASE_MODEL_PATH |") for row in rows)
    assert any(row.startswith("| `BASE_MODEL_PATH` | required |") for row in rows)
    assert any(row.startswith("| `NON_TREE_DEPTH` | = CHAIN_D | tokens |") for row in rows)


def test_the_snippets_of_the_documentation_work(load: Load) -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    snippets = dict(re.findall(r"```(xml|yaml|python)\n(.*?)```", text, re.DOTALL))
    assert load(snippets["xml"], "xml").config == load(snippets["yaml"], "yaml").config
    names: dict[str, Any] = {}
    exec(snippets["python"].replace("print(", "shown = ("), names)
    assert str(names["shown"]) in snippets["python"]


# ----------------------------------------------------------------------------------- example files


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_shows_every_knob_with_unit_reader_and_default(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    tags = [knob.tag for cls in BLOCKS.values() for knob in cls.knobs().values()]
    for tag in [*tags, "OBJECTIVE_METRIC", "NON_TREE_DEPTH"]:
        before, found, _ = text.partition(f"<{tag}>")
        assert found, f"{tag} is missing"
        comment = " ".join(before.rpartition("<!-- ")[0].rpartition("<!-- ")[2].split())
        if not before.endswith("<!-- "):
            comment = " ".join(before.rpartition("<!-- ")[2].split())
        for part in ("Unit: ", "Read by: ", "efault: "):
            assert part in comment, f"{tag} lacks {part}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_compares_five_methods_on_the_published_pair(name: str) -> None:
    config = load_config(ROOT / name).config
    assert [method.label for method in config.methods()] == [
        "server_only",
        "chain",
        "fixed_tree",
        "opt_tree",
        "autodraft",
    ]
    assert config.models == ModelsConfig(
        base_model_path="Qwen/Qwen2.5-14B-Instruct",
        draft_model_path="Qwen/Qwen2.5-1.5B-Instruct",
        target_quantization="none",
    )
    assert config.tree == TreeConfig()
    assert config.runtime == RuntimeConfig()


def test_the_examples_differ_in_objective_benchmark_and_hand_over_only() -> None:
    cost, energy = (load_config(ROOT / name).config for name in EXAMPLES)
    assert cost.objective == ObjectiveConfig(autodraft_cs_list=(0,))
    assert energy.objective == ObjectiveConfig(
        objective_metrics=("draft_energy",), autodraft_cs_list=(0.5,)
    )
    assert (cost.dataset.benches, energy.dataset.benches) == (("mt_bench",), ("humaneval",))
    assert cost.algorithms.enable_handover is True
    assert energy.algorithms.enable_handover is False
    assert cost.run == energy.run
    assert cost.sampling == energy.sampling


def test_the_examples_run_with_the_embedded_pair_by_overrides_alone() -> None:
    loaded = load_config(
        ROOT / EXAMPLES[0],
        [
            "models.BASE_MODEL_PATH=embedded:smollm2-135m-instruct",
            "models.DRAFT_MODEL_PATH=embedded:smollm2-draft",
            "runtime.DEVICE_MAP=cpu",
            "algorithms.METHODS_CSV=server_only,chain,fixed_tree,opt_tree",
        ],
    )
    for method in loaded.config.methods():
        method.require_available()


def test_the_quickstart_is_small_and_gives_no_warning() -> None:
    loaded = load_config(ROOT / "configs/quickstart.xml")
    config = loaded.config
    assert loaded.warnings == ()
    assert config.models.base_model_path == "embedded:smollm2-135m-instruct"
    assert config.models.draft_model_path == "embedded:smollm2-draft"
    assert (config.dataset.benches, config.dataset.question_limit) == (("quick",), 4)
    assert config.run.max_new_tokens == 48
    assert config.runtime.device_map == "cpu"
    assert [(m.label, m.width, m.max_depth, m.node_budget) for m in config.methods()] == [
        ("server_only", 0, 0, 0),
        ("chain", 1, 3, 3),
        ("fixed_tree", 4, 3, 12),
        ("opt_tree", 8, 5, 24),
        ("lookup", 0, 5, 24),
    ]
    for method in config.methods():
        method.require_available()
