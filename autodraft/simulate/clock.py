"""The clock and the tally of one simulated answer: what took how long, and what it adds up to.

Times pass as the real session's do: the draft's prefill beside the target's, a stream's tokens one
behind the other, a round's phases one after the other. Knows no policy and no trace.
"""

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from autodraft.cost import Powers
from autodraft.meters import ModelledMeter
from autodraft.profiling.link import LinkEstimate
from autodraft.records import RequestRecord, RoundRecord
from autodraft.simulate.devices import Devices

_TOKEN_BYTES: Final = 14
"""What a streamed token takes on the wire, about."""
_OPENING_BYTES: Final = 120
"""What opening and closing a session take each way, about."""
_ID_BYTES: Final = 3


class World(NamedTuple):
    """The machines, what they draw, and the link between them.

    Attributes:
        devices: Latency tables.
        powers: In watts.
        link: Delay and bandwidth.
    """

    devices: Devices
    powers: Powers
    link: LinkEstimate


@dataclass
class Tally:
    """What an answer has used so far.

    Attributes:
        world: Where it happens.
        now_s: Seconds since it was asked for.
        ttft_s: When its first token came.
        draft_s: Spent drafting, whoever drafts; None where nobody does.
        busy_s: Spent by the target's model.
        forwards: Of the target.
        uplink_bytes: Sent.
        downlink_bytes: Received.
        rounds: Records of the rounds.
        alone: Tokens that the server decoded alone after rounds had been possible.
    """

    world: World
    now_s: float = 0.0
    ttft_s: float = math.nan
    draft_s: float | None = None
    busy_s: float = 0.0
    forwards: int = 0
    uplink_bytes: float = 0.0
    downlink_bytes: float = 0.0
    rounds: list[RoundRecord] = field(default_factory=list)
    alone: int = 0

    def prefill(self, prompt_tokens: int, *, drafts_here: bool) -> None:
        """The target forwards the prompt, and the draft beside it where it drafts at the user."""
        devices, link = self.world.devices, self.world.link
        up = _OPENING_BYTES + _ID_BYTES * prompt_tokens
        prefill_s = devices.prefill_s(prompt_tokens)
        ready_s = link.seconds(up, _OPENING_BYTES) + prefill_s
        if drafts_here:
            self.draft_s = devices.draft.at(prompt_tokens, 0)
            ready_s = max(ready_s, self.draft_s)
        self.now_s = self.ttft_s = ready_s
        self.busy_s += prefill_s
        self.forwards += 1
        self.uplink_bytes += up
        self.downlink_bytes += _OPENING_BYTES

    def plain(self, context_tokens: int) -> float:
        """The server decodes one token and streams it; return the seconds of its forward."""
        devices = self.world.devices
        step_s = devices.target.at(1, context_tokens)
        self.now_s += step_s + devices.token_s
        self.busy_s += step_s
        self.forwards += 1
        self.downlink_bytes += _TOKEN_BYTES
        return step_s

    def wait(self, seconds: float) -> None:
        """Nobody computes."""
        self.now_s += seconds

    def verified(self, record: RoundRecord, *, on_server: bool) -> None:
        """A round is over."""
        self.now_s += record.round_s
        self.busy_s += record.verify_s + (record.draft_s if on_server else 0.0)
        self.draft_s = (self.draft_s or 0.0) + record.draft_s
        self.forwards += 1
        self.uplink_bytes += record.uplink_bytes
        self.downlink_bytes += record.downlink_bytes
        self.rounds.append(record)

    def record(
        self,
        label: str,
        prompt_tokens: int,
        output_ids: list[int],
        *,
        takes_part: bool,
        speculates: bool,
        ended: bool,
        hands_over: bool,
    ) -> RequestRecord:
        """Return the answer's record, as a real one would have it.

        Args:
            label: Of the method.
            prompt_tokens: Tokens of the prompt.
            output_ids: The answer.
            takes_part: Whether the user's device drafts.
            speculates: Whether the method decodes in rounds.
            ended: Whether the answer ended by itself.
            hands_over: Whether the method may let the server decode alone.
        """
        rounds, later = self.rounds, len(output_ids) - 1
        draft, target = self._energy(takes_part)
        return RequestRecord(
            method=label,
            prompt_tokens=prompt_tokens,
            output_tokens=len(output_ids),
            finish_reason="stop" if ended else "length",
            ttft_s=self.ttft_s,
            total_s=self.now_s,
            rounds=len(rounds) + self.alone if speculates else later,
            round_tokens=later,
            drafted_nodes=sum(each.drafted_nodes for each in rounds),
            sent_nodes=sum(each.num_nodes for each in rounds),
            accepted_tokens=sum(each.accepted_length for each in rounds),
            target_forwards=self.forwards,
            draft_s=self.draft_s if takes_part else None,
            server_draft_s=None if takes_part or not rounds else self.draft_s,
            target_busy_s=self.busy_s,
            target_held_s=self.now_s,
            queue_s=0.0,
            uplink_bytes=round(self.uplink_bytes),
            downlink_bytes=round(self.downlink_bytes),
            draft_j=draft[0],
            draft_net_j=draft[1],
            target_j=target[0],
            target_net_j=target[1],
            draft_energy_method="modelled" if takes_part else None,
            target_energy_method="modelled",
            output_ids=output_ids,
            handed_over_tokens=self.alone if hands_over else None,
        )

    def _energy(
        self, takes_part: bool
    ) -> tuple[tuple[float | None, float | None], tuple[float | None, float | None]]:
        powers = self.world.powers
        draft: tuple[float | None, float | None] = (0.0, 0.0)
        if takes_part:
            draft = _joules(
                powers.draft_watts, powers.draft_idle_watts, self.draft_s or 0.0, self.now_s
            )
        return draft, _joules(
            powers.target_watts, powers.target_idle_watts, self.busy_s, self.now_s
        )


def _joules(
    watts: float | None, idle_watts: float | None, busy_s: float, total_s: float
) -> tuple[float | None, float | None]:
    if watts is None or idle_watts is None:
        return None, None
    energy = ModelledMeter(watts, idle_watts).end(busy_s, total_s)
    return energy.gross_j, energy.net_j
