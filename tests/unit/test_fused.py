"""Packed and joint linears give what the stock ones give, and stand where those stood."""

from typing import Any

import pytest
import torch
from torch import nn

from autodraft.models import fused
from autodraft.models.fused import JointPart, PackedLinear, can_pack, fuse_linears
from autodraft.models.runner import ModelRunner
from tests.fakes import tiny_model

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not can_pack(), reason="this torch or CPU packs no bfloat16 weights"),
]


class Block(nn.Module):
    """Two linears of one input, one of another."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.query = nn.Linear(16, 24, bias=bias, dtype=dtype)
        self.key = nn.Linear(16, 8, bias=bias, dtype=dtype)
        self.out = nn.Linear(32, 16, bias=False, dtype=dtype)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat((self.query(states), self.key(states)), dim=-1))


def fuse(model: nn.Module, states: torch.Tensor) -> None:
    with torch.inference_mode():
        fuse_linears(model, lambda: model(states), "block")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_fused_linears_give_the_same_products(bias: bool, rows: int) -> None:
    model = Block(bias=bias)
    states = torch.randn(1, rows, 16, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = model(states)
        fuse(model, states[:, :1])
        found = model(states)
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)


def test_linears_of_one_input_become_parts_of_one_the_others_are_packed() -> None:
    model = Block()
    fuse(model, torch.randn(1, 1, 16, dtype=torch.bfloat16))
    assert isinstance(model.query, JointPart)
    assert isinstance(model.key, JointPart)
    assert isinstance(model.out, PackedLinear)
    assert not list(model.parameters())  # no second copy of a weight is kept


def test_float32_keeps_its_linears() -> None:
    model = Block(torch.float32)
    fuse(model, torch.randn(1, 1, 16))
    assert type(model.query) is nn.Linear
    assert type(model.out) is nn.Linear


def test_a_part_asked_out_of_order_computes_for_its_own_input() -> None:
    model = Block()
    one, other = torch.randn(2, 1, 16, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = model.key(one)
        fuse(model, one)
        model.query(other)  # leaves what it computed for another input
        torch.testing.assert_close(model.key(one), expected, atol=2e-2, rtol=2e-2)


def test_linears_that_differ_when_packed_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: PackedLinear, states: torch.Tensor) -> torch.Tensor:
        return torch.ones(*states.shape[:-1], 16, dtype=states.dtype)

    model = Block()
    states = torch.randn(1, 1, 16, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = model(states)
        monkeypatch.setattr(PackedLinear, "forward", wrong)
        monkeypatch.setattr(fused, "_groups", lambda calls: [[call] for call in calls[-1:]])
        fuse(model, states)
        assert type(model.out) is nn.Linear
        torch.testing.assert_close(model(states), expected)


def test_a_linear_that_runs_twice_in_a_forward_stays() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared = nn.Linear(8, 8, dtype=torch.bfloat16)

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return self.shared(self.shared(states))

    model = Twice()
    fuse(model, torch.randn(1, 1, 8, dtype=torch.bfloat16))
    assert type(model.shared) is nn.Linear


def test_a_runner_in_bfloat16_runs_fused_and_knows_its_weights() -> None:
    model: Any = tiny_model().to(torch.bfloat16)
    expected = sum(weight.nbytes for weight in model.parameters())
    runner = ModelRunner(model, "tiny")
    attention = model.model.layers[0].self_attn
    assert isinstance(attention.q_proj, JointPart)
    assert isinstance(attention.v_proj, JointPart)
    assert isinstance(attention.o_proj, PackedLinear)
    assert isinstance(model.lm_head, PackedLinear)
    assert runner.weights_bytes == expected
    assert runner.dtype == "bfloat16"
