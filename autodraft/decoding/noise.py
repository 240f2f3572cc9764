"""Gumbel noise that either side computes for any token alone: the draw of a seeded answer.

The noise of a token is a function of (seed, choice, position, token id) and of nothing else, so
that a sampled answer depends on its prompt and its seed, whatever was drafted (Daliri, Musco,
Suresh 2024, arXiv 2408.07978). The integers come from SplitMix64 (Steele, Lea, Flood 2014, "Fast
Splittable Pseudorandom Number Generators"), used as a counter: they are the same on every machine.
``docs/losslessness.md`` prints test vectors.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
HashArray = npt.NDArray[np.uint64]

_GAMMA: Final = 0x9E3779B97F4A7C15
"""The increment of SplitMix64: the golden ratio's fraction, made odd."""
_MASK: Final = (1 << 64) - 1
_FRACTION_BITS: Final = 52
"""Bits of a uniform number: with half a step added it is exact, and neither 0 nor 1."""
MAX_SEED: Final = _MASK


def stream_key(seed: int, choice: int, position: int) -> int:
    """Return the state from which the hashes of one position are drawn.

    Args:
        seed: The answer's seed, 0 … 2^64 - 1.
        choice: Which of several answers to one prompt, from 0.
        position: Absolute position of the token in the context, prompt included.
    """
    key = 0
    for part in (seed, choice, position):
        key = _mix(((key ^ part) + _GAMMA) & _MASK)
    return key


def token_hashes(key: int, token_ids: IntArray) -> HashArray:
    """Return the hash of each token id: output number ``token id`` of SplitMix64 from ``key``.

    Args:
        key: Of the position.
        token_ids: Token ids, [K], not negative.
    """
    counters = token_ids.astype(np.uint64)
    counters += np.uint64(1)
    counters *= np.uint64(_GAMMA)  # integers wrap
    counters += np.uint64(key)
    shifted = counters >> np.uint64(30)
    counters ^= shifted
    counters *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(counters, np.uint64(27), out=shifted)
    counters ^= shifted
    counters *= np.uint64(0x94D049BB133111EB)
    np.right_shift(counters, np.uint64(31), out=shifted)
    counters ^= shifted
    return counters


def gumbel_noise(key: int, token_ids: IntArray) -> FloatArray:
    """Return standard Gumbel noise of each token id, [K]; always finite."""
    fraction = token_hashes(key, token_ids) >> np.uint64(64 - _FRACTION_BITS)
    uniform: FloatArray = fraction.astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-_FRACTION_BITS
    np.log(uniform, out=uniform)
    np.negative(uniform, out=uniform)
    np.log(uniform, out=uniform)
    np.negative(uniform, out=uniform)
    return uniform


def _mix(state: int) -> int:
    """Return what SplitMix64 gives out in a state."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)
