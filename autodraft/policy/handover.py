"""What speculation is worth per token, and when to leave the decoding to the server.

``Worth`` tracks θ, the cost per token of the rounds as they are now (Dinkelbach's parameter, DESIGN
§5). ``HandOver`` compares it with plain decoding. Both are of one request. Knows neither trees nor
clocks: it is handed costs.
"""

from typing import Final, NamedTuple

from autodraft.policy.opening import TRIAL_SHARE, Opening, Trials

COST_STEP: Final = 0.25
"""Share of the newest round in the running means of cost and expected gain."""
_MEMORY: Final = 0.98
"""What is left of an earlier round's weight, round by round, in how far gains come true."""
_TRUST: Final = 1.0
_MORE_TRUST: Final = 8.0
"""Tokens that expected gains are trusted by before any came true; more for a calibrated pair."""
_PATIENCE: Final = 0.5
_MORE_PATIENCE: Final = 0.5
"""Rounds that speculation may have cost in vain before it is given up; more for such a pair."""
_BAD_LUCK: Final = 2.0
"""Rounds that it may have cost by the tokens that came, where better ones were expected."""


class Weighed(NamedTuple):
    """A round in the blend's unit.

    Attributes:
        cost: What it cost.
        worth: Tokens that it is worth, chance left out.
        tokens: Tokens that it made.
        plain: What a token costs at present where the server decodes alone.
        usual: What a round costs at present.
    """

    cost: float
    worth: float
    tokens: int
    plain: float
    usual: float


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

    def reprice(self, cost: float) -> None:
        """Take what a usual round costs by weights that have moved."""
        self._cost = cost

    def observe(self, cost: float, promised: float, accepted: int) -> float:
        """Take note of a round; return the tokens that it is worth, chance left out."""
        self._cost += COST_STEP * (cost - self._cost)
        self._gain += COST_STEP * (promised - self._gain)
        self._promised = _MEMORY * self._promised + promised
        self._kept = _MEMORY * self._kept + accepted
        return 1.0 + self.truth * promised


def patience(confidence: float) -> float:
    """Return the rounds that may be lost before speculation is given up.

    Args:
        confidence: How well the chances are known, 0 … 1.
    """
    return _PATIENCE + _MORE_PATIENCE * confidence


class HandOver:
    """When the server decodes alone, and when speculation is tried again.

    Speculation is given up when what its rounds have cost beyond plain decoding adds up to half a
    round, or to a whole one where the chances are well known: by the tokens that they are worth,
    chance left out. By those that came two rounds may be lost, but no more than on expectation
    where rounds are on trial. It is tried again, and begun with where it is not expected to pay, as
    often as ``Trials`` allows.

    Attributes:
        alone: Whether the server is to decode alone.
    """

    def __init__(
        self, opening: Opening, trials: Trials, *, enabled: bool, confidence: float = 0.0
    ) -> None:
        """Prepare for a request.

        Args:
            opening: What the pair's answers have learned.
            trials: What may be tried at this blend.
            enabled: Whether to hand over at all.
            confidence: How well the chances are known, 0 … 1.
        """
        self._opening = opening
        self._trials = trials
        self._enabled = enabled
        self._patience = patience(confidence)
        self.alone = False
        self._on_trial = False
        self._opened = True
        self._regret = 0.0
        self._misfortune = 0.0
        self._excess = 0.0
        self._lost = 0.0
        self._plain_cost = 0.0
        self._forecast = 1.0

    def begin(self, forecast: float, loss: float) -> None:
        """Decide who begins.

        Args:
            forecast: What an answer costs that begins with rounds, in parts of plain decoding.
            loss: What may be lost until rounds are given up.
        """
        self._forecast = forecast
        if not self._enabled or self._opening.pays(forecast):
            return
        self._on_trial = self._trials.due(loss)
        self.alone = not self._on_trial
        self._opened = self._on_trial

    def observe_round(self, weighed: Weighed, transfer: float) -> None:
        """Weigh a round of speculation against plain decoding.

        Args:
            weighed: The round.
            transfer: What handing over costs.
        """
        plain, usual = weighed.plain, weighed.usual
        excess = weighed.cost - plain * weighed.tokens
        self._plain_cost += plain * weighed.tokens
        self._excess += excess
        self._regret = max(self._regret + weighed.cost - plain * weighed.worth, -usual)
        self._misfortune = max(self._misfortune + excess, -_BAD_LUCK * usual)
        luck = self._patience if self._on_trial else _BAD_LUCK
        if self._enabled and (
            self._regret > self._patience * usual or self._misfortune > luck * usual
        ):
            self._excess += transfer
            self._end_stretch()
            self.alone = True

    def observe_alone(self, cost: float) -> None:
        """The server has decoded at this cost."""
        self._plain_cost += cost
        self._trials.pay_in(cost)

    def probe_is_due(self, loss: float, left: float) -> bool:
        """Tell whether speculation is to be tried again.

        Args:
            loss: What that may cost in vain.
            left: What plain decoding of the rest of the answer may cost.
        """
        return self._trials.due(loss) and TRIAL_SHARE * left >= loss

    def begin_probe(self, *, on_trial: bool = True) -> None:
        """Speculation is tried again: it is given up as before.

        Args:
            on_trial: Whether the purse pays; else rounds are expected to pay for themselves.
        """
        self.alone = False
        self._on_trial = on_trial
        self._regret = self._misfortune = 0.0

    def end(self) -> None:
        """The answer has ended: remember what rounds have cost or saved."""
        if not self.alone:
            self._end_stretch()
        if self._enabled and self._opened and self._plain_cost:
            self._opening.learn(1.0 + self._lost / self._plain_cost, self._forecast)

    def _end_stretch(self) -> None:
        """Rounds end here, for the server's decoding or for good."""
        if self._on_trial:
            self._trials.settle(self._excess)
        self._lost += self._excess
        self._on_trial, self._excess = False, 0.0
