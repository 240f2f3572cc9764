"""Faulty configurations: each is named with file, line and what is allowed, alike in both forms."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autodraft.config_io import load_config
from autodraft.errors import ConfigError
from tests.unit.config_texts import ALL_BLOCKS, MODELS, WRITERS, Load, as_yaml, fault, loader_in


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader_in(tmp_path, monkeypatch)


# -------------------------------------------------------------------- faults, alike in XML and YAML

RUNTIME_TAGS = (
    "TARGET_HOST, TARGET_PORT, SERVER_NAME, DEVICE_MAP, DRAFT_DEVICE_NAME, TARGET_TOKEN_ENV"
)
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
            "Allowed in run: MAX_NEW_TOKENS, REPEATS, WARMUP_QUESTIONS, RETRIES, "
            "SAVE_TRACE, DRY_RUN."
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
            "mt_bench, humaneval, humaneval:completion, spec_bench, spec_bench:mt_bench, "
            "spec_bench:translation, spec_bench:summarization, spec_bench:qa, "
            "spec_bench:math_reasoning, spec_bench:rag, gsm8k, cnn_dailymail, quick."
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
        [("TEMPERATURE", "101")],
        ["6: TEMPERATURE does not take '101'. Use a number from 0 to 100."],
    ),
    "link that cannot be": (
        "network",
        [("RTT_MS", "20 20.0"), ("UPLINK_MBPS", "unlimited 0")],
        [
            f"6: RTT_MS does not take '20.0'. It is in the list twice. {LIST} a number of at least "
            "0.",
            f"7: UPLINK_MBPS does not take '0'. {LIST} a number above 0, or unlimited.",
        ],
    ),
    "half an auto": (
        "tree",
        [("FIXED_TREE_NODES", "32"), ("FIXED_TREE_DEPTH", "auto")],
        [
            "7: FIXED_TREE_DEPTH=auto needs the whole shape tuned: set FIXED_TREE_WIDTH, "
            "FIXED_TREE_NODES to auto too, or give numbers to all three."
        ],
    ),
    "a wrong value before what it would contradict": (
        "tree",
        [("FIXED_TREE_WIDTH", "auto"), ("FIXED_TREE_DEPTH", "0"), ("FIXED_TREE_NODES", "auto")],
        [f"7: FIXED_TREE_DEPTH does not take '0'. {LIST} an integer from 1 to 1024, or auto."],
    ),
    "auto in a list": (
        "algorithms",
        [("CHAIN_D", "auto 4")],
        [
            "6: CHAIN_D does not take 'auto'. It stands alone, not in a list. "
            f"{LIST} an integer from 1 to 1024, or auto."
        ],
    ),
    "exact": (
        "algorithms",
        [("EXACT", "2")],
        ["6: EXACT does not take '2'. Use 1 or 0, or auto."],
    ),
    "limit": (
        "slo",
        [("MAX_TPOT_MS", "50"), ("MIN_TOKENS_PER_S", "0")],
        [
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


# -------------------------------------------------------------------------- faults of one form only

MODELS_XML = "<models><BASE_MODEL_PATH>b</BASE_MODEL_PATH><DRAFT_MODEL_PATH>d</DRAFT_MODEL_PATH>"
XML_FAULTS: dict[str, tuple[str | bytes, str]] = {
    "wrong root": ("<experiment/>", "c.xml:1: the root is <experiment>. Use <experiment_config>."),
    "empty": ("", "c.xml:1: not well-formed XML: "),
    "not closed": ("<experiment_config>\n<run>\n</experiment_config>", "c.xml:3: not well-formed"),
    "unknown entity": ("<experiment_config>\n&x;</experiment_config>", "c.xml:2: not well-formed"),
    "loose text": (
        f"<experiment_config>{MODELS_XML}</models>\noops</experiment_config>",
        "c.xml:2: text outside of a tag: 'oops'. Remove it.",
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
