"""Run a plan: for every question all methods, interleaved, each request recorded as it ends.

All methods answer the same prompts, turn by turn: the history of a later turn holds the reference
method's answers. The methods take turns on each question, and the order rotates from question to
question, so that a slow moment of the machine or the network does not fall on one method alone.
Each method forwards its own prompt: none goes on with what another one left in the caches.
A lost link is waited for. This module knows no models, no files and no prices; it is handed an
engine and what it reports to.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, cycle, islice
from typing import Final, NamedTuple

from autodraft import Sampling
from autodraft.config import MethodSpec, NetworkSetting
from autodraft.errors import (
    AuthError,
    AutodraftError,
    LinkError,
    ProtocolError,
    RemoteError,
    StoreError,
)
from autodraft.records import GenerationResult, RoundRecord
from evaluation.datasets import Question
from evaluation.lines import Case, RequestLine, hash_prompt
from evaluation.plan import Condition, Draw, Plan, Questions
from evaluation.roles import Engine, Surroundings

_BUSY: Final = "BUSY"  # the server's code for: full at the moment, come back
_FIRST_DELAY_S: Final = 0.5
_LONGEST_DELAY_S: Final = 30.0


@dataclass
class _Retry:
    """Waits for a lost link, longer from attempt to attempt."""

    limit: int
    around: Surroundings

    def again(self, error: AutodraftError, attempt: int) -> bool:
        """Wait and return True where the attempt, counted from 1, should be made again."""
        if not _is_passing(error) or attempt > self.limit:
            return False
        delay_s = min(_FIRST_DELAY_S * 2 ** (attempt - 1), _LONGEST_DELAY_S)
        what = "server busy" if isinstance(error, RemoteError) else "link lost"
        self.around.progress.note(
            f"{what}, trying again in {delay_s:g} s (attempt {attempt + 1} of {self.limit + 1}): "
            f"{error}"
        )
        self.around.sleep(delay_s)
        return True


def _is_passing(error: AutodraftError) -> bool:
    """Return whether an error may be gone in a moment."""
    if isinstance(error, RemoteError):
        return error.code == _BUSY
    return isinstance(error, LinkError) and not isinstance(error, AuthError | ProtocolError)


def _ends_run(error: AutodraftError) -> bool:
    # Any other RemoteError is an answer: the server lives and refused this one request.
    return isinstance(error, LinkError) and (
        not isinstance(error, RemoteError) or error.code == _BUSY
    )


@dataclass
class _Prompt:
    """The prompt of one turn, the same ids for every method; encoded when first asked for."""

    encode: Callable[[], list[int]]
    recorded: set[str]
    where: str
    hash: str | None = None
    _ids: tuple[int, ...] = ()

    def ids(self) -> tuple[int, ...]:
        """Return the token ids.

        Raises:
            StoreError: If an earlier session sent others for this turn.
        """
        if self.hash is None:
            ids = tuple(self.encode())
            found = hash_prompt(ids)
            if self.recorded - {found}:
                raise StoreError(
                    f"{self.where}: the prompt is not the one that this run sent before (hash "
                    f"{found} now, {', '.join(sorted(self.recorded))} in requests.jsonl), so the "
                    "tokenizer or its chat template has changed. Begin anew with --fresh."
                )
            self._ids, self.hash = ids, found
        return self._ids


class _Wanted(NamedTuple):
    """One request: its name, and all that the engine is told."""

    case: Case
    spec: MethodSpec
    prompt: _Prompt
    stop: Sequence[str]
    sampling: Sampling


class _Asker:
    """Asks questions of one condition."""

    def __init__(
        self, engine: Engine, plan: Plan, condition: Condition, around: Surroundings
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._retry = _Retry(plan.config.run.retries, around)
        self._condition = condition
        self._around = around

    def ask(self, question: Question, draw: Draw, first: int) -> None:
        """Ask all methods one question, turn by turn, beginning with method number ``first``.

        After a turn that the reference failed the later ones are left out for all: their prompt
        does not exist.

        Raises:
            LinkError: If the server is gone; the failed request is recorded first.
            StoreError: If the run cannot go on being one run, or cannot be written.
        """
        messages: list[dict[str, str]] = []
        for turn, text in enumerate(question.turns, start=1):
            messages.append({"role": "user", "content": text})
            answer = self._turn(question, turn, draw, first, messages)
            if answer is None:
                later = self._condition.cases(question, draw, first_turn=turn + 1)
                self._around.progress.skip(sum(case not in self._around.done for case in later))
                return
            messages.append({"role": "assistant", "content": answer})

    def _turn(
        self,
        question: Question,
        turn: int,
        draw: Draw,
        first: int,
        messages: Sequence[Mapping[str, str]],
    ) -> str | None:
        """Ask one turn where it is not answered yet; return the reference's answer, if any."""
        condition, done = self._condition, self._around.done
        cases = {
            spec.label: condition.case(question, turn, draw, spec.label)
            for spec in condition.methods
        }
        lines = {label: done[case] for label, case in cases.items() if case in done}
        prompt = _Prompt(
            lambda: self._encode(question, messages),
            {line.prompt_hash for line in lines.values() if line.prompt_hash is not None},
            f"{condition.bench} {question.id} turn {turn}",
        )
        sampling = self._plan.sampling(condition, draw)
        for spec in _rotated(condition.methods, first):
            if spec.label not in lines:
                wanted = _Wanted(cases[spec.label], spec, prompt, question.stop, sampling)
                lines[spec.label] = self._request(wanted)
        reference = lines[condition.reference]
        self._trace(reference, prompt)
        return reference.text

    def _trace(self, line: RequestLine, prompt: _Prompt) -> None:
        """Have an answer traced, between requests, where its trace is wanted."""
        tracer = self._around.tracer
        if tracer is not None and line.record is not None and tracer.wants(line.case):
            trace = self._engine.trace(prompt.ids(), line.record.output_ids)
            tracer.keep(line.case, trace)

    def _encode(self, question: Question, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if question.form == "completion":
            return self._engine.encode_text(question.turns[0])
        return self._engine.encode_chat(messages)

    def _request(self, wanted: _Wanted) -> RequestLine:
        """Send one request, again after a lost link, and record how it ended."""
        case, prompt = wanted.case, wanted.prompt
        for attempt in count(1):
            try:
                if attempt > 1:
                    self._around.watch.relinked()
                result = self._answer(wanted)
            except StoreError:
                raise
            except AutodraftError as error:
                if self._retry.again(error, attempt):
                    continue
                line = RequestLine.failed(case, error, attempts=attempt, prompt_hash=prompt.hash)
                self._keep(line, [])
                if _ends_run(error):
                    raise
                return line
            line = RequestLine.finished(case, result, attempts=attempt, prompt_hash=prompt.hash)
            self._keep(line, result.rounds)
            return line
        raise AssertionError("unreachable: the count does not end")

    def _answer(self, wanted: _Wanted) -> GenerationResult:
        config = self._plan.config
        return self._engine.run(
            prompt_ids=wanted.prompt.ids(),
            method=wanted.spec,
            max_new_tokens=config.run.max_new_tokens,
            stop=wanted.stop,
            sampling=wanted.sampling,
            exact=config.algorithms.exact,
            top_logprobs=0,  # no alternatives, but with every token how close the second best was
            reuse_prefix=False,
        )

    def _keep(self, line: RequestLine, rounds: Sequence[RoundRecord]) -> None:
        self._around.sink.append(line, rounds)
        self._around.progress.advance(line)


def _rotated(methods: Sequence[MethodSpec], start: int) -> list[MethodSpec]:
    first = start % len(methods)
    return [*methods[first:], *methods[:first]]


class _Nowhere:
    """Sink of the warm-up, and the part of its progress that is not shown."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note

    def append(self, line: RequestLine, rounds: Sequence[RoundRecord]) -> None:
        pass

    def advance(self, line: RequestLine) -> None:
        pass

    def skip(self, requests: int) -> None:
        pass


def warm_up(
    engine: Engine,
    plan: Plan,
    condition: Condition,
    questions: Sequence[Question],
    around: Surroundings,
) -> None:
    """Ask every method the first questions, at full length, without recording anything.

    Raises:
        LinkError: If the server is gone. Other errors wait for the recorded run.
    """
    wanted = plan.config.run.warmup_questions
    if not wanted:
        return
    around.progress.note(f"Warming up ({condition.network.label}) …")
    nowhere = _Nowhere(around.progress.note)
    unrecorded = Surroundings(nowhere, nowhere, around.watch, sleep=around.sleep)
    asker = _Asker(engine, plan, condition, unrecorded)
    for question in islice(cycle(questions), wanted):
        asker.ask(question, Draw(repeat=0), first=0)


def run_plan(
    engine: Engine, plan: Plan, questions: Questions, around: Surroundings
) -> LinkError | None:
    """Ask everything that a plan still has to ask.

    Args:
        engine: A connected engine.
        plan: What to run.
        questions: The questions of each benchmark.
        around: What the run reports to, and what is done already.

    Returns:
        What ended the run early, if anything did. An error of a single request does not; a server
        that stays away does.

    Raises:
        StoreError: If the run cannot go on being one run, or cannot be written.
    """
    warm: set[NetworkSetting] = set()
    try:
        for condition in plan.conditions:
            pending = questions[condition.bench]
            if _is_done(condition, pending, plan, around):
                continue
            engine.use_network(condition.network)
            if condition.network not in warm:
                warm.add(condition.network)
                _begin(engine, plan, condition, pending, around)
            asker = _Asker(engine, plan, condition, around)
            for begun, draw in enumerate(plan.draws):
                for number, question in enumerate(pending):
                    asker.ask(question, draw, first=number + begun)
    except LinkError as error:
        return error
    return None


def _is_done(
    condition: Condition, questions: Sequence[Question], plan: Plan, around: Surroundings
) -> bool:
    return all(
        case in around.done
        for draw in plan.draws
        for question in questions
        for case in condition.cases(question, draw)
    )


def _begin(
    engine: Engine,
    plan: Plan,
    condition: Condition,
    questions: Sequence[Question],
    around: Surroundings,
) -> None:
    """Look at a link that is new to this session, and warm up over it."""
    retry = _Retry(plan.config.run.retries, around)
    for attempt in count(1):
        try:
            around.watch.linked(condition.network)
            break
        except LinkError as error:
            if not retry.again(error, attempt):
                raise
    warm_up(engine, plan, condition, questions, around)
