"""Padding rows to a few sizes, and who sees what then."""

import numpy as np
import pytest
import torch

from autodraft.models import runner as runner_module
from autodraft.models.rows import MOST_ADDED, SIZES, padded_rows, padded_slots, padded_view
from autodraft.models.runner import ModelRunner
from tests.fakes import VOCAB, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("count", "rows"), [(1, 1), (3, 8), (33, 40), (41, 64), (512, 512), (513, 1024)]
)
def test_rows_are_padded_to_the_next_size(count: int, rows: int) -> None:
    assert padded_rows(count) == rows


@pytest.mark.parametrize(
    ("length", "rows", "slots"), [(100, 40, 140), (100, 64, 192), (128, 64, 192), (129, 128, 320)]
)
def test_many_rows_attend_over_whole_steps_of_slots(length: int, rows: int, slots: int) -> None:
    assert padded_slots(length, rows) == slots


def test_no_more_is_added_than_a_cache_has_spare_slots() -> None:
    added = (
        padded_slots(length, padded_rows(count)) - length - count
        for count in range(1, 3 * SIZES[-1])
        for length in (0, 1, 63)
    )
    assert max(added) <= MOST_ADDED


def test_rows_that_count_see_none_of_the_added_ones() -> None:
    view = padded_view(np.array([[True, False], [True, True]]), 4)
    assert view.tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, True],
        [True, True, True, True],
    ]
    view = padded_view(np.array([[True, False], [True, True]]), 3, slots=2)
    assert view[:2].tolist() == [[True, False, *[False] * 3], [True, True, *[False] * 3]]
    assert view.shape == (3, 5)


def test_padded_forwards_give_what_plain_ones_give(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ModelRunner(tiny_model(), "plain")
    monkeypatch.setattr(runner_module, "fuse_linears", lambda *_: True)
    padded = ModelRunner(tiny_model(), "padded")
    rng = np.random.default_rng(2)
    prompt = rng.integers(0, VOCAB, 43)
    caches = [runner.new_cache(132) for runner in (plain, padded)]
    for storage in caches[1]._storages:
        storage.fill_(torch.nan)  # what was there before must not show
    sides = list(zip((plain, padded), caches, strict=True))
    found = [runner.prefill(cache, prompt) for runner, cache in sides]
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)
    found = [runner.prefill(cache, prompt[:3]) for runner, cache in sides]
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)
    for size in (3, 1, 5, 7, 70):  # the last ends at the last slot
        tokens, visible = rng.integers(0, VOCAB, size), np.eye(size, dtype=np.bool_)
        visible[:, 0] = True
        positions = caches[0].length + (np.arange(size) > 0)
        found = [runner.forward(cache, tokens, positions, visible) for runner, cache in sides]
        assert found[1].shape == (size, VOCAB)
        torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)
    assert [cache.length for cache in caches] == [132, 132]
