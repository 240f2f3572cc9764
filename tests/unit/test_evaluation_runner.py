"""The order of requests, conversations of two turns, lost links, and errors in mid-run."""

from typing import Any

import msgspec
import pytest

from autodraft.config import ExperimentConfig
from autodraft.errors import (
    AuthError,
    AutodraftError,
    ConnectError,
    ContextLengthError,
    LinkClosed,
    LinkTimeout,
    ProtocolError,
    RemoteError,
    StoreError,
)
from autodraft.records import GenerationResult
from evaluation.datasets import Question
from evaluation.lines import RequestLine, hash_prompt
from evaluation.plan import make_plan
from evaluation.roles import Surroundings
from evaluation.runner import run_plan, warm_up
from tests.unit.evaluation_fakes import (
    CountingProgress,
    Failure,
    FakeEngine,
    ListSink,
    Messages,
    Watcher,
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
        done: tuple[RequestLine, ...] = (),
    ) -> None:
        self.engine = FakeEngine(failure)
        self.sink = ListSink()
        self.progress = CountingProgress()
        self.watch = Watcher()
        self.slept: list[float] = []
        self.plan = make_plan(config)
        self.questions = dict.fromkeys(self.plan.benches, questions)
        around = Surroundings(
            self.sink,
            self.progress,
            self.watch,
            {line.case: line for line in done},
            self.slept.append,
        )
        self.stopped_by = run_plan(self.engine, self.plan, self.questions, around)

    @property
    def cases(self) -> list[tuple[object, int, str]]:
        return [
            (line.case.question_id, line.case.turn, line.case.method) for line in self.sink.lines
        ]

    @property
    def labels(self) -> list[str]:
        return [label for label, _ in self.engine.asked]


def fail_on(method: str, text: str, *errors: AutodraftError) -> Failure:
    """Return a failure of one request: each of ``errors`` once, the last one for good."""
    left = list(errors)

    def failure(label: str, messages: Messages) -> AutodraftError | None:
        if (label, messages[-1]["content"]) != (method, text):
            return None
        return left.pop(0) if len(left) > 1 else left[0]

    return failure


def once(method: str, text: str, *errors: AutodraftError) -> Failure:
    """Return a failure of one request that is over after ``errors``."""
    left = list(errors)

    def failure(label: str, messages: Messages) -> AutodraftError | None:
        if (label, messages[-1]["content"]) == (method, text) and left:
            return left.pop(0)
        return None

    return failure


# --------------------------------------------------------------------------------- order of running


def test_all_methods_answer_a_question_before_the_next_one_is_asked() -> None:
    run = Run(make_config(), ONE_TURN)
    asked = [messages[-1]["content"] for _, messages in run.engine.asked]
    assert asked == [f"Q{number}?" for number in range(1, 5) for _ in METHODS]


def test_every_method_goes_first_equally_often() -> None:
    run = Run(make_config(), ONE_TURN)
    assert [run.labels[start] for start in (0, 4, 8, 12)] == METHODS
    assert run.labels[4:8] == ["chain", "fixed_tree", "opt_tree", "server_only"]


def test_the_order_also_rotates_from_repeat_to_repeat() -> None:
    run = Run(make_config(run={"repeats": 2}), ONE_TURN[:1])
    assert [line.case.repeat for line in run.sink.lines] == [1] * 4 + [2] * 4
    assert run.labels[::4] == ["server_only", "chain"]


def test_a_repeat_comes_after_all_questions_of_the_one_before() -> None:
    run = Run(make_config(run={"repeats": 2}), ONE_TURN[:2])
    order = [(line.case.repeat, line.case.question_id) for line in run.sink.lines[::4]]
    assert order == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_networks_run_one_after_the_other_and_are_recorded() -> None:
    config = make_config(
        network={"rtt_ms": (0.0, 20.0)},
        algorithms={"method_names": ("server_only",)},
        dataset={"benches": ("quick", "mt_bench")},
    )
    run = Run(config, ONE_TURN[:1])
    order = [(line.case.bench, line.case.rtt_ms) for line in run.sink.lines]
    assert order == [("quick", 0.0), ("quick", 20.0), ("mt_bench", 0.0), ("mt_bench", 20.0)]
    assert run.engine.events == ["unshaped", "rtt20"] * 2
    assert run.watch.seen == ["unshaped", "rtt20"]  # looked at once a session


def test_the_seed_is_recorded() -> None:
    run = Run(make_config(sampling={"seeds": (7,)}), ONE_TURN[:1])
    assert {line.case.seed for line in run.sink.lines} == {7}


SAMPLED = {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "seeds": (4, 7), "num_choices": 2}


def test_every_seed_and_choice_is_asked_by_all_methods_in_turn() -> None:
    config = make_config(sampling=SAMPLED, algorithms={"method_names": ("server_only", "chain")})
    run = Run(config, ONE_TURN[:1])
    order = [(line.case.seed, line.case.choice, line.case.method) for line in run.sink.lines]
    assert order == [
        (4, 0, "server_only"),
        (4, 0, "chain"),
        (4, 1, "chain"),  # the order rotates from choice to choice
        (4, 1, "server_only"),
        (7, 0, "server_only"),
        (7, 0, "chain"),
        (7, 1, "chain"),
        (7, 1, "server_only"),
    ]
    assert [(each.seed, each.choice) for each in run.engine.samplings] == [
        (seed, choice) for seed, choice, _ in order
    ]
    assert {(each.temperature, each.top_p, each.top_k) for each in run.engine.samplings} == {
        (0.7, 0.9, 50)
    }
    assert run.progress.done == run.plan.requests(run.questions) == 8


def test_greedy_runs_the_first_seed_and_one_choice() -> None:
    run = Run(make_config(sampling=SAMPLED | {"temperature": 0}), ONE_TURN[:1])
    assert [(line.case.seed, line.case.choice) for line in run.sink.lines] == [(4, 0)] * 4
    assert {each.plain for each in run.engine.samplings} == {True}


def test_choices_are_drawn_in_every_repeat() -> None:
    config = make_config(
        sampling=SAMPLED | {"seeds": (4,)},
        run={"repeats": 2},
        algorithms={"method_names": ("server_only",)},
    )
    run = Run(config, ONE_TURN[:2])
    order = [(c.repeat, c.choice, c.question_id) for c in (line.case for line in run.sink.lines)]
    assert order == [(r, choice, q) for r in (1, 2) for choice in (0, 1) for q in (1, 2)]


@pytest.mark.parametrize("exact", [None, True, False])
def test_every_method_prefills_for_itself_and_tells_how_sure_each_token_was(
    exact: bool | None,
) -> None:
    algorithms = {"method_names": ("server_only", "chain"), "exact": exact}
    run = Run(make_config(algorithms=algorithms), TWO_TURNS)
    assert run.engine.wishes == {(exact, 0, False)}


# ------------------------------------------------------------------------------------------ prompts


def test_the_second_turn_of_every_method_follows_the_answer_of_server_only() -> None:
    run = Run(make_config(), TWO_TURNS)
    second = [messages for _, messages in run.engine.asked if len(messages) > 1]
    assert second == [
        [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": "server_only to Who?"},
            {"role": "user", "content": "Why?"},
        ]
    ] * len(METHODS)


def test_the_history_is_server_onlys_answer_of_the_same_seed_and_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = FakeEngine.run

    def drawn(self: FakeEngine, **wanted: Any) -> GenerationResult:
        sampling, result = wanted["sampling"], answer(self, **wanted)
        text = f"{wanted['method'].label} {sampling.seed}/{sampling.choice}"
        return msgspec.structs.replace(result, text=text)

    monkeypatch.setattr(FakeEngine, "run", drawn)
    config = make_config(sampling=SAMPLED, algorithms={"method_names": ("chain", "server_only")})
    run = Run(config, TWO_TURNS)
    asked = zip(run.engine.asked, run.engine.samplings, strict=True)
    histories = [
        (messages[1]["content"], sampling.seed, sampling.choice)
        for (_, messages), sampling in asked
        if len(messages) > 1
    ]
    assert len(histories) == 2 * 2 * 2
    assert all(text == f"server_only {seed}/{choice}" for text, seed, choice in histories)


def test_without_server_only_the_first_method_gives_the_history() -> None:
    config = make_config(algorithms={"method_names": ("opt_tree", "chain")})
    run = Run(config, TWO_TURNS)
    second = [messages[1]["content"] for _, messages in run.engine.asked if len(messages) > 1]
    assert second == ["opt_tree to Who?"] * 2


def test_a_prompt_is_encoded_once_and_its_hash_is_recorded() -> None:
    run = Run(make_config(), TWO_TURNS)
    assert run.engine.encoded == 2
    hashes = [line.prompt_hash for line in run.sink.lines]
    assert hashes == [hash_prompt(ids) for ids in run.engine.prompts]
    assert len(set(hashes)) == 2


def test_a_completion_is_the_bare_text_with_its_stop_words() -> None:
    question = Question("t", "c", ("def f():",), "quick", form="completion", stop=("\nclass",))
    run = Run(make_config(), (question,))
    assert {messages[0]["role"] for _, messages in run.engine.asked} == {"text"}
    assert run.engine.stops == [("\nclass",)] * 4


def test_the_hash_of_a_prompt_is_that_of_its_ids_as_four_bytes() -> None:
    import hashlib

    expected = hashlib.sha256(bytes([1, 0, 0, 0, 0x2C, 1, 0, 0])).hexdigest()[:16]
    assert hash_prompt([1, 300]) == expected


def test_turns_are_asked_one_after_the_other_by_all_methods() -> None:
    run = Run(make_config(), TWO_TURNS)
    assert run.cases == [(9, turn, method) for turn in (1, 2) for method in METHODS]


def test_every_request_is_recorded_with_its_case_rounds_and_limit() -> None:
    run = Run(make_config(run={"max_new_tokens": 48}), TWO_TURNS)
    assert len(run.sink.lines) == 8
    assert len(run.sink.rounds) == 16
    assert run.engine.max_new_tokens == {48}
    assert run.progress.done == run.plan.requests(run.questions) == 8
    assert run.stopped_by is None
    assert {line.case.category for line in run.sink.lines} == {"two_turn"}
    assert {line.attempts for line in run.sink.lines} == {1}


def test_two_chain_lengths_are_recorded_under_two_labels() -> None:
    config = make_config(algorithms={"method_names": ("chain",), "chain_d": (2, 4)})
    run = Run(config, ONE_TURN[:1])
    assert [line.case.method for line in run.sink.lines] == ["chain_d2", "chain_d4"]
    assert [line.record.method for line in run.sink.lines if line.record] == [
        "chain_d2",
        "chain_d4",
    ]


# ------------------------------------------------------------------------------------------- errors


def test_a_failed_request_is_recorded_and_the_run_goes_on() -> None:
    error = ContextLengthError("The prompt has 9000 tokens, the context 2048.")
    run = Run(make_config(), ONE_TURN[:2], fail_on("chain", "Q1?", error))
    (bad,) = (line for line in run.sink.lines if line.status == "error")
    assert (bad.case.question_id, bad.case.method) == (1, "chain")
    assert bad.error == "ContextLengthError: The prompt has 9000 tokens, the context 2048."
    assert (bad.record, bad.attempts) == (None, 1)
    assert bad.prompt_hash is not None
    assert len(run.sink.lines) == 8
    assert run.stopped_by is None
    assert run.slept == []


def test_after_a_failed_turn_of_the_reference_no_method_is_asked_the_next_one() -> None:
    failure = fail_on("server_only", "Who?", ContextLengthError("too long"))
    run = Run(make_config(), TWO_TURNS, failure)
    assert run.cases == [(9, 1, method) for method in METHODS]
    assert run.progress.done == 8


def test_a_failed_turn_of_another_method_does_not_keep_it_from_the_next_one() -> None:
    run = Run(make_config(), TWO_TURNS, fail_on("chain", "Who?", ContextLengthError("too long")))
    assert (9, 2, "chain") in run.cases
    assert run.progress.done == 8


def test_a_server_that_refuses_one_request_does_not_end_the_run() -> None:
    run = Run(make_config(), ONE_TURN[:2], fail_on("chain", "Q1?", RemoteError("no", "INTERNAL")))
    assert run.stopped_by is None
    assert [line.status for line in run.sink.lines].count("error") == 1
    assert len(run.sink.lines) == 8
    assert run.slept == []


@pytest.mark.parametrize(
    "error",
    [
        LinkClosed("gone"),
        LinkTimeout("silent"),
        ConnectError("nobody"),
        RemoteError("full", "BUSY"),
    ],
)
def test_a_lost_link_is_waited_for_and_the_request_asked_again(error: AutodraftError) -> None:
    run = Run(make_config(), ONE_TURN, once("chain", "Q2?", error, error))
    assert run.stopped_by is None
    assert run.slept == [0.5, 1.0]
    assert run.watch.seen == ["unshaped", "again", "again"]
    assert len(run.sink.lines) == 16
    assert {line.status for line in run.sink.lines} == {"ok"}
    assert sorted(line.attempts for line in run.sink.lines)[-2:] == [1, 3]
    what = "server busy" if isinstance(error, RemoteError) else "link lost"
    assert run.progress.notes == [
        f"{what}, trying again in 0.5 s (attempt 2 of 6): {error}",
        f"{what}, trying again in 1 s (attempt 3 of 6): {error}",
    ]


def test_a_server_that_stays_away_ends_the_run_and_keeps_what_was_finished() -> None:
    error = LinkClosed("gone")
    run = Run(make_config(run={"retries": 8}), ONE_TURN, fail_on("chain", "Q2?", error))
    assert run.stopped_by is error
    assert run.slept == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert [line.status for line in run.sink.lines] == ["ok"] * 4 + ["error"]
    assert run.sink.lines[-1].attempts == 9


def test_without_retries_the_first_lost_link_ends_the_run() -> None:
    run = Run(make_config(run={"retries": 0}), ONE_TURN, fail_on("chain", "Q2?", LinkClosed("x")))
    assert isinstance(run.stopped_by, LinkClosed)
    assert run.slept == []


@pytest.mark.parametrize("error", [AuthError("who?"), ProtocolError("gibberish")])
def test_what_waiting_does_not_mend_ends_the_run_at_once(error: AutodraftError) -> None:
    run = Run(make_config(), ONE_TURN, fail_on("chain", "Q2?", error))
    assert run.stopped_by is error
    assert run.slept == []
    assert run.sink.lines[-1].status == "error"


def test_a_link_that_leads_to_another_server_ends_the_run_without_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def relinked(self: Watcher) -> None:
        raise StoreError("another model")

    monkeypatch.setattr(Watcher, "relinked", relinked)
    with pytest.raises(StoreError, match="another model"):
        Run(make_config(), ONE_TURN, once("server_only", "Q1?", LinkClosed("gone")))


def test_the_first_look_at_a_link_is_tried_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [LinkClosed("gone")]
    linked = Watcher.linked

    def lose(self: Watcher, network: object) -> None:
        if lost:
            raise lost.pop()
        linked(self, network)  # type: ignore[arg-type]

    monkeypatch.setattr(Watcher, "linked", lose)
    run = Run(make_config(), ONE_TURN[:1])
    assert run.slept == [0.5]
    assert len(run.sink.lines) == 4


def test_a_fault_that_is_not_ours_is_not_swallowed() -> None:
    def failure(label: str, messages: Messages) -> AutodraftError | None:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        Run(make_config(), ONE_TURN, failure)


# ----------------------------------------------------------------------------------------- going on


def test_what_is_answered_is_not_asked_again() -> None:
    whole = Run(make_config(), TWO_TURNS + ONE_TURN)
    half = tuple(whole.sink.lines[:11])  # all of the first question, most of the second
    rest = Run(make_config(), TWO_TURNS + ONE_TURN, done=half)
    assert [line.case for line in (*half, *rest.sink.lines)] == [
        line.case for line in whole.sink.lines
    ]
    assert rest.progress.done == len(whole.sink.lines) - 11


def test_a_choice_that_is_answered_is_not_asked_again_and_another_one_is() -> None:
    config = make_config(sampling=SAMPLED | {"seeds": (4,)})
    whole = Run(config, ONE_TURN[:1])
    rest = Run(config, ONE_TURN[:1], done=tuple(whole.sink.lines[:4]))
    assert [line.case for line in rest.sink.lines] == [
        line.case for line in whole.sink.lines if line.case.choice == 1
    ]


def test_the_recorded_answer_of_the_reference_gives_the_history() -> None:
    whole = Run(make_config(), TWO_TURNS)
    rest = Run(make_config(), TWO_TURNS, done=tuple(whole.sink.lines[:5]))
    assert rest.cases == [(9, 2, "chain"), (9, 2, "fixed_tree"), (9, 2, "opt_tree")]
    assert {messages[1]["content"] for _, messages in rest.engine.asked} == {"server_only to Who?"}
    assert {line.prompt_hash for line in rest.sink.lines} == {whole.sink.lines[4].prompt_hash}


def test_a_prompt_that_became_another_one_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Run(make_config(), ONE_TURN[:1])

    def encode(self: FakeEngine, messages: object) -> list[int]:
        return [1, 2, 3]

    monkeypatch.setattr(FakeEngine, "encode_chat", encode)
    with pytest.raises(StoreError, match=r"quick 1 turn 1: the prompt is not the one .*--fresh"):
        Run(make_config(), ONE_TURN[:1], done=tuple(whole.sink.lines[:2]))


def test_a_network_that_is_done_is_not_touched() -> None:
    config = make_config(network={"rtt_ms": (0.0, 20.0)}, run={"warmup_questions": 1})
    whole = Run(config, ONE_TURN[:1])
    assert len(whole.engine.asked) == 2 * (4 + 4)
    rest = Run(config, ONE_TURN[:1], done=tuple(whole.sink.lines[:5]))
    assert rest.engine.events == ["rtt20"]
    assert len(rest.engine.asked) == 4 + 3  # the warm-up is whole


# --------------------------------------------------------------------------------------- warming up


def around_warm_up(engine: FakeEngine, wanted: int, *questions: Question) -> ListSink:
    plan = make_plan(make_config(run={"warmup_questions": wanted, "retries": 1}))
    sink = ListSink()
    around = Surroundings(sink, CountingProgress(), Watcher(), sleep=lambda _: None)
    warm_up(engine, plan, plan.conditions[0], questions, around)
    return sink


def test_the_warm_up_asks_every_method_the_first_questions_with_both_turns() -> None:
    engine = FakeEngine()
    sink = around_warm_up(engine, 2, *TWO_TURNS, *ONE_TURN)
    assert [label for label, _ in engine.asked] == METHODS * 3
    assert sink.lines == []


def test_the_warm_up_begins_again_when_it_wants_more_questions_than_there_are() -> None:
    engine = FakeEngine()
    around_warm_up(engine, 3, *ONE_TURN[:2])
    asked = [messages[0]["content"] for _, messages in engine.asked]
    assert asked == ["Q1?"] * 4 + ["Q2?"] * 4 + ["Q1?"] * 4


def test_the_warm_up_fails_on_a_lost_server_only() -> None:
    around_warm_up(FakeEngine(fail_on("chain", "Q1?", ContextLengthError("long"))), 1, *ONE_TURN)
    with pytest.raises(LinkClosed, match="gone"):
        around_warm_up(FakeEngine(fail_on("chain", "Q1?", LinkClosed("gone"))), 1, *ONE_TURN)


def test_the_warm_up_has_the_full_length() -> None:
    run = Run(make_config(run={"warmup_questions": 1, "max_new_tokens": 33}), ONE_TURN[:1])
    assert run.engine.max_new_tokens == {33}
    assert len(run.engine.asked) == 8
    assert len(run.sink.lines) == 4
    assert run.progress.notes == ["Warming up (unshaped) …"]
