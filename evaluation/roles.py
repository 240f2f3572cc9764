"""Who takes part in a run: the engine that answers, and what a run reports to.

Interfaces only. This module knows no models, no files and no prices.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from autodraft import Sampling
from autodraft.config import MethodSpec, NetworkSetting, SloConfig
from autodraft.records import GenerationResult, RoundRecord
from autodraft.simulate import Trace
from evaluation.lines import Case, RequestLine


class LimitForecast(Protocol):
    """What is to be expected of one limit."""

    @property
    def name(self) -> str:
        """Its tag."""
        ...

    @property
    def limit(self) -> float:
        """Its value."""
        ...

    @property
    def attainable(self) -> float:
        """The best value that is to be expected, in the same unit."""
        ...

    @property
    def feasible(self) -> bool:
        """Whether that meets it."""
        ...


class Engine(Protocol):
    """What the harness needs of ``autodraft.Autodraft``."""

    def connect(self) -> None:
        """Load the draft and reach the target."""
        ...

    def use_network(self, setting: NetworkSetting) -> None:
        """Shape the link from the next message on."""
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

    def encode_text(self, text: str) -> list[int]:
        """Return a text as a prompt, without a chat template."""
        ...

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
        """Answer a prompt."""
        ...

    def forecast(self, slo: SloConfig, *, spec: MethodSpec) -> Sequence[LimitForecast]:
        """Return what is to be expected of limits."""
        ...

    def trace(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> Trace:
        """Return what the draft would have said at each place of an answer."""
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

    def advance(self, line: RequestLine) -> None:
        """Count the request that just ended as done."""
        ...

    def skip(self, requests: int) -> None:
        """Count requests as done that are not asked, because their prompt does not exist."""
        ...

    def note(self, text: str) -> None:
        """Show a line of text."""
        ...


class Watch(Protocol):
    """Who looks at the link: before a setting of it is used, and after it was lost."""

    def linked(self, network: NetworkSetting) -> None:
        """Look at a link that is shaped in a new way."""
        ...

    def relinked(self) -> None:
        """Look at a link that was lost.

        Raises:
            StoreError: If it now leads to another server than the run began with.
        """
        ...


class Tracer(Protocol):
    """Who keeps traces of the reference method's answers."""

    def wants(self, case: Case) -> bool:
        """Return whether an answer's trace is still to be made."""
        ...

    def keep(self, case: Case, trace: Trace) -> None:
        """Keep the trace of an answer."""
        ...


@dataclass(frozen=True)
class Surroundings:
    """What a run reports to.

    Attributes:
        sink: Keeps each request as it ends, failed ones included.
        progress: Is told of each request.
        watch: Looks at the link.
        done: Lines of requests that were answered earlier; these are not asked again.
        sleep: Waits so many seconds.
        tracer: Keeps traces; None makes none.
    """

    sink: Sink
    progress: Progress
    watch: Watch
    done: Mapping[Case, RequestLine] = field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep
    tracer: Tracer | None = None
