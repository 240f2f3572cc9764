"""The cache that one answer leaves for the next: what is held, and that it is released once."""

from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autodraft.engine.kept import Kept
from autodraft.models.kv_cache import CacheLayout, KVCache, SlotLayout
from autodraft.models.runner import ModelRunner
from tests.fakes import tiny_runner
from tests.unit.test_verifier import PROMPT, verifier_of

pytestmark = pytest.mark.usefixtures("one_thread")

SLOT = SlotLayout(1, 1, torch.float32, torch.device("cpu"))
LAYOUT = CacheLayout(((SLOT, SLOT),))


class CountingRunner:
    """Allocates caches of one number a slot, and counts what comes back."""

    def __init__(self) -> None:
        self.made: list[KVCache] = []
        self.released: list[KVCache] = []

    def new_cache(self, capacity: int) -> KVCache:
        self.made.append(KVCache(LAYOUT, capacity))
        return self.made[-1]

    def release(self, cache: KVCache) -> None:
        assert all(cache is not other for other in self.released), "released twice"
        self.released.append(cache)

    def kept(self, tokens: list[int], capacity: int = 16) -> Kept:
        """What an answer left that forwarded these tokens."""
        kept = Kept()
        kept.keep(self.model, self.filled(tokens, capacity), tokens)
        return kept

    def filled(self, tokens: list[int], capacity: int = 16) -> KVCache:
        """A cache whose slots hold the tokens themselves."""
        cache = self.new_cache(capacity)
        states = torch.tensor(tokens, dtype=torch.float32).reshape(1, 1, -1, 1)
        cache.layers[0].update(states, states + 0.5)
        cache.advance(len(tokens))
        return cache

    @property
    def model(self) -> ModelRunner:
        return cast("ModelRunner", self)


@pytest.fixture
def runner() -> CountingRunner:
    return CountingRunner()


def content(cache: KVCache) -> list[float]:
    """Numbers in the filled slots."""
    layer = cache.layers[0]
    keys = layer.keys[0, 0, : cache.length, 0]
    assert torch.equal(layer.values[0, 0, : cache.length, 0], keys + 0.5)
    return [float(key) for key in keys]


def test_where_nothing_is_kept_an_answer_gets_an_empty_cache(runner: CountingRunner) -> None:
    cache, held = Kept().take(runner.model, [5, 6, 7], 9)
    assert (held, cache.length, cache.capacity) == (0, 0, 9)
    assert runner.released == []


@pytest.mark.parametrize(
    ("prompt", "held"),
    [
        ([5, 6, 7, 8, 9, 1, 2], 5),
        ([5, 6, 7, 1, 2], 3),
        ([5, 6, 7, 8, 1, 9], 4),
        ([5, 1, 7, 8, 9], 1),
        ([5, 6, 7, 8, 9], 4),
        ([5, 6, 7], 2),
        ([5, 6], 1),
    ],
    ids=[
        "a further turn",
        "an edited history",
        "another last token",
        "a change behind the first token",
        "the same prompt again, but its last token",
        "the beginning of it, but its last token",
        "its first two tokens",
    ],
)
def test_an_answer_goes_on_with_what_its_prompt_has_in_common(
    runner: CountingRunner, prompt: list[int], held: int
) -> None:
    kept = runner.kept([5, 6, 7, 8, 9])
    cache, found = kept.take(runner.model, prompt, 16)
    assert found == cache.length == held
    assert cache is runner.made[0]
    assert content(cache) == prompt[:held]
    assert runner.released == []


@pytest.mark.parametrize("prompt", [[5], [1, 6, 7]], ids=["one token", "another first token"])
def test_a_prompt_with_nothing_in_common_gets_a_new_cache_and_the_old_one_is_released(
    runner: CountingRunner, prompt: list[int]
) -> None:
    kept = runner.kept([5, 6, 7])
    cache, held = kept.take(runner.model, prompt, 16)
    assert (held, cache.length) == (0, 0)
    assert cache is runner.made[1]
    assert runner.released == [runner.made[0]]


def test_a_cache_that_is_too_small_is_copied_as_far_as_the_prompts_agree(
    runner: CountingRunner,
) -> None:
    kept = runner.kept([5, 6, 7, 8], capacity=5)
    cache, held = kept.take(runner.model, [5, 6, 7, 1], 6)
    assert (held, cache.capacity) == (3, 6)
    assert cache is runner.made[1]
    assert content(cache) == [5, 6, 7]
    assert runner.released == [runner.made[0]]


def test_a_cache_of_just_the_size_is_taken_as_it_is(runner: CountingRunner) -> None:
    cache, _ = runner.kept([5, 6, 7, 8], capacity=5).take(runner.model, [5, 6, 1], 5)
    assert cache is runner.made[0]


def test_another_model_reuses_nothing_and_the_cache_goes_back_to_its_own(
    runner: CountingRunner,
) -> None:
    kept, other = runner.kept([5, 6, 7]), CountingRunner()
    cache, held = kept.take(other.model, [5, 6, 7], 16)
    assert (held, cache.length) == (0, 0)
    assert cache is other.made[0]
    assert (runner.released, other.released) == ([runner.made[0]], [])


def test_what_was_taken_is_not_there_for_a_second_answer(runner: CountingRunner) -> None:
    kept = runner.kept([5, 6, 7])
    kept.take(runner.model, [5, 6, 7, 8], 16)
    cache, held = kept.take(runner.model, [5, 6, 7, 8], 16)
    assert (held, cache.length) == (0, 0)
    kept.drop()
    assert runner.released == []  # both belong to whoever took them


def test_keeping_releases_what_was_kept_before_and_forgets_slots_behind_the_tokens(
    runner: CountingRunner,
) -> None:
    kept = runner.kept([5, 6])
    kept.keep(runner.model, runner.filled([1, 2, 3, 4, 99, 99]), [1, 2, 3, 4])
    assert runner.released == [runner.made[0]]
    cache, held = kept.take(runner.model, [1, 2, 3, 4, 99, 7], 16)
    assert (held, content(cache)) == (4, [1, 2, 3, 4])


def test_what_is_dropped_is_released_once_and_is_gone(runner: CountingRunner) -> None:
    kept = runner.kept([5, 6, 7])
    kept.drop()
    kept.drop()
    assert runner.released == [runner.made[0]]
    assert kept.take(runner.model, [5, 6, 7], 16)[1] == 0


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(TOKENS, min_size=2, max_size=6), st.integers(0, 8))
def test_over_many_answers_every_cache_is_right_and_is_released_once(
    prompts: list[list[int]], growth: int
) -> None:
    runner, kept, before = CountingRunner(), Kept(), list[int]()
    for number, prompt in enumerate(prompts):
        cache, held = kept.take(runner.model, prompt, 8 + growth * number)
        expected = 0
        while expected < min(len(before), len(prompt) - 1) and prompt[expected] == before[expected]:
            expected += 1
        assert held == expected
        assert content(cache) == prompt[:held]
        rest = torch.tensor(prompt[held:], dtype=torch.float32).reshape(1, 1, -1, 1)
        cache.layers[0].update(rest, rest + 0.5)
        cache.advance(len(prompt) - held)
        kept.keep(runner.model, cache, prompt)
        before = prompt
    kept.drop()
    assert len(runner.released) == len(runner.made)


# ------------------------------------------------------------------------------- the target's side


@pytest.fixture(scope="module")
def target() -> ModelRunner:
    return tiny_runner()


def test_a_prefill_goes_on_with_what_the_answer_before_has_left(target: ModelRunner) -> None:
    alone = verifier_of(target)
    reference = [alone.prefill(), *(alone.step() for _ in range(9))]
    kept = Kept()
    first = verifier_of(target, kept=kept)
    assert first.reused == 0
    first.prefill()
    first.verify(np.array(reference[1:4]), np.array([0, 1, 2]))
    first.release()
    second = verifier_of(target, kept=kept)
    assert second.prefill() == reference[0]
    assert second.reused == len(PROMPT) - 1
    assert [second.step() for _ in range(9)] == reference[1:10]


def test_a_cache_is_taken_at_the_prefill_and_not_before(target: ModelRunner) -> None:
    kept = Kept()
    first, second = (verifier_of(target, kept=kept) for _ in range(2))
    first.prefill()
    first.release()  # only now is there something to go on with
    second.prefill()
    assert second.reused == len(PROMPT) - 1


def test_an_answer_given_up_before_its_prefill_leaves_what_is_kept(target: ModelRunner) -> None:
    kept = Kept()
    first, second, third = (verifier_of(target, kept=kept) for _ in range(3))
    first.prefill()
    first.release()
    second.release()
    third.prefill()
    assert third.reused == len(PROMPT) - 1
