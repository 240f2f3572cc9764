"""Compiled forwards: fixed shapes, spare slots, caches used again. Compiling itself is torch's."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch

from autodraft.errors import ContextLengthError
from autodraft.models.compiled import SMALLEST_WINDOW, window_of
from autodraft.models.runner import ModelRunner
from tests.fakes import VOCAB, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Leave the model uncompiled and note the (rows, window) of every forward."""
    seen: list[tuple[int, int]] = []

    def compile(function: Any, **_: Any) -> Any:
        def call(**inputs: Any) -> Any:
            seen.append(tuple(inputs["attention_mask"].shape[-2:]))
            return function(**inputs)

        return call

    monkeypatch.setattr(torch, "compile", compile)
    return seen


def runners() -> tuple[ModelRunner, ModelRunner]:
    return ModelRunner(tiny_model(), "eager"), ModelRunner(tiny_model(), "compiled", compile=True)


def compare(eager: ModelRunner, compiled: ModelRunner, sizes: list[int]) -> None:
    """Run the same trees on both, each followed by a path that is kept."""
    rng = np.random.default_rng(5)
    caches = [runner.new_cache(120) for runner in (eager, compiled)]
    prompt = rng.integers(0, VOCAB, 30)
    for runner, cache in zip((eager, compiled), caches, strict=True):
        runner.prefill(cache, prompt)
    for size in sizes:
        base = caches[0].length
        tokens, visible = rng.integers(0, VOCAB, size), np.eye(size, dtype=np.bool_)
        visible[:, 0] = True  # a root and its leaves
        positions = base + (np.arange(size) > 0)
        found = [
            runner.forward(cache, tokens, positions, visible)
            for runner, cache in zip((eager, compiled), caches, strict=True)
        ]
        torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)
        for cache in caches:
            cache.keep(base, [base, base + size - 1] if size > 1 else [base])
    compiled.release(caches[1])


def test_padded_forwards_give_what_plain_ones_give(shapes: list[tuple[int, int]]) -> None:
    eager, compiled = runners()
    compare(eager, compiled, [1, 3, 5, 2, 1, 9])
    assert shapes == [(rows, SMALLEST_WINDOW) for rows in (1, 8, 8, 8, 1, 32)]


def test_a_cache_is_used_again_without_what_it_held(shapes: list[tuple[int, int]]) -> None:
    eager, compiled = runners()
    first = compiled.new_cache(100)
    compiled.prefill(first, np.arange(90) % VOCAB)
    compiled.release(first)
    second = compiled.new_cache(120)
    assert second is first
    assert second.length == 0
    compiled.release(second)
    compare(eager, compiled, [4, 4])
    assert compiled.new_cache(SMALLEST_WINDOW + 1) is not first


def test_a_full_cache_is_refused_before_the_forward(shapes: list[tuple[int, int]]) -> None:
    _, compiled = runners()
    cache = compiled.new_cache(SMALLEST_WINDOW)
    compiled.prefill(cache, np.arange(SMALLEST_WINDOW) % VOCAB)
    with pytest.raises(ContextLengthError, match="do not fit"):
        compiled.forward(cache, np.array([1]), np.array([0]), np.ones((1, 1), dtype=np.bool_))
    assert not shapes


@pytest.mark.parametrize(("slots", "window"), [(1, 512), (512, 512), (513, 1024), (4097, 8192)])
def test_windows_are_powers_of_two(slots: int, window: int) -> None:
    assert window_of(slots) == window


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # whatever the compiler of the day warns of
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++")
def test_really_compiled_forwards_give_what_plain_ones_give() -> None:
    compare(*runners(), [1, 3, 4, 1, 3])
