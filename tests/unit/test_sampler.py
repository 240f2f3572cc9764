"""From logits to tokens, on rows of a few tokens that are worked out by hand."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from autodraft.decoding.noise import gumbel_noise, stream_key
from autodraft.decoding.sampler import Chosen, Sampler
from autodraft.decoding.sampling import GREEDY, Sampling

Floats = npt.NDArray[np.float64]

HALVES = np.log([0.4, 0.3, 0.15, 0.1, 0.05])
"""Logits of five tokens, by their probabilities."""


def row_of(*logits: float) -> npt.NDArray[np.float32]:
    return np.array(logits, dtype=np.float32)


def sampler_of(
    sampling: Sampling = GREEDY,
    prompt: Sequence[int] = (0,),
    answer: Sequence[int] = (),
    vocab: int = 6,
    **options: Any,
) -> Sampler:
    """Return a sampler behind a prompt and the first tokens of its answer; EOS is 5."""
    sampler = Sampler(sampling, prompt, {5}, vocab, **options)
    sampler.append(answer)
    return sampler


def edited(
    sampler: Sampler, logits: Sequence[float], path: Sequence[int] = (), reference: int = 4
) -> list[float]:
    """Return greedy logits after all changes, on the scale where the reference's logit is 0."""
    tokens, log_probs = sampler.rank(row_of(*logits)[None], [path], len(logits))
    found = dict(zip(tokens[0].tolist(), log_probs[0].tolist(), strict=True))
    return [pytest.approx(found[token] - found[reference], abs=1e-5) for token in sorted(found)]


def kept(logits: Floats, **settings: Any) -> set[int]:
    """Return the tokens that truncation leaves; drawn ones and guessed ones agree on it."""
    drawn: set[int] = set()
    for seed in range(300):
        sampling = Sampling(**{"temperature": 1.0, **settings, "seed": seed})
        sampler = sampler_of(sampling, vocab=len(logits))
        drawn.add(sampler.choose(logits.astype(np.float32)).token)
    tokens, log_probs = sampler.rank(logits.astype(np.float32)[None], [()], len(logits))
    assert set(tokens[0, np.isfinite(log_probs[0])].tolist()) == drawn
    return drawn


# -------------------------------------------------------------------------------------- greedy


def test_greedy_takes_the_best_and_says_by_how_much() -> None:
    assert sampler_of(vocab=4).choose(row_of(1, 3, 2.5, 0)) == Chosen(1, 0.5)


def test_the_lowest_id_wins_a_tie() -> None:
    assert sampler_of(vocab=5).choose(row_of(1, 3, 0, 3, 3)) == Chosen(1, 0.0)
    tokens, _ = sampler_of(vocab=5).rank(row_of(1, 3, 0, 3, 3)[None], [()], 4)
    assert tokens.tolist() == [[1, 3, 4, 0]]


def test_a_token_without_another_is_chosen_by_an_infinite_gap() -> None:
    assert sampler_of(vocab=1).choose(row_of(7)) == Chosen(0, math.inf)
    assert sampler_of(vocab=3).choose(row_of(-np.inf, 7, -np.inf)) == Chosen(1, math.inf)
    alone = sampler_of(Sampling(temperature=1.0, top_k=1), vocab=3)
    assert alone.choose(row_of(1, 2, 3)) == Chosen(2, math.inf)


def test_greedy_guesses_are_ranked_by_their_probabilities() -> None:
    row = HALVES[[2, 0, 1, 4, 3]].astype(np.float32)
    tokens, log_probs = sampler_of(vocab=5).rank(row[None], [()], 3)
    assert tokens.tolist() == [[1, 2, 0]]
    assert np.exp(log_probs[0]) == pytest.approx([0.4, 0.3, 0.15], rel=1e-6)


def test_truncation_leaves_greedy_alone() -> None:
    sampler = sampler_of(Sampling(top_k=1, top_p=0.1, min_p=1.0), vocab=5)
    _, log_probs = sampler.rank(HALVES.astype(np.float32)[None], [()], 5)
    assert np.exp(log_probs[0]) == pytest.approx([0.4, 0.3, 0.15, 0.1, 0.05], rel=1e-6)


# --------------------------------------------------------------------------------------- drawn


def test_a_draw_is_the_best_of_log_probability_and_noise() -> None:
    logits, temperature = [2.0, -1.0, 0.5, 0.25], 0.5
    sampler = sampler_of(Sampling(temperature=temperature, seed=9, choice=2), [1, 2, 3], [3], 4)
    # Behind three tokens of prompt, one of answer and two of a path: position 6.
    noise = gumbel_noise(stream_key(9, 2, 6), np.arange(4))
    scores = [logit / temperature + at for logit, at in zip(logits, noise.tolist(), strict=True)]
    best, second = sorted(scores, reverse=True)[:2]
    chosen = sampler.choose(row_of(*logits), [0, 2])
    assert chosen.token == scores.index(best)
    assert chosen.gap == pytest.approx((best - second) * temperature)  # in logits


@pytest.mark.parametrize("prompt", [[0], [3, 1, 2]])
def test_the_position_counts_prompt_answer_and_path_alike(prompt: list[int]) -> None:
    sampling, logits = Sampling(temperature=1.0, seed=3), [0.0] * 50
    tokens = [4, 4, 2, 0, 1, 3, 2, 2]
    expected = [
        Sampler(sampling, prompt + tokens[:count], (), 50).choose(row_of(*logits))
        for count in range(len(tokens))
    ]
    for split in range(len(tokens)):
        sampler = sampler_of(sampling, prompt, tokens[:split], 50)
        assert sampler.context_tokens == len(prompt) + split
        for count in range(split, len(tokens)):
            assert sampler.choose(row_of(*logits), tokens[split:count]) == expected[count]


def test_seed_and_choice_tell_answers_apart() -> None:
    def drawn(**settings: int) -> list[int]:
        sampling = Sampling(temperature=1.0, **settings)
        return [Sampler(sampling, [0] * at, (), 99).choose(row_of(*[0] * 99)).token for at in SPAN]

    answers = [drawn(), drawn(seed=1), drawn(choice=1), drawn(seed=1, choice=1)]
    assert answers[0] == drawn(seed=0, choice=0)
    assert len(set(map(tuple, answers))) == 4


SPAN = range(1, 9)


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"top_k": 1}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.39}, {0}),
        ({"top_p": 0.41}, {0, 1}),
        ({"top_p": 0.69}, {0, 1}),
        ({"top_p": 0.71}, {0, 1, 2}),
        ({"top_p": 0.96}, {0, 1, 2, 3, 4}),
        ({"min_p": 1.0}, {0}),
        ({"min_p": 0.7}, {0, 1}),  # at least 0.28
        ({"min_p": 0.3}, {0, 1, 2}),  # at least 0.12
        ({"min_p": 0.12}, {0, 1, 2, 3, 4}),  # at least 0.048
        # Of three tokens the first holds 0.4 / 0.85 = 0.471.
        ({"top_k": 3, "top_p": 0.46}, {0}),
        ({"top_k": 3, "top_p": 0.48}, {0, 1}),
        # Squared: 0.561, 0.316, 0.079, 0.035, 0.009.
        ({"temperature": 0.5, "top_p": 0.55}, {0}),
        ({"temperature": 0.5, "top_p": 0.57}, {0, 1}),
        ({"temperature": 0.5, "min_p": 0.15}, {0, 1}),
        # The roots: 0.300, 0.260, 0.184, 0.150, 0.106.
        ({"temperature": 2.0, "top_p": 0.55}, {0, 1}),
        ({"temperature": 2.0, "top_p": 0.57}, {0, 1, 2}),
        ({"temperature": 2.0, "min_p": 0.6}, {0, 1, 2}),
        ({"top_k": 4, "top_p": 0.9, "min_p": 0.5}, {0, 1}),
    ],
    ids=repr,
)
def test_truncation_leaves_the_tokens_that_it_says(
    settings: dict[str, float], tokens: set[int]
) -> None:
    assert kept(HALVES, **settings) == tokens
    order = [3, 0, 4, 2, 1]  # wherever they stand
    assert kept(HALVES[order], **settings) == {order.index(token) for token in tokens}


@pytest.mark.parametrize("settings", [{"top_k": 2}, {"top_p": 0.49}], ids=repr)
def test_of_equal_tokens_the_lowest_ids_are_kept(settings: dict[str, float]) -> None:
    assert kept(np.array([-9.0, 1, 1, 1, 1]), **settings) == {1, 2}


@pytest.mark.parametrize(("top_p", "count"), [(0.2, 200), (0.5, 500), (0.999, 999), (1.0, 1000)])
def test_a_nucleus_can_be_wide(top_p: float, count: int) -> None:
    sampler = sampler_of(Sampling(temperature=1.0, top_p=top_p - 1e-6), vocab=1000)
    tokens, log_probs = sampler.rank(np.zeros((1, 1000), dtype=np.float32), [()], 1000)
    assert sorted(tokens[0, np.isfinite(log_probs[0])].tolist()) == list(range(count))


# -------------------------------------------------------------------- changes, and their order


def test_a_bias_is_added() -> None:
    sampler = sampler_of(Sampling(logit_bias={1: 2.5, 3: -100, 99: 7}))
    assert edited(sampler, [1, 1, 1, 1, 0, 1]) == [1, 3.5, 1, -99, 0, 1]


def test_the_repetition_penalty_goes_by_the_sign_and_counts_the_prompt() -> None:
    sampler = sampler_of(Sampling(repetition_penalty=2.0), [0, 1, 1], [2, 3, 3])
    assert edited(sampler, [4, -4, 6, -6, 0, 2]) == [2, -8, 3, -12, 0, 2]


def test_a_repetition_penalty_below_one_invites_repetition() -> None:
    assert edited(sampler_of(Sampling(repetition_penalty=0.5), [0, 1]), [4, -4, 6, 0, 0, 2]) == [
        8, -2, 6, 0, 0, 2,
    ]  # fmt: skip


def test_presence_and_frequency_count_the_answer_alone() -> None:
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    sampler = sampler_of(sampling, [0, 0, 1], [1, 2, 2, 2])
    assert edited(sampler, [1, 1, 1, 1, 0, 1]) == [1, 0.25, -0.25, 1, 0, 1]


def test_penalties_count_along_each_path_by_itself() -> None:
    sampling = Sampling(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    sampler = sampler_of(sampling, [0], [2])
    logits = [4.0, 4, 4, 4, 0, 4]
    assert edited(sampler, logits, [1, 1]) == [2, 1, 1.25, 4, 0, 4]
    assert edited(sampler, logits, [3, 2]) == [2, 4, 1, 1.25, 0, 4]
    assert edited(sampler, logits) == [2, 4, 1.25, 4, 0, 4]  # the paths left nothing behind
    both = np.array([logits, logits], dtype=np.float32)
    tokens, _ = sampler.rank(both, [[1, 1], [3, 3]], 2)
    assert tokens.tolist() == [[3, 5], [1, 5]]


def test_bias_comes_before_repetition_and_that_before_presence_and_frequency() -> None:
    sampling = Sampling(
        logit_bias={0: 3, 1: -3},
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
    )
    sampler = sampler_of(sampling, [1], [0, 0])
    # -1 + 3 = 2, halved 1, less 0.5 and 2 · 0.25: 0. And 2 - 3 = -1, doubled: -2.
    assert edited(sampler, [-1, 2, 0, 0, 0, 0]) == [0, -2, 0, 0, 0, 0]


def test_a_penalty_comes_before_the_temperature() -> None:
    sampling = Sampling(temperature=0.5, presence_penalty=1.0, min_p=0.05)
    # Behind token 1 its logit is 2 - 1 = 1, twice that 2: exp(-2) of the best, over 0.05.
    # Were the temperature first it would be 2 · 2 - 1 = 3, and then exp(-1). Token 2 has exp(-4).
    sampler = sampler_of(sampling, [0], [1], 4)
    tokens, log_probs = sampler.rank(row_of(2, 2, 0, -9)[None], [()], 4)
    assert set(tokens[0, np.isfinite(log_probs[0])].tolist()) == {0, 1}
    noise = gumbel_noise(stream_key(0, 0, 2), np.arange(2))
    scores = np.array([4.0, 2.0]) + noise
    found = log_probs[0, tokens[0, :2].argsort()]
    assert found[0] - found[1] == pytest.approx(scores[0] - scores[1])


def test_banned_tokens_hold_no_mass_when_truncation_comes() -> None:
    # Without token 0 the others hold 0.5, 0.25, 0.167 and 0.083.
    assert kept(HALVES, bad_words=[[0]], top_p=0.49) == {1}
    assert kept(HALVES, bad_words=[[0]], top_k=2) == {1, 2}
    assert kept(HALVES, bad_words=[[0]], min_p=0.4) == {1, 2}


# ------------------------------------------------------------------------ bad words, least length


BAD = Sampling(bad_words=[[3], [0, 1], [1, 2, 2]])


@pytest.mark.parametrize(
    ("prompt", "answer", "path", "banned"),
    [
        ([4], [], [], {3}),
        ([0], [], [], {1, 3}),
        ([4], [0], [], {1, 3}),
        ([4], [0], [4], {3}),
        ([4], [], [0], {1, 3}),
        ([1], [2], [], {2, 3}),
        ([1], [], [2], {2, 3}),
        ([4], [1], [2], {2, 3}),
        ([4], [], [1, 2], {2, 3}),
        ([4], [], [1, 2, 2], {3}),
        ([4], [], [2], {3}),
        ([2], [], [], {3}),
        ([0, 1], [2, 0], [], {1, 3}),
    ],
    ids=repr,
)
def test_a_bad_word_is_never_completed(
    prompt: list[int], answer: list[int], path: list[int], banned: set[int]
) -> None:
    found = edited(sampler_of(BAD, prompt, answer), [1, 1, 1, 1, 0, 1], path)
    assert found == [-math.inf if token in banned else int(token != 4) for token in range(6)]


@pytest.mark.parametrize(
    ("answer", "path", "open_"),
    [
        ([], [], False),
        ([], [4], False),
        ([], [4, 4], True),
        ([4], [], False),
        ([4], [4], True),
        ([4, 4], [], True),
    ],
    ids=repr,
)
def test_no_eos_before_the_least_length_the_path_included(
    answer: list[int], path: list[int], open_: bool
) -> None:
    sampler = sampler_of(Sampling(min_new_tokens=2), [4, 4, 4], answer)
    chosen = sampler.choose(row_of(0, 0, 1, 0, 0, 9), path)
    assert chosen.token == (5 if open_ else 2)


def test_of_several_eos_none_is_chosen_too_early() -> None:
    sampler = Sampler(Sampling(min_new_tokens=1), [4], {0, 2, 77}, 4)
    assert sampler.choose(row_of(9, 1, 8, 0)).token == 1
    sampler.append([3])
    assert sampler.choose(row_of(9, 1, 8, 0)).token == 0


# --------------------------------------------------------------------------------- a cut head


COLUMNS = np.array([1, 2, 5, 9])


def test_columns_of_a_cut_head_stand_for_their_tokens() -> None:
    sampling = Sampling(
        repetition_penalty=2.0,
        presence_penalty=0.5,
        logit_bias={0: 9, 2: 1, 9: 0.5, 11: 9},
        bad_words=[[8, 1]],
        min_new_tokens=2,
    )
    sampler = Sampler(sampling, [9, 700], {5, 7}, 12, COLUMNS)
    sampler.append([800])  # neither id is one of the draft's
    found = edited(sampler, [4, 4, 4, 4], reference=2)
    # The logits of 1 and 9 on the scale on which that of 2, 4 + 1, is 0: -1 and 4.5 / 2 - 5.
    assert found == [-1, 0, -math.inf, -2.75]
    # Behind 8 token 1 is banned; 2 is now in the answer: 5 / 2 - 0.5 = 2; EOS is allowed.
    assert edited(sampler, [4, 4, 4, 4], [2, 8], reference=2) == [-math.inf, 0, 2, 0.25]


def test_a_cut_head_has_the_noise_of_its_token_ids() -> None:
    sampling = Sampling(temperature=1.0, seed=5)
    tokens, log_probs = Sampler(sampling, [0, 0], (), 12, COLUMNS).rank(
        np.zeros((1, 4), dtype=np.float32), [()], 4
    )
    noise = gumbel_noise(stream_key(5, 0, 2), COLUMNS)
    order = np.argsort(-noise)
    assert tokens.tolist() == [COLUMNS[order].tolist()]
    expected = noise[order] - np.log(np.exp(noise).sum())
    assert log_probs[0] == pytest.approx(expected)


# ------------------------------------------------------------------------------------- guesses


def test_guesses_that_are_not_there_are_minus_infinity() -> None:
    sampler = sampler_of(Sampling(temperature=1.0, top_k=2), vocab=5)
    tokens, log_probs = sampler.rank(HALVES.astype(np.float32)[None], [()], 4)
    assert sorted(tokens[0, :2].tolist()) == [0, 1]
    assert np.exp(log_probs[0, :2]).sum() == pytest.approx(1.0)
    assert log_probs[0, 2:].tolist() == [-math.inf, -math.inf]
    _, wider = sampler_of(vocab=2).rank(row_of(0, 0)[None], [()], 3)
    assert np.exp(wider[0]) == pytest.approx([0.5, 0.5, 0.0])


def test_what_must_not_be_guessed_comes_last() -> None:
    tokens, log_probs = sampler_of(vocab=4).rank(row_of(-np.inf, 1, -np.inf, 1)[None], [()], 3)
    assert tokens[0, :2].tolist() == [1, 3]
    assert np.exp(log_probs[0]) == pytest.approx([0.5, 0.5, 0.0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_nothing_may_be_guessed_all_are_minus_infinity(temperature: float) -> None:
    sampler = sampler_of(Sampling(temperature=temperature, bad_words=[[0], [1], [2]]), vocab=3)
    _, log_probs = sampler.rank(row_of(1, 2, 3)[None], [()], 2)
    assert log_probs.tolist() == [[-math.inf, -math.inf]]


WISHES = [
    Sampling(),
    Sampling(repetition_penalty=1.3, bad_words=[[3, 4]], logit_bias={7: 2}),
    Sampling(temperature=0.3),
    Sampling(temperature=1.0, top_k=5),
    Sampling(temperature=1.0, top_p=0.8, presence_penalty=0.7),
    Sampling(temperature=1.5, min_p=0.02, frequency_penalty=0.4, min_new_tokens=3),
]


@pytest.mark.parametrize("sampling", WISHES, ids=lambda sampling: sampling.kind)
def test_the_same_model_guesses_the_very_token_that_is_chosen(sampling: Sampling) -> None:
    rng = np.random.default_rng(1)
    paths = [[3, 4], [4, 3], [0, 0]]
    for seed in range(50):
        asked = Sampling(**{**vars(sampling), "seed": seed})
        target, draft = (sampler_of(asked, [1, 2, 3], [4], 12) for _ in range(2))
        rows = rng.normal(0, 2, (3, 12)).astype(np.float32)
        tokens, _ = draft.rank(rows.copy(), paths, 4)
        chosen = [target.choose(row, path) for row, path in zip(rows, paths, strict=True)]
        assert tokens[:, 0].tolist() == [one.token for one in chosen]
