"""The order of requests, conversations of two turns, and errors in mid-run."""

import pytest

from autodraft.config import ExperimentConfig
from autodraft.errors import (
    AutodraftError,
    ContextLengthError,
    LinkClosed,
    LinkTimeout,
    RemoteError,
)
from evaluation.datasets import Question
from evaluation.plan import make_plan
from evaluation.runner import Outcome, run_plan, warm_up
from tests.unit.evaluation_fakes import (
    CountingProgress,
    Failure,
    FakeEngine,
    ListSink,
    Messages,
    make_config,
)

ONE_TURN = tuple(Question(number, "chat", (f"Q{number}?",), "quick") for number in range(1, 5))
TWO_TURNS = (Question(9, "two_turn", ("Who?", "Why?"), "quick"),)
METHODS = ["server_only", "chain", "fixed_tree", "opt_tree"]


class Run:
    """One run of the fake engine, and everything it left."""

    def __init__(
        self,
        config: ExperimentConfig,
        questions: tuple[Question, ...],
        failure: Failure = lambda _method, _messages: None,
    ) -> None:
        self.engine = FakeEngine(failure)
        self.sink = ListSink()
        self.progress = CountingProgress()
        self.plan = make_plan(config)
        self.questions = {"quick": questions}
        self.outcome: Outcome = run_plan(
            self.engine, self.plan, self.questions, self.sink, self.progress
        )

    @property
    def cases(self) -> list[tuple[object, int, str]]:
        return [
            (line.case.question_id, line.case.turn, line.case.method) for line in self.sink.lines
        ]


def fail_on(method: str, text: str, error: AutodraftError) -> Failure:
    def failure(label: str, messages: Messages) -> AutodraftError | None:
        return error if (label, messages[-1]["content"]) == (method, text) else None

    return failure


def test_all_methods_answer_a_question_before_the_next_one_is_asked() -> None:
    run = Run(make_config(), ONE_TURN)
    asked = [messages[-1]["content"] for _, messages in run.engine.asked]
    assert asked == [f"Q{number}?" for number in range(1, 5) for _ in METHODS]


def test_every_method_goes_first_equally_often() -> None:
    run = Run(make_config(), ONE_TURN)
    order = [label for label, _ in run.engine.asked]
    assert [order[start] for start in (0, 4, 8, 12)] == METHODS
    assert order[4:8] == ["chain", "fixed_tree", "opt_tree", "server_only"]


def test_the_order_also_rotates_from_repeat_to_repeat() -> None:
    run = Run(make_config(run={"repeats": 2}), ONE_TURN[:1])
    assert [line.case.repeat for line in run.sink.lines] == [1] * 4 + [2] * 4
    assert [label for label, _ in run.engine.asked][::4] == ["server_only", "chain"]


def test_the_second_turn_follows_the_methods_own_first_answer() -> None:
    run = Run(make_config(), TWO_TURNS)
    second = {label: messages for label, messages in run.engine.asked if len(messages) > 1}
    assert list(second) == METHODS
    for label, messages in second.items():
        assert messages == [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": f"{label} to Who?"},
            {"role": "user", "content": "Why?"},
        ]


def test_both_turns_of_a_method_come_one_after_the_other() -> None:
    run = Run(make_config(), TWO_TURNS)
    assert run.cases[:3] == [(9, 1, "server_only"), (9, 2, "server_only"), (9, 1, "chain")]


def test_every_request_is_recorded_with_its_case_rounds_and_limit() -> None:
    run = Run(make_config(run={"max_new_tokens": 48}), TWO_TURNS)
    assert len(run.sink.lines) == 8
    assert len(run.sink.rounds) == 16
    assert run.engine.max_new_tokens == {48}
    assert run.progress.done == run.plan.requests(run.questions) == 8
    assert run.outcome == Outcome(errors=0, stopped_by=None)
    assert {line.case.category for line in run.sink.lines} == {"two_turn"}


def test_two_chain_lengths_are_recorded_under_two_labels() -> None:
    config = make_config(algorithms={"method_names": ("chain",), "chain_d": (2, 4)})
    run = Run(config, ONE_TURN[:1])
    assert [line.case.method for line in run.sink.lines] == ["chain_d2", "chain_d4"]
    assert [line.record.method for line in run.sink.lines if line.record] == [
        "chain_d2",
        "chain_d4",
    ]


def test_a_failed_request_is_recorded_and_the_run_goes_on() -> None:
    error = ContextLengthError("The prompt has 9000 tokens, the context 2048.")
    run = Run(make_config(), ONE_TURN[:2], fail_on("chain", "Q1?", error))
    (bad,) = (line for line in run.sink.lines if line.status == "error")
    assert (bad.case.question_id, bad.case.method) == (1, "chain")
    assert bad.error == "ContextLengthError: The prompt has 9000 tokens, the context 2048."
    assert bad.record is None
    assert len(run.sink.lines) == 8
    assert run.outcome == Outcome(errors=1, stopped_by=None)


def test_a_turn_after_a_failed_one_is_not_asked_but_counted_as_done() -> None:
    run = Run(make_config(), TWO_TURNS, fail_on("chain", "Who?", ContextLengthError("too long")))
    assert (9, 2, "chain") not in run.cases
    assert run.progress.done == 8


def test_a_server_that_refuses_one_request_does_not_end_the_run() -> None:
    run = Run(make_config(), ONE_TURN[:2], fail_on("chain", "Q1?", RemoteError("no", "busy")))
    assert run.outcome == Outcome(errors=1, stopped_by=None)
    assert len(run.sink.lines) == 8


@pytest.mark.parametrize("error", [LinkClosed("gone"), LinkTimeout("silent")])
def test_a_lost_server_ends_the_run_and_keeps_what_was_finished(error: AutodraftError) -> None:
    run = Run(make_config(), ONE_TURN, fail_on("chain", "Q2?", error))
    assert run.outcome == Outcome(errors=1, stopped_by=error)  # type: ignore[arg-type]
    assert [line.status for line in run.sink.lines] == ["ok"] * 4 + ["error"]


def test_a_fault_that_is_not_ours_is_not_swallowed() -> None:
    def failure(label: str, messages: Messages) -> AutodraftError | None:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        Run(make_config(), ONE_TURN, failure)


def test_the_warm_up_asks_every_method_the_first_questions_with_both_turns() -> None:
    engine = FakeEngine()
    plan = make_plan(make_config(run={"warmup_questions": 2}))
    warm_up(engine, plan, {"quick": TWO_TURNS + ONE_TURN})
    assert [label for label, _ in engine.asked] == [m for m in METHODS for _ in "12"] + METHODS


def test_the_warm_up_begins_again_when_it_wants_more_questions_than_there_are() -> None:
    engine = FakeEngine()
    plan = make_plan(make_config(run={"warmup_questions": 3}))
    warm_up(engine, plan, {"quick": ONE_TURN[:2]})
    asked = [messages[0]["content"] for _, messages in engine.asked]
    assert asked == ["Q1?"] * 4 + ["Q2?"] * 4 + ["Q1?"] * 4


def test_the_warm_up_fails_on_a_lost_server_only() -> None:
    plan = make_plan(make_config(run={"warmup_questions": 1}))
    questions = {"quick": ONE_TURN}
    warm_up(FakeEngine(fail_on("chain", "Q1?", ContextLengthError("long"))), plan, questions)
    with pytest.raises(LinkClosed, match="gone"):
        warm_up(FakeEngine(fail_on("chain", "Q1?", LinkClosed("gone"))), plan, questions)
