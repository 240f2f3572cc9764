"""Stretches and settling worked out by hand; the server slows down; a running link is reshaped."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autodraft.engine.remote import RemoteTarget, Step, TargetWish
from autodraft.engine.rounds import Traffic
from autodraft.transport.client import Link
from autodraft.transport.shaping import LinkShape
from tests.benchmark_process import run
from tests.fakes import save_tiny_model
from tests.local_server import LocalServer


@pytest.fixture
def scripts(benchmark_folder: None) -> SimpleNamespace:
    """The benchmarks' modules, imported as their scripts import them."""
    import _common
    import _drift_run
    import _drift_scores
    import _drift_target
    import decision
    import drift

    return SimpleNamespace(
        common=_common,
        run=_drift_run,
        scores=_drift_scores,
        target=_drift_target,
        drift=drift,
        decision=decision,
    )


@pytest.fixture
def scores(scripts: SimpleNamespace) -> ModuleType:
    module: ModuleType = scripts.scores
    return module


def answer(scores: ModuleType, *pieces: tuple[float, int], stepped_at: int | None = None) -> Any:
    """Return an answer of pieces of so much cost and so many tokens."""
    ids = tuple(range(1 + sum(count for _, count in pieces)))
    return scores.Answer(ids, tuple(scores.Piece(*piece) for piece in pieces), stepped_at)


# ------------------------------------------------------------------------------------- stretches


@pytest.mark.parametrize(
    ("first", "end", "cost"),
    [
        (1, 6, 8.0),  # all of it: tokens 1, 2 of the first piece, 3, 4, 5 of the second
        (2, 4, 1.0 + 2.0),  # half of 2 and a third of 6
        (0, 1, 0.0),  # the first token comes from prefill
        (4, 4, 0.0),
        (5, 99, 2.0),
    ],
)
def test_a_piece_spreads_its_cost_evenly_over_its_tokens(
    scores: ModuleType, first: int, end: int, cost: float
) -> None:
    assert answer(scores, (2.0, 2), (6.0, 3)).cost_between(first, end) == pytest.approx(cost)


def turn(scores: ModuleType) -> Any:
    """Return a turn whose drifted rounds of 2 tokens cost 9, 6 and 2 after the step, steady 2."""
    drifted = answer(scores, (1.0, 2), (9.0, 2), (6.0, 2), (2.0, 2), stepped_at=1)
    steady = answer(scores, (2.0, 1), (4.0, 4), (3.0, 3))
    return scores.Turn(drifted, steady)


def test_both_answers_are_compared_over_the_tokens_of_the_drifted_rounds(
    scores: ModuleType,
) -> None:
    one = turn(scores)
    assert one.rounds_after == 3
    assert one.identical
    assert one.tokens(0) == (3, 9)
    assert one.tokens(1, 2) == (5, 7)
    assert one.tokens(2) == (7, 9)
    assert one.tokens(0, 20) == (3, 9)
    assert one.tokens(20) == (9, 9)
    found = scores.stretch([one], 1, 2)
    # Steady: token 5 is the last of the four that cost 1 each, token 6 one of the three.
    assert found.drifted.value == pytest.approx(6 / 2)
    assert found.steady.value == pytest.approx((1 + 1) / 2)
    assert found.ratio == pytest.approx(3.0)
    assert scores.stretch([one], 20).ratio is None


def test_prompts_are_pooled_total_over_total(scores: ModuleType) -> None:
    cheap = scores.Turn(answer(scores, (1.0, 1), (4.0, 2), stepped_at=1), answer(scores, (5.0, 3)))
    found = scores.stretch([turn(scores), cheap], 0)
    assert list(found.drifted.numerators) == pytest.approx([17.0, 4.0])
    assert list(found.drifted.denominators) == [6.0, 2.0]
    # Tokens 3 … 8 of the steady answer cost 1 each; 2 of 3 tokens cost 10/3.
    assert found.steady.value == pytest.approx((6 + 10 / 3) / 8)
    assert found.ratio == pytest.approx(21 / (6 + 10 / 3))


# -------------------------------------------------------------------------------------- settling


def settling(scores: ModuleType, *costs: float) -> Any:
    """Return a turn whose rounds of one token cost so much after the step; steady ones cost 1."""
    drifted = answer(scores, (1.0, 1), *((cost, 1) for cost in costs), stepped_at=1)
    return scores.Turn(drifted, answer(scores, *[(1.0, 1)] * (1 + len(costs))))


@pytest.mark.parametrize(
    ("costs", "rounds"),
    [
        ((1.0, 1.0, 1.0), 0),
        ((0.5, 0.5, 0.5), 0),  # better than steady is no loss
        ((3.0, 2.0, 1.0, 1.0), 2),  # means after 0, 1, 2: 7/4, 4/3, 1
        ((2.0, 1.04, 1.04), 1),  # 4 % are within 5
        ((2.0, 1.06, 1.06), None),  # 6 % are not
        ((1.1, 1.0, 1.0, 1.0), 0),  # 2.5 % in the mean of all
    ],
)
def test_settled_is_where_the_rest_is_as_good_as_steady(
    scores: ModuleType, costs: tuple[float, ...], rounds: int | None
) -> None:
    assert scores.rounds_to_settle([settling(scores, *costs)]) == rounds


def test_every_prompt_has_a_round_to_judge_by(scores: ModuleType) -> None:
    # The long answer is settled after 2 rounds, but the short one has no third round.
    long, short = settling(scores, 9.0, 9.0, 1.0, 1.0), settling(scores, 9.0, 9.0)
    assert scores.rounds_to_settle([long]) == 2
    assert scores.rounds_to_settle([long, short]) is None


def test_the_figures_of_a_cell(scores: ModuleType) -> None:
    costs = [3.0] * 10 + [1.0] * 10 + [1.2] * 5
    found = scores.cell_figures([settling(scores, *costs), settling(scores, *costs)])
    assert found["prompts"] == 2
    assert found["fewest_rounds_after"] == 25
    assert found["settled_rounds"] == 2 * 5
    assert found["early_score"] == found["early_ratio"] == 2.0
    assert found["settled_score"] == found["settled_ratio"] == 1.2
    assert (found["low"], found["high"]) == (1.2, 1.2)  # both prompts are alike
    # 1.05 over the 15 rounds from the 11th on would do: they are at (10 + 6) / 15. From the 12th
    # on it is 15/14, …, and 1.2 in the end: never.
    assert found["rounds_to_settle"] is None


def test_only_tokens_after_the_step_count_as_made_alone(scores: ModuleType) -> None:
    pieces = (scores.Piece(1.0, 5, True), scores.Piece(1.0, 3), scores.Piece(1.0, 1, True))
    stepped = scores.Answer(tuple(range(10)), pieces, 1)
    assert scores.alone_share([stepped]) == 0.25
    assert scores.alone_share([scores.Answer(tuple(range(10)), pieces)]) == round(6 / 9, 4)


def test_the_worst_cell_counts_and_an_unknown_one_is_not_hidden(scores: ModuleType) -> None:
    cells: list[dict[str, Any]] = [
        {"settled_ratio": 1.0, "rounds_to_settle": 7},
        {"settled_ratio": 1.1, "rounds_to_settle": 3},
    ]
    assert scores.overall(cells) == {"worst_settled_ratio": 1.1, "worst_rounds_to_settle": 7}
    cells.append({"settled_ratio": 1.0, "rounds_to_settle": None})
    assert scores.overall(cells) == {"worst_settled_ratio": 1.1, "worst_rounds_to_settle": None}


# ------------------------------------------------------------------------- server, link, records


def test_a_slowed_call_takes_that_many_times_its_own_time(scripts: SimpleNamespace) -> None:
    now, slept = [0.0], list[float]()
    slowdown = SimpleNamespace(value=3.0)

    def call(number: int, *, more: int) -> int:
        now[0] += 0.5
        return number + more

    slow = scripts.target.slowed(call, slowdown, lambda: now[0], slept.append)
    assert slow(1, more=2) == 3
    assert slept == [1.0]  # 0.5 s of its own and 1.0 s more
    slowdown.value = 1.0
    slow(1, more=2)
    assert slept == [1.0]


def test_a_running_link_is_shaped_anew(scripts: SimpleNamespace, tmp_path: Path) -> None:
    server = LocalServer(save_tiny_model(tmp_path / "target"), dtype="float32")
    try:
        with Link("127.0.0.1", server.port, None, LinkShape(rtt_s=0.005)) as link:
            target = RemoteTarget(link, TargetWish("autodraft"))
            scripts.run.set_rtt(target, 0.2)
            started = time.perf_counter()
            target.ping()
            assert time.perf_counter() - started >= 0.2
            scripts.run.set_rtt(target, 0.0)
            assert min(target.ping() for _ in range(3)) < 0.1
        with Link("127.0.0.1", server.port, None) as link:
            target = RemoteTarget(link, TargetWish("autodraft"))
            with pytest.raises(scripts.common.CannotMeasure, match="not shaped"):
                scripts.run.set_rtt(target, 0.2)
    finally:
        server.stop()


class FakeTarget:
    """Streams two tokens of 0.2 s; 10 bytes come down with each."""

    def __init__(self) -> None:
        self.traffic = Traffic(100, 0)

    def steps(self) -> Iterator[Step]:
        for _ in range(2):
            self.traffic = Traffic(100, self.traffic.downlink_bytes + 10)
            yield Step([1], 0.0, 0.2)


def test_rounds_and_tokens_made_alone_are_told_apart(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [5.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(scripts.run, "time", clock)
    request = SimpleNamespace(rounds=[])
    watched = scripts.run._Watched(FakeTarget())
    assert watched.since_last(request) is None  # the first token, from prefill
    request.rounds.append("a round")
    now[0] = 6.0
    assert watched.since_last(request) == "a round"
    assert not watched.was_alone
    stream = watched.steps()
    next(stream)
    now[0] = 6.5
    assert vars(watched.since_last(request)) == {
        "draft_s": 0.0,
        "verify_s": 0.2,
        "round_s": 0.5,
        "uplink_bytes": 0,
        "downlink_bytes": 10,
    }
    assert watched.was_alone


# ------------------------------------------------------------------------------------- decisions


def test_decisions_are_made_for_trees_of_more_nodes_than_may_be_sent(
    scripts: SimpleNamespace,
) -> None:
    decision = scripts.decision
    tree = decision.grow(np.random.default_rng(0))
    assert tree.growth.num_nodes == 8 + 3 * 8 * 8
    assert tree.tokens.shape == tree.log_probs.shape == (8, 8)
    policy = decision.make_policy()
    policy.begin(decision.CONTEXT, np.empty(0))
    assert 0 < policy.num_nodes(tree.growth) <= 150


def test_the_decision_is_one_width_and_the_nodes(scripts: SimpleNamespace) -> None:
    found = scripts.decision.measure(7, 0)
    assert {len(seconds) for seconds in found.values()} == {7}
    for whole, width, nodes in zip(
        found["decision"], found["width"], found["num_nodes"], strict=True
    ):
        assert whole == pytest.approx(width + nodes)


def test_the_script_ends_with_its_figures() -> None:
    done = run("decision.py", "--repeats", "5")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["benchmark"] == "decision"
    for name in ("width_ms", "num_nodes_ms", "value_ms", "start_ms", "decision_ms"):
        assert found[name] > 0


# ------------------------------------------------------------------------------------ the options


@pytest.mark.parametrize("script", ["drift.py", "decision.py"])
def test_help_names_the_options_that_every_benchmark_has(script: str) -> None:
    done = run(script, "--help")
    assert done.returncode == 0, done.stderr
    assert "--quick" in done.stdout
    assert "--seed" in done.stdout


@pytest.mark.parametrize("wrong", ["1.5", "0.5,-1"])
def test_a_cost_sensitivity_lies_between_0_and_1(wrong: str) -> None:
    done = run("drift.py", "--cs", wrong)
    assert done.returncode == 2
    assert "from 0 to 1" in done.stderr


def test_each_sensitivity_is_measured_with_and_without_handing_over(
    scripts: SimpleNamespace,
) -> None:
    found = scripts.drift.specs("float32", (0.5, 1.0))
    assert [(spec.cs, spec.handover) for spec in found] == [
        (0.5, True),
        (0.5, False),
        (1.0, True),
        (1.0, False),
    ]
