"""What may be asked of sampling, and what each refusal names."""

import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from autodraft.decoding.noise import MAX_SEED
from autodraft.decoding.sampling import GREEDY, MAX_BAD_WORDS, MAX_BIASED, Sampling
from autodraft.decoding.wish import MAX_TOP_LOGPROBS, PLAIN, Wish
from autodraft.errors import ConfigError

NUMBERS = [
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
]
WHOLE = ["top_k", "seed", "choice", "min_new_tokens"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 100.1),
        ("top_k", -1),
        ("top_k", 2**31),
        ("top_p", 0.0),
        ("top_p", 1.001),
        ("min_p", -0.001),
        ("min_p", 1.001),
        ("seed", -1),
        ("seed", MAX_SEED + 1),
        ("choice", -1),
        ("choice", 65_536),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", -1.0),
        ("repetition_penalty", 100.5),
        ("presence_penalty", -100.5),
        ("presence_penalty", 100.5),
        ("frequency_penalty", -100.5),
        ("frequency_penalty", 100.5),
        ("min_new_tokens", -1),
        ("min_new_tokens", 2**31),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}={value!r} must be .* to "):
        Sampling(**{name: value})


@pytest.mark.parametrize("name", [*NUMBERS, *WHOLE])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", None, True, [1]], ids=repr)
def test_what_is_no_number_is_refused_by_name(name: str, value: Any) -> None:
    kind = "a whole number" if name in WHOLE else "a number"
    with pytest.raises(ConfigError, match=rf"^{name}=.* must be {kind} "):
        Sampling(**{name: value})


@pytest.mark.parametrize("name", WHOLE)
def test_a_fraction_is_no_whole_number(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}=1.0 must be a whole number from 0 to "):
        Sampling(**{name: 1.0})


@pytest.mark.parametrize("name", ["top_p", "repetition_penalty"])
def test_a_refusal_says_that_the_lowest_value_is_excluded(name: str) -> None:
    with pytest.raises(ConfigError, match="must be a number above 0 to "):
        Sampling(**{name: 0})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 100),
        ("top_k", 2**31 - 1),
        ("top_p", 1e-9),
        ("top_p", 1),
        ("min_p", 0),
        ("min_p", 1),
        ("seed", MAX_SEED),
        ("choice", 65_535),
        ("repetition_penalty", 0.01),
        ("repetition_penalty", 100),
        ("presence_penalty", -100),
        ("frequency_penalty", 100),
        ("min_new_tokens", 2**31 - 1),
    ],
)
def test_the_ends_of_the_ranges_are_allowed(name: str, value: Any) -> None:
    assert getattr(Sampling(**{name: value}), name) == value


# ------------------------------------------------------------------------- biases and bad words


@pytest.mark.parametrize("token", [-1, "7", 1.0, True])
def test_a_bias_of_what_is_no_token_is_refused(token: Any) -> None:
    with pytest.raises(ConfigError, match=rf"logit_bias names the token {token!r}"):
        Sampling(logit_bias={3: 1.0, token: 1.0})


@pytest.mark.parametrize("bias", [100.5, -100.5, math.nan, -math.inf, "1"])
def test_a_bias_out_of_range_is_refused(bias: Any) -> None:
    with pytest.raises(ConfigError, match=r"^logit_bias\[7\]=.* from -100 to 100\.$"):
        Sampling(logit_bias={7: bias})


def test_so_many_biases_and_no_more() -> None:
    Sampling(logit_bias=dict.fromkeys(range(MAX_BIASED), 1.0))
    with pytest.raises(ConfigError, match="logit_bias names 1025 tokens; at most 1024"):
        Sampling(logit_bias=dict.fromkeys(range(MAX_BIASED + 1), 1.0))


@pytest.mark.parametrize("word", [[], [-1], [3, "4"], [2.0], "no", [True]], ids=repr)
def test_a_bad_word_that_is_no_sequence_of_tokens_is_refused(word: Any) -> None:
    with pytest.raises(ConfigError, match=r"bad_words has .* Autodraft.encode_text"):
        Sampling(bad_words=[[1, 2], word])


def test_so_many_bad_words_and_no_more() -> None:
    Sampling(bad_words=[[1]] * MAX_BAD_WORDS)
    with pytest.raises(ConfigError, match="bad_words has 1025 sequences; at most 1024"):
        Sampling(bad_words=[[1]] * (MAX_BAD_WORDS + 1))


# -------------------------------------------------------------------------- what follows from it


def test_greedy_is_what_nothing_is_asked_of() -> None:
    assert Sampling() == GREEDY
    assert GREEDY.plain
    assert not GREEDY.draws
    assert not GREEDY.penalises


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.01),
        ("repetition_penalty", 1.1),
        ("presence_penalty", -0.5),
        ("frequency_penalty", 0.5),
        ("logit_bias", {3: 1.0}),
        ("bad_words", [[3]]),
        ("min_new_tokens", 1),
    ],
)
def test_what_changes_a_greedy_answer_is_not_plain(name: str, value: Any) -> None:
    sampling = Sampling(**{name: value})
    assert not sampling.plain
    assert sampling.draws == (name == "temperature")
    assert sampling.penalises == name.endswith("_penalty")


@pytest.mark.parametrize("name", ["top_k", "seed", "choice"])
def test_what_only_matters_to_a_draw_leaves_greedy_plain(name: str) -> None:
    assert Sampling(**{name: 3}).plain
    assert Sampling(top_p=0.5, min_p=0.5).plain


@pytest.mark.parametrize(
    ("temperature", "kind"),
    [(0, "greedy"), (1e-6, "t0.1"), (0.3, "t0.3"), (0.74, "t0.7"), (1, "t1.0"), (1.5, "t1.5")],
)
def test_temperatures_are_told_apart_by_a_tenth(temperature: float, kind: str) -> None:
    assert Sampling(temperature=temperature, seed=9).kind == kind


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        GREEDY.temperature = 1.0  # type: ignore[misc]


# -------------------------------------------------------------------------------------- wishes


@pytest.mark.parametrize("value", [-1, MAX_TOP_LOGPROBS + 1, 1.0, "5", True])
def test_a_wish_for_other_numbers_of_alternatives_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^top_logprobs={value!r} must be .* 0 to 20"):
        Wish(top_logprobs=value)


@pytest.mark.parametrize("value", [None, 0, MAX_TOP_LOGPROBS])
def test_a_wish_for_alternatives(value: int | None) -> None:
    assert Wish(top_logprobs=value).top_logprobs == value


def test_nothing_is_wished_for_unless_it_is_said() -> None:
    assert Wish(GREEDY, None, None, False) == PLAIN


def test_a_temperature_that_overflows_logits_is_refused() -> None:
    assert Sampling(temperature=1e-6).draws
    with pytest.raises(ConfigError, match=r"temperature=1e-310 must be 0 \(greedy\) or at least"):
        Sampling(temperature=1e-310)
