"""How answers begin, and what trying costs: what the answers of a pair learn from each other.

Texts differ. Rounds may lose on most answers and win much on a few, and which one it is shows
within a round or two. So the question is not whether rounds pay on average, but what an answer
costs that begins with rounds and is handed over where they lose. Knows neither trees nor clocks.
"""

from typing import Final

from autodraft.tree.draft_tree import FloatArray

TRIAL_SHARE: Final = 0.01
"""Most of what plain decoding costs that trials may lose."""
_APART: Final = 2.0
"""How much further apart a failed trial moves the next one."""
_FURTHEST: Final = 8.0
_RESERVE: Final = 2.0
"""How much more than its expected loss must be there before a trial: it ends at a round's end."""
_FORECAST_ANSWERS: Final = 5.0
"""Answers that the forecast counts for."""
_OTHERS_ANSWERS: Final = 2.0
"""Answers of one blend that what all blends say counts for."""
_MEMORY: Final = 0.95
"""What is left of an earlier answer's weight, answer by answer."""


class Trials:
    """The purse of a blend: plain decoding pays in a small share, trying rounds takes it out."""

    def __init__(self) -> None:
        self._purse = 0.0
        self._spacing = 1.0

    def pay_in(self, plain_cost: float) -> None:
        """Take note of what the server has decoded alone."""
        self._purse += TRIAL_SHARE * plain_cost

    def due(self, loss: float) -> bool:
        """Tell whether a trial that is expected to lose so much in vain is paid for."""
        return self._purse >= self._spacing * _RESERVE * loss

    def settle(self, excess: float) -> None:
        """A trial has ended.

        Args:
            excess: What it cost beyond plain decoding.
        """
        self._purse = min(0.0, self._purse - excess)
        self._spacing = min(_APART * self._spacing, _FURTHEST) if excess > 0 else 1.0


class Opening:
    """Whether an answer begins with rounds: how far forecasts of that came true.

    The cost of an answer in parts of its forecast says how texts differ from the survey's, and what
    adapting and retrieval gain on top of fixed shapes. A blend begins with what the answers of all
    blends say, and goes by its own the more of them there are: what the first round copied from the
    prompt is soon lost again where waiting weighs much, and is not where it weighs nothing.
    """

    def __init__(self, of_all: "Opening | None" = None) -> None:
        """Begin with the forecast.

        Args:
            of_all: Where the answers of every blend are counted; None counts for itself.
        """
        self._of_all = of_all
        self._sum = 0.0
        self._answers = 0.0

    @property
    def _excess(self) -> float:
        """What answers have cost, in parts of their forecast."""
        before, weight = 1.0, _FORECAST_ANSWERS
        if self._of_all is not None:
            before, weight = self._of_all._excess, _OTHERS_ANSWERS
        return (self._sum + weight * before) / (self._answers + weight)

    def pays(self, forecast: float) -> bool:
        """Tell whether an answer that begins with rounds is expected to cost less.

        Args:
            forecast: What it costs by the profile, in parts of plain decoding.
        """
        return self.expected(forecast) < 1.0

    def expected(self, forecast: float) -> float:
        """Return what such an answer is expected to cost, in parts of plain decoding."""
        return forecast * self._excess

    def learn(self, cost: float, forecast: float) -> None:
        """An answer that began with rounds has ended.

        Args:
            cost: What it cost, in parts of plain decoding.
            forecast: What had been forecast.
        """
        self._sum = _MEMORY * self._sum + cost / forecast
        self._answers = _MEMORY * self._answers + 1.0
        if self._of_all is not None:
            self._of_all.learn(cost, forecast)


def opening_cost(by_text: FloatArray, plain: float, loss: float, tokens: int) -> float:
    """Return what an answer costs that begins with rounds, in parts of plain decoding.

    Args:
        by_text: What a token costs by rounds, text by text, [P].
        plain: What it costs where the server decodes alone.
        loss: What is lost until rounds are given up.
        tokens: Length of an answer.
    """
    handed_over = plain + loss / tokens
    return float(by_text.clip(max=handed_over).mean()) / plain
