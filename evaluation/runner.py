"""Run a plan: for every question all methods, interleaved, each request recorded as it ends.

The methods take turns on each question, and the order rotates from question to question, so that
a slow moment of the machine or the network does not fall on one method alone. This module knows
no models, no files and no prices; it is handed an engine, a sink and a progress display.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, Protocol

from autodraft.config import MethodSpec
from autodraft.errors import AutodraftError, LinkError, RemoteError
from autodraft.records import GenerationResult, RoundRecord
from evaluation.datasets import Question
from evaluation.lines import Case, RequestLine
from evaluation.plan import Plan


class Engine(Protocol):
    """What the harness needs of ``autodraft.Autodraft``."""

    def connect(self) -> None:
        """Load the draft and reach the target."""
        ...

    def measure_rtt(self) -> float:
        """Return the round trip time of the link, in seconds."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return models, hardware and versions as JSON values."""
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return a conversation as the target's prompt."""
        ...

    def run(
        self, *, prompt_ids: Sequence[int], method: MethodSpec, max_new_tokens: int
    ) -> GenerationResult:
        """Answer a prompt."""
        ...

    def close(self) -> None:
        """Leave the target and free the draft."""
        ...


class Sink(Protocol):
    """Where finished requests go."""

    def append(self, line: RequestLine, rounds: Sequence[RoundRecord]) -> None:
        """Keep one request and its rounds."""
        ...


class Progress(Protocol):
    """Who is told how far the run is."""

    def advance(self, line: RequestLine, requests: int) -> None:
        """Count requests as done; ``line`` is the one that just ended."""
        ...


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        errors: Requests that failed.
        stopped_by: The error that ended the run early, or ``None``.
    """

    errors: int
    stopped_by: LinkError | None


class _Nowhere:
    """Sink and progress of the warm-up: nothing is kept or counted."""

    def append(self, line: RequestLine, rounds: Sequence[RoundRecord]) -> None:
        pass

    def advance(self, line: RequestLine, requests: int) -> None:
        pass


@dataclass
class _QuestionRunner:
    engine: Engine
    max_new_tokens: int
    sink: Sink
    progress: Progress
    errors: int = field(default=0, init=False)

    def run(self, question: Question, spec: MethodSpec, repeat: int) -> None:
        """Ask one question; the method's own answer to a turn is part of the next prompt.

        After a failed turn the later ones are left out: their prompt does not exist.

        Raises:
            LinkError: If the server is gone; the failed request is recorded first.
        """
        messages: list[dict[str, str]] = []
        for turn, text in enumerate(question.turns, start=1):
            case = Case(
                bench=question.bench,
                question_id=question.id,
                category=question.category,
                turn=turn,
                repeat=repeat,
                method=spec.label,
            )
            messages.append({"role": "user", "content": text})
            try:
                result = self.engine.run(
                    prompt_ids=self.engine.encode_chat(messages),
                    method=spec,
                    max_new_tokens=self.max_new_tokens,
                )
            except AutodraftError as error:
                self._fail(RequestLine.failed(case, error), len(question.turns) - turn + 1)
                if _server_is_gone(error):
                    raise
                return
            line = RequestLine.finished(case, result)
            self.sink.append(line, result.rounds)
            self.progress.advance(line, 1)
            messages.append({"role": "assistant", "content": result.text})

    def _fail(self, line: RequestLine, requests: int) -> None:
        self.errors += 1
        self.sink.append(line, [])
        self.progress.advance(line, requests)


def _server_is_gone(error: AutodraftError) -> bool:
    # A RemoteError is an answer: the server lives and refused this one request.
    return isinstance(error, LinkError) and not isinstance(error, RemoteError)


def _rotated(methods: Sequence[MethodSpec], start: int) -> list[MethodSpec]:
    first = start % len(methods)
    return [*methods[first:], *methods[:first]]


def warm_up(engine: Engine, plan: Plan, questions: Mapping[str, Sequence[Question]]) -> None:
    """Ask every method the first questions, without recording anything.

    Raises:
        LinkError: If the server is gone. Other errors wait for the recorded run.
    """
    nowhere = _Nowhere()
    runner = _QuestionRunner(engine, plan.config.run.max_new_tokens, nowhere, nowhere)
    in_order = [question for bench in plan.benches for question in questions[bench]]
    for question in islice(cycle(in_order), plan.config.run.warmup_questions):
        for spec in plan.methods:
            runner.run(question, spec, repeat=0)


def run_plan(
    engine: Engine,
    plan: Plan,
    questions: Mapping[str, Sequence[Question]],
    sink: Sink,
    progress: Progress,
) -> Outcome:
    """Run every cell of a plan.

    Args:
        engine: A connected engine.
        plan: What to run.
        questions: The questions of each benchmark.
        sink: Keeps each request as it ends, failed ones included.
        progress: Is told of each request.

    Returns:
        How many requests failed, and what ended the run early, if anything did. Errors of a
        single request do not end it; a lost server does.
    """
    runner = _QuestionRunner(engine, plan.config.run.max_new_tokens, sink, progress)
    try:
        for bench in plan.benches:
            for repeat in range(1, plan.config.run.repeats + 1):
                for number, question in enumerate(questions[bench]):
                    for spec in _rotated(plan.methods, number + repeat - 1):
                        runner.run(question, spec, repeat)
    except LinkError as error:
        return Outcome(runner.errors, error)
    return Outcome(runner.errors, None)
