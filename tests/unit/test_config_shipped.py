"""What is shipped beside the code: the table of all tags, the schema, the experiments."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from autodraft.config import BLOCKS, ModelsConfig, ObjectiveConfig, RuntimeConfig, TreeConfig
from autodraft.config.knob import BLANKS, Choice, Each, Flag, Knob, Number, OrWord, Text, Whole
from autodraft.config_io import key_table, load_config, xsd
from autodraft.config_io.names import legacy_rows
from scripts import generate_config_docs
from tests.unit.config_texts import Load, loader_in

ROOT = Path(__file__).parents[2]
EXAMPLES = (
    "evaluation/overall_performance_total_cost_mt_bench_example.xml",
    "evaluation/overall_performance_draft_energy_humaneval_example.xml",
)
XML_FILES = ("configs/quickstart.xml", "configs/rtt_sweep.xml", *EXAMPLES)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader_in(tmp_path, monkeypatch)


# ------------------------------------------------------------------------------------ documentation
def test_the_shipped_schema_and_page_are_what_the_classes_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert generate_config_docs.main(["--check"]) == 0, (
        "run python scripts/generate_config_docs.py: " + capsys.readouterr().out
    )
    assert (ROOT / "configs/experiment.xsd").read_text(encoding="utf-8") == xsd()
    assert key_table() in (ROOT / "configs/README.md").read_text(encoding="utf-8")


def test_the_generator_writes_what_is_stale_and_only_says_so_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.xml").write_text("<!--\n  First line: a thing.\n  More.\n-->")
    (tmp_path / "a.yaml").write_text("")
    marks = ["<!-- files -->", "<!-- end files -->", "<!-- key table -->", "<!-- end key table -->"]
    (tmp_path / "README.md").write_text("\n".join(["Before", *marks, "After"]) + "\n")
    assert generate_config_docs.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().out == "README.md: stale\nexperiment.xsd: stale\n"
    assert not (tmp_path / "experiment.xsd").exists()
    assert generate_config_docs.main([], tmp_path) == 0
    assert "| [a.xml](a.xml), [a.yaml](a.yaml) | First line: a thing |" in (
        tmp_path / "README.md"
    ).read_text(encoding="utf-8")
    assert generate_config_docs.main(["--check"], tmp_path) == 0
    (tmp_path / "README.md").write_text("no marks")
    with pytest.raises(ValueError, match="no part marked files"):
        generate_config_docs.main([], tmp_path)


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
    found = re.findall(r"```(xml|yaml|python)\n(.*?)```", text, re.DOTALL)
    snippets = dict(reversed(found))  # the first of each
    assert load(snippets["xml"], "xml").config == load(snippets["yaml"], "yaml").config
    names: dict[str, Any] = {}
    exec(snippets["python"].replace("print(", "shown = ("), names)
    assert str(names["shown"]) in snippets["python"]


# ------------------------------------------------------------------------------------- the schema

SCHEMA = etree.XMLSchema(etree.fromstring(xsd().encode()))


def is_valid(text: str) -> bool:
    return SCHEMA.validate(etree.fromstring(text.encode()))


def block_of(block: str, content: str) -> str:
    return f"<experiment_config><{block}>{content}</{block}></experiment_config>"


@pytest.mark.parametrize("name", XML_FILES)
def test_every_shipped_file_is_valid_and_names_the_schema(name: str) -> None:
    root = etree.parse(ROOT / name).getroot()
    assert SCHEMA.validate(root), SCHEMA.error_log
    place = root.get("{http://www.w3.org/2001/XMLSchema-instance}noNamespaceSchemaLocation")
    assert place is not None
    assert ((ROOT / name).parent / place).resolve() == ROOT / "configs/experiment.xsd"


@pytest.mark.parametrize("name", XML_FILES)
def test_a_misspelt_tag_is_not_valid(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert not is_valid(text.replace("BASE_MODEL_PATH>", "BASE_MODEL_PAHT>"))
    assert not is_valid(text.replace("models>", "model>"))
    assert is_valid(text)


@pytest.mark.parametrize(
    ("block", "content", "valid"),
    [
        ("tree", "", True),
        ("tree", "<PROPOSED_NODES> 64, 128 </PROPOSED_NODES>", True),
        ("tree", "<PROPOSED_NODES>64;128</PROPOSED_NODES>", False),
        ("tree", "<FIXED_TREE_WIDTH>auto</FIXED_TREE_WIDTH>", True),
        ("tree", "<FIXED_TREE_WIDTH>automatic</FIXED_TREE_WIDTH>", False),
        ("tree", "<!-- x --><OPT_TREE_WIDTH>1<!-- y -->6</OPT_TREE_WIDTH>", True),
        ("tree", "<TARGET_PORT>26001</TARGET_PORT>", False),
        ("tree", '<parameter name="PROPOSED_NODES">64</parameter>', True),
        ("tree", '<parameter name=" PROPOSED_NODES ">64</parameter>', True),
        ("tree", '<parameter name="TARGET_PORT">26001</parameter>', False),
        ("tree", "<parameter>64</parameter>", False),
        ("tree", "<NON_TREE_DEPTH>3</NON_TREE_DEPTH>", True),
        ("tree", "<NON_TREE_DEPTH>3,4</NON_TREE_DEPTH>", False),
        ("tree", "<SLEEP_SECONDS>1</SLEEP_SECONDS><NON_TREE_WIDTH/>", True),
        ("tree", '<parameter name="SERVER_DRAFT_PROFILE_ANYTHING">1</parameter>', True),
        ("run", "<SERVER_DRAFT_PROFILE_WIDTH_LIST>1</SERVER_DRAFT_PROFILE_WIDTH_LIST>", True),
        ("run", "<DRY_RUN>Yes</DRY_RUN><REPEATS>+3</REPEATS>", True),
        ("run", "<DRY_RUN>maybe</DRY_RUN>", False),
        ("run", "<REPEATS>0</REPEATS>", False),
        ("run", "<REPEATS>3 times</REPEATS>", False),
        ("run", "REPEATS", False),
        ("run", "<REPEATS><value>3</value></REPEATS>", False),
        ("runtime", "<TARGET_PORT>70000</TARGET_PORT>", False),
        ("runtime", "<SERVER_NAME><![CDATA[ä & b]]></SERVER_NAME>", True),
        ("runtime", "<TARGET_HOST>http://a</TARGET_HOST>", False),
        ("objective", "<TARGET_PER_HOUR_COST>1.5e0</TARGET_PER_HOUR_COST>", True),
        ("objective", "<TARGET_PER_HOUR_COST>-1</TARGET_PER_HOUR_COST>", False),
        ("objective", "<TARGET_PER_HOUR_COST>INF</TARGET_PER_HOUR_COST>", False),
        ("objective", "<TARGET_PER_HOUR_COST>NaN</TARGET_PER_HOUR_COST>", False),
        ("dataset", "<BENCHES_CSV>quick humaneval:completion</BENCHES_CSV>", True),
        ("dataset", "<BENCHES_CSV>quikc</BENCHES_CSV>", False),
        ("network", "<UPLINK_MBPS>unlimited 10 .5</UPLINK_MBPS>", True),
        ("algorithms", "<EXACT>auto</EXACT><EXACT>on</EXACT>", True),  # twice: the loader refuses
        ("sampling", "<TOP_P>0</TOP_P>", False),
    ],
)
def test_the_schema_knows_tags_and_values(block: str, content: str, valid: bool) -> None:
    assert is_valid(block_of(block, content)) is valid, SCHEMA.error_log


def test_blocks_stand_in_any_order_and_once() -> None:
    text = "<experiment_config><run/><models/>{}</experiment_config>"
    assert is_valid(text.format("<tree/>"))
    assert not is_valid(text.format("<run/>"))
    assert not is_valid(text.format("<trees/>"))
    assert not is_valid(text.format("REPEATS"))


def test_every_legacy_tag_is_valid_in_every_block() -> None:
    tags = [tag for tag in legacy_rows() if not tag.endswith("*")]
    content = "".join(f"<{tag}>1</{tag}>" for tag in tags)
    for block in BLOCKS:
        assert is_valid(block_of(block, content)), SCHEMA.error_log


KNOBS = [(block, knob) for block, cls in BLOCKS.items() for knob in cls.knobs().values()]
PIECES = st.sampled_from(
    ["0", "1", "-", "+", ".", "e5", "7", " ", ",", "\n", "auto", "unset", "TRUE", "off", "9" * 17]
    + ["total_cost", "chain", "chain@server", "quick", "4bit", "full", "ä", ":", "/", "\u00a0"]
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(KNOBS), st.lists(PIECES, max_size=5).map("".join))
def test_the_schema_refuses_nothing_that_the_loader_accepts(
    where: tuple[str, Knob], text: str
) -> None:
    block, knob = where
    try:
        knob.read(text.strip(BLANKS))
    except ValueError:
        return
    assert is_valid(block_of(block, f"<{knob.tag}>{text}</{knob.tag}>")), SCHEMA.error_log


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(KNOBS), st.data())
def test_the_schema_accepts_any_value_as_it_is_written_back(
    where: tuple[str, Knob], data: st.DataObject
) -> None:
    block, knob = where
    value = data.draw(values_of(knob.kind))
    text = knob.text(knob.kind.read(value) if isinstance(value, str) else value)
    assert is_valid(block_of(block, f"<{knob.tag}>{text}</{knob.tag}>")), SCHEMA.error_log


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return values that a kind has; texts are its shortest examples."""
    if isinstance(kind, OrWord):
        return st.none() | values_of(kind.kind)
    if isinstance(kind, Each):
        return st.lists(values_of(kind.item), min_size=1, max_size=4, unique=True).map(tuple)
    if isinstance(kind, Whole):
        return st.integers(kind.low, kind.high if kind.high is not None else 10**17)
    if isinstance(kind, Number):
        return st.floats(kind.low, kind.high, exclude_min=kind.above, allow_infinity=False)
    if isinstance(kind, Choice):
        return st.sampled_from(kind.names)
    if isinstance(kind, Text):
        return st.sampled_from(["auto", "cuda:1", "A_1", "a", "::1"]).filter(
            lambda text: re.fullmatch(kind.pattern, text) is not None
        )
    assert isinstance(kind, Flag)
    return st.booleans()


# ------------------------------------------------------------------------------------ example files


@pytest.mark.parametrize("name", XML_FILES)
def test_a_twin_in_yaml_loads_equal(name: str) -> None:
    assert load_config(ROOT / name).config == load_config((ROOT / name).with_suffix(".yaml")).config


def test_every_file_in_yaml_is_a_twin() -> None:
    for folder in ("configs", "evaluation"):
        twins = {str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("*.yaml")}
        names = {str(Path(name).with_suffix(".yaml")) for name in XML_FILES}
        assert twins == {name for name in names if name.startswith(folder)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_twin_shows_the_same_tags_as_its_example(name: str) -> None:
    xml = (ROOT / name).read_text(encoding="utf-8")
    twin = (ROOT / name).with_suffix(".yaml").read_text(encoding="utf-8")
    shown = re.findall(r"(?m)^    (?:# )?([A-Z_0-9]+): ", twin)
    assert shown == re.findall(r"(?m)^    (?:<!-- )?<([A-Z_0-9]+)>", xml)
    assert max(map(len, twin.splitlines())) <= 100


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


def test_the_sweep_runs_each_method_at_each_round_trip_and_gives_no_warning() -> None:
    loaded = load_config(ROOT / "configs/rtt_sweep.xml")
    assert loaded.warnings == ()
    assert [s.label for s in loaded.config.network.settings()] == ["unshaped", "rtt20", "rtt100"]
    labels = ["server_only", "chain_d2", "chain_d4", "chain_d2@server", "chain_d4@server"]
    assert [method.label for method in loaded.config.methods()] == labels
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
