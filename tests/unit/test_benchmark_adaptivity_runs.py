"""``adaptivity``: its plans, its options, and how it goes on. No server."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from autodraft.config import ExperimentConfig
from autodraft.cost import Quantities
from autodraft.errors import LinkError, RemoteError
from evaluation.tuning import Measured as Shape
from evaluation.tuning import Tuning, hash_questions, key_of, write_tuning
from tests.unit.evaluation_fakes import FakeEngine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def parts(benchmark_folder: None) -> dict[str, ModuleType]:
    """The benchmark's modules, imported as the script imports them."""
    import _adaptivity_plan
    import _adaptivity_run
    import _common
    import adaptivity

    return {
        "plan": _adaptivity_plan,
        "run": _adaptivity_run,
        "common": _common,
        "script": adaptivity,
    }


def settings(parts: Mapping[str, ModuleType], **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "benches": ("quick",),
        "rtts_ms": (20.0,),
        "sensitivities": (0.0, 1.0),
        "questions": 2,
        "validation": 3,
        "tokens": 16,
        "seed": 0,
        "shapes": "small",
        "first_turns": True,
    }
    return parts["plan"].Settings(**(fields | changes))


# ------------------------------------------------------------------------------------------ plans


def shape_of(method: str, depth: int, seconds: float, busy_s: float) -> Shape:
    used = Quantities(
        output_tokens=10,
        target_busy_s=busy_s,
        target_held_s=seconds,
        total_s=seconds,
        draft_j=0.0,
        target_j=None,
        uplink_bytes=0,
        downlink_bytes=0,
    )
    width = min(depth, 1)
    return Shape(
        method=method,
        width=width,
        max_depth=depth,
        node_budget=depth,
        seconds=seconds,
        quantities=used,
    )


def tuning_of(parts: Mapping[str, ModuleType], asked: Any, *shapes: Shape) -> Tuning:
    place = parts["plan"].Place("quick", 20.0)
    config = parts["plan"].tuning_config(asked, place)
    return Tuning(
        key=key_of(config, place.bench, place.network),
        questions_sha256="0",
        questions=1,
        requests=1,
        max_new_tokens=16,
        measured_at=None,
        commit=None,
        run="run",
        shapes=(shape_of("server_only", 0, 1.0, 1.0), *shapes),
    )


def test_each_cs_takes_its_own_tuned_shape_and_each_shape_runs_once(
    parts: dict[str, ModuleType],
) -> None:
    asked = settings(parts, shapes="tuned", sensitivities=(0.0, 0.5, 1.0))
    # Time and dollars in parts of server-only's: at cs 0.5 0.65 and 0.5.
    quick, cheap = shape_of("chain", 1, 0.5, 0.8), shape_of("chain", 4, 0.7, 0.3)
    tuning = tuning_of(parts, asked, quick, cheap)
    plan, compared = parts["plan"].make_plan(asked, parts["plan"].Place("quick", 20.0), tuning)
    assert [one.statics for one in compared] == [("chain_d1",), ("chain_d4",), ("chain_d4",)]
    labels = [spec.label for spec in plan.methods]
    assert labels[:3] == ["server_only", "chain_d1", "chain_d4"]
    assert labels[3:] == [one.adaptive for one in compared]
    assert [spec.cs for spec in plan.methods[3:]] == [0.0, 0.5, 1.0]
    (condition,) = plan.conditions
    assert condition.network.rtt_ms == 20
    assert condition.reference == "server_only"
    assert not any(spec.tuned for spec in plan.methods)


def test_a_tuning_in_which_every_static_method_failed_says_so(
    parts: dict[str, ModuleType],
) -> None:
    asked = settings(parts, shapes="tuned")
    with pytest.raises(parts["common"].CannotMeasure, match="--no-tuning"):
        parts["plan"].make_plan(asked, parts["plan"].Place("quick", 20.0), tuning_of(parts, asked))


@pytest.mark.parametrize(
    ("shapes", "labels"),
    [
        ("small", ("chain_d4", "fixed_tree_w4_d3_n16", "opt_tree_w4_d5_n16")),
        ("default", ("chain_d4", "fixed_tree_w8_d6_n32", "opt_tree_w16_d15_n150")),
    ],
)
def test_untuned_shapes_are_the_same_for_every_cs(
    parts: dict[str, ModuleType], shapes: str, labels: tuple[str, ...]
) -> None:
    asked = settings(parts, shapes=shapes)
    plan, compared = parts["plan"].make_plan(asked, parts["plan"].Place("quick", 20.0), None)
    assert [one.statics for one in compared] == [labels, labels]
    assert len(plan.methods) == 1 + 3 + 2
    assert plan.config.tree.proposed_nodes == (150,)  # a small shape bounds no other method


def test_the_tuning_asks_for_the_static_methods_alone(parts: dict[str, ModuleType]) -> None:
    place = parts["plan"].Place("spec_bench:summarization", 100.0)
    config = parts["plan"].tuning_config(settings(parts), place)
    assert {spec.method for spec in config.methods() if spec.tuned} == set(parts["plan"].STATICS)
    assert {spec.method for spec in config.methods()} == {"server_only", *parts["plan"].STATICS}
    assert config.dataset.validation_questions == 3
    assert config.dataset.question_limit is None  # it would cut the validation questions too
    assert place.name == "spec_bench-summarization_rtt100"


def test_questions_are_drawn_by_the_seed_and_none_is_tuned_on(
    parts: dict[str, ModuleType],
) -> None:
    draw, load = parts["plan"].measured_questions, parts["plan"].load_bench
    every = [one.id for one in load("quick", parts["plan"].locations())]
    drawn = [one.id for one in draw(settings(parts, questions=5), "quick")]
    assert drawn == [one for one in every if one in drawn]
    assert len(drawn) == 5
    assert drawn == [one.id for one in draw(settings(parts, questions=5), "quick")]
    others = [
        [one.id for one in draw(settings(parts, questions=5, seed=n), "quick")] for n in (1, 2)
    ]
    assert others[0] != others[1]
    most = len(every) - 3
    assert [one.id for one in draw(settings(parts, questions=most), "quick")] == every[:-3]
    with pytest.raises(parts["common"].CannotMeasure, match="Lower --questions"):
        draw(settings(parts, questions=most + 1), "quick")


def test_first_turns_leave_the_later_ones_out(
    parts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"question_id": number, "category": "math", "turns": ["One?", "Two?"]}
        for number in range(81, 86)
    ]
    (tmp_path / "mt_bench.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("AUTODRAFT_BENCH_DIR", str(tmp_path))
    draw = parts["plan"].measured_questions
    assert [one.turns for one in draw(settings(parts), "mt_bench")] == [("One?",)] * 2
    both = draw(settings(parts, first_turns=False), "mt_bench")
    assert [one.turns for one in both] == [("One?", "Two?")] * 2


# ---------------------------------------------------------------------------------------- records


class Workplace:
    """A folder that is measured in with a fake engine."""

    def __init__(
        self, parts: Mapping[str, ModuleType], folder: Path, patch: pytest.MonkeyPatch
    ) -> None:
        self._parts, self._folder, self._patch = parts, folder, patch
        # Plots take most of the time, and are tested elsewhere.
        patch.setattr("evaluation.report.draw_tradeoffs", lambda *_: [])
        self.tune: Any = None

    def measure(self, engine: FakeEngine | None, **changes: Any) -> tuple[Any, list[Any]]:
        def make(_workshop: Any, _config: Any) -> FakeEngine:
            assert engine is not None, "an engine was made"
            return engine

        run = self._parts["run"]
        self._patch.setattr(run.Workshop, "_engine", make)
        self._patch.setattr(run.Workshop, "_tune", self.tune)
        with contextlib.ExitStack() as stack:
            workshop = run.Workshop(settings(self._parts, **changes), self._folder, stack)
            found: tuple[Any, list[Any]] = workshop.measure(self._parts["plan"].Place("quick", 20))
        return found


@pytest.fixture
def workplace(
    parts: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Workplace:
    return Workplace(parts, tmp_path, monkeypatch)


def test_what_was_measured_is_not_measured_again(workplace: Workplace) -> None:
    first, compared = workplace.measure(FakeEngine())
    assert len(first.lines) == 2 * 6
    assert {len(rounds) for rounds in first.rounds.values()} == {2}
    assert len(first.rounds) == 12
    assert [one.cs for one in compared] == [0.0, 1.0]
    again, _ = workplace.measure(None)
    assert again == first


def test_other_options_measure_anew(workplace: Workplace) -> None:
    workplace.measure(FakeEngine())
    for changes in ({"tokens": 8}, {"seed": 1}, {"shapes": "default"}, {"questions": 3}):
        with pytest.raises(AssertionError, match="an engine was made"):
            workplace.measure(None, **changes)


def test_a_run_whose_server_went_away_goes_on(
    parts: dict[str, ModuleType], workplace: Workplace
) -> None:
    asked: list[str] = []

    def gone_after_four(method: str, _messages: Any) -> LinkError | None:
        asked.append(method)
        # Of the warm-up's six no record is kept.
        return LinkError("gone") if len(asked) > 6 + 4 else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("evaluation.runner._LONGEST_DELAY_S", 0.0)
        patch.setattr("evaluation.runner._FIRST_DELAY_S", 0.0)
        with pytest.raises(parts["common"].CannotMeasure, match="goes on"):
            workplace.measure(FakeEngine(gone_after_four))
    engine = FakeEngine()
    found, _ = workplace.measure(engine)
    assert len(found.lines) == 12
    assert len(engine.asked) == 6 + (12 - 4)


def test_a_tuning_that_is_stored_is_not_made_again(
    parts: dict[str, ModuleType], workplace: Workplace, tmp_path: Path
) -> None:
    tuned: list[str] = []

    def tune(_workshop: Any, name: str, config: ExperimentConfig) -> int:
        tuned.append(name)
        questions = parts["run"].validation_questions(config, "quick", parts["plan"].locations())
        tuning = tuning_of(parts, settings(parts), shape_of("chain", 2, 0.5, 0.5))
        fields = {"questions_sha256": hash_questions(questions)}
        fields |= {"max_new_tokens": config.run.max_new_tokens}
        write_tuning(tmp_path / "data" / "tuning", msgspec.structs.replace(tuning, **fields))
        return 0

    workplace.tune = tune
    _, compared = workplace.measure(FakeEngine(), shapes="tuned")
    assert [one.statics for one in compared] == [("chain_d2",), ("chain_d2",)]
    workplace.measure(None, shapes="tuned")
    assert tuned == ["quick_rtt20"]
    workplace.measure(FakeEngine(), shapes="tuned", validation=4)  # other questions
    assert tuned == ["quick_rtt20"] * 2


def test_a_tuning_that_stored_nothing_ends_with_its_exit_code(
    parts: dict[str, ModuleType], workplace: Workplace
) -> None:
    workplace.tune = lambda _workshop, _name, _config: 2
    with pytest.raises(parts["common"].CannotMeasure, match="quick_rtt20 ended with exit code 2"):
        workplace.measure(None, shapes="tuned")


def test_requests_that_fail_for_good_are_counted_and_left_out(workplace: Workplace) -> None:
    first: list[str] = []

    def one_fails(method: str, messages: Any) -> RemoteError | None:
        text = messages[-1]["content"]
        first[:] = first or [text]
        failing = method == "chain_d4" and text == first[0]
        return RemoteError("too long", code="CONTEXT") if failing else None

    found, _ = workplace.measure(FakeEngine(one_fails))
    assert found.failed == 1
    assert len(found.lines) == 6
    assert len({line.case.question_id for line in found.lines}) == 1


# ---------------------------------------------------------------------------------------- options


def options(parts: Mapping[str, ModuleType], *words: str) -> Any:
    script = parts["script"]
    return script.settings_of(script.parser().parse_args(words))


def test_the_issue_asks_for_27_cells(parts: dict[str, ModuleType]) -> None:
    found = options(parts)
    assert len(parts["plan"].places(found)) * len(found.sensitivities) == 27
    assert found.shapes == "tuned"
    assert not found.first_turns
    assert (found.questions, found.validation, found.tokens) == (10, 3, 64)
    assert options(parts, "--no-tuning").shapes == "default"


def test_quick_is_one_benchmark_and_four_cells_of_untuned_shapes(
    parts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTODRAFT_BENCH_DIR", str(tmp_path))
    found = options(parts, "--quick")
    assert found.benches == ("mt_bench",)
    assert (found.rtts_ms, found.sensitivities) == ((0, 100), (0, 1))
    assert found.shapes == "small"
    assert found.first_turns
    assert "NOT tuned" in parts["script"].SHAPES_IN_WORDS[found.shapes]
    assert found.questions >= 2
    monkeypatch.delenv("AUTODRAFT_BENCH_DIR")
    assert options(parts, "--quick").benches == ("quick",)
    assert options(parts, "--quick", "--benches", "gsm8k").benches == ("gsm8k",)


def test_lists_are_read_each_value_once(parts: dict[str, ModuleType]) -> None:
    words = ("--benches", "quick, gsm8k", "--rtts", "5,0,5", "--cs", "0.25")
    found = options(parts, *words, "--questions", "4", "--seed", "7")
    assert found.benches == ("quick", "gsm8k")
    assert found.rtts_ms == (5.0, 0.0)
    assert found.sensitivities == (0.25,)
    assert (found.questions, found.seed) == (4, 7)


@pytest.mark.parametrize(
    ("words", "story"),
    [
        (("--benches", "no_such"), "known are"),
        (("--cs", "0,2"), "from 0 to 1"),
        (("--rtts", "-1"), "at least 0"),
        (("--questions", "1"), "one question has no interval"),
    ],
)
def test_wrong_options_say_what_is_allowed(
    parts: dict[str, ModuleType],
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    story: str,
) -> None:
    with pytest.raises(SystemExit):
        options(parts, *words)
    assert story in capsys.readouterr().err


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "adaptivity.py"), *words],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_help_names_the_options_that_every_benchmark_has() -> None:
    done = run("--help")
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout
    assert "--seed" in done.stdout


def test_questions_that_cannot_be_read_end_with_a_reason_and_no_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AUTODRAFT_BENCH_DIR", raising=False)
    monkeypatch.setenv("AUTODRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = run("--benches", "mt_bench", "--no-tuning", "--folder", str(tmp_path / "work"))
    assert done.returncode == 1
    assert "adaptivity: " in done.stderr
    assert "AUTODRAFT_BENCH_DIR" in done.stderr
    assert "Traceback" not in done.stderr
    assert "{" not in done.stdout
