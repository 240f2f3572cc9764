"""Methods whose answer the server makes alone and streams: plain decoding, and co-located drafting.

The user's device asks once, behind the prompt, and takes no further part.
"""

import time
from collections.abc import Iterator, Sequence

from autodraft.config import MethodSpec
from autodraft.engine.remote import RemoteTarget, ServerRound
from autodraft.engine.rounds import Progress, Traffic, round_joules
from autodraft.engine.session import NO_REPORT, MethodReport
from autodraft.records import RoundRecord


class ServerOnly:
    """Plain decoding on the server: the baseline of every comparison."""

    node_budget = 0
    speculates = False
    on_server = False

    def __init__(self, label: str) -> None:
        self.label = label

    def start(self, target: RemoteTarget, prompt: Sequence[int], max_new_tokens: int) -> None:
        """Ask for the stream; there is nothing to prepare."""
        target.ask_generate()

    def decode(self, progress: Progress, target: RemoteTarget) -> Iterator[list[int]]:
        """Yield the server's stream."""
        for step in target.steps():
            progress.queue_s += step.queue_s
            yield progress.commit(step.tokens, step.scores)

    def finish(self) -> None:
        """Nothing is held."""

    def report(self) -> MethodReport:
        """Nothing that the stream does not say."""
        return NO_REPORT


class Colocated:
    """Drafting and verifying on the server, which runs the same rounds in place."""

    speculates = True
    on_server = True

    def __init__(self, spec: MethodSpec) -> None:
        self.label = spec.label
        self.node_budget = spec.node_budget
        self._spec = spec

    def start(self, target: RemoteTarget, prompt: Sequence[int], max_new_tokens: int) -> None:
        """Ask for the stream; there is nothing to prepare."""
        target.ask_speculate(self._spec)

    def decode(self, progress: Progress, target: RemoteTarget) -> Iterator[list[int]]:
        """Yield the tokens of the server's rounds."""
        before, started = target.traffic, time.perf_counter()
        for done in target.rounds():
            context_tokens = len(progress.context)
            block = progress.commit(done.tokens, done.scores)
            ended, after = time.perf_counter(), target.traffic
            traffic = after.since(before)
            _record(progress, done, ended - started, traffic, context_tokens, len(block))
            before, started = after, ended
            yield block

    def finish(self) -> None:
        """Nothing is held."""

    def report(self) -> MethodReport:
        """Nothing that the stream does not say."""
        return NO_REPORT


def _record(
    progress: Progress,
    done: ServerRound,
    round_s: float,
    traffic: Traffic,
    context_tokens: int,
    emitted: int,
) -> None:
    progress.queue_s += done.queue_s
    progress.rounds.append(
        RoundRecord(
            round=len(progress.rounds) + 1,
            context_tokens=context_tokens,
            width=done.width,
            depth=done.depth,
            drafted_nodes=done.drafted_nodes,
            num_nodes=done.num_nodes,
            accepted_length=done.accepted,
            emitted_tokens=emitted,
            draft_s=done.draft_s,
            wait_s=round_s,
            queue_s=done.queue_s,
            verify_s=done.verify_s,
            round_s=round_s,
            uplink_bytes=traffic.uplink_bytes,
            downlink_bytes=traffic.downlink_bytes,
            draft_j=0.0,
            target_j=round_joules(progress.meters.target, done.draft_s + done.verify_s, round_s),
        )
    )
