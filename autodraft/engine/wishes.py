"""What is asked of an answer, and how surely its tokens were chosen: to messages and back."""

from collections.abc import Sequence
from dataclasses import asdict

from autodraft.decoding.sampling import Sampling
from autodraft.decoding.wish import Wish
from autodraft.errors import ConfigError, ProtocolError
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import pack_floats, pack_tokens, unpack_floats, unpack_tokens
from autodraft.records import TokenScore


def sampling_message(sampling: Sampling) -> msg.Sampling | None:
    """Return how tokens are chosen as a message; None where that is plain greedy."""
    if sampling.plain:
        return None
    values = asdict(sampling)
    values["logit_bias"] = dict(sampling.logit_bias)
    values["bad_words"] = [list(word) for word in sampling.bad_words]
    return msg.Sampling(**values)


def wish_of(request: msg.Open, *, exact: bool) -> Wish:
    """Return what a client wishes, with the server's word on ``exact``.

    Raises:
        ProtocolError: If a setting has a value that is not allowed.
    """
    asked = request.sampling or msg.Sampling()
    try:
        sampling = Sampling(**{name: getattr(asked, name) for name in asked.__struct_fields__})
        return Wish(sampling, exact, request.top_logprobs, request.reuse)
    except ConfigError as error:
        raise ProtocolError(str(error)) from error


def scores_message(scores: Sequence[TokenScore]) -> msg.Scores | None:
    """Return scores as a message; None for none."""
    if not scores:
        return None
    top = [pair for score in scores for pair in score.top]
    return msg.Scores(
        pack_floats([score.gap for score in scores]),
        pack_floats([score.logprob for score in scores]),
        pack_tokens([token for token, _ in top]),
        pack_floats([logprob for _, logprob in top]),
    )


def scores_of(message: msg.Scores | None) -> list[TokenScore]:
    """Return the scores in a message.

    Raises:
        ProtocolError: If its fields are not equally long.
    """
    if message is None:
        return []
    gaps, logprobs = unpack_floats(message.gaps), unpack_floats(message.logprobs)
    ids, top = unpack_tokens(message.top_ids).tolist(), unpack_floats(message.top_logprobs)
    count = len(gaps)
    if not count or len(logprobs) != count or len(ids) != len(top) or len(ids) % count:
        raise ProtocolError(
            f"Scores of {count} and {len(logprobs)} tokens, with {len(ids)} and {len(top)} others."
        )
    each = len(ids) // count
    pairs = list(zip(ids, top, strict=True))
    return [
        TokenScore(gap, logprob, pairs[number * each : (number + 1) * each])
        for number, (gap, logprob) in enumerate(zip(gaps, logprobs, strict=True))
    ]
