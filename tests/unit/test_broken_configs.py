"""Broken configurations that stand in files: the whole message of each, and no harm from any."""

import time
from pathlib import Path
from typing import Final

import pytest

from autodraft.config_io import load_config
from autodraft.errors import ConfigError

FOLDER: Final = Path(__file__).parents[1] / "data" / "broken_configs"
REFUSED_WITHIN_S: Final = 1.0

MESSAGES: Final = {  # file -> message; each of its lines begins with the file, or with file:line
    "alias.yaml": "alias.yaml:6: an alias (*name) is not read. Write the value once more.",
    "alias_contradicts.xml": (
        "alias_contradicts.xml:10: NON_TREE_DEPTH contradicts CHAIN_D at "
        "alias_contradicts.xml:7. Keep one of them."
    ),
    "ampersand.xml": "ampersand.xml:7: not well-formed XML: xmlParseEntityRef: no name.",
    "attribute_of_a_block.xml": "attribute_of_a_block.xml:6: <run> takes no attribute repeats.",
    "auto_in_a_list.yaml": (
        "auto_in_a_list.yaml:5: CHAIN_D does not take 'auto'. It stands alone, not in a list. "
        "Use a list (commas or spaces between), each an integer from 1 to 1024, or auto."
    ),
    "billion_laughs.xml": (
        "billion_laughs.xml:1: a DOCTYPE is not allowed (entities are not resolved). Remove it."
    ),
    "billion_laughs.yaml": (
        "billion_laughs.yaml:5: an alias (*name) is not read. Write the value once more."
    ),
    "block_beside_the_root.yaml": (
        "block_beside_the_root.yaml:3: run stands beside experiment_config. Move it inside."
    ),
    "control_character.yaml": "control_character.yaml:5: a control character is in the text.",
    "cost_sensitivity_above_one.xml": (
        "cost_sensitivity_above_one.xml:7: AUTODRAFT_CS_LIST does not take '2'. Use a list "
        "(commas or spaces between), each a number from 0 to 1."
    ),
    "draft_missing.yaml": (
        "draft_missing.yaml: models.DRAFT_MODEL_PATH is required: The draft model, which runs "
        "at the user. Set it in the file or with --set models.DRAFT_MODEL_PATH=…"
    ),
    "empty.xml": "empty.xml:1: not well-formed XML: Document is empty.",
    "empty_tag.xml": "empty_tag.xml:7: REPEATS is empty. Give it a value or remove it.",
    "endless_list.yaml": (
        "endless_list.yaml:5: an alias (*name) is not read. Write the value once more."
    ),
    "experiment.json": (
        "experiment.json: unknown kind of file. Use a name that ends in .xml or .yaml."
    ),
    "external_dtd.xml": (
        "external_dtd.xml:2: a DOCTYPE is not allowed (entities are not resolved). Remove it."
    ),
    "external_entity_of_a_file.xml": (
        "external_entity_of_a_file.xml:2: a DOCTYPE is not allowed (entities are not "
        "resolved). Remove it."
    ),
    "external_entity_of_a_site.xml": (
        "external_entity_of_a_site.xml:1: a DOCTYPE is not allowed (entities are not "
        "resolved). Remove it."
    ),
    "half_an_auto.xml": (
        "half_an_auto.xml:7: FIXED_TREE_WIDTH=auto needs the whole shape tuned: set "
        "FIXED_TREE_DEPTH, FIXED_TREE_NODES to auto too, or give numbers to all three."
    ),
    "host_with_scheme.xml": (
        "host_with_scheme.xml:7: TARGET_HOST does not take 'http://10.0.0.7:26001'. Use a "
        "host name or an IP address, without scheme and port (TARGET_PORT holds the port)."
    ),
    "included_file.xml": (
        "included_file.xml:7: <{http://www.w3.org/2001/XInclude}include> has wrong "
        'attributes. Use <TAG>value</TAG> or <parameter name="TAG">value</parameter>.'
    ),
    "limit_of_speed.yaml": (
        "limit_of_speed.yaml:6: MIN_TOKENS_PER_S does not take '0'. Use a number above 0, or unset."
    ),
    "list_at_the_top.yaml": (
        "list_at_the_top.yaml:1: the file is not a mapping. Use lines of NAME: value.\n"
        "list_at_the_top.yaml: models.BASE_MODEL_PATH is required: The target model (the name "
        "is historical). Set it in the file or with --set models.BASE_MODEL_PATH=…\n"
        "list_at_the_top.yaml: models.DRAFT_MODEL_PATH is required: The draft model, which "
        "runs at the user. Set it in the file or with --set models.DRAFT_MODEL_PATH=…"
    ),
    "list_for_one_value.yaml": (
        "list_for_one_value.yaml:5: REPEATS does not take '1, 2'. One value is expected here, "
        "not a list. Use an integer from 1 to 10000."
    ),
    "list_in_a_list.yaml": (
        "list_in_a_list.yaml:5: CHAIN_D is neither a value nor a list of values."
    ),
    "loose_text.xml": "loose_text.xml:6: text outside of a tag: 'REPEATS = 3'. Remove it.",
    "mapping_as_a_value.yaml": (
        "mapping_as_a_value.yaml:5: REPEATS is neither a value nor a list of values."
    ),
    "merge_key.yaml": "merge_key.yaml:5: << is neither a value nor a list of values.",
    "misspelt_benchmark.xml": (
        "misspelt_benchmark.xml:7: BENCHES_CSV does not take 'humanevil'. Did you mean "
        "humaneval? Use a list (commas or spaces between), each one of mt_bench, humaneval, "
        "humaneval:completion, spec_bench, spec_bench:mt_bench, spec_bench:translation, "
        "spec_bench:summarization, spec_bench:qa, spec_bench:math_reasoning, spec_bench:rag, "
        "gsm8k, cnn_dailymail, quick."
    ),
    "misspelt_block.xml": (
        "misspelt_block.xml:6: unknown block algoritms. Did you mean algorithms? Blocks: "
        "runtime, models, objective, dataset, algorithms, tree, network, slo, sampling, run."
    ),
    "misspelt_method.xml": (
        "misspelt_method.xml:7: METHODS_CSV does not take 'chian'. Did you mean chain? Use a "
        "list (commas or spaces between), each one of server_only, chain, fixed_tree, "
        "opt_tree, autodraft, lookup, chain@server, fixed_tree@server, opt_tree@server, "
        "autodraft@server, lookup@server, or unset."
    ),
    "misspelt_objective.xml": (
        "misspelt_objective.xml:7: OBJECTIVE_METRICS_CSV does not take 'api_cots'. Did you "
        "mean api_cost? Use a list (commas or spaces between), each one of total_cost, "
        "api_cost, draft_energy, target_energy."
    ),
    "misspelt_tag.xml": (
        "misspelt_tag.xml:7: unknown tag TARGT_PORT in the block runtime. Did you mean "
        "TARGET_PORT? Allowed in runtime: TARGET_HOST, TARGET_PORT, SERVER_NAME, DEVICE_MAP, "
        "DRAFT_DEVICE_NAME, TARGET_TOKEN_ENV."
    ),
    "misspelt_tag.yaml": (
        "misspelt_tag.yaml:5: unknown tag TARGT_PORT in the block runtime. Did you mean "
        "TARGET_PORT? Allowed in runtime: TARGET_HOST, TARGET_PORT, SERVER_NAME, DEVICE_MAP, "
        "DRAFT_DEVICE_NAME, TARGET_TOKEN_ENV."
    ),
    "models_missing.xml": (
        "models_missing.xml: models.BASE_MODEL_PATH is required: The target model (the name "
        "is historical). Set it in the file or with --set models.BASE_MODEL_PATH=…\n"
        "models_missing.xml: models.DRAFT_MODEL_PATH is required: The draft model, which runs "
        "at the user. Set it in the file or with --set models.DRAFT_MODEL_PATH=…"
    ),
    "negative_delay.xml": (
        "negative_delay.xml:7: RTT_MS does not take '-20'. Use a list (commas or spaces "
        "between), each a number of at least 0."
    ),
    "nested_too_deeply.yaml": "nested_too_deeply.yaml: nested too deeply for a configuration.",
    "nested_value.xml": "nested_value.xml:7: <REPEATS> holds other elements. Use a value only.",
    "no_bandwidth.yaml": (
        "no_bandwidth.yaml:5: UPLINK_MBPS does not take '0'. Use a list (commas or spaces "
        "between), each a number above 0, or unlimited."
    ),
    "not_closed.xml": (
        "not_closed.xml:8: not well-formed XML: Opening and ending tag mismatch: run line 6 "
        "and experiment_config."
    ),
    "not_closed.yaml": "not_closed.yaml:6: not valid YAML: expected ',' or ']', but got ':'.",
    "not_utf8.xml": "not_utf8.xml:7: not UTF-8 text. Save the file as UTF-8.",
    "null_value.yaml": (
        "null_value.yaml:5: QUESTION_LIMIT is empty. Give it a value or remove it."
    ),
    "parameter_and_tag.xml": (
        "parameter_and_tag.xml:8: second REPEATS; the first is at parameter_and_tag.xml:7. "
        "Keep one."
    ),
    "parameter_entity.xml": (
        "parameter_entity.xml:1: a DOCTYPE is not allowed (entities are not resolved). Remove it."
    ),
    "parameter_without_a_name.xml": (
        "parameter_without_a_name.xml:7: <parameter> has wrong attributes. Use "
        '<TAG>value</TAG> or <parameter name="TAG">value</parameter>.'
    ),
    "port_out_of_range.xml": (
        "port_out_of_range.xml:7: TARGET_PORT does not take '70000'. Use an integer from 1 to "
        "65535."
    ),
    "price_with_a_comma.xml": (
        "price_with_a_comma.xml:7: TARGET_PER_HOUR_COST does not take '1,208'. Use a number "
        "of at least 0."
    ),
    "price_with_its_sign.xml": (
        "price_with_its_sign.xml:7: TARGET_PER_HOUR_COST does not take '$1.208'. Use a number "
        "of at least 0."
    ),
    "python_object.yaml": (
        "python_object.yaml:5: REPEATS is neither a value nor a list of values."
    ),
    "quadratic_blowup.xml": (
        "quadratic_blowup.xml:1: a DOCTYPE is not allowed (entities are not resolved). Remove it."
    ),
    "repeated_blocks.yaml": (
        "repeated_blocks.yaml:5: an alias (*name) is not read. Write the value once more."
    ),
    "second_block.xml": (
        "second_block.xml:9: second block run; the first is at second_block.xml:6. Join them."
    ),
    "second_tag.xml": (
        "second_tag.xml:8: second REPEATS; the first is at second_tag.xml:7. Keep one."
    ),
    "second_tag.yaml": (
        "second_tag.yaml:6: second REPEATS; the first is at second_tag.yaml:5. Keep one."
    ),
    "seed_twice.yaml": (
        "seed_twice.yaml:5: SEED does not take '4'. It is in the list twice. Use a list "
        "(commas or spaces between), each an integer from 0 to 4294967295."
    ),
    "several_faults.xml": (
        "several_faults.xml:7: TARGET_PORT does not take '0'. Use an integer from 1 to 65535.\n"
        "several_faults.xml:9: DTYPE belongs to the block models, not to runtime. Move it "
        "there.\n"
        "several_faults.xml:10: DEVICE_MAP does not take 'gpu'. Use auto, cpu, mps, cuda, "
        "cuda:N, xpu, xpu:N, npu, npu:N, balanced, balanced_low_0 or sequential."
    ),
    "tab.yaml": "tab.yaml:5: not valid YAML: found character '\\t' that cannot start any token.",
    "tag_as_a_block.xml": (
        "tag_as_a_block.xml:6: text outside of a tag: 'float32'. Remove it.\n"
        "tag_as_a_block.xml:6: unknown block DTYPE. It is a tag of the block models: put it "
        "there. Blocks: runtime, models, objective, dataset, algorithms, tree, network, slo, "
        "sampling, run."
    ),
    "tag_in_a_wrong_block.xml": (
        "tag_in_a_wrong_block.xml:7: MAX_NEW_TOKENS belongs to the block run, not to tree. "
        "Move it there."
    ),
    "tag_in_lower_case.yaml": (
        "tag_in_lower_case.yaml:5: unknown tag target_port in the block runtime. Did you mean "
        "TARGET_PORT? Allowed in runtime: TARGET_HOST, TARGET_PORT, SERVER_NAME, DEVICE_MAP, "
        "DRAFT_DEVICE_NAME, TARGET_TOKEN_ENV."
    ),
    "tag_without_its_block.yaml": (
        "tag_without_its_block.yaml:4: the block REPEATS is not a mapping. Use lines of NAME: "
        "value.\n"
        "tag_without_its_block.yaml:4: unknown block REPEATS. It is a tag of the block run: "
        "put it there. Blocks: runtime, models, objective, dataset, algorithms, tree, "
        "network, slo, sampling, run."
    ),
    "temperature.xml": (
        "temperature.xml:7: TEMPERATURE does not take '101'. Use a number from 0 to 100."
    ),
    "token_in_the_file.xml": (
        "token_in_the_file.xml:7: TARGET_TOKEN_ENV does not take the value (not shown). Use "
        "the NAME of an environment variable (capitals, digits, _), never the token itself."
    ),
    "too_many_links.yaml": (
        "too_many_links.yaml:5: the lists of the block network have 1200 combinations, and at "
        "most 1000 are swept in one experiment. Shorten RTT_MS first."
    ),
    "too_many_shapes.xml": (
        "too_many_shapes.xml:7: the lists of the block tree have 1100 combinations, and at "
        "most 1000 are swept in one experiment. Shorten FIXED_TREE_WIDTH first."
    ),
    "two_documents.yaml": "two_documents.yaml:4: not valid YAML: but found another document.",
    "two_roots.yaml": "two_roots.yaml:3: second experiment_config. Join them.",
    "value_as_a_block.yaml": (
        "value_as_a_block.yaml:4: the block run is not a mapping. Use lines of NAME: value."
    ),
    "value_as_an_attribute.xml": (
        "value_as_an_attribute.xml:7: <REPEATS> has wrong attributes. Use <TAG>value</TAG> or "
        '<parameter name="TAG">value</parameter>.'
    ),
    "wrong_root.xml": "wrong_root.xml:1: the root is <experiment>. Use <experiment_config>.",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_broken_file_is_refused_at_once_with_this_message(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER)
    began = time.perf_counter()
    with pytest.raises(ConfigError) as caught:
        load_config(Path(name))
    took_s = time.perf_counter() - began
    assert str(caught.value) == MESSAGES[name]
    assert took_s < REFUSED_WITHIN_S


def test_every_broken_file_has_its_message() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(MESSAGES)
