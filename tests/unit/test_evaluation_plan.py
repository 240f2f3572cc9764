"""Cells and their order, tuned shapes, and which questions are measured."""

import json
from pathlib import Path

import pytest

from autodraft import Sampling
from autodraft.config import MethodSpec, NetworkSetting
from autodraft.errors import DataError
from evaluation.datasets import Locations, Question, hold_out, load_bench
from evaluation.plan import Draw, fixed_part, load_measured, load_questions, make_plan
from tests.unit.evaluation_fakes import make_config

HERE = Locations(None, None, Path("nowhere"), download=False)
FIXED = {"method_names": ("server_only", "chain"), "chain_d": (3,)}
TUNED = {"method_names": ("server_only", "chain")}


class Book:
    """Knows one tuned shape: chain over the unshaped link."""

    def shape(self, spec: MethodSpec, bench: str, network: NetworkSetting) -> MethodSpec | None:
        if spec.method != "chain" or network != NetworkSetting():
            return None
        return spec.model_copy(update={"max_depth": 7, "node_budget": 7})


def test_conditions_run_by_benchmark_then_network_then_seed() -> None:
    config = make_config(
        algorithms=FIXED,
        dataset={"benches": ("quick", "mt_bench")},
        network={"rtt_ms": (0.0, 20.0)},
    )
    order = [(each.bench, each.network.label) for each in make_plan(config).conditions]
    assert order == [
        ("quick", "unshaped"),
        ("quick", "rtt20"),
        ("mt_bench", "unshaped"),
        ("mt_bench", "rtt20"),
    ]


def test_requests_are_turns_times_methods_networks_and_repeats() -> None:
    config = make_config(algorithms=FIXED, network={"rtt_ms": (0.0, 20.0)}, run={"repeats": 3})
    plan = make_plan(config)
    questions = {
        "quick": (Question(1, "c", ("a", "b"), "quick"), Question(2, "c", ("a",), "quick"))
    }
    cases = list(plan.cases(questions))
    assert plan.requests(questions) == len(cases) == len(set(cases)) == 3 * 2 * 2 * 3


def test_sampled_requests_are_times_seeds_and_choices_and_greedy_ones_are_not() -> None:
    sampling = {"temperature": 0.5, "seeds": (4, 7), "num_choices": 3}
    questions = {"quick": (Question(1, "c", ("a", "b"), "quick"),)}
    plan = make_plan(make_config(algorithms=FIXED, sampling=sampling, run={"repeats": 2}))
    cases = list(plan.cases(questions))
    assert plan.requests(questions) == len(cases) == len(set(cases)) == 2 * 2 * 2 * 2 * 3
    assert [tuple(draw) for draw in plan.draws] == [(r, c) for r in (1, 2) for c in (0, 1, 2)]
    greedy = make_plan(make_config(algorithms=FIXED, sampling=sampling | {"temperature": 0}))
    assert greedy.requests(questions) == 2 * 2


def test_the_sampling_of_an_answer_is_that_of_the_configuration_its_seed_and_its_choice() -> None:
    wanted = {"temperature": 0.5, "top_p": 0.8, "top_k": 9, "seeds": (7,), "num_choices": 2}
    plan = make_plan(make_config(algorithms=FIXED, sampling=wanted))
    found = plan.sampling(plan.conditions[0], Draw(repeat=2, choice=1))
    assert found == Sampling(temperature=0.5, top_p=0.8, top_k=9, seed=7, choice=1)


def test_the_order_of_the_tables_is_that_of_the_configuration() -> None:
    config = make_config(
        algorithms={"method_names": ("chain", "server_only"), "chain_d": (3,)},
        network={"rtt_ms": (20.0, 0.0)},
    )
    assert make_plan(config).table_order == (
        ("quick", "rtt20", "chain"),
        ("quick", "rtt20", "server_only"),
        ("quick", "unshaped", "chain"),
        ("quick", "unshaped", "server_only"),
    )


def test_a_tuned_shape_is_taken_where_there_is_one_and_keeps_its_label() -> None:
    plan = make_plan(make_config(algorithms=TUNED, network={"rtt_ms": (0.0, 20.0)}), Book())
    shapes = {each.network.label: each.methods[1] for each in plan.conditions}
    assert {label: spec.max_depth for label, spec in shapes.items()} == {"unshaped": 7, "rtt20": 4}
    assert {spec.label for spec in shapes.values()} == {"chain"}
    assert [spec.label for spec in plan.methods] == ["server_only", "chain"]
    assert plan.notes == (
        "quick, unshaped, chain: tuned, so it takes d=7.",
        "quick, rtt20, chain: not tuned, so it takes d=4. To choose on validation questions, run: "
        "python -m evaluation tune CONFIG",
        "quick: the last 8 questions of each sub-task are not measured, because shapes were tuned "
        "on them.",
    )


def test_what_is_not_tuned_is_told_for_each_benchmark_link_and_method() -> None:
    config = make_config(
        algorithms={"method_names": ("chain", "fixed_tree", "lookup")},
        tree={"fixed_tree_width": None, "fixed_tree_depth": None, "fixed_tree_nodes": None},
        network={"rtt_ms": (0.0, 20.0)},
    )
    notes = make_plan(config).notes
    assert [note.partition(":")[0] for note in notes] == [
        f"quick, {network}, {method}"
        for network in ("unshaped", "rtt20")
        for method in ("chain", "fixed_tree")
    ]
    assert "takes width 8, depth 6 and 32 nodes" in notes[1]


def test_shapes_with_numbers_are_told_nothing_of() -> None:
    assert make_plan(make_config(algorithms=FIXED), Book()).notes == ()


@pytest.mark.parametrize("limit", [None, 1, 3, 100])
def test_validation_questions_are_never_measured(limit: int | None) -> None:
    config = make_config(algorithms=TUNED, dataset={"question_limit": limit})
    measured = load_questions(make_plan(config, Book()), HERE)["quick"]
    everything = load_bench("quick", HERE)
    _, validation = hold_out("quick", everything, config.dataset.validation_questions)
    assert not set(measured) & set(validation)
    assert measured == everything[: min(limit or 100, len(everything) - len(validation))]


@pytest.mark.parametrize("algorithms", [FIXED, TUNED], ids=["numbers", "auto, but never tuned"])
def test_where_no_shape_was_tuned_every_question_is_measured(algorithms: dict[str, object]) -> None:
    config = make_config(algorithms=algorithms)
    assert load_questions(make_plan(config), HERE)["quick"] == load_bench("quick", HERE)


def test_a_shape_tuned_for_one_link_holds_its_benchmarks_questions_out_for_all() -> None:
    dataset = {"benches": ("quick", "humaneval"), "validation_questions": 3}
    network = {"rtt_ms": (0.0, 20.0)}

    class QuickOnly(Book):
        def shape(self, spec: MethodSpec, bench: str, network: NetworkSetting) -> MethodSpec | None:
            return super().shape(spec, bench, network) if bench == "quick" else None

    config = make_config(algorithms=TUNED, dataset=dataset, network=network)
    plan = make_plan(config, QuickOnly())
    assert plan.tuned_benches == {"quick"}
    assert load_measured(plan, "quick", HERE) == load_bench("quick", HERE)[:-3]


def test_too_few_questions_for_validation_are_refused() -> None:
    config = make_config(algorithms=TUNED, dataset={"validation_questions": 14})
    with pytest.raises(DataError, match="VALIDATION_QUESTIONS"):
        load_questions(make_plan(config, Book()), HERE)


def test_the_fixed_part_of_a_run_changes_with_its_questions_and_shapes() -> None:
    config = make_config(algorithms=TUNED)
    one, other = ({"quick": (Question(1, "c", (text,), "quick"),)} for text in ("a", "b"))
    plan = make_plan(config)
    assert fixed_part(plan, one) == fixed_part(make_plan(config), one)
    assert fixed_part(plan, one)["questions"] != fixed_part(plan, other)["questions"]
    assert fixed_part(plan, one)["methods"] != fixed_part(make_plan(config, Book()), one)["methods"]


ADAPTIVE = {"method_names": ("server_only", "chain", "autodraft"), "chain_d": (2,)}


def test_what_adapts_is_a_point_of_its_curve_at_its_own_cost_sensitivity() -> None:
    config = make_config(
        algorithms=ADAPTIVE | {"autodraft_ablation_modes": ("full", "no_depth")},
        objective={"autodraft_cs_list": (0, 0.5)},
    )
    assert make_plan(config).curves == {
        "autodraft_cs0": ("autodraft", 0.0),
        "autodraft_cs0_no_depth": ("autodraft_no_depth", 0.0),
        "autodraft_cs0.5": ("autodraft", 0.5),
        "autodraft_cs0.5_no_depth": ("autodraft_no_depth", 0.5),
    }


def test_the_fixed_part_holds_all_that_autodraft_weighs_as_json_has_it() -> None:
    config = make_config(algorithms=ADAPTIVE, objective={"autodraft_cs_list": (0.5,)})
    one = {"quick": (Question(1, "c", ("a",), "quick"),)}
    found = fixed_part(make_plan(config), one)
    assert json.loads(json.dumps(found)) == found
    own = found["methods"][2]
    assert (own["label"], own["cs"], own["mode"], own["objective"], own["handover"]) == (
        "autodraft",
        0.5,
        "full",
        "total_cost",
        True,
    )
    assert own["fixed"] == [8, 6, 32]
    other = make_config(algorithms=ADAPTIVE, objective={"autodraft_cs_list": (0.6,)})
    assert fixed_part(make_plan(other), one)["methods"] != found["methods"]
