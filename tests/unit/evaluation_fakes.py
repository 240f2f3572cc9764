"""A fake engine and hand-made records for the harness's tests. Figures are easy on purpose."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from autodraft import Sampling
from autodraft.config import (
    ExperimentConfig,
    MethodSpec,
    ModelsConfig,
    NetworkSetting,
    SloConfig,
)
from autodraft.errors import AutodraftError
from autodraft.policy.limits import Forecast
from autodraft.records import GenerationResult, RequestRecord, RoundRecord
from autodraft.simulate import Trace
from evaluation.lines import Case, RequestLine

Messages = list[dict[str, str]]
Failure = Callable[[str, Messages], AutodraftError | None]

MODELS = ModelsConfig(
    base_model_path="embedded:smollm2-135m-instruct", draft_model_path="embedded:smollm2-draft"
)

ROUND = RoundRecord(
    round=1,
    context_tokens=20,
    width=1,
    depth=4,
    drafted_nodes=4,
    num_nodes=4,
    accepted_length=4,
    emitted_tokens=5,
    draft_s=0.5,
    wait_s=0.5,
    queue_s=0.0,
    verify_s=0.4,
    round_s=1.0,
    uplink_bytes=50,
    downlink_bytes=20,
)


def make_record(method: str = "chain", **changes: Any) -> RequestRecord:
    """Return a record: 10 tokens in 2 s, the target busy for half of that."""
    fields: dict[str, Any] = {
        "method": method,
        "prompt_tokens": 20,
        "output_tokens": 10,
        "finish_reason": "length",
        "ttft_s": 0.2,
        "total_s": 2.0,
        "rounds": 3,
        "round_tokens": 9,
        "drafted_nodes": 12,
        "sent_nodes": 12,
        "accepted_tokens": 6,
        "target_forwards": 4,
        "draft_s": 0.6,
        "server_draft_s": None,
        "target_busy_s": 1.0,
        "target_held_s": 2.5,
        "queue_s": 0.0,
        "uplink_bytes": 1000,
        "downlink_bytes": 500,
        "draft_j": 36.0,
        "draft_net_j": 6.0,
        "target_j": 90.0,
        "target_net_j": 50.0,
        "draft_energy_method": "modelled",
        "target_energy_method": "modelled",
        "output_ids": list(range(10)),
    }
    return RequestRecord(**(fields | changes))


def make_line(
    method: str = "chain", question_id: int = 1, turn: int = 1, **changes: Any
) -> RequestLine:
    """Return the line of a finished request."""
    return RequestLine(
        case=make_case(method, question_id, turn),
        status="ok",
        text="An answer.",
        record=make_record(method, **changes),
    )


def make_case(method: str = "chain", question_id: int = 1, turn: int = 1) -> Case:
    """Return a case of benchmark ``quick``."""
    return Case(
        bench="quick",
        question_id=question_id,
        category="chat",
        turn=turn,
        repeat=1,
        method=method,
    )


def make_config(**blocks: Mapping[str, Any]) -> ExperimentConfig:
    """Return a configuration: four methods on ``quick``, no warm-up, unless told otherwise."""
    settings: dict[str, dict[str, Any]] = {
        "algorithms": {"method_names": ("server_only", "chain", "fixed_tree", "opt_tree")},
        "dataset": {"benches": ("quick",)},
        "run": {"warmup_questions": 0},
    }
    for block, fields in blocks.items():
        settings[block] = settings.get(block, {}) | dict(fields)
    return ExperimentConfig(models=MODELS, **settings)


class FakeEngine:
    """Answers ``<method> to <last message>`` with 10 tokens; remembers what it was asked."""

    def __init__(self, failure: Failure = lambda _method, _messages: None) -> None:
        self.asked: list[tuple[str, Messages]] = []
        self.prompts: list[tuple[int, ...]] = []
        self.methods: list[MethodSpec] = []
        self.stops: list[tuple[str, ...]] = []
        self.samplings: list[Sampling] = []
        self.wishes: set[tuple[bool | None, int | None, bool]] = set()
        self.events: list[str] = []
        self.encoded = 0
        self.max_new_tokens: set[int] = set()
        self.described: dict[str, Any] = {
            "target": {"model": "fake", "revision": "1", "device": "a CPU"},
            "draft": {"model": "fake draft", "device": "a CPU"},
        }
        self.traced: list[tuple[int, ...]] = []
        self.forecasts: list[tuple[str, SloConfig]] = []
        self._failure = failure

    def connect(self) -> None:
        self.events.append("connect")

    def use_network(self, setting: NetworkSetting) -> None:
        self.events.append(setting.label)

    def measure_rtt(self) -> float:
        return 0.012

    def describe(self) -> dict[str, Any]:
        return self.described

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        self.encoded += 1
        return [ord(letter) for letter in json.dumps([dict(message) for message in messages])]

    def encode_text(self, text: str) -> list[int]:
        return self.encode_chat([{"role": "text", "content": text}])

    def run(
        self,
        *,
        prompt_ids: Sequence[int],
        method: MethodSpec,
        max_new_tokens: int,
        stop: Sequence[str],
        sampling: Sampling,
        exact: bool | None,
        top_logprobs: int | None,
        reuse_prefix: bool,
    ) -> GenerationResult:
        messages = json.loads("".join(map(chr, prompt_ids)))
        self.asked.append((method.label, messages))
        self.prompts.append(tuple(prompt_ids))
        self.methods.append(method)
        self.stops.append(tuple(stop))
        self.samplings.append(sampling)
        self.wishes.add((exact, top_logprobs, reuse_prefix))
        self.max_new_tokens.add(max_new_tokens)
        if (error := self._failure(method.label, messages)) is not None:
            raise error
        record = make_record(method.name)
        return GenerationResult(
            text=f"{method.label} to {messages[-1]['content']}",
            token_ids=record.output_ids,
            finish_reason=record.finish_reason,
            request=record,
            rounds=[ROUND, msgspec.structs.replace(ROUND, round=2)],
        )

    def forecast(self, slo: SloConfig, *, spec: MethodSpec) -> list[Forecast]:
        self.forecasts.append((spec.label, slo))
        limit = slo.min_tokens_per_s
        assert limit is not None, "the only limit that this engine knows"
        return [Forecast("MIN_TOKENS_PER_S", limit, 30.0, limit <= 30)]

    def trace(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Trace:
        self.traced.append(tuple(prompt_ids))
        return Trace(
            prompt_ids=list(prompt_ids),
            output_ids=list(output_ids),
            tokens=[[token, token + 1] for token in output_ids],
            log_probs=[[-0.1, -3.0]] * len(output_ids),
            target="fake",
            draft="fake draft",
        )

    def close(self) -> None:
        self.events.append("close")


class ListSink:
    """Keeps the lines it is given."""

    def __init__(self) -> None:
        self.lines: list[RequestLine] = []
        self.rounds: list[RoundRecord] = []

    def append(self, line: RequestLine, rounds: Sequence[RoundRecord]) -> None:
        self.lines.append(line)
        self.rounds.extend(rounds)


class CountingProgress:
    """Counts the requests that are done, and keeps the notes."""

    def __init__(self) -> None:
        self.done = 0
        self.notes: list[str] = []

    def advance(self, line: RequestLine) -> None:
        self.done += 1

    def skip(self, requests: int) -> None:
        self.done += requests

    def note(self, text: str) -> None:
        self.notes.append(text)


class Watcher:
    """Remembers what it was told of the link."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def linked(self, network: NetworkSetting) -> None:
        self.seen.append(network.label)

    def relinked(self) -> None:
        self.seen.append("again")
