"""Grouped attention gives what the stock function gives, and is used where it applies."""

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from autodraft.models.attention import GROUPED_ATTENTION, grouped_attention
from autodraft.models.runner import ModelRunner
from tests.fakes import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


class Module(torch.nn.Module):
    num_key_value_groups = 3
    is_causal = True


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("rows", [1, 6])
def test_it_attends_as_the_stock_function_does(masked: bool, rows: int) -> None:
    torch.manual_seed(1)
    query, slots = torch.randn(1, 6, rows, 16), 9
    key, value = torch.randn(2, 1, 2, slots, 16)
    mask = None
    if masked:
        mask = torch.zeros(1, 1, rows, slots).masked_fill_(torch.rand(rows, slots) < 0.4, -1e30)
        mask[..., 0] = 0
    elif rows > 1:  # without a mask the stock function takes it for a prefill
        key, value = key[..., :rows, :], value[..., :rows, :]
    expected, _ = sdpa_attention_forward(Module().eval(), query, key, value, mask, scaling=0.2)
    found, weights = grouped_attention(Module().eval(), query, key, value, mask, scaling=0.2)
    torch.testing.assert_close(found, expected)
    assert weights is None


def test_a_model_on_a_cpu_uses_it_and_an_eager_one_does_not() -> None:
    model = tiny_model()
    ModelRunner(model, "tiny")
    assert model.config._attn_implementation == GROUPED_ATTENTION
    eager = tiny_model()
    eager.set_attn_implementation("eager")
    ModelRunner(eager, "tiny")
    assert eager.config._attn_implementation == "eager"
