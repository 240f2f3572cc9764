"""The command ``tune``: what is tried, on which questions, what is stored and printed.

The best shapes are worked out in ``tuning_fakes.py``.
"""

import io
import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from autodraft.config import ExperimentConfig, MethodSpec, NetworkSetting
from autodraft.errors import AutodraftError, ConfigError, ContextLengthError, LinkClosed, StoreError
from evaluation.candidates import candidates
from evaluation.cli import main
from evaluation.datasets import Question
from evaluation.estimate import Rates
from evaluation.plan import load_measured, make_plan
from evaluation.store import REQUESTS_FILE
from evaluation.tune import load_validation, print_tuning_dry_run, tuning_plan
from evaluation.tuning import (
    read_tuning,
    validation_questions,
)
from tests.unit.tuning_fakes import (
    AUTO_TREES,
    BARE,
    LONG,
    TOKENS,
    Bench,
    SpeedEngine,
    config_for,
    locations,
    no_engine,
)

# ------------------------------------------------------------ the candidates


def test_chains_of_eight_lengths_are_tried() -> None:
    config = config_for()
    found = candidates(config.method("chain"), config)
    assert [spec.label for spec in found] == [f"chain_d{d}" for d in (1, 2, 3, 4, 5, 6, 8, 10)]
    assert {spec.width for spec in found} == {1}
    assert not any(spec.tuned for spec in found)


@pytest.mark.parametrize(("nodes", "depth"), [(150, 15), (20, 15), (150, 2), (5, 4), (1, 1)])
def test_no_candidate_exceeds_the_ceilings_and_none_is_there_twice(nodes: int, depth: int) -> None:
    names = ("chain", "fixed_tree", "opt_tree", "chain@server")
    config = config_for(
        algorithms={"method_names": names},
        tree={**AUTO_TREES, "proposed_nodes": (nodes,), "proposed_max_depth": (depth,)},
    )
    for name in names:
        found = candidates(config.method(name), config)
        shapes = [(spec.width, spec.max_depth, spec.node_budget) for spec in found]
        assert found
        assert all(w <= n <= nodes and d <= min(depth, n) for w, d, n in shapes)
        assert len(set(shapes)) == len({spec.label for spec in found}) == len(found)
        assert sorted(shapes, key=lambda each: (each[2], each[1], each[0])) == shapes


def test_the_shape_of_no_tuning_is_among_the_candidates() -> None:
    names = ("chain", "fixed_tree", "opt_tree")
    config = config_for(algorithms={"method_names": names}, tree=AUTO_TREES)
    for name in names:
        spec = config.method(name)
        usual = (spec.width, spec.max_depth, spec.node_budget)
        found = candidates(spec, config)
        assert usual in [(each.width, each.max_depth, each.node_budget) for each in found]
        assert 8 <= len(found) + (name == "fixed_tree") <= 9


def test_the_plan_has_server_only_and_the_candidates_for_each_benchmark_and_link() -> None:
    config = config_for(algorithms={"method_names": ("opt_tree", "chain@server")})
    plan = tuning_plan(config)
    assert [(each.bench, each.network, each.seed) for each in plan.conditions] == [
        ("quick", BARE, 4),
        ("quick", LONG, 4),
    ]
    labels = [spec.label for spec in plan.conditions[0].methods]
    # opt_tree has a width of its own here, so that there is nothing to tune about it
    lengths = (1, 2, 3, 4, 5, 6, 8, 10)
    assert labels == ["server_only", *(f"chain_d{d}@server" for d in lengths)]
    assert plan.conditions[0].reference == "server_only"


def test_autodraft_may_be_among_the_methods_and_is_not_tuned() -> None:
    plan = tuning_plan(config_for(algorithms={"method_names": ("chain", "autodraft")}))
    assert {spec.method for spec in plan.methods} == {"server_only", "chain"}
    with pytest.raises(ConfigError, match="nothing to tune"):
        tuning_plan(config_for(algorithms={"method_names": ("server_only", "autodraft")}))


def test_a_configuration_without_auto_has_nothing_to_tune() -> None:
    with pytest.raises(ConfigError, match="nothing to tune") as caught:
        tuning_plan(config_for(algorithms={"chain_d": (2, 4)}))
    for tag in ("CHAIN_D=auto", "FIXED_TREE_WIDTH=auto", "FIXED_TREE_NODES", "OPT_TREE_WIDTH=auto"):
        assert tag in str(caught.value)


# ------------------------------------------------------------ the questions


class EverythingTuned:
    """Knows a shape for every method."""

    def shape(self, spec: MethodSpec, bench: str, network: NetworkSetting) -> MethodSpec:
        return spec


@pytest.mark.parametrize("held_out", [1, 2, 5, 13])
def test_validation_questions_are_never_measured_ones(tmp_path: Path, held_out: int) -> None:
    for limit in (None, 1, 2, 3, 8, 14, 100):
        dataset = {"validation_questions": held_out, "question_limit": limit}
        config = config_for(dataset=dataset)
        validation = load_validation(tuning_plan(config), locations(tmp_path))
        plan = make_plan(config, EverythingTuned())
        measured = {question.id for question in load_measured(plan, "quick", locations(tmp_path))}
        asked = {question.id for question in validation.asked["quick"]}
        kept = {question.id for question in validation.held_out["quick"]}
        assert measured
        assert asked
        assert asked <= kept
        assert len(kept) == held_out
        assert not kept & measured


@given(
    sizes=st.lists(st.integers(2, 9), min_size=1, max_size=3),
    order=st.randoms(use_true_random=False),
    limit=st.none() | st.integers(1, 10),
    data=st.data(),
)
def test_each_sub_task_keeps_validation_and_measured_questions_apart(
    sizes: list[int], order: random.Random, limit: int | None, data: st.DataObject
) -> None:
    categories = ("writing", "translation", "rag")
    named = [name for name, size in zip(categories, sizes, strict=False) for _ in range(size)]
    order.shuffle(named)
    questions = tuple(
        Question(number, name, ("Why?",), "spec_bench") for number, name in enumerate(named)
    )
    held_out = data.draw(st.integers(1, min(sizes) - 1))
    config = config_for(
        dataset={
            "benches": ("spec_bench",),
            "validation_questions": held_out,
            "question_limit": limit,
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in ("plan", "tuning"):
            patch.setattr(f"evaluation.{module}.load_bench", lambda *_: questions)
        validation = load_validation(tuning_plan(config), locations(Path()))
        plan = make_plan(config, EverythingTuned())
        measured = load_measured(plan, "spec_bench", locations(Path()))
    kept, asked = validation.held_out["spec_bench"], validation.asked["spec_bench"]
    assert set(asked) <= set(kept)
    assert not set(kept) & set(measured)
    for name in set(named):
        assert sum(question.category == name for question in kept) == held_out
        assert any(question.category == name for question in asked)
        assert any(question.category == name for question in measured)


def test_only_validation_questions_are_asked(bench: Bench) -> None:
    engine = SpeedEngine()
    code, folder = bench.tune(config_for(), lambda _: engine)
    assert code == 0
    wanted = validation_questions(config_for(), "quick", locations(bench.folder))
    assert engine.prompts == {question.turns[0] for question in wanted}
    lines = (folder / REQUESTS_FILE).read_text().splitlines()
    assert {json.loads(line)["question_id"] for line in lines} == {13, 14}
    assert len(lines) == len(engine.asked) == 9 * 3 * 2  # methods, turns, links


# ------------------------------------------------------------ what is stored


def test_the_file_says_what_it_was_measured_for_and_holds_sums_only(shared: Bench) -> None:
    content = json.loads(shared.file(config_for(), LONG).read_bytes())
    assert content["key"]["target"] == "embedded:smollm2-135m-instruct"
    assert (content["key"]["bench"], content["key"]["rtt_ms"]) == ("quick", 9000)
    assert (content["questions"], content["requests"]) == (2, 3)
    assert content["measured_at"]
    assert not {"price", "prices", "score", "objective"} & content.keys()
    first, last = content["shapes"][0], content["shapes"][-1]
    assert first["method"] == "server_only"
    assert first["seconds"] == 3 * 129
    assert first["quantities"]["draft_j"] == 0
    assert (last["max_depth"], last["seconds"]) == (10, 3 * 20 * (1 + 15 + 9))
    assert last["quantities"]["output_tokens"] == 3 * TOKENS
    assert last["quantities"]["draft_j"] == 3 * 200


def test_the_table_names_choice_score_and_runner_up(shared: Bench) -> None:
    text = shared.out.getvalue()
    assert "quick, unshaped: tuned for total_cost at cs 0.5 on 2 validation questions" in text
    assert "quick, rtt9000: tuned for total_cost" in text
    # Bare: 0.5 · 170/120 + 0.5 · 20/120, then 0.5 · 168/120 + 0.5 · 24/120; 120 / 170 tokens/s;
    # 20 s at 1 $ for 120 tokens.
    row = next(line for line in text.splitlines() if line.split()[:2] == ["chain", "d=5"])
    assert row.split() == ["chain", "d=5", "0.792", "0.71", "166666.67", "d=4", "(0.8)"]
    for network in (BARE, LONG):
        assert f"Stored in {shared.file(config_for(), network)}" in text


def test_an_objective_that_is_zero_for_server_only_is_said_to_leave_time_alone(
    bench: Bench,
) -> None:
    bench.tune(config_for("draft_energy"), lambda _: SpeedEngine())
    assert "1.25 (time alone)" in bench.out.getvalue()


def test_a_finished_tuning_makes_no_engine_and_stores_the_same(bench: Bench) -> None:
    config = config_for()
    _, folder = bench.tune(config, lambda _: SpeedEngine())
    before = {path: path.read_bytes() for path in bench.tunings.iterdir()}
    assert len(before) == 2
    for path in before:
        path.unlink()
    code, _ = bench.tune(config, no_engine, goes_on=folder)
    assert code == 0
    assert {path: path.read_bytes() for path in bench.tunings.iterdir()} == before


def test_a_tuning_that_stopped_stores_what_is_complete_and_goes_on(bench: Bench) -> None:
    config = config_for()
    asked = 0

    def lost(_: MethodSpec) -> AutodraftError | None:
        nonlocal asked
        asked += 1
        return LinkClosed("The server is gone.") if asked > 9 * 3 + 4 else None

    code, folder = bench.tune(config, lambda _: SpeedEngine(lost))
    assert code == 1
    assert [bench.best(config, network) for network in (BARE, LONG)] == [5, None]
    assert "quick, rtt9000: no choice is stored" in bench.err.getvalue()
    engine = SpeedEngine()
    code, _ = bench.tune(config, lambda _: engine, goes_on=folder)
    assert code == 0
    assert bench.best(config, LONG) == 5
    assert len(engine.asked) == 9 * 3 - 4  # what was answered is not asked again


def test_a_candidate_beyond_a_limit_of_the_server_does_not_void_the_others(bench: Bench) -> None:
    def too_deep(spec: MethodSpec) -> AutodraftError | None:
        return ContextLengthError("Too deep.") if spec.max_depth == 5 else None

    config = config_for()
    code, _ = bench.tune(config, lambda _: SpeedEngine(too_deep))
    assert code == 1  # requests failed, and the command says so
    tuning = read_tuning(bench.file(config))
    assert tuning is not None
    assert [shape.max_depth for shape in tuning.shapes] == [0, 1, 2, 3, 4, 6, 8, 10]
    assert tuning.requests == 3
    assert bench.best(config) == 4  # 0.8; d = 6: 0.5 · 200/120 + 0.5 · 20/120 = 0.92


def test_sums_are_over_the_requests_that_all_finished(bench: Bench) -> None:
    failed: list[str] = []

    def once(spec: MethodSpec) -> AutodraftError | None:
        if spec.label == "chain_d3" and not failed:
            failed.append(spec.label)
            return ContextLengthError("Once.")
        return None

    config = config_for(network={"rtt_ms": (0,)})
    bench.tune(config, lambda _: SpeedEngine(once))
    tuning = read_tuning(bench.file(config))
    assert tuning is not None
    assert tuning.requests == 2
    assert {shape.quantities.output_tokens for shape in tuning.shapes} == {2 * TOKENS}


def test_nothing_is_stored_without_server_only(bench: Bench) -> None:
    def failing(spec: MethodSpec) -> AutodraftError | None:
        return ContextLengthError("No.") if spec.method == "server_only" else None

    code, _ = bench.tune(config_for(), lambda _: SpeedEngine(failing))
    assert code == 1
    assert not bench.tunings.exists()
    assert bench.err.getvalue().count("no choice is stored") == 2


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out(bench: Bench) -> None:
    bench.tunings.parent.mkdir()
    bench.tunings.write_text("a file is in the way")
    with pytest.raises(StoreError, match="Set AUTODRAFT_DATA_DIR to a writable folder"):
        bench.tune(config_for(), lambda _: SpeedEngine())


# ------------------------------------------------------------ the dry run


def dry_run(config: ExperimentConfig, folder: Path) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_tuning_dry_run(console, tuning_plan(config), locations(folder), Rates(assumed=10.0))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_dry_run_counts_shapes_questions_requests_and_time(tmp_path: Path) -> None:
    config = config_for(network={"rtt_ms": (0,)}, run={"max_new_tokens": 100})
    text = dry_run(config, tmp_path)
    rows = [line.split() for line in text.splitlines()]
    # 3 turns; 100 tokens take 10 s
    assert ["quick", "unshaped", "server_only", "1", "2", "3", "0:30"] in rows
    assert ["quick", "unshaped", "chain", "8", "2", "24", "4:00"] in rows
    assert "27 requests, at most 2700 output tokens. Estimate: at most 4:30" in text


def test_a_dry_run_counts_the_warm_up_once_a_link(tmp_path: Path) -> None:
    run = {"max_new_tokens": 100, "warmup_questions": 1}
    text = dry_run(config_for(network={"rtt_ms": (0,)}, run=run), tmp_path)
    # Question 13 of one turn: 9 requests more, 90 s.
    assert "27 requests, at most 2700 output tokens. Estimate: at most 6:00" in text


def test_a_dry_run_says_what_is_missing(tmp_path: Path) -> None:
    text = dry_run(config_for(dataset={"benches": ("mt_bench",)}), tmp_path)
    assert "would stop the tuning: " in text
    assert "mt_bench.jsonl" in text
    assert "0 requests" in text


# ------------------------------------------------------------ the command line


class CommandLine:
    """Calls the command line on one configuration, with an engine of its own each time."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "mine.yaml"
        self.config.write_text(
            "models: {BASE_MODEL_PATH: 'embedded:smollm2-135m-instruct', "
            "DRAFT_MODEL_PATH: 'embedded:smollm2-draft'}\n"
            "objective: {BASE_COST_SENSITIVITY: 0}\n"
            "dataset: {BENCHES_CSV: quick, VALIDATION_QUESTIONS: 2}\n"
            "algorithms: {METHODS_CSV: [server_only, chain]}\n"
            "network: {RTT_MS: 9000}\n"
            "run: {WARMUP_QUESTIONS: 0}\n"
        )
        self.output = folder / "results"
        self.engines: list[SpeedEngine] = []

    def __call__(self, command: str, *options: str) -> int:
        def make_engine(_: ExperimentConfig) -> SpeedEngine:
            self.engines.append(SpeedEngine())
            return self.engines[-1]

        return main(
            [command, str(self.config), "--output", str(self.output), *options], make_engine
        )

    def depths(self, experiment: str) -> set[int]:
        """Return the lengths of the chains that the newest run of an experiment names."""
        folder = max((self.output / experiment).iterdir(), key=lambda path: path.stat().st_mtime_ns)
        methods = json.loads((folder / "manifest.json").read_bytes())["methods"]
        return {each["max_depth"] for each in methods if each["method"] == "chain"}


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("AUTODRAFT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("evaluation.report.draw_tradeoffs", lambda *_: [])
    return CommandLine(tmp_path)


def test_a_run_after_tune_takes_what_was_chosen(
    command: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("run", "--limit", "1") == 0
    assert "not tuned, so it takes d=4" in capsys.readouterr().err
    assert command.depths("mine") == {4}
    assert command("tune") == 0
    assert "Stored in" in capsys.readouterr().out
    assert command.depths("mine-tune") == {1, 2, 3, 4, 5, 6, 8, 10}
    assert command("run", "--limit", "1", "--fresh") == 0
    assert "not tuned" not in capsys.readouterr().err
    assert command.depths("mine") == {5}
    measured, tuned = command.engines[0].prompts, command.engines[1].prompts
    assert command.engines[2].prompts == measured
    assert not measured & tuned


def test_a_second_tune_asks_nothing_and_a_fresh_one_asks_all(command: CommandLine) -> None:
    assert [command("tune"), command("tune"), command("tune", "--resume")] == [0, 0, 0]
    assert len(command.engines) == 1
    assert command("tune", "--fresh") == 0
    assert command.engines[1].asked == command.engines[0].asked


def test_a_dry_run_of_tune_makes_no_engine_and_no_file(
    command: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("tune", "--dry-run") == 0
    assert "27 requests" in capsys.readouterr().out
    assert not command.engines
    assert not command.output.exists()


def test_tune_without_auto_is_a_mistake_in_the_configuration(
    command: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("tune", "--set", "algorithms.CHAIN_D=3") == 2
    assert "error: There is nothing to tune" in capsys.readouterr().err
    assert not command.output.exists()
