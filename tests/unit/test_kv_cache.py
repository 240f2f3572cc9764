"""The cache after append, keep and trim against one that was filled afresh."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autodraft.errors import ModelLoadError
from autodraft.models.kv_cache import CacheLayout, KVCache, SlotLayout
from autodraft.models.runner import ModelRunner
from autodraft.tree.attention import ancestor_mask, node_positions
from autodraft.tree.draft_tree import node_depths
from tests.fakes import prompt_of, tiny_model, tiny_runner

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = prompt_of(15, seed=3)
TREE = np.array([-1, 0, 0, 1, 2, 3, 4])
"""Paths 0 1 3 5 and 0 2 4 6."""
TOKENS = np.array(prompt_of(len(TREE), seed=4))
BASE = len(PROMPT)
ATOL = 1e-5

CPU = torch.device("cpu")
MIXED = CacheLayout(
    (
        (SlotLayout(2, 4, torch.float32, CPU), SlotLayout(2, 3, torch.float32, CPU)),
        (SlotLayout(2, 4, torch.float32, CPU), SlotLayout(1, 5, torch.bfloat16, CPU)),
    )
)
"""Keys and values of different shape and type, as in latent attention or across devices."""


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return tiny_runner(scale=1.0)


def cache_with_tree(runner: ModelRunner) -> KVCache:
    cache = runner.new_cache(64)
    runner.prefill(cache, PROMPT)
    positions = node_positions(node_depths(TREE), BASE)
    runner.forward(cache, TOKENS, positions, ancestor_mask(TREE))
    return cache


def next_logits(runner: ModelRunner, cache: KVCache) -> torch.Tensor:
    return runner.prefill(cache, [7, 8])[0]


def fresh_logits(runner: ModelRunner, tokens: Sequence[int]) -> torch.Tensor:
    cache = runner.new_cache(64)
    runner.prefill(cache, tokens)
    return next_logits(runner, cache)


@pytest.mark.parametrize(
    "path",
    [[], [0], [0, 1], [0, 1, 3, 5], [0, 2], [0, 2, 4], [0, 2, 4, 6]],
    ids=["nothing", "root", "in place", "in place, then gaps", "a gap", "gaps", "whole path"],
)
def test_a_kept_path_is_what_a_fresh_prefill_gives(runner: ModelRunner, path: list[int]) -> None:
    cache = cache_with_tree(runner)
    cache.keep(BASE, [BASE + node for node in path])
    assert cache.length == BASE + len(path)
    committed = PROMPT + TOKENS[path].tolist()
    assert torch.allclose(next_logits(runner, cache), fresh_logits(runner, committed), atol=ATOL)


def test_another_path_than_the_kept_one_gives_other_logits(runner: ModelRunner) -> None:
    cache = cache_with_tree(runner)
    cache.keep(BASE, [BASE, BASE + 2])
    other = fresh_logits(runner, PROMPT + TOKENS[[0, 1]].tolist())
    assert not torch.allclose(next_logits(runner, cache), other, atol=1e-2)


def test_keeping_every_slot_of_a_chain_changes_nothing(runner: ModelRunner) -> None:
    cache = runner.new_cache(64)
    runner.prefill(cache, PROMPT)
    cache.keep(10, np.arange(10, BASE))
    assert cache.length == BASE
    assert torch.allclose(next_logits(runner, cache), fresh_logits(runner, PROMPT), atol=ATOL)


@pytest.mark.parametrize("length", [1, BASE - 1, BASE])
def test_a_trimmed_cache_is_what_a_fresh_prefill_gives(runner: ModelRunner, length: int) -> None:
    cache = cache_with_tree(runner)
    cache.trim(length)
    assert cache.length == length
    expected = fresh_logits(runner, PROMPT[:length])
    assert torch.allclose(next_logits(runner, cache), expected, atol=ATOL)


def test_a_cache_trimmed_to_nothing_can_be_filled_again(runner: ModelRunner) -> None:
    cache = cache_with_tree(runner)
    cache.trim(0)
    runner.prefill(cache, PROMPT)
    assert torch.allclose(next_logits(runner, cache), fresh_logits(runner, PROMPT), atol=ATOL)


def test_round_after_round_the_cache_stays_what_a_fresh_prefill_gives(runner: ModelRunner) -> None:
    cache, committed = runner.new_cache(64), list(PROMPT)
    runner.prefill(cache, PROMPT)
    for path in ([0, 2, 4], [0], [0, 1, 3, 5], [0, 2]):
        base = cache.length
        positions = node_positions(node_depths(TREE), base)
        runner.forward(cache, TOKENS, positions, ancestor_mask(TREE))
        cache.keep(base, [base + node for node in path])
        committed += TOKENS[path].tolist()
    assert torch.allclose(next_logits(runner, cache), fresh_logits(runner, committed), atol=ATOL)


@pytest.mark.parametrize("count", [1, 7, BASE])
@pytest.mark.parametrize("capacity", [20, 64, 100])
def test_an_adopted_beginning_is_what_a_fresh_prefill_gives(
    runner: ModelRunner, count: int, capacity: int
) -> None:
    cache = cache_with_tree(runner)
    adopting = runner.new_cache(capacity)
    adopting.adopt(cache, count)
    assert (adopting.length, adopting.capacity) == (count, capacity)
    expected = fresh_logits(runner, PROMPT[:count])
    assert torch.allclose(next_logits(runner, adopting), expected, atol=ATOL)


def test_a_cache_that_was_adopted_from_is_left_as_it_was(runner: ModelRunner) -> None:
    cache, adopting = cache_with_tree(runner), runner.new_cache(64)
    cache.trim(BASE)
    adopting.adopt(cache, 5)
    runner.prefill(adopting, [1, 2, 3])
    assert cache.length == BASE
    assert torch.allclose(next_logits(runner, cache), fresh_logits(runner, PROMPT), atol=ATOL)


def test_layers_of_any_shape_are_adopted() -> None:
    cache, adopting = KVCache(MIXED, capacity=9), KVCache(MIXED, capacity=12)
    for layer in cache.layers:
        layer.update(*(torch.randn(s.shape).to(s.dtype) for s in (layer.keys, layer.values)))
    cache.advance(9)
    adopting.adopt(cache, 7)
    for one, other in zip(adopting.layers, cache.layers, strict=True):
        assert torch.equal(one.keys[..., :7, :], other.keys[..., :7, :])
        assert torch.equal(one.values[..., :7, :], other.values[..., :7, :])
    assert {layer.get_seq_length() for layer in adopting.layers} == {7}


@pytest.mark.parametrize("length", [-1, BASE + 1, 64])
def test_a_cache_cannot_be_trimmed_to_what_it_never_held(runner: ModelRunner, length: int) -> None:
    cache = runner.new_cache(64)
    runner.prefill(cache, PROMPT)
    with pytest.raises(ValueError, match=f"cannot trim a cache of {BASE} tokens to {length}"):
        cache.trim(length)
    assert cache.length == BASE


def test_bytes_are_those_of_every_layer_times_the_slots(runner: ModelRunner) -> None:
    # 2 layers, keys and values, 2 heads of 8 elements of 4 bytes
    assert runner.layout.bytes_per_token == 2 * 2 * 2 * 8 * 4
    assert runner.new_cache(100).nbytes == 100 * runner.layout.bytes_per_token
    assert MIXED.bytes_per_token == (2 * 4 + 2 * 3) * 4 + 2 * 4 * 4 + 5 * 2
    assert KVCache(MIXED, 9).nbytes == 9 * MIXED.bytes_per_token


def test_storage_is_allocated_once(runner: ModelRunner) -> None:
    cache = cache_with_tree(runner)
    before = [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in cache.layers]
    cache.keep(BASE, [BASE, BASE + 2, BASE + 4])
    runner.prefill(cache, PROMPT)
    assert [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in cache.layers] == before


@given(st.integers(0, 6), st.sets(st.integers(0, 9)))
def test_every_layer_of_any_shape_keeps_the_named_slots(base: int, offsets: set[int]) -> None:
    slots = sorted(base + offset for offset in offsets)
    cache = KVCache(MIXED, capacity=20)
    originals: list[torch.Tensor] = []
    for layer in cache.layers:
        states = [torch.randn(s.shape).to(s.dtype)[..., :16, :] for s in (layer.keys, layer.values)]
        layer.update(*states)
        originals += states
    cache.advance(16)
    cache.keep(base, slots)
    kept = [*range(base), *slots]
    assert cache.length == len(kept)
    states = [state for layer in cache.layers for state in (layer.keys, layer.values)]
    for state, original in zip(states, originals, strict=True):
        assert torch.equal(state[..., : len(kept), :], original[..., kept, :])
    assert {layer.get_seq_length() for layer in cache.layers} == {len(kept)}


SLIDING = {"head_dim": 8, "sliding_window": 8}
ALL_FULL = {"use_sliding_window": False, "sliding_window": 8}
SOME_SLIDING = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("mistral", SLIDING),
        ("gemma2", {**SLIDING, "query_pre_attn_scalar": 8}),
        ("gemma3_text", SLIDING),
        ("qwen2", SOME_SLIDING),
        ("mamba", {"state_size": 4}),
    ],
)
def test_a_model_with_a_sliding_window_or_a_recurrent_state_is_refused(
    family: str, config: dict[str, Any]
) -> None:
    model = tiny_model(family, attention="eager", **config)
    with pytest.raises(ModelLoadError, match="needs full attention in every layer") as caught:
        ModelRunner(model, f"some/{family}")
    assert f"some/{family}: layer " in str(caught.value)


GRIFFIN = {"lru_width": 32, "attention_window_size": 8}
LOCAL = {
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 8,
}
SEQUENCE_TO_SEQUENCE = {
    "d_model": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("recurrent_gemma", GRIFFIN),
        ("qwen3_next", LINEAR),
        ("rwkv", {"attention_hidden_size": 32}),
        ("bloom", {"n_layer": 2, "n_head": 4}),
        ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2}),
        ("gpt_neo", LOCAL),
        ("bert", {}),
        ("bart", SEQUENCE_TO_SEQUENCE),
    ],
    ids=[
        "recurrent and local",
        "linear attention first",
        "no cache at all",
        "ALiBi that takes no tree mask",
        "ALiBi by slot",
        "local attention by slot",
        "attention to what follows",
        "positions by slot",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_model_that_would_go_wrong_in_silence_or_with_a_traceback_is_refused(
    family: str, config: dict[str, Any], dtype: torch.dtype
) -> None:
    model = tiny_model(family, attention="eager", **config).to(dtype)
    with pytest.raises(ModelLoadError, match=f"some/{family}"):
        ModelRunner(model, f"some/{family}")


@pytest.mark.parametrize(
    ("family", "config"), [("mistral", {"sliding_window": None}), ("qwen2", ALL_FULL)]
)
def test_a_family_that_can_slide_but_does_not_is_taken(family: str, config: dict[str, Any]) -> None:
    layout = tiny_runner(family, **config).layout
    assert len(layout.layers) == 2
    assert layout.layers[0][0] == SlotLayout(2, 8, torch.float32, CPU)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("seed", range(3))
def test_rounding_is_not_taken_for_a_fault(family: str, dtype: torch.dtype, seed: int) -> None:
    runner = ModelRunner(tiny_model(family, seed).to(dtype), family)
    assert runner.layout.layers[0][0].dtype == dtype
