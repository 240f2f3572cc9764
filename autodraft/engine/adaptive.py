"""Method ``autodraft``: rounds whose trees pay, and a server that decodes alone where none does.

The answer is the same either way: every token that the server makes is committed, and when
speculation is tried again the draft catches up with them, as part of that round's drafting.
"""

import time
from collections.abc import Iterator, Sequence

from autodraft.engine.remote import RemoteTarget
from autodraft.engine.rounds import Progress, Rounds
from autodraft.engine.session import MethodReport
from autodraft.policy.adaptive import AdaptivePolicy
from autodraft.policy.handover import HandOver


class Adaptive:
    """Drafting at the user, adapted every round."""

    speculates = True
    on_server = False

    def __init__(
        self, label: str, rounds: Rounds, policy: AdaptivePolicy, *, handover: bool
    ) -> None:
        """Prepare.

        Args:
            label: For records.
            rounds: Drafts and verifies by the policy.
            policy: Decides the shapes.
            handover: Whether the server may decode alone.
        """
        self.label = label
        self._rounds = rounds
        self._policy = policy
        self._enabled = handover
        self._handover = HandOver(
            policy.opening, policy.trials, enabled=handover, confidence=policy.confidence
        )
        self._asked = False
        self._alone_tokens = 0
        self._last_token = 0.0

    @property
    def node_budget(self) -> int:
        """Most nodes the policy ever sends."""
        return self._rounds.node_budget

    def start(self, target: RemoteTarget, prompt: Sequence[int], max_new_tokens: int) -> float:
        """Decide who begins; let the drafter take in the prompt where that is the user."""
        policy, self._last_token = self._policy, time.perf_counter()
        policy.start(len(prompt), max_new_tokens)
        self._handover.begin(policy.opening_cost, policy.loss)
        if self._handover.alone:
            target.ask_generate()  # right behind the prompt: no round trip is lost
            self._asked = True
        return self._rounds.start(prompt, max_new_tokens, ahead=not self._handover.alone)

    def decode(self, progress: Progress, target: RemoteTarget) -> Iterator[list[int]]:
        """Yield the tokens of rounds, and those that the server makes alone."""
        self._policy.observe_beginning(self._lap(), target.prefill_s)
        while progress.finish is None or self._asked:
            if self._handover.alone:
                yield from self._decode_alone(progress, target)
            else:
                yield self._decode_round(progress, target)

    def finish(self) -> None:
        """Free what the drafter held."""
        self._handover.end()
        self._rounds.finish()

    def report(self) -> MethodReport:
        """Return what the controller did and predicted."""
        policy = self._policy
        return MethodReport(
            handed_over_tokens=self._alone_tokens if self._enabled else None,
            draft_reliability=policy.draft_reliability.bins(),
            reliability=policy.reliability.bins(),
        )

    def _lap(self) -> float:
        """Return the seconds since the tokens before, or since the request began."""
        before, self._last_token = self._last_token, time.perf_counter()
        return self._last_token - before

    def _decode_round(self, progress: Progress, target: RemoteTarget) -> list[int]:
        block, outcome = self._rounds.round(progress, target)
        self._handover.observe_round(self._policy.weigh(outcome), self._policy.transfer)
        self._lap()
        return block

    def _decode_alone(self, progress: Progress, target: RemoteTarget) -> Iterator[list[int]]:
        """Yield what the server makes until the answer ends or speculation is due for a trial."""
        if not self._asked:
            target.ask_generate()
        self._asked = False
        policy, handover = self._policy, self._handover
        stopping = on_trial = False
        for step in target.steps():
            progress.queue_s += step.queue_s
            policy.observe_plain(len(progress.context), step.forward_s, self._lap())
            block = progress.commit(step.tokens, step.scores)
            self._alone_tokens += len(block)
            yield block
            plain = policy.plain
            handover.observe_alone(plain * len(block))
            if stopping:
                continue
            on_trial = handover.probe_is_due(policy.loss, plain * progress.remaining)
            if on_trial or policy.pays_again:
                target.stop_stream()
                stopping = True
        if progress.finish is None:
            handover.begin_probe(on_trial=on_trial)
