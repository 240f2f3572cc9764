"""All that changes a choice, written down a second time: plainly, one rule after another."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autodraft.decoding.noise import gumbel_noise, stream_key
from autodraft.decoding.sampler import Sampler
from autodraft.decoding.sampling import Sampling

EOS = 5


def plainly(
    sampling: Sampling, prompt: list[int], answer: list[int], logits: list[float]
) -> tuple[int, float]:
    """Return the chosen token and its gap, step by step on a dictionary of logits."""
    context = prompt + answer
    left = {token: float(np.float32(logit)) for token, logit in enumerate(logits)}
    for token in left:
        left[token] += sampling.logit_bias.get(token, 0)
        if token in context:
            penalty = sampling.repetition_penalty
            left[token] = left[token] / penalty if left[token] > 0 else left[token] * penalty
        left[token] -= sampling.presence_penalty * (token in answer)
        left[token] -= sampling.frequency_penalty * answer.count(token)
    for word in sampling.bad_words:
        if context[len(context) - len(word) + 1 :] == list(word[:-1]):
            left.pop(word[-1], None)
    if len(answer) < sampling.min_new_tokens:
        left.pop(EOS, None)
    temperature = sampling.temperature or 1.0
    ranked = sorted(((logit / temperature, -token) for token, logit in left.items()), reverse=True)
    if sampling.temperature:
        ranked = ranked[: sampling.top_k or None]
        weights = [math.exp(score - ranked[0][0]) for score, _ in ranked]
        mass = sampling.top_p * sum(weights)
        ranked = [one for at, one in enumerate(ranked) if sum(weights[:at]) < mass]
        least = ranked[0][0] + math.log(sampling.min_p) if sampling.min_p else -math.inf
        ids = np.array([-token for score, token in ranked if score >= least])
        noise = gumbel_noise(stream_key(sampling.seed, sampling.choice, len(context)), ids)
        ranked = sorted(
            ((score + at, token) for (score, token), at in zip(ranked, noise, strict=False)),
            reverse=True,
        )
    gap = (ranked[0][0] - ranked[1][0]) * temperature if len(ranked) > 1 else math.inf
    return -ranked[0][1], gap


_TOKENS = st.lists(st.integers(0, 7), max_size=6)
_SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.5]),
    top_k=st.integers(0, 8),
    top_p=st.sampled_from([0.123, 0.5678, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.0123, 0.234]),
    seed=st.integers(0, 2**64 - 1),
    choice=st.integers(0, 3),
    repetition_penalty=st.sampled_from([0.7, 1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.6, -0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.dictionaries(st.integers(0, 9), st.floats(-5, 5, width=32), max_size=2),
    bad_words=st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3), max_size=2),
    min_new_tokens=st.integers(0, 5),
)


@given(_SAMPLINGS, st.lists(st.integers(0, 7), min_size=1, max_size=4), _TOKENS, _TOKENS,
       st.integers(0, 2**32 - 1))  # fmt: skip
def test_a_choice_is_what_the_rules_say_one_after_another(
    sampling: Sampling, prompt: list[int], answer: list[int], path: list[int], weights: int
) -> None:
    logits = np.random.default_rng(weights).normal(0, 2, 8).astype(np.float32)
    sampler = Sampler(sampling, prompt, {EOS}, 8)
    sampler.append(answer)
    chosen = sampler.choose(logits.copy(), path)
    token, gap = plainly(sampling, prompt, answer + path, logits.tolist())
    if gap > 1e-5:  # else rounding may decide
        assert chosen.token == token
    assert chosen.gap == pytest.approx(gap, abs=1e-5)
