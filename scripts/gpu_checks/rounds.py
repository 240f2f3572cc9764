"""Rounds over loopback: draft here, target in a server process of its own, acceptance replayed.

Everything is the library's: the round loop and the drafter, the link, the server's door and its
model thread. Only the logits along one path of each tree are the trace's business (``replay``).
``server_only`` of the same target is measured in turn with the trees.
"""

import asyncio
import contextlib
import multiprocessing as mp
import secrets
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final, cast

import numpy as np
import torch

from autodraft.config import ServerConfig
from autodraft.decoding.stopping import StopRules
from autodraft.engine.drafter import Drafter
from autodraft.engine.remote import RemoteTarget, TargetWish
from autodraft.engine.rounds import Meters, Rounds
from autodraft.engine.service import TargetService
from autodraft.engine.session import Method, Request, Speculative
from autodraft.engine.streamed import ServerOnly
from autodraft.models.loader import LoadedModel, ModelSource
from autodraft.models.runner import ModelRunner
from autodraft.models.tokenizer import Tokenizer
from autodraft.records import RequestRecord, RoundRecord
from autodraft.transport.client import Link
from gpu_checks.budget import Part
from gpu_checks.models import NoTokenizer, random_model
from gpu_checks.replay import ReplayingRunner, TreeShape, load_trace
from gpu_checks.shapes import CannotCheck, Shape

HOST: Final = "127.0.0.1"
START_TIMEOUT_S: Final = 150.0
STOP_TIMEOUT_S: Final = 10.0
WARM_UP_TOKENS: Final = 8


@dataclass(frozen=True)
class Plan:
    """How long the answers are.

    Attributes:
        prompt_tokens: Tokens of each prompt.
        answer_tokens: Tokens of each answer.
        turns: Answers of each kind, if time allows.
    """

    prompt_tokens: int
    answer_tokens: int
    turns: int


PLAN: Final = Plan(512, 64, 4)
TINY_PLAN: Final = Plan(16, 24, 1)


@dataclass(frozen=True)
class TargetModel:
    """The target that the server process builds."""

    shape: Shape
    device: str
    dtype: torch.dtype
    seed: int


class _Loader:
    """Stands in for ``load_model``, and keeps hold of the runner to replay with."""

    def __init__(self, target: TargetModel) -> None:
        self._target = target
        self.runner: ReplayingRunner | None = None

    def __call__(self, source: ModelSource) -> LoadedModel:
        wanted = self._target
        model = random_model(wanted.shape, torch.device(wanted.device), wanted.dtype, wanted.seed)
        self.runner = ReplayingRunner(model, wanted.shape.name)
        return LoadedModel(source, self.runner, cast(Tokenizer, NoTokenizer()), "")


async def _serve(channel: Connection, target: TargetModel) -> None:
    loader = _Loader(target)
    config = ServerConfig(host=HOST, port=0, base_model_path=target.shape.name, lazy_load=False)
    token = channel.recv()
    service = TargetService(config, token, loader)
    channel.send(await service.start())
    wait = asyncio.get_running_loop().run_in_executor
    with contextlib.suppress(EOFError):  # the check is gone
        while (lengths := await wait(None, channel.recv)) is not None:
            assert loader.runner is not None, "an eager server has loaded its model"
            loader.runner.replay(lengths)
            channel.send(len(lengths))
    await service.stop()


def serve(channel: Connection, target: TargetModel) -> None:
    """Be the server process until the channel says stop; a failure goes there in words."""
    try:
        asyncio.run(_serve(channel, target))
    except (OSError, RuntimeError, ValueError) as error:
        with contextlib.suppress(OSError):
            channel.send(f"{type(error).__name__}: {error}")


class Server:
    """The server process, as the check sees it.

    Attributes:
        port: Where it listens.
        token: Its access token.
    """

    def __init__(self, channel: Connection, token: str, port: int) -> None:
        self.port = port
        self.token = token
        self._channel = channel

    def replay(self, lengths: Sequence[int]) -> None:
        """Let the next trees be accepted so deep."""
        self._channel.send(list(lengths))
        self._channel.recv()


@contextlib.contextmanager
def server(target: TargetModel) -> Iterator[Server]:
    """Run the target's server in a process of its own, with a CUDA context of its own.

    Raises:
        CannotCheck: If it does not come up.
    """
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, target), daemon=True)
    process.start()
    theirs.close()
    try:
        token = secrets.token_urlsafe()
        ours.send(token)
        yield Server(ours, token, _port(ours))
    finally:
        with contextlib.suppress(OSError):  # it has ended by itself
            ours.send(None)
        process.join(STOP_TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()


def _port(channel: Connection) -> int:
    try:
        answer = channel.recv() if channel.poll(START_TIMEOUT_S) else "it did not answer in time"
    except EOFError:
        answer = "it ended without a word"
    if isinstance(answer, int):
        return answer
    raise CannotCheck(f"The target's server process did not start: {answer}.")


@dataclass
class Answers:
    """The answers of one kind.

    Attributes:
        requests: Their records.
        rounds: Records of their rounds.
        shorter: Rounds whose tree was not as deep as the length to be accepted.
    """

    requests: list[RequestRecord] = field(default_factory=list)
    rounds: list[RoundRecord] = field(default_factory=list)
    shorter: int = 0

    def add(self, request: Request, lengths: Sequence[int]) -> None:
        """Add an answer whose trees were to be accepted as deep as ``lengths`` says."""
        self.requests.append(request.record)
        self.rounds += request.rounds
        self.shorter += sum(
            record.accepted_length != length
            for record, length in zip(request.rounds, lengths, strict=False)
        )

    @property
    def tokens_per_s(self) -> float | None:
        """Median over answers of tokens per second behind the first token."""
        rates = [record.round_tokens / (record.total_s - record.ttft_s) for record in self.requests]
        return statistics.median(rates) if rates else None

    def as_dict(self) -> dict[str, Any]:
        """Return where a round's time goes, medians in ms, for JSON."""
        rounds = self.rounds
        links = [r.wait_s - r.queue_s - r.verify_s for r in rounds]
        return {
            "answers": len(self.requests),
            "rounds": len(rounds),
            "mean_accepted_tokens": _mean([r.emitted_tokens for r in rounds]),
            "mean_nodes": _mean([r.num_nodes for r in rounds]),
            "mean_depth": _mean([r.depth for r in rounds]),
            "shorter_trees": self.shorter,
            "round_ms": _median_ms([r.round_s for r in rounds]),
            "draft_ms": _median_ms([r.draft_s for r in rounds]),
            "wait_ms": _median_ms([r.wait_s for r in rounds]),
            "verify_ms": _median_ms([r.verify_s for r in rounds]),
            "queue_ms": _median_ms([r.queue_s for r in rounds]),
            "link_ms": _median_ms(links),
            "rest_ms": _median_ms([r.round_s - r.draft_s - r.wait_s for r in rounds]),
            "tokens_per_s": _rounded(self.tokens_per_s),
        }


def _mean(values: Sequence[int]) -> float | None:
    return round(statistics.fmean(values), 3) if values else None


def _median_ms(seconds: Sequence[float]) -> float | None:
    return round(statistics.median(seconds) * 1e3, 4) if seconds else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


class Rehearsal:
    """Plain answers and answers in rounds, in turn, over one link."""

    def __init__(self, running: Server, link: Link, draft: ModelRunner, plan: Plan) -> None:
        self._server = running
        self._target = RemoteTarget(link, TargetWish("autodraft"))
        self._draft = draft
        self._plan = plan
        rng = np.random.default_rng(0)
        self._prompt: list[int] = rng.integers(0, draft.vocab_size, plan.prompt_tokens).tolist()

    def warm_up(self, shape: TreeShape, lengths: Sequence[int]) -> None:
        """Decode a few tokens each way."""
        self.plain(WARM_UP_TOKENS)
        self.speculate(shape, lengths, WARM_UP_TOKENS)

    def plain(self, tokens: int | None = None) -> Request:
        """Let the server decode an answer alone, of the plan's length or another."""
        return self._answer(ServerOnly("server_only"), tokens)

    def speculate(
        self, shape: TreeShape, lengths: Sequence[int], tokens: int | None = None
    ) -> Request:
        """Decode an answer in rounds; the trees are accepted as deep as ``lengths`` says."""
        self._server.replay(lengths)
        drafter = Drafter(self._draft)
        return self._answer(Speculative(shape.method, Rounds(shape.policy(), drafter)), tokens)

    def _answer(self, method: Method, tokens: int | None) -> Request:
        rules = StopRules(frozenset(), tokens or self._plan.answer_tokens)
        request = Request(self._target, method, self._prompt, rules, Meters())
        for _ in request:
            pass
        return request


def take(lengths: Sequence[int], turn: int, count: int) -> list[int]:
    """Return the next ``count`` lengths of a trace for a turn, going round at its end."""
    return [lengths[(turn * count + place) % len(lengths)] for place in range(count)]


class Outcome:
    """What came of the rounds so far: plain answers, and those of each tree shape."""

    def __init__(self, plan: Plan) -> None:
        """Begin with nothing, and the trace to replay."""
        self._plan = plan
        self._trace = load_trace()
        self._plain = Answers()
        self._trees = {shape: Answers() for shape in self._trace.accepted}

    def measure(self, target: TargetModel, draft: ModelRunner, part: Part) -> None:
        """Run the server and all turns that there is time for.

        Raises:
            CannotCheck: If the server does not start, or not one answer was in time.
        """
        turns = self._plan.turns
        with server(target) as running, Link(HOST, running.port, running.token) as link:
            rehearsal = Rehearsal(running, link, draft, self._plan)
            for shape, lengths in self._trace.accepted.items():
                rehearsal.warm_up(shape, lengths)
            for turn in range(turns):
                if not self._turn(rehearsal, turn, part):
                    part.drop(f"rounds: {turns - turn} of {turns} turns, the first in part")
                    break
        if not self._plain.requests:
            raise CannotCheck("No time was left for an answer after the warm-up; raise --minutes.")

    def _turn(self, rehearsal: Rehearsal, turn: int, part: Part) -> bool:
        """Run an answer of each kind; return whether there was time for all of them."""
        if part.left_s <= 0:
            return False
        self._plain.requests.append(rehearsal.plain().record)
        for shape, answers in self._trees.items():
            if part.left_s <= 0:
                return False
            lengths = take(self._trace.accepted[shape], turn, self._plan.answer_tokens)
            answers.add(rehearsal.speculate(shape, lengths), lengths)
        return True

    def as_dict(self) -> dict[str, Any]:
        """Return the part of the report."""
        base = self._plain.tokens_per_s
        shapes = []
        for shape, answers in self._trees.items():
            rate = answers.tokens_per_s
            ratio = rate / base if rate and base else None
            times = {"times_server_only": _rounded(ratio)}
            shapes.append({**shape.as_dict(), **answers.as_dict(), **times})
        return {
            "acceptance": "replayed",
            "trace": self._trace.source,
            "mode": "eager",
            "prompt_tokens": self._plan.prompt_tokens,
            "answer_tokens": self._plan.answer_tokens,
            "server_only_tokens_per_s": _rounded(base),
            "shapes": shapes,
        }
