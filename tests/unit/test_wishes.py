"""What is asked of an answer, and its scores, over the wire and back."""

import math
from typing import Any

import msgspec
import pytest

from autodraft.decoding.sampling import Sampling
from autodraft.decoding.wish import PLAIN, Wish
from autodraft.engine.wishes import sampling_message, scores_message, scores_of, wish_of
from autodraft.errors import ProtocolError
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import decode_client, decode_server, encode, pack_floats, pack_tokens
from autodraft.records import TokenScore

FIELDS: dict[str, Any] = {
    "temperature": 0.7,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.05,
    "seed": 2**64 - 1,
    "choice": 65_535,
    "repetition_penalty": 1.3,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.25,
    "logit_bias": {0: -100.0, 151_935: 2.5},
    "bad_words": [[5], [1, 2, 3]],
    "min_new_tokens": 12,
}
"""Every setting at a value that is not its default, and not to be told from it in float32."""


def over_the_wire(wish: Wish) -> msg.Open:
    sampling = sampling_message(wish.sampling)
    request = msg.Open(5, 8, "chain", None, sampling, wish.exact, wish.top_logprobs, wish.reuse)
    received = decode_client(encode(request))
    assert isinstance(received, msg.Open)
    return received


def scores_over_the_wire(scores: list[TokenScore]) -> list[TokenScore]:
    reply = msg.Prefilled(5, 0, 0, 0, scores_message(scores))
    received = decode_server(encode(reply))
    assert isinstance(received, msg.Prefilled)
    return scores_of(received.scores)


def test_every_setting_is_tried_here() -> None:
    names = [field.name for field in msgspec.structs.fields(msg.Sampling)]
    assert names == list(FIELDS) == list(vars(Sampling()))


@pytest.mark.parametrize("name", FIELDS)
def test_a_setting_survives_the_way_to_the_server(name: str) -> None:
    sampling = Sampling(**{"temperature": 1.0, "bad_words": [], name: FIELDS[name]})
    received = wish_of(over_the_wire(Wish(sampling)), exact=False)
    assert received == Wish(sampling, exact=False)
    assert getattr(received.sampling, name) == FIELDS[name]


def test_all_settings_at_once_survive_the_way_to_the_server() -> None:
    wish = Wish(Sampling(**FIELDS), True, 20, True)
    assert wish_of(over_the_wire(wish), exact=True) == wish


@pytest.mark.parametrize("top", [None, 0, 3, 20])
@pytest.mark.parametrize("reuse", [False, True])
def test_scores_and_reuse_are_asked_for_over_the_wire(top: int | None, reuse: bool) -> None:
    received = wish_of(over_the_wire(Wish(top_logprobs=top, reuse=reuse)), exact=False)
    assert (received.top_logprobs, received.reuse) == (top, reuse)


@pytest.mark.parametrize("asked", [None, False, True])
def test_the_server_has_the_word_on_exact_and_is_told_what_was_asked(asked: bool | None) -> None:
    request = over_the_wire(Wish(exact=asked))
    assert request.exact is asked
    for answer in (False, True):
        assert wish_of(request, exact=answer).exact is answer


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(seed=7, choice=2), Sampling(top_k=5, top_p=0.5, min_p=0.1)]
)
def test_plain_greedy_takes_no_bytes(sampling: Sampling) -> None:
    assert sampling_message(sampling) is None
    assert wish_of(over_the_wire(Wish(sampling)), exact=False).sampling.plain
    assert encode(over_the_wire(PLAIN)) == encode(msg.Open(5, 8, "chain"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 101.0),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("seed", -1),
        ("choice", 65_536),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 101.0),
        ("frequency_penalty", -101.0),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", dict.fromkeys(range(1025), 1.0)),
        ("bad_words", [[]]),
        ("bad_words", [[5, -1]]),
        ("bad_words", [[5]] * 1025),
        ("min_new_tokens", -1),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value)[:12],
)
def test_a_setting_out_of_its_range_is_a_protocol_error_that_names_it(
    name: str, value: Any
) -> None:
    request = msg.Open(5, 8, "chain", None, msg.Sampling(**{name: value}))
    received = decode_client(encode(request))
    assert isinstance(received, msg.Open)
    with pytest.raises(ProtocolError, match=name):
        wish_of(received, exact=False)


@pytest.mark.parametrize("top", [-1, 21])
def test_more_scores_than_there_can_be_are_a_protocol_error(top: int) -> None:
    with pytest.raises(ProtocolError, match=f"top_logprobs={top} .* from 0 to 20"):
        wish_of(msg.Open(5, 8, "chain", top_logprobs=top), exact=False)


@pytest.mark.parametrize(
    "scores",
    [
        [TokenScore(0.5, -1.25)],
        [TokenScore(math.inf, 0.0), TokenScore(0.0, -math.inf)],
        [TokenScore(0.5, -1.25, [(151_935, -0.25), (0, -1.25)])],
        [
            TokenScore(0.5, -1.25, [(7, -0.25), (8, -1.25), (9, -2.0)]),
            TokenScore(2.0, -0.125, [(9, -0.125), (7, -3.0), (8, -4.0)]),
        ],
    ],
    ids=["one", "infinite", "with others", "two with three others each"],
)
def test_scores_survive_the_way_to_the_client(scores: list[TokenScore]) -> None:
    assert scores_over_the_wire(scores) == scores


def test_a_log_probability_comes_over_as_float32() -> None:
    received = scores_over_the_wire([TokenScore(0.1, -0.1)])[0]
    assert received.logprob != -0.1
    assert abs(received.logprob + 0.1) < 1e-8


def test_no_scores_take_no_bytes() -> None:
    assert scores_message([]) is None
    assert scores_of(None) == []


@pytest.mark.parametrize(
    ("gaps", "logprobs", "ids", "top"),
    [
        (0, 0, 0, 0),
        (0, 0, 2, 2),
        (2, 1, 0, 0),
        (1, 2, 0, 0),
        (1, 1, 2, 1),
        (2, 2, 3, 3),
    ],
    ids=[
        "no token",
        "others of no token",
        "a log-probability too few",
        "one too many",
        "another without its own",
        "three others of two tokens",
    ],
)
def test_scores_whose_fields_do_not_fit_each_other_are_refused(
    gaps: int, logprobs: int, ids: int, top: int
) -> None:
    message = msg.Scores(
        pack_floats([1.0] * gaps),
        pack_floats([-1.0] * logprobs),
        pack_tokens(range(ids)),
        pack_floats([-1.0] * top),
    )
    words = f"Scores of {gaps} and {logprobs} tokens, with {ids} and {top} others"
    with pytest.raises(ProtocolError, match=words):
        scores_of(message)


@pytest.mark.parametrize("field", ["gaps", "logprobs", "top_ids", "top_logprobs"])
def test_scores_cut_in_mid_number_are_refused(field: str) -> None:
    whole = scores_message([TokenScore(0.5, -1.0, [(7, -1.0)])])
    assert whole is not None
    broken = msgspec.structs.replace(whole, **{field: getattr(whole, field)[:-1]})
    with pytest.raises(ProtocolError, match="not a multiple"):
        scores_of(broken)
