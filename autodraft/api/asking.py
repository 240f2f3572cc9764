"""What may be asked of an answer, checked before anything is sent."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from autodraft.config import SloConfig
from autodraft.decoding.sampling import Sampling
from autodraft.errors import ConfigError
from autodraft.protocol.messages import MAX_STOP_LENGTH, MAX_STOP_STRINGS, stop_strings_fit

CS_NAMES: Final = {"tps": 0.0, "balanced": 0.5, "cost": 1.0}
"""What cost sensitivities are called (DESIGN §1)."""

ALLOWED_LIMITS: Final = f"Allowed: {', '.join(SloConfig.model_fields)}."

Messages = Sequence[Mapping[str, str]]


class Limits(NamedTuple):
    """Where an answer ends."""

    max_new_tokens: int
    stop: Sequence[str]
    cancelled: Callable[[], bool]


def require_known_tokens(sampling: Sampling, vocab_size: int) -> None:
    """Do nothing if a target has every token that is named.

    Raises:
        ConfigError: If it lacks one.
    """
    named = [*sampling.logit_bias, *(token for word in sampling.bad_words for token in word)]
    if named and max(named) >= vocab_size:
        raise ConfigError(
            f"logit_bias or bad_words names the token {max(named)}; the target has the tokens 0 to "
            f"{vocab_size - 1}. Autodraft.encode_text turns text into token ids."
        )


def sensitivity(cs: float | str | None) -> float:
    """Return a cost sensitivity given as a number or by name; without one, balanced.

    Raises:
        ValueError: If the name is unknown.
    """
    if not isinstance(cs, str):
        return CS_NAMES["balanced"] if cs is None else cs
    if cs not in CS_NAMES:
        raise ValueError(f"cs={cs!r}; give a number from 0 to 1, or one of {', '.join(CS_NAMES)}.")
    return CS_NAMES[cs]


def limits_given(slo: SloConfig | Mapping[str, float] | None) -> SloConfig:
    """Return limits that were given as such, or by name.

    Raises:
        ConfigError: If there is no such limit, or its value is not allowed.
    """
    if isinstance(slo, SloConfig):
        return slo
    given = {name.lower(): value for name, value in (slo or {}).items()}
    for name in given:
        if name not in SloConfig.model_fields:
            raise ConfigError(f"There is no limit {name!r}. {ALLOWED_LIMITS}")
    return SloConfig(**given)


def require_stop_strings(stop: Sequence[str]) -> None:
    """Do nothing if these strings may end an answer.

    Raises:
        ValueError: If they are too many, too long, empty, or a text in place of a list.
    """
    if isinstance(stop, str):
        raise ValueError(f"stop is the text {stop!r}; give a list of strings: [{stop!r}].")
    if not stop_strings_fit(stop):
        raise ValueError(
            f"stop is {list(stop)!r}; it takes at most {MAX_STOP_STRINGS} strings, each of 1 to "
            f"{MAX_STOP_LENGTH} characters."
        )
