"""Logits computed again in float32: from which states, of which rows, and when not at all."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autodraft.models.runner import ModelRunner
from autodraft.models.sharp_head import RowSharpener, SharpHead, rounds_off
from tests.fakes import VOCAB, prompt_of, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = prompt_of(9, seed=4)
COLUMNS = np.array([3, 77, 0, 127])


class HeadOnly:
    """A model that is nothing but its head."""

    def __init__(self, head: Any) -> None:
        self.head = head

    def get_output_embeddings(self) -> Any:
        return self.head


def head_by_hand(*, bias: bool) -> nn.Linear:
    """Three rows of two numbers each: (1, 2), (3, 4), (5, 6); biases 0.5, 0 and -1."""
    head = nn.Linear(2, 3, bias=bias, dtype=torch.bfloat16)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
        if bias:
            head.bias.copy_(torch.tensor([0.5, 0.0, -1.0]))
    return head


@pytest.mark.parametrize(
    ("bias", "expected"), [(False, [-1.0, -1.0, 4.0]), (True, [-2.0, -0.5, 3.0])]
)
def test_logits_are_the_heads_rows_times_its_input_by_hand(
    bias: bool, expected: list[float]
) -> None:
    head = head_by_hand(bias=bias)
    sharp = SharpHead(HeadOnly(head))
    with torch.inference_mode():
        sharp.settle(head(torch.tensor([[[9.0, 9.0], [1.0, -1.0]]], dtype=torch.bfloat16)))
        assert sharp.faithful
        assert sharp.logits(1, np.array([2, 0])).tolist() == expected[:2]
        sharp.settle(head(torch.tensor([[[2.0, 1.0]]], dtype=torch.bfloat16)))
        assert sharp.logits(0, np.array([0])).tolist() == [4.0 + 0.5 * bias]


def test_what_a_16_bit_head_rounds_away_is_there() -> None:
    head = nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[8.0, 0.0], [8.0, 0.0078125]]))
    sharp = SharpHead(HeadOnly(head))
    with torch.inference_mode():
        raw = head(torch.tensor([[[1.0, 1.0]]], dtype=torch.bfloat16))
    sharp.settle(raw)
    assert raw[0, 0].tolist() == [8.0, 8.0]  # numbers from 8 to 16 lie 1/16 apart
    assert sharp.logits(0, np.array([0, 1])).tolist() == [8.0, 8.0078125]


def exact_products(model: Any, prompt: list[int]) -> torch.Tensor:
    """The last states of a stock model times its head, in float64, [T, V]."""
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([prompt]), output_hidden_states=True)
        weight = model.get_output_embeddings().weight
        products: torch.Tensor = output.hidden_states[-1][0].double() @ weight.double().T
    return products


def test_logits_of_a_whole_model_are_those_of_its_last_states() -> None:
    model = tiny_model().to(torch.bfloat16)
    expected = exact_products(model, PROMPT).numpy()
    sharp = SharpHead(model)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([PROMPT])).logits
    sharp.settle(logits)
    assert sharp.faithful
    for row in (0, 5, len(PROMPT) - 1):
        found = sharp.logits(row, COLUMNS)
        np.testing.assert_allclose(found, expected[row, COLUMNS], atol=1e-4)
        rounded = logits[0, row, COLUMNS].double().numpy()
        np.testing.assert_allclose(found, rounded, rtol=2**-8, atol=1e-3)
        assert not np.array_equal(found, rounded)


@pytest.mark.parametrize("tied", [False, True], ids=["a head of its own", "the embedding's"])
def test_a_runner_keeps_the_rows_of_its_head_in_order_though_it_packs_them(tied: bool) -> None:
    model = tiny_model(tie_word_embeddings=tied).to(torch.bfloat16)
    runner = ModelRunner(model, "tiny")
    with torch.inference_mode():
        raw = runner.prefill(runner.new_cache(32), PROMPT)[0].float()
    sharp = runner.sharpener(0, float(raw.max()))(np.arange(VOCAB))
    assert sharp is not None
    # A row of another token would give another number.
    np.testing.assert_allclose(sharp, raw.numpy(), rtol=2**-7, atol=0.05)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("granite", {"logits_scaling": 2.0}),
        ("cohere", {"logit_scale": 0.25}),
        ("gemma2", {"final_logit_softcapping": 5.0, "query_pre_attn_scalar": 8}),
    ],
    ids=["divided", "multiplied", "capped"],
)
def test_a_model_that_scales_or_caps_its_logits_has_no_sharper_ones(
    family: str, config: dict[str, Any]
) -> None:
    model = tiny_model(family, attention="eager", **config).to(torch.bfloat16)
    sharp = SharpHead(model)
    with torch.inference_mode():
        sharp.settle(model(input_ids=torch.tensor([PROMPT])).logits)
    assert not sharp.faithful
    assert RowSharpener(sharp, 0, 8.0, torch.bfloat16)(COLUMNS) is None


def test_a_head_is_faithful_only_to_the_forward_that_was_settled_last() -> None:
    head = head_by_hand(bias=False)
    sharp = SharpHead(HeadOnly(head))
    assert not sharp.faithful
    with torch.inference_mode():
        output = head(torch.ones(1, 1, 2, dtype=torch.bfloat16))
    sharp.settle(output)
    assert sharp.faithful
    sharp.settle(output)  # the head has not run since
    assert not sharp.faithful


def test_weights_that_are_no_floats_are_not_multiplied() -> None:
    head = nn.Linear(2, 3, bias=False)
    head.weight = nn.Parameter(torch.ones(3, 2, dtype=torch.int8), requires_grad=False)
    sharp = SharpHead(HeadOnly(head))
    assert len(head._forward_hooks) == 0
    assert not sharp.faithful


@pytest.mark.parametrize(
    ("highest", "dtype", "margin"),
    [
        (8.0, torch.bfloat16, 8 / 128),
        (-8.0, torch.bfloat16, 8 / 128),
        (8.0, torch.float16, 8 / 1024),
        (0.0, torch.bfloat16, 0.0),
    ],
)
def test_the_margin_is_what_the_highest_logit_may_be_off_by(
    highest: float, dtype: torch.dtype, margin: float
) -> None:
    sharpener = RowSharpener(None, 0, highest, dtype)
    assert sharpener.margin == margin
    assert sharpener(COLUMNS) is None


def test_only_numbers_coarser_than_float32_round_off() -> None:
    types = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    assert [rounds_off(dtype) for dtype in types] == [True, True, False, False]
