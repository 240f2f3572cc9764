"""What speculation is worth per token, and when to leave the decoding to the server.

``Worth`` tracks θ, the cost per token of the rounds as they are now (Dinkelbach's parameter, DESIGN
§5). ``HandOver`` compares it with plain decoding. Both are of one request. Knows neither trees nor
clocks: it is handed costs and the time.
"""

from typing import Final

_COST_STEP: Final = 0.25
"""Share of the newest round in the running means of cost and expected gain."""
_MEMORY: Final = 0.98
"""What is left of an earlier round's weight, round by round, in how far gains come true."""
_TRUST: Final = 1.0
_MORE_TRUST: Final = 8.0
"""Tokens that expected gains are trusted by before any came true; more for a calibrated pair."""
_PATIENCE: Final = 0.5
_MORE_PATIENCE: Final = 0.5
"""Rounds that speculation may have cost in vain before it is given up; more for such a pair."""
PROBE_SHARE: Final = 0.01
"""Most of the time that probes may cost."""
_APART: Final = 2.0
"""How much longer the wait becomes from probe to probe."""


class Worth:
    """θ: cost per token of speculation, from the rounds of one request.

    The cost of a round and the gain that its tree promises show at once, and are followed fast;
    how far promises come true needs many rounds, and is followed slowly.
    """

    def __init__(self, cost: float, gain: float, confidence: float) -> None:
        """Begin with a forecast.

        Args:
            cost: Cost of a round.
            gain: Expected accepted length of a round.
            confidence: How well the chances are known, 0 … 1.
        """
        self._cost = cost
        self._gain = gain
        self._trust = _TRUST + _MORE_TRUST * confidence
        self._promised = 0.0
        self._kept = 0.0

    @property
    def truth(self) -> float:
        """Accepted per promised token, lately."""
        return (self._kept + self._trust) / (self._promised + self._trust)

    @property
    def value(self) -> float:
        """θ: cost per token."""
        return self._cost / (1.0 + self.truth * self._gain)

    @property
    def round_cost(self) -> float:
        """Present cost of a round."""
        return self._cost

    def observe(self, cost: float, promised: float, accepted: int) -> float:
        """Take note of a round; return the tokens that it is worth, chance left out."""
        self._cost += _COST_STEP * (cost - self._cost)
        self._gain += _COST_STEP * (promised - self._gain)
        self._promised = _MEMORY * self._promised + promised
        self._kept = _MEMORY * self._kept + accepted
        return 1.0 + self.truth * promised


class HandOver:
    """When the server decodes alone, and when speculation is tried again.

    Speculation is given up when what its rounds have cost beyond plain decoding adds up to half a
    round, or to a whole one where the chances are well known. It is tried again after a wait of
    which the trial takes ``PROBE_SHARE``, and the waits grow.

    Attributes:
        alone: Whether the server is to decode alone.
    """

    def __init__(self, *, enabled: bool, alone: bool = False, confidence: float = 0.0) -> None:
        """Begin a request.

        Args:
            enabled: Whether to hand over at all.
            alone: Whether plain decoding is forecast to be cheaper.
            confidence: How well the chances are known, 0 … 1.
        """
        self._patience = _PATIENCE + _MORE_PATIENCE * confidence
        self._enabled = enabled
        self.alone = enabled and alone
        self._regret = 0.0
        self._since_s = 0.0
        self._spacing = 1.0

    def observe_round(self, cost: float, tokens: float, plain: float, round_cost: float) -> None:
        """Weigh a round of speculation against plain decoding.

        Args:
            cost: What it cost.
            tokens: What it is worth.
            plain: Cost of a token that the server decodes alone.
            round_cost: What rounds cost at present.
        """
        if not self._enabled:
            return
        self._regret = max(self._regret + cost - plain * tokens, -round_cost)
        if self._regret > self._patience * round_cost:
            self.alone = True

    def begin_alone(self, now_s: float) -> None:
        """The server begins to decode alone."""
        self._since_s = now_s

    def probe_is_due(self, now_s: float, probe_s: float, left_s: float) -> bool:
        """Tell whether speculation is to be tried again.

        Args:
            now_s: The time.
            probe_s: Seconds that a trial costs.
            left_s: Seconds of plain decoding that the answer may still take.
        """
        wait_s = self._spacing * probe_s / PROBE_SHARE
        return now_s - self._since_s >= wait_s and left_s >= wait_s

    def begin_probe(self) -> None:
        """Speculation is tried again: it is given up as before."""
        self.alone = False
        self._regret = 0.0
        self._spacing *= _APART
