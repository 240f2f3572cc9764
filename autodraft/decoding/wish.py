"""What is asked of an answer besides where it ends."""

from dataclasses import dataclass
from typing import Final

from autodraft.decoding.sampling import GREEDY, Sampling
from autodraft.errors import ConfigError

MAX_TOP_LOGPROBS: Final = 20
"""Most alternatives whose log-probabilities come with each token."""


@dataclass(frozen=True)
class Wish:
    """What is asked of an answer besides where it ends.

    Attributes:
        sampling: How its tokens are chosen.
        exact: Narrow the gap that rounding leaves between speculative and plain decoding (DESIGN
            §4); None leaves it to the server, which knows its model's dtype and what it costs.
        top_logprobs: With every token comes how surely it was chosen, its log-probability and those
            of so many of the likeliest tokens; None wants nothing of it.
        reuse: Go on with what an earlier answer over the same connection left in the caches, as far
            as the prompts agree, and leave the same for the next.
    """

    sampling: Sampling = GREEDY
    exact: bool | None = None
    top_logprobs: int | None = None
    reuse: bool = False

    def __post_init__(self) -> None:
        """Check what the sampling does not check itself.

        Raises:
            ConfigError: If a value is not allowed.
        """
        wanted = self.top_logprobs
        if wanted is not None and not (type(wanted) is int and 0 <= wanted <= MAX_TOP_LOGPROBS):
            raise ConfigError(
                f"top_logprobs={wanted!r} must be a whole number from 0 to {MAX_TOP_LOGPROBS}, or "
                "None."
            )


PLAIN: Final = Wish()
