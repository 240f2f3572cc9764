"""How the tokens of an answer are chosen: greedy or drawn, from which of them, with what penalties.

Settings only; ``decoding/sampler.py`` applies them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from autodraft.decoding.noise import MAX_SEED
from autodraft.errors import ConfigError

MIN_TEMPERATURE: Final = 1e-6
MAX_TEMPERATURE: Final = 100.0
MAX_BIAS: Final = 100.0
MAX_PENALTY: Final = 100.0
MAX_BIASED: Final = 1024
MAX_BAD_WORDS: Final = 1024
MAX_CHOICE: Final = 65_535
_MOST_TOKENS: Final = 2**31 - 1

_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, MAX_TEMPERATURE),
    "top_k": (0, _MOST_TOKENS),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "seed": (0, MAX_SEED),
    "choice": (0, MAX_CHOICE),
    "repetition_penalty": (0.0, MAX_PENALTY),
    "presence_penalty": (-MAX_PENALTY, MAX_PENALTY),
    "frequency_penalty": (-MAX_PENALTY, MAX_PENALTY),
    "min_new_tokens": (0, _MOST_TOKENS),
}
_WHOLE: Final = frozenset({"top_k", "seed", "choice", "min_new_tokens"})
_ABOVE: Final = frozenset({"top_p", "repetition_penalty"})
"""Settings whose lowest value is excluded."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen; what is left out is as if it were not there.

    The logits are changed in this order: bias, repetition, presence and frequency penalty, bad
    words, least length, temperature, top-k, top-p, min-p.

    Attributes:
        temperature: 0 chooses the likeliest token; above, logits are divided by it and a token is
            drawn.
        top_k: Draw among so many of the likeliest tokens; 0 is all.
        top_p: Draw among the likeliest tokens that hold so much of the probability; 1 is all.
        min_p: Draw among tokens at least so many times as likely as the likeliest; 0 is all.
        seed: The same prompt, seed and choice give the same answer.
        choice: Number of this answer among several to one prompt, from 0.
        repetition_penalty: Divides positive logits of tokens in prompt or answer, and multiplies
            negative ones; 1 changes nothing.
        presence_penalty: Taken off the logit of every token in the answer.
        frequency_penalty: The same, once for each time that it is there.
        logit_bias: Added to the logits of token ids.
        bad_words: Sequences of token ids that never occur.
        min_new_tokens: No EOS is chosen before the answer has so many tokens.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[Sequence[int]] = ()
    min_new_tokens: int = 0

    def __post_init__(self) -> None:
        """Check every setting.

        Raises:
            ConfigError: If one has a value that is not allowed.
        """
        for name, (least, most) in _RANGES.items():
            _require_within(name, getattr(self, name), least, most)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise ConfigError(
                f"temperature={self.temperature!r} must be 0 (greedy) or at least "
                f"{MIN_TEMPERATURE:g}: logits cannot be divided by less."
            )
        _require_biases(self.logit_bias)
        _require_words(self.bad_words)

    @property
    def draws(self) -> bool:
        """Whether a token is drawn; else the best one is taken."""
        return self.temperature > 0

    @property
    def penalises(self) -> bool:
        """Whether a token's logit depends on the tokens before it by a penalty."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def plain(self) -> bool:
        """Whether every token is simply the arg-max of the model's own logits."""
        edits = self.penalises or self.logit_bias or self.bad_words or self.min_new_tokens
        return not (self.draws or edits)

    @property
    def kind(self) -> str:
        """What draft probabilities are calibrated apart by: greedy, or the temperature."""
        return f"t{max(self.temperature, 0.1):.1f}" if self.draws else "greedy"


def _require_within(name: str, value: Any, least: float, most: float) -> None:
    kinds = (int,) if name in _WHOLE else (int, float)
    numeric = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
    if numeric and least <= value <= most and not (name in _ABOVE and value == least):
        return
    kind = "a whole number" if name in _WHOLE else "a number"
    start = f"above {least:g}" if name in _ABOVE else f"from {least:g}"
    end = f"{most}" if name in _WHOLE else f"{most:g}"
    raise ConfigError(f"{name}={value!r} must be {kind} {start} to {end}.")


def _require_biases(biases: Mapping[int, float]) -> None:
    if len(biases) > MAX_BIASED:
        raise ConfigError(f"logit_bias names {len(biases)} tokens; at most {MAX_BIASED} can be.")
    for token, bias in biases.items():
        if not (type(token) is int and token >= 0):
            raise ConfigError(f"logit_bias names the token {token!r}; it must be a token id.")
        _require_within(f"logit_bias[{token}]", bias, -MAX_BIAS, MAX_BIAS)


def _require_words(words: Sequence[Sequence[int]]) -> None:
    if len(words) > MAX_BAD_WORDS:
        raise ConfigError(f"bad_words has {len(words)} sequences; at most {MAX_BAD_WORDS} can be.")
    for word in words:
        if not word or not all(type(token) is int and token >= 0 for token in word):
            raise ConfigError(
                f"bad_words has {word!r}; each must be a sequence of token ids, at least one. "
                "Autodraft.encode_text turns text into them."
            )


GREEDY: Final = Sampling()
