"""The noise of seeded answers: published numbers of its hash, and the law that it follows.

The hash is written a second time here, in plain integers of Python.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.decoding.noise import MAX_SEED, gumbel_noise, stream_key, token_hashes

GAMMA = 0x9E3779B97F4A7C15
WORD = 2**64
EULER = 0.5772156649
COUNT = 49_152  # the embedded target's vocabulary
KEYS = [stream_key(*place) for place in ((0, 0, 0), (4, 1, 17), (MAX_SEED, 65_535, 2047))]


def mixed(state: int) -> int:
    """Return what SplitMix64 gives out in a state, as its authors wrote it."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % WORD
    return state ^ (state >> 31)


def hash_by_hand(seed: int, choice: int, position: int, token: int) -> int:
    state = mixed((seed + GAMMA) % WORD)
    state = mixed(((state ^ choice) + GAMMA) % WORD)
    state = mixed(((state ^ position) + GAMMA) % WORD)
    return mixed((state + (token + 1) * GAMMA) % WORD)


def noise_by_hand(hash_: int) -> float:
    uniform = ((hash_ >> 12) + 0.5) / 2**52
    return -math.log(-math.log(uniform))


def hashes(key: int, *tokens: int) -> list[int]:
    found: list[int] = token_hashes(key, np.array(tokens)).tolist()
    return found


# ----------------------------------------------------------------------------- known numbers


def test_the_hashes_are_splitmix64s() -> None:
    # The first five outputs for the seed 1234567, as other implementations print them.
    assert hashes(1234567, 0, 1, 2, 3, 4) == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize(
    ("place", "key"),
    [((0, 0, 0), 0x238275BC38FCBE91), ((4, 1, 17), 0x73A410E18B3B4E40)],
)
def test_the_keys_of_positions_stay_what_they_are(place: tuple[int, int, int], key: int) -> None:
    assert stream_key(*place) == key


@pytest.mark.parametrize(
    ("token", "hash_", "noise"),
    [
        (0, 0xC9844771B1742232, 1.430015918095),
        (1, 0xA9F82A33108BF8A5, 0.892674162780),
        (2, 0x0FE81D2EC5D25DCA, -1.021888660412),
        (49_151, 0x1EE865ABB6BB79FC, -0.748661742744),
    ],
)
def test_the_noise_of_tokens_stays_what_it_is(token: int, hash_: int, noise: float) -> None:
    key = stream_key(4, 1, 17)
    assert hash_by_hand(4, 1, 17, token) == hash_
    assert hashes(key, token) == [hash_]
    assert gumbel_noise(key, np.array([token]))[0] == pytest.approx(noise, rel=1e-12)


@given(
    st.integers(0, MAX_SEED),
    st.integers(0, 65_535),
    st.integers(0, 2**20),
    st.lists(st.integers(0, 2**24), min_size=1, max_size=8),
)
def test_any_noise_is_what_plain_integers_say(
    seed: int, choice: int, position: int, tokens: list[int]
) -> None:
    key = stream_key(seed, choice, position)
    expected = [hash_by_hand(seed, choice, position, token) for token in tokens]
    assert hashes(key, *tokens) == expected
    found = gumbel_noise(key, np.array(tokens))
    assert found == pytest.approx([noise_by_hand(hash_) for hash_ in expected], rel=1e-12)


# --------------------------------------------------------------------- a function of the token


def test_some_tokens_alone_have_the_noise_that_they_have_among_all() -> None:
    some = np.array([49_151, 3, 3, 0, 20_000])
    for key in KEYS:
        everything = gumbel_noise(key, np.arange(COUNT))
        assert np.array_equal(gumbel_noise(key, some), everything[some])


def test_the_token_ids_are_left_as_they_were() -> None:
    tokens = np.arange(5)
    gumbel_noise(7, tokens)
    assert tokens.tolist() == [0, 1, 2, 3, 4]


def test_seed_choice_and_position_do_not_stand_in_for_each_other() -> None:
    places = [(a, b, c) for a in (0, 1, 2, 2**32) for b in (0, 1, 2) for c in (0, 1, 2, 300)]
    assert len({stream_key(*place) for place in places}) == len(places)


def test_the_greatest_seed_is_one_of_its_own() -> None:
    assert len({stream_key(seed, 0, 0) for seed in (0, 1, MAX_SEED - 1, MAX_SEED)}) == 4


# ------------------------------------------------------------------------------------ its law


@pytest.mark.parametrize("key", KEYS)
def test_it_is_standard_gumbel_noise(key: int) -> None:
    noise = gumbel_noise(key, np.arange(COUNT))
    assert np.isfinite(noise).all()
    # Standard errors: sqrt(pi^2 / 6 / n) = 0.006 of the mean, about 0.016 of the variance.
    assert noise.mean() == pytest.approx(EULER, abs=0.024)
    assert noise.var() == pytest.approx(math.pi**2 / 6, abs=0.064)
    # Kolmogorov: the distance is above 1.95 / sqrt(n) once in a thousand times.
    expected = np.exp(-np.exp(-np.sort(noise)))
    steps = np.arange(COUNT + 1) / COUNT
    distance = max((expected - steps[:-1]).max(), (steps[1:] - expected).max())
    assert distance < 1.95 / COUNT**0.5


def test_it_is_finite_at_both_ends_of_the_hash() -> None:
    # The tokens whose hashes are 0 and 2^64 - 1, found by running the mixing backwards.
    for wanted in (0, WORD - 1):
        key = (unmixed(wanted) - GAMMA) % WORD
        assert hashes(key, 0) == [wanted]
        noise = gumbel_noise(key, np.array([0]))[0]
        assert noise == pytest.approx(noise_by_hand(wanted), rel=1e-12)
        assert -3.7 < noise < 36.8  # -log(53 log 2) and 53 log 2


def unmixed(output: int) -> int:
    """Return the state in which SplitMix64 gives out a number."""
    state = _unshifted(output, 31)
    state = state * pow(0x94D049BB133111EB, -1, WORD) % WORD
    state = _unshifted(state, 27)
    state = state * pow(0xBF58476D1CE4E5B9, -1, WORD) % WORD
    return _unshifted(state, 30)


def _unshifted(value: int, bits: int) -> int:
    """Return x where ``value`` is x ^ (x >> bits)."""
    found = value
    for _ in range(64 // bits + 1):
        found = value ^ (found >> bits)
    return found


@pytest.mark.parametrize(
    "other",
    [(5, 1, 17), (4, 2, 17), (4, 1, 18), (2**40 + 4, 1, 17), (17, 1, 4)],
    ids=["the next seed", "the next choice", "the next position", "a far seed", "swapped"],
)
def test_other_places_have_unrelated_noise(other: tuple[int, int, int]) -> None:
    tokens = np.arange(COUNT)
    here, there = (gumbel_noise(stream_key(*place), tokens) for place in ((4, 1, 17), other))
    # Shifted by a few tokens as well: streams of a counter must not run behind one another.
    for shift in range(-2, 3):
        assert abs(np.corrcoef(here, np.roll(there, shift))[0, 1]) < 4.5 / COUNT**0.5


def test_neighbouring_tokens_have_unrelated_noise() -> None:
    noise = gumbel_noise(KEYS[1], np.arange(COUNT))
    for shift in (1, 2, 3, 128):
        assert abs(np.corrcoef(noise, np.roll(noise, shift))[0, 1]) < 4.5 / COUNT**0.5


def test_one_token_has_unrelated_noise_along_an_answer() -> None:
    noise = np.array([gumbel_noise(stream_key(4, 0, at), np.array([7]))[0] for at in range(4096)])
    assert noise.mean() == pytest.approx(EULER, abs=0.08)
    assert abs(np.corrcoef(noise, np.roll(noise, 1))[0, 1]) < 4.5 / 64
