"""Whether ``exact`` is worth what it costs, where a client leaves that to the server (DESIGN §4).

Below float32 it is, as long as deciding close tokens again takes less than a small part of all
verification. That depends on the pair and on what is asked, so it is counted.
"""

from typing import Final

from autodraft.engine.verifier import Effort
from autodraft.models.runner import ModelRunner

MOST_SHARE: Final = 0.03
"""Part of the time of all rounds that decisions made again may take."""
_ENOUGH_ROUNDS: Final = 50


class Exactness:
    """What ``exact`` has cost so far on one server."""

    def __init__(self) -> None:
        self._rounds = 0
        self._round_s = 0.0
        self._again_s = 0.0

    @property
    def share(self) -> float:
        """Part that decisions made again took of the time of rounds without them."""
        return self._again_s / self._round_s if self._round_s > 0 else 0.0

    def wanted(self, asked: bool | None, runner: ModelRunner) -> bool:
        """Return whether a session is exact.

        Args:
            asked: What the client says; None leaves it open.
            runner: The target: in float32 there is nothing to narrow.
        """
        if not runner.rounds_off:
            return False
        if asked is not None:
            return asked
        return self._rounds < _ENOUGH_ROUNDS or self.share <= MOST_SHARE

    def observe(self, effort: Effort) -> None:
        """Count the rounds of an exact session."""
        self._rounds += effort.rounds
        self._round_s += effort.round_s
        self._again_s += effort.again_s
