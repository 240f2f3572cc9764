"""``identity``: differences worked out by hand, what is kept, and answers over a real server."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autodraft.config import (
    AlgorithmsConfig,
    ExperimentConfig,
    ModelsConfig,
    RuntimeConfig,
)
from autodraft.policy import FixedTreePolicy, TreeLimits
from evaluation.datasets import Question
from tests.benchmark_process import run
from tests.fakes import greedy_reference, prompt_of, speculate, tiny_model, tiny_runner
from tests.local_server import LocalServer


@pytest.fixture
def scripts(benchmark_folder: None) -> SimpleNamespace:
    """The benchmark's modules, imported as the script imports them."""
    import _common
    import _identity_answers
    import _identity_padded
    import _identity_run
    import _identity_scores
    import _identity_turns
    import identity

    return SimpleNamespace(
        common=_common,
        answers=_identity_answers,
        padded=_identity_padded,
        run=_identity_run,
        scores=_identity_scores,
        turns=_identity_turns,
        identity=identity,
    )


def answer(
    scripts: SimpleNamespace,
    method: str,
    ids: list[int],
    gaps: list[float | None] | None = None,
    **fields: Any,
) -> Any:
    """Return an answer to one turn; unless told otherwise greedy, in float32."""
    common: dict[str, Any] = {
        "dtype": "float32",
        "exact": False,
        "seed": None,
        "turn": "quick/1/1",
        "tokens": 4,
        "prompt_hash": "p",
    }
    return scripts.answers.Answer(method=method, output_ids=ids, gaps=gaps, **{**common, **fields})


# ----------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("ids", "position", "gap", "cut", "close"),
    [
        ([7, 9, 9, 9], 1, 2e-5, False, True),  # what follows the first difference does not count
        ([7, 8, 9, 6], 2, None, False, False),  # no second token was left
        ([7, 8, 5, 4], 3, 0.5, False, False),
        ([7], 1, None, True, False),  # however close the next token was
        ([7, 8, 5, 6, 1], 4, None, True, False),
    ],
)
def test_answers_part_at_the_first_token_that_differs(
    scripts: SimpleNamespace,
    ids: list[int],
    position: int,
    gap: float | None,
    cut: bool,
    close: bool,
) -> None:
    reference = answer(scripts, "server_only", [7, 8, 5, 6], [3.0, 2e-5, None, 0.5])
    found = scripts.scores.difference(reference, answer(scripts, "chain", ids))
    assert found == ("quick/1/1", "chain", position, gap, cut)
    assert found.close is close
    assert scripts.scores.difference(reference, answer(scripts, "x", [7, 8, 5, 6])) is None


def asked(scripts: SimpleNamespace) -> list[dict[str, Any]]:
    """Return two turns; the chain parts in the first, at a close token, as the padded one does."""
    first = {
        "server_only": answer(scripts, "server_only", [1, 2, 3, 4], [1.0, 5e-5, 1.0, 1.0]),
        "server_only_again": answer(scripts, "server_only_again", [1, 2, 3, 4]),
        "server_only_padded": answer(scripts, "server_only_padded", [1, 2, 9, 4], accepted=1),
        "chain": answer(scripts, "chain", [1, 9, 9, 9], redecided=1),
        "lookup": answer(scripts, "lookup", [1, 2, 3, 4]),
    }
    second = {
        label: answer(scripts, label, [5, 6], [1.0, 1.0] if label == "server_only" else None)
        for label in first
    }
    return [first, second]


def test_figures_of_one_way_to_ask(scripts: SimpleNamespace) -> None:
    way = scripts.turns.Way("bfloat16")
    found = scripts.scores.way_figures(way, asked(scripts))
    assert (found["dtype"], found["exact"], found["sampled"]) == ("bfloat16", False, False)
    assert found["turns"] == 2
    assert found["methods"]["chain"] == {
        "answers": 2,
        "identical_share": 0.5,
        "differences_per_1000_tokens": 250.0,  # one among the 2 tokens up to it, and 2 more
        "median_position": 1,
        "median_gap": 5e-5,
        "max_gap": 5e-5,
        "redecided_per_100_tokens": 16.6667,  # 1 of 6
    }
    # The lookup's 6 tokens come on top of the chain's 4; controls are no speculation.
    assert found["speculative"]["answers"] == 4
    assert found["speculative"]["identical_share"] == 0.75
    assert found["speculative"]["differences_per_1000_tokens"] == 100.0
    assert found["padded_accepted_tokens"] == 1
    assert found["differences"] == [
        ["quick/1/1", "server_only_padded", 2, 1.0, False],
        ["quick/1/1", "chain", 1, 5e-5, False],
    ]


def test_the_shares_that_are_judged(scripts: SimpleNamespace) -> None:
    way, same = scripts.turns.Way, asked(scripts)[1:]
    found = {
        way("float32"): asked(scripts),
        way("bfloat16"): asked(scripts),
        way("bfloat16", exact=True): same,
    }
    assert scripts.scores.overall(found) == {
        "fp32_identical": 0.75,
        "fp32_sampled_identical": None,  # was not asked
        "bf16_identical": 0.75,
        "bf16_exact_identical": 1.0,
        "noise_floor": 0.5,
        "noise_floor_exact": 1.0,
        "aa_control": 1.0,
    }


def test_rounding_is_an_excuse_below_float32_or_where_tokens_are_close_and_never_for_a_cut(
    scripts: SimpleNamespace,
) -> None:
    turns, way = asked(scripts), scripts.turns.Way
    wrong = scripts.scores.faults({way("float32"): turns, way("bfloat16"): turns})
    assert wrong == ["float32, greedy: server_only_padded, quick/1/1: token 2 (gap 1)"]
    turns[1]["chain"] = answer(scripts, "chain", [5])
    wrong = scripts.scores.faults({way("bfloat16", exact=True): turns})
    assert wrong == ["bfloat16, greedy, exact: chain, quick/1/1: token 1 (one answer ends there)"]


@pytest.mark.parametrize(("ids", "code"), [([1, 9, 9, 9], 0), ([1, 2, 9, 9], 1)])
def test_a_fault_ends_with_its_figures_and_an_exit_code(
    scripts: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ids: list[int],
    code: int,
) -> None:
    first = asked(scripts)[0]
    found = {label: first[label] for label in ("server_only", "server_only_again")}
    found["chain"] = answer(scripts, "chain", ids)
    monkeypatch.setattr(
        scripts.identity, "run", lambda settings, folder: {scripts.turns.Way("float32"): [found]}
    )
    monkeypatch.setattr(sys, "argv", ["identity.py", "--methods", "chain"])
    assert scripts.identity.main() == code
    printed = capsys.readouterr()
    figures = json.loads(printed.out.splitlines()[-1])
    assert figures["benchmark"] == "identity"
    assert figures["fp32_identical"] == 0.0
    assert figures["bf16_identical"] is None
    assert len(figures["faults"]) == code
    assert ("token 2" in printed.err) == (code == 1)


# ------------------------------------------------------------------------------------ what is kept


def test_answers_are_found_again_by_all_that_they_depend_on(
    scripts: SimpleNamespace, tmp_path: Path
) -> None:
    one = answer(scripts, "chain", [1, 2], [0.5, float("inf")], redecided=1)
    scripts.answers.Answers(tmp_path).add(one)
    again = scripts.answers.Answers(tmp_path)
    found = again.get(one.key)
    assert (found.output_ids, found.gaps, found.redecided) == ([1, 2], [0.5, None], 1)
    others = {"dtype": "bfloat16", "exact": True, "seed": 0, "turn": "x", "tokens": 5}
    for name, value in {**others, "method": "lookup", "prompt_hash": "q"}.items():
        assert again.get(one.key._replace(**{name: value})) is None


def test_a_line_that_was_cut_off_is_asked_again(scripts: SimpleNamespace, tmp_path: Path) -> None:
    answers = scripts.answers.Answers(tmp_path)
    answers.add(answer(scripts, "chain", [1, 2]))
    answers.add(answer(scripts, "lookup", [1, 2]))
    path = tmp_path / "answers.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    answers = scripts.answers.Answers(tmp_path)
    assert len(answers) == 1
    answers.add(answer(scripts, "lookup", [3]))
    answers = scripts.answers.Answers(tmp_path)
    assert answers.get(answer(scripts, "lookup", []).key).output_ids == [3]


def test_a_foreign_line_is_named(scripts: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text('{"question_id": 1}\n')
    with pytest.raises(scripts.common.CannotMeasure, match=r"answers\.jsonl:1 is not an answer"):
        scripts.answers.Answers(tmp_path)


# ------------------------------------------------------------------------------------- the turns


def test_questions_are_asked_with_all_their_turns(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(bench: str, locations: object) -> tuple[Question, ...]:
        return tuple(Question(id, "c", (f"a{id}", f"b{id}"), bench) for id in (1, 2))

    monkeypatch.setattr(scripts.turns, "load_bench", load)
    monkeypatch.setenv("AUTODRAFT_BENCH_DIR", "/questions")
    turns = scripts.turns.draw_turns(3, seed=0)
    assert [turn.number for turn in turns] == list(range(9))
    assert [turn.name.split("/")[0] for turn in turns[::3]] == list(scripts.turns.BENCHES)
    first, second, third = turns[:3]
    one, other = first.name.split("/")[1], third.name.split("/")[1]
    assert {one, other} == {"1", "2"}
    assert second.name == f"mt_bench/{one}/2"
    assert second.messages == (f"a{one}", f"b{one}")
    assert second.earlier == (first.name,)
    assert third.messages == (f"a{other}",)
    drawn = scripts.turns.asked_in(scripts.turns.Way("float32", sampled=True), turns)
    assert [turn.number for turn in drawn] == [0, 3, 6]
    with pytest.raises(scripts.common.CannotMeasure, match=r"4 turns, and 5"):
        scripts.turns.draw_turns(5, seed=0)


def test_without_question_files_the_bundled_ones_are_asked(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTODRAFT_BENCH_DIR", raising=False)
    assert {turn.name.split("/")[0] for turn in scripts.turns.draw_turns(4, 0)} == {"quick"}


def test_methods_have_the_shapes_that_the_page_names(scripts: SimpleNamespace) -> None:
    config = scripts.run.pair_config("float32", 1)
    shapes = {
        label: (spec.method, spec.width, spec.max_depth, spec.node_budget, spec.cs, spec.handover)
        for label in scripts.run.SPECULATIVE
        for spec in [scripts.run.spec_of(config, label)]
    }
    assert shapes["chain"][:4] == ("chain", 1, 4, 4)
    assert shapes["fixed_tree"][:4] == ("fixed_tree", 8, 6, 32)
    assert shapes["opt_tree"][:4] == ("opt_tree", 16, 15, 150)
    assert [shape[4:] for shape in shapes.values() if shape[0] == "autodraft"] == [
        (0.0, True),
        (0.5, True),
        (1.0, True),
    ]


# ----------------------------------------------------------------------------- in another bucket


def test_junk_is_what_the_draft_never_says_and_ends_no_answer(scripts: SimpleNamespace) -> None:
    junk = scripts.padded.junk_tokens
    assert junk(20, said=range(10), eos_ids=[18]) == [19, 17, 16, 15, 14, 13, 12]
    # Where there are too few, the others do.
    assert junk(9, said=range(5), eos_ids=[8]) == [7, 6, 5, 4, 3, 2, 1]


def test_padded_decoding_is_plain_decoding_from_forwards_of_eight_rows(
    scripts: SimpleNamespace,
) -> None:
    prompt = prompt_of(9)
    expected = greedy_reference(tiny_model(), prompt, 12)
    unsaid = [token for token in range(100) if token not in expected]
    junk = unsaid[: scripts.padded.JUNK]
    drafter = scripts.padded.JunkDrafter(junk)
    done = speculate(tiny_runner(), drafter, FixedTreePolicy(TreeLimits(7, 1, 7)), prompt, 12)
    assert done.tokens == expected
    assert done.accepted == [0] * 11
    # The last token leaves no room for a drafted one.
    assert [round_.num_nodes for round_ in done.request.rounds] == [7] * 10 + [0]


# ------------------------------------------------------------------------------ over a real server


@pytest.fixture
def server(tiny_pair: tuple[Path, Path]) -> Iterator[LocalServer]:
    local = LocalServer(tiny_pair[0], dtype="bfloat16")
    yield local
    local.stop()


def tiny_config(pair: tuple[Path, Path], port: int) -> ExperimentConfig:
    target, draft = map(str, pair)
    return ExperimentConfig(
        runtime=RuntimeConfig(target_host="127.0.0.1", target_port=port, device_map="cpu"),
        models=ModelsConfig(
            base_model_path=target,
            draft_model_path=draft,
            tokenizer_path=target,
            dtype="bfloat16",
            target_dtype="bfloat16",
        ),
        algorithms=AlgorithmsConfig(method_names=("server_only", "chain", "lookup")),
    )


def test_all_is_asked_once_and_later_turns_follow_the_answers_of_the_measure(
    scripts: SimpleNamespace, server: LocalServer, tiny_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = scripts.run.Settings(2, 6, ("bfloat16",), ("chain", "lookup"), seed=0)
    turns = [
        scripts.turns.Turn(0, "quick/1/1", ("Hi",), ()),
        scripts.turns.Turn(1, "quick/1/2", ("Hi", "More"), ("quick/1/1",)),
    ]
    client = scripts.run.Client(tiny_config(tiny_pair, server.port), settings)
    encoded: list[list[list[int]]] = []
    encode = client.encode

    def watched(messages: Any, answers: Any) -> Any:
        encoded.append(answers)
        return encode(messages, answers)

    client.encode = watched
    try:
        answers = scripts.answers.Answers(tmp_path)
        found = scripts.run.Runner(settings, turns, answers).run("bfloat16", client)
        plain, exact = found
        assert (plain.exact, exact.exact) == (False, True)
        labels = ["server_only", "server_only_again", "server_only_padded", "chain", "lookup"]
        assert all(list(turn) == labels for way in found.values() for turn in way)
        first = found[plain][0]["server_only"]
        assert encoded == [[], [first.output_ids]]
        assert len(first.gaps) == len(first.output_ids)
        assert found[plain][0]["chain"].gaps is None
        hashes = {turn["chain"].prompt_hash for way in found.values() for turn in way}
        assert len(hashes) == 2  # one of each turn, with ``exact`` and without
        lines = (tmp_path / "answers.jsonl").read_text().splitlines()
        assert len(lines) == len(set(lines)) == 2 * 2 * 5

        # A second time only what is missing is asked.
        (tmp_path / "answers.jsonl").write_text("\n".join(lines[:-1]) + "\n")
        asked: list[str] = []
        reply = client.answer

        def counted(turn: Any, prompt: Any, way: Any, key: Any) -> Any:
            asked.append(key.method)
            return reply(turn, prompt, way, key)

        client.answer = counted
        answers = scripts.answers.Answers(tmp_path)
        again = scripts.run.Runner(settings, turns, answers).run("bfloat16", client)
        assert asked == ["lookup"]
        assert again[exact][1]["lookup"] == found[exact][1]["lookup"]
    finally:
        client.close()


def test_draws_depend_on_the_turn_and_on_the_seed(scripts: SimpleNamespace) -> None:
    settings = scripts.run.Settings(1, 6, ("float32",), ("chain",), seed=5)
    turn = scripts.turns.Turn(3, "quick/1/1", ("Hi",), ())
    drawn = settings.sampling(scripts.turns.Way("float32", sampled=True), turn)
    assert (drawn.temperature, drawn.top_p, drawn.seed) == (0.8, 0.95, 8)
    assert settings.sampling(scripts.turns.Way("float32"), turn).plain
    assert "server_only_padded" not in settings.labels(scripts.turns.Way("float32"))
    assert "server_only_padded" in settings.labels(scripts.turns.Way("bfloat16"))


# ------------------------------------------------------------------------------------ the options


def test_help_names_the_options_that_every_benchmark_has() -> None:
    done = run("identity.py", "--help")
    assert done.returncode == 0, done.stderr
    for option in ("--quick", "--seed", "--folder", "--dtypes"):
        assert option in done.stdout


@pytest.mark.parametrize("option", ["--dtypes=float16", "--methods=chain,spade", "--turns=0"])
def test_a_bad_value_ends_with_the_usage_and_no_json(option: str) -> None:
    done = run("identity.py", option)
    assert done.returncode == 2
    assert "usage:" in done.stderr
    assert done.stdout == ""
