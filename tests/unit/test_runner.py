"""Forwards over our own cache against the stock class without a cache; tiny models, float32."""

from typing import Any

import numpy as np
import pytest
import torch

from autodraft.errors import ContextLengthError
from autodraft.models import runner as runner_module
from autodraft.models.runner import ModelRunner
from autodraft.tree.attention import ancestor_mask, node_positions
from autodraft.tree.draft_tree import BoolArray, FloatArray, IntArray, node_depths
from tests.fakes import VOCAB, prompt_of, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = ("llama", "qwen2", "qwen3")
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4}
PROMPT = prompt_of(20, seed=1)
TREE: IntArray = np.array([-1, 0, 0, 1, 1, 2, 3, 3, 6, 5])
"""Depths 0 1 1 2 2 2 3 3 4 3: unbalanced, in no order of depth-first search."""
TOKENS: IntArray = np.array(prompt_of(len(TREE), seed=2))
ATOL = 1e-5


def plain_logits(model: Any, ids: list[int]) -> FloatArray:
    """Logits after the last token by the stock class, without a cache, mask or positions."""
    with torch.inference_mode():
        logits: FloatArray = model(input_ids=torch.tensor([ids])).logits[0, -1].double().numpy()
    return logits


def path_error(
    runner: ModelRunner, model: Any, visible: BoolArray, positions: IntArray | None = None
) -> FloatArray:
    """Largest difference of each node's logits in a tree forward from those of its plain path."""
    if positions is None:
        positions = node_positions(node_depths(TREE), len(PROMPT))
    cache = runner.new_cache(len(PROMPT) + len(TREE))
    runner.prefill(cache, PROMPT)
    logits = runner.forward(cache, TOKENS, positions, visible).double().numpy()
    paths = [np.flatnonzero(ancestors) for ancestors in ancestor_mask(TREE)]
    plain = [plain_logits(model, PROMPT + TOKENS[path].tolist()) for path in paths]
    error: FloatArray = np.abs(logits - np.stack(plain)).max(axis=-1)
    return error


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", [*FAMILIES, "gpt2"])
def test_every_node_of_a_tree_forward_is_what_a_plain_forward_of_its_path_gives(
    family: str, attention: str
) -> None:
    options = GPT2 if family == "gpt2" else {}
    model = tiny_model(family, scale=1.0, attention=attention, **options)
    assert path_error(ModelRunner(model, family), model, ancestor_mask(TREE)).max() < ATOL


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_second_level_sees_the_first_through_the_cache(attention: str) -> None:
    model = tiny_model(scale=1.0, attention=attention)
    runner, visible = ModelRunner(model, "llama"), ancestor_mask(TREE)
    positions = node_positions(node_depths(TREE), len(PROMPT))
    cache = runner.new_cache(64)
    runner.prefill(cache, PROMPT)
    whole = runner.forward(cache, TOKENS, positions, visible)
    cache.trim(len(PROMPT))
    first = runner.forward(cache, TOKENS[:4], positions[:4], visible[:4, :4])
    second = runner.forward(cache, TOKENS[4:], positions[4:], visible[4:])
    assert torch.allclose(torch.cat((first, second)), whole, atol=ATOL)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefill_in_chunks_is_a_prefill_at_once(
    family: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family, scale=1.0, attention=attention)
    runner, prompt = ModelRunner(model, family), prompt_of(53)
    monkeypatch.setattr(runner_module, "PREFILL_CHUNK", 7)
    cache = runner.new_cache(64)
    chunked = runner.prefill(cache, prompt)
    assert cache.length == 53
    assert chunked.shape == (1, VOCAB)
    assert np.abs(chunked[0].double().numpy() - plain_logits(model, prompt)).max() < ATOL


def test_a_prompt_longer_than_one_chunk_is_forwarded_whole() -> None:
    model = tiny_model(scale=1.0)
    runner, prompt = ModelRunner(model, "llama"), prompt_of(runner_module.PREFILL_CHUNK + 88)
    logits = runner.prefill(runner.new_cache(len(prompt)), prompt)
    assert np.abs(logits[0].double().numpy() - plain_logits(model, prompt)).max() < ATOL


def test_a_prefill_goes_on_behind_what_the_cache_holds() -> None:
    model = tiny_model(scale=1.0)
    runner = ModelRunner(model, "llama")
    cache = runner.new_cache(64)
    for piece in (PROMPT[:3], PROMPT[3:4], PROMPT[4:]):
        logits = runner.prefill(cache, piece)
    assert np.abs(logits[0].double().numpy() - plain_logits(model, PROMPT)).max() < ATOL


def test_a_single_decoding_step_is_a_plain_forward() -> None:
    model = tiny_model(scale=1.0)
    runner = ModelRunner(model, "llama")
    cache = runner.new_cache(64)
    runner.prefill(cache, PROMPT)
    step = runner.forward(
        cache, np.array([5]), np.array([len(PROMPT)]), np.ones((1, 1), dtype=np.bool_)
    )
    assert np.abs(step[0].double().numpy() - plain_logits(model, [*PROMPT, 5])).max() < ATOL
    assert cache.length == len(PROMPT) + 1


def test_a_single_node_that_must_not_see_its_sibling_does_not() -> None:
    model = tiny_model(scale=1.0)
    runner = ModelRunner(model, "llama")
    cache = runner.new_cache(64)
    runner.prefill(cache, PROMPT)
    siblings = np.eye(2, dtype=np.bool_)
    positions = np.full(2, len(PROMPT))
    runner.forward(cache, np.array([5]), positions[:1], siblings[:1, :1])
    second = runner.forward(cache, np.array([6]), positions[1:], siblings[1:])
    assert np.abs(second[0].double().numpy() - plain_logits(model, [*PROMPT, 6])).max() < ATOL


def test_more_tokens_than_the_cache_has_room_for_are_refused() -> None:
    runner = ModelRunner(tiny_model(), "llama")
    cache = runner.new_cache(10)
    with pytest.raises(ContextLengthError, match="20 more tokens do not fit a cache of 10"):
        runner.prefill(cache, PROMPT)


def test_a_runner_tells_the_models_limits() -> None:
    runner = ModelRunner(tiny_model(max_position_embeddings=77), "llama")
    assert runner.max_context == 77
    assert runner.vocab_size == VOCAB
    assert runner.device == "cpu"
    assert runner.dtype == "float32"
