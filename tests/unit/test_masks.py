"""One buffer gives every forward the mask that a fresh one would be."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autodraft.models.masks import TreeMasks


def fresh(visible: np.ndarray, num_slots: int, dtype: torch.dtype) -> torch.Tensor:
    rows, tail = visible.shape
    mask = torch.zeros((rows, num_slots), dtype=dtype)
    mask[:, num_slots - tail :][torch.from_numpy(~visible)] = torch.finfo(dtype).min
    return mask[None, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@settings(deadline=None, max_examples=40)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 70), st.integers(1, 90), st.integers(0, 1500)), min_size=1
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_mask_is_what_a_fresh_one_would_be(
    dtype: torch.dtype, shapes: list[tuple[int, int, int]], seed: int
) -> None:
    rng, masks = np.random.default_rng(seed), TreeMasks(dtype, torch.device("cpu"))
    for rows, tail, context in shapes:
        visible = rng.random((rows, tail)) < 0.5
        found = masks.additive(visible, context + tail)
        assert torch.equal(found, fresh(visible, context + tail, dtype))


def test_a_mask_is_no_new_memory_once_the_buffer_is_large_enough() -> None:
    masks = TreeMasks(torch.float32, torch.device("cpu"))
    visible = np.tri(4, dtype=np.bool_)
    first = masks.additive(visible, 10).untyped_storage().data_ptr()
    assert masks.additive(visible, 900).untyped_storage().data_ptr() == first
