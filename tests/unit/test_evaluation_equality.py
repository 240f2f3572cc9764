"""Two runs compared token by token: hand-made runs for each exit code, and what is printed."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from autodraft.errors import ContextLengthError, StoreError
from evaluation.cli import main
from evaluation.equality import compare_runs, read_run
from evaluation.equality_report import figures
from evaluation.lines import RequestLine
from evaluation.store import RunStore
from tests.unit.evaluation_fakes import make_case, make_line


def answer(
    method: str, ids: list[int], question: int = 1, gaps: Any = None, **case: Any
) -> RequestLine:
    """Return the line of an answer; ``case`` replaces fields of its case."""
    line = make_line(method, question, output_ids=ids, output_gaps=gaps)
    line = msgspec.structs.replace(line, prompt_hash=case.pop("prompt_hash", "p"))
    return msgspec.structs.replace(line, case=msgspec.structs.replace(line.case, **case))


def make_run(
    root: Path, name: str, lines: Iterable[RequestLine], dtype: str | None = "float32", **more: Any
) -> Path:
    """Write a run's folder with a manifest; dtype None leaves the target out of it."""
    store = RunStore.create(root, "hand", name)
    for line in lines:
        store.append(line, [])
    target = {"model": "m", "quantization": "none", "dtype": dtype}
    manifest: dict[str, Any] = {
        "methods": [],
        "networks": [],
        "sessions": [{"engine": None}, {"engine": {"target": target} if dtype else None}],
    }
    store.write_manifest(manifest | more)
    return store.folder


def server(ids: list[int], question: int = 1, gap: float = 0.5, **case: Any) -> RequestLine:
    return answer("server_only", ids, question, [gap] * len(ids), **case)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: Any) -> tuple[int, str, str]:
        code = main(["equality", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


EQUAL = [
    server([1, 2, 3]),
    server([4, 5], 2),
    answer("chain", [1, 2, 3]),
    answer("chain", [4, 5], 2),
]


def cells(out: str, method: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.split()[:1] == [method]]


# -------------------------------------------------------------------------------------- exit code 0


def test_equal_answers_of_one_run_exit_with_0(tmp_path: Path, call: Any) -> None:
    run = make_run(tmp_path, "a", EQUAL)
    code, out, err = call(run, run)
    assert (code, err) == (0, "")
    assert cells(out, "chain") == [["chain", "2", "100.0%", "0", "–", "0", "0"]]
    assert cells(out, "server_only") == []  # it would be compared with itself
    assert "A/A control: none: REPEATS=1" in out
    assert "every one is a fault (target in float32)" in out


def test_two_runs_have_server_only_against_itself_as_the_control(tmp_path: Path, call: Any) -> None:
    a, b = make_run(tmp_path, "a", EQUAL), make_run(tmp_path, "b", EQUAL)
    code, out, _ = call(a, b)
    assert code == 0
    assert cells(out, "server_only") == [["server_only", "2", "100.0%", "0", "–", "0", "0"]]
    control = "server_only of A against server_only of B: 2 answers compared, 100.0% identical"
    assert f"A/A control: {control}" in out


def test_a_near_tie_is_no_fault_in_float32(tmp_path: Path, call: Any) -> None:
    near = [
        answer("server_only", [1, 2, 3], gaps=[0.5, 1e-4, 0.5]),
        answer("chain", [1, 9, 9]),
    ]
    run = make_run(tmp_path, "a", near)
    code, out, err = call(run, run)
    assert (code, err) == (0, "")
    assert cells(out, "chain")[0] == ["chain", "1", "0.0%", "1", "1", "0", "0"]
    # method, question, turn, repeat, seed, choice, position, tokens, gap
    assert cells(out, "chain")[1] == [
        "chain", "quick", "unshaped", "1", "1", "1", "0", "0", "1", "2", "9", "0.0001"
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_below_float32_differences_are_reported_only(tmp_path: Path, call: Any, dtype: str) -> None:
    lines = [server([1, 2], gap=7.0), answer("chain", [1, 9])]
    run = make_run(tmp_path, "a", lines, dtype)
    code, out, err = call(run, run)
    assert (code, err) == (0, "")
    assert cells(out, "chain")[0][:4] == ["chain", "1", "0.0%", "1"]
    assert f"they are reported, and no fault (target in {dtype})" in out


def test_a_quantised_target_is_below_float32_too(tmp_path: Path) -> None:
    lines = [server([1]), answer("chain", [2])]
    target = {"dtype": "float32", "quantization": "8bit"}
    sessions = [{"engine": {"target": target}}]
    run = read_run(make_run(tmp_path, "a", lines, sessions=sessions))
    assert compare_runs(run, run).faults == []


def test_a_repeat_is_the_control_within_one_run(tmp_path: Path, call: Any) -> None:
    lines = [
        *(server([1, 2], gap=1e-5, repeat=1), server([4], 2, repeat=1)),
        *(server([1, 9], gap=1e-5, repeat=2), server([4], 2, repeat=2)),
        *(answer("chain", [1, 2], repeat=1), answer("chain", [4], 2, repeat=1)),
        *(answer("chain", [1, 9], repeat=2), answer("chain", [4], 2, repeat=2)),
    ]
    run = make_run(tmp_path, "a", lines)
    code, out, _ = call(run, run)
    assert code == 0
    assert (
        "A/A control: server_only, repeat 1 against the later ones: 2 answers compared, 50.0% "
        "identical" in out
    )
    assert cells(out, "chain")[0] == ["chain", "4", "100.0%", "0", "–", "0", "0"]
    assert cells(out, "server_only")[0][-4:] == ["1", "2", "9", "1e-05"]


def test_the_link_plays_no_part_in_an_answer(tmp_path: Path, call: Any) -> None:
    a = make_run(tmp_path, "a", EQUAL)
    far = [
        msgspec.structs.replace(line, case=msgspec.structs.replace(line.case, rtt_ms=50.0))
        for line in EQUAL
    ]
    code, out, _ = call(a, make_run(tmp_path, "b", far))
    assert code == 0
    assert "note: rtt50 of B is compared with unshaped of A" in out
    assert cells(out, "chain")[0][:3] == ["chain", "2", "100.0%"]


def test_seeds_and_choices_are_compared_with_their_own(tmp_path: Path, call: Any) -> None:
    draws = [(4, 0, [1]), (4, 1, [2]), (7, 0, [3])]
    lines = [
        line
        for seed, choice, ids in draws
        for line in (
            server(ids, seed=seed, choice=choice),
            answer("chain", ids, seed=seed, choice=choice),
        )
    ]
    run = make_run(tmp_path, "a", lines)
    code, out, _ = call(run, run)
    assert code == 0
    assert cells(out, "chain") == [["chain", "3", "100.0%", "0", "–", "0", "0"]]


def test_a_later_turn_that_answers_another_history_says_nothing(tmp_path: Path) -> None:
    a = [
        answer("server_only", [1, 2], gaps=[0.5, 1e-5]),
        server([5], turn=2, prompt_hash="after 1 2"),
    ]
    b = [
        answer("server_only", [1, 3]),
        answer("server_only", [6], turn=2, prompt_hash="after 1 3"),
    ]
    runs = [read_run(make_run(tmp_path, name, lines)) for name, lines in (("a", a), ("b", b))]
    verdict = compare_runs(*runs)
    (part,) = verdict.methods
    assert (part.compared, len(part.differences), len(part.other_prompts)) == (1, 1, 1)
    assert verdict.faults == []


# -------------------------------------------------------------------------------------- exit code 1


@pytest.mark.parametrize(
    ("gaps", "shown"),
    [([0.5, 0.00011, 0.5], "0.00011"), (None, "not recorded"), ([0.5], "not recorded")],
    ids=["far apart", "no gaps", "too few gaps"],
)
def test_a_difference_in_float32_that_is_no_near_tie_exits_with_1(
    tmp_path: Path, call: Any, gaps: list[float] | None, shown: str
) -> None:
    lines = [answer("server_only", [1, 2, 3], gaps=gaps), answer("chain", [1, 9, 3])]
    run = make_run(tmp_path, "a", lines)
    code, out, err = call(run, run)
    assert code == 1
    assert err == ("error: chain: quick 1 turn 1 (repeat 1, seed 0, choice 0) differs at token 1\n")
    assert shown in out
    assert cells(out, "chain")[1][-1] == "fault"


def test_a_target_of_unknown_dtype_is_judged_as_float32(tmp_path: Path, call: Any) -> None:
    lines = [server([1]), answer("chain", [2])]
    run = make_run(tmp_path, "a", lines, dtype=None)
    code, out, _ = call(run, run)
    assert code == 1
    assert "note: the manifest of B names no dtype: judged as float32" in out


@pytest.mark.parametrize(
    ("mine", "tokens"), [([1, 2], (3, None)), ([1, 2, 3, 4], (None, 4))], ids=["short", "long"]
)
def test_an_answer_that_ends_where_the_other_goes_on_is_a_fault_in_any_dtype(
    tmp_path: Path, call: Any, mine: list[int], tokens: tuple[int | None, int | None]
) -> None:
    lines = [server([1, 2, 3], gap=1e-9), answer("chain", mine)]
    folder = make_run(tmp_path, "a", lines, "bfloat16")
    run = read_run(folder)
    ((difference,),) = (part.differences for part in compare_runs(run, run).methods)
    assert (difference.tokens, difference.cut) == (tokens, True)
    code, out, err = call(folder, folder)
    assert code == 1
    assert f"differs at token {difference.position}, where one answer ends" in err
    assert "ended" in out


def test_a_missing_answer_is_named_in_any_dtype(tmp_path: Path, call: Any) -> None:
    a = make_run(tmp_path, "a", EQUAL, "bfloat16")
    b = make_run(tmp_path, "b", [*EQUAL[:3], answer("chain", [7], 3)], "bfloat16")
    code, out, err = call(a, b)
    assert code == 1
    assert err.splitlines() == [
        "error: chain: quick 2 turn 1 (repeat 1, seed 0, choice 0) is missing in B",
        "error: chain: quick 3 turn 1 (repeat 1, seed 0, choice 0) is missing in A",
    ]
    assert cells(out, "chain") == [["chain", "1", "100.0%", "0", "–", "2", "0"]]


def test_a_failed_request_is_a_missing_answer_with_its_reason(tmp_path: Path, call: Any) -> None:
    failed = RequestLine.failed(make_case("chain", 2), ContextLengthError("too long"))
    run = make_run(tmp_path, "a", [*EQUAL[:3], failed])
    code, _, err = call(run, run)
    assert code == 1
    assert "choice 0) failed in B: ContextLengthError: too long" in err


def test_a_method_and_a_link_that_the_run_never_came_to_are_missing(tmp_path: Path) -> None:
    a = read_run(make_run(tmp_path, "a", EQUAL))
    planned = {"methods": [{"label": "chain"}, {"label": "opt_tree"}], "networks": ["unshaped"]}
    b = read_run(make_run(tmp_path, "b", EQUAL[2:], **planned))
    verdict = compare_runs(a, b)
    assert {part.method: len(part.missing) for part in verdict.methods} == {
        "chain": 0,
        "opt_tree": 2,
    }
    assert verdict.control_note == "none: B has no server_only"
    c = read_run(make_run(tmp_path, "c", EQUAL[2:], networks=["unshaped", "rtt20"]))
    assert len(compare_runs(a, c).faults) == 2


def test_a_first_turn_with_another_prompt_is_a_fault(tmp_path: Path, call: Any) -> None:
    lines = [server([1]), answer("chain", [1], prompt_hash="other")]
    run = make_run(tmp_path, "a", lines)
    code, _, err = call(run, run)
    assert code == 1
    assert "choice 0) answers another prompt in B than in A" in err


def test_a_control_that_differs_in_float32_is_a_fault(tmp_path: Path, call: Any) -> None:
    lines = [server([1], repeat=1), server([2], repeat=2)]
    run = make_run(tmp_path, "a", lines)
    code, _, err = call(run, run)
    assert code == 1
    assert "server_only: quick 1 turn 1 (repeat 2, seed 0, choice 0) differs at token 0" in err


def test_no_more_than_twenty_are_shown_unless_all_are_wanted(tmp_path: Path, call: Any) -> None:
    lines = [
        line
        for question in range(1, 24)
        for line in (server([1], question), answer("chain", [2], question))
    ]
    run = make_run(tmp_path, "a", lines)
    code, out, err = call(run, run)
    assert code == 1
    assert len(cells(out, "chain")) == 1 + 20
    assert "… and 3 more; --all shows them." in out
    assert err.splitlines()[20] == "error: … and 3 more faults; --all shows them"
    _, out, err = call(run, run, "--all")
    assert len(cells(out, "chain")) == 1 + 23
    assert len(err.splitlines()) == 23


# -------------------------------------------------------------------------------------- exit code 2


def test_what_is_no_run_exits_with_2(tmp_path: Path, call: Any) -> None:
    run = make_run(tmp_path, "a", EQUAL)
    for first, second in ((run, tmp_path / "nowhere"), (tmp_path, run)):
        code, out, err = call(first, second)
        assert (code, out) == (2, "")
        assert "is not the folder of a run: it has no requests.jsonl" in err


def test_a_damaged_line_or_manifest_exits_with_2(tmp_path: Path, call: Any) -> None:
    run, other = make_run(tmp_path, "a", EQUAL), make_run(tmp_path, "b", EQUAL)
    (other / "requests.jsonl").write_text("{}\n")
    code, _, err = call(run, other)
    assert code == 2
    assert "schema version None" in err
    (run / "manifest.json").write_text('{"methods": [3]}')
    code, _, err = call(run, run)
    assert code == 2
    assert "manifest.json is not that of a run" in err


def test_without_the_measure_or_anything_to_compare_it_exits_with_2(
    tmp_path: Path, call: Any
) -> None:
    alone = make_run(tmp_path, "a", EQUAL[2:])
    code, _, err = call(alone, alone)
    assert code == 2
    assert "has no answers of server_only, the measure of all others (methods there: chain)" in err
    bare = make_run(tmp_path, "b", EQUAL[:2])
    code, _, err = call(bare, bare)
    assert code == 2
    assert "has nothing to compare" in err


def test_a_usage_error_exits_with_2() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["equality", "only one"])
    assert caught.value.code == 2


# ------------------------------------------------------------------------------------------ figures


def test_the_figures_are_written_as_json(tmp_path: Path, call: Any) -> None:
    lines = [
        *(server([1, 2, 3]), answer("chain", [9, 2, 3])),  # differs at 0
        *(server([1, 2, 3], 2), answer("chain", [1, 2, 9], 2)),  # at 2
        *(server([1, 2, 3], 3, gap=math.inf), answer("chain", [1, 2, 9], 3)),
        *(server([1], 4), answer("chain", [1], 4)),
    ]
    run = make_run(tmp_path, "a", lines)
    path = tmp_path / "figures.json"
    assert call(run, run, "--json", path)[0] == 1
    content = json.loads(path.read_text())
    assert content == json.loads(json.dumps(figures(compare_runs(read_run(run), read_run(run)))))
    (chain,) = content["methods"]
    assert (chain["method"], chain["compared"]) == ("chain", 4)
    assert (chain["identical_share"], chain["median_position"]) == (0.25, 2)
    first, _, last = chain["differences"]
    assert (first["question_id"], first["position"], first["gap"]) == (1, 0, 0.5)
    assert (first["token_a"], first["token_b"]) == (1, 9)
    assert last["gap"] == "inf"
    assert (content["control"], content["control_note"]) == (None, "none: REPEATS=1")
    assert (content["strict"], content["dtype_a"], len(content["faults"])) == (True, "float32", 3)


def test_figures_that_cannot_be_written_exit_with_2(tmp_path: Path, call: Any) -> None:
    run = make_run(tmp_path, "a", EQUAL)
    code, _, err = call(run, run, "--json", tmp_path / "nowhere" / "f.json")
    assert code == 2
    assert "Give --json another file" in err


def test_runs_of_different_targets_say_so(tmp_path: Path) -> None:
    a = read_run(make_run(tmp_path, "a", EQUAL, "float32"))
    b = read_run(make_run(tmp_path, "b", EQUAL, "bfloat16"))
    verdict = compare_runs(a, b)
    assert verdict.notes == ("the target's dtype is float32 in A and bfloat16 in B",)
    assert not verdict.strict


def test_the_latest_line_of_a_request_counts(tmp_path: Path) -> None:
    lines = [
        server([1]),
        RequestLine.failed(make_case("chain"), StoreError("once")),
        answer("chain", [1]),
    ]
    run = read_run(make_run(tmp_path, "a", lines))
    assert compare_runs(run, run).faults == []
