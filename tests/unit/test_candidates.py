"""The best columns of logits against sorting whole rows, ties among them, here and on a device."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autodraft.models.candidates import GreedyChoices, best_tokens, top_candidates

DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
VALUES = st.sampled_from([-7.5, -2.0, -0.5, -0.0, 0.0, 0.25, 0.5, 3.0, 3.5, 9.0])
"""Few enough for ties, and exact in every type."""


class Elsewhere(torch.Tensor):
    """A tensor that says that it lies on a device, and counts what is brought from there."""

    transfers = 0

    @property
    def is_cpu(self) -> bool:
        return False

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        Elsewhere.transfers += 1
        return self.as_subclass(torch.Tensor)

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert a device's tensor to numpy")


def elsewhere(logits: torch.Tensor) -> torch.Tensor:
    Elsewhere.transfers = 0
    return logits.as_subclass(Elsewhere)


@st.composite
def random_logits(draw: st.DrawFn, max_width: int = 150) -> torch.Tensor:
    rows, width = draw(st.integers(1, 3)), draw(st.integers(1, max_width))
    values = draw(st.lists(VALUES, min_size=rows * width, max_size=rows * width))
    return torch.tensor(values, dtype=draw(DTYPES)).view(rows, width)


# -------------------------------------------------------------------------------- the arg-max


def test_the_arg_max_takes_the_lowest_id_of_equal_logits() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [1.0, 0.0, -1.0]])
    assert best_tokens(logits).tolist() == [1, 0]


@given(random_logits(), st.booleans())
def test_the_arg_max_is_the_first_of_the_largest(logits: torch.Tensor, negative: bool) -> None:
    if negative:  # halves are compared by their bits, which fall where negative ones rise
        logits = -logits.abs()
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert best_tokens(logits).tolist() == expected
    choices = GreedyChoices(logits)
    assert [choices[row] for row in range(len(expected))] == expected


def test_of_a_row_that_is_a_view_the_arg_max_is_the_views() -> None:
    logits = torch.tensor([[9.0, 1.0, 5.0, 2.0], [9.0, 4.0, 8.0, 3.0]], dtype=torch.bfloat16)
    assert best_tokens(logits[:, 1::2]).tolist() == [1, 0]


def test_all_choices_of_a_tree_come_from_a_device_at_once() -> None:
    logits = elsewhere(torch.tensor([[0.0, 3.0, 3.0], [1.0, 0.0, -1.0]]))
    choices = GreedyChoices(logits)
    assert [choices[1], choices[0], choices[1]] == [0, 1, 0]
    assert Elsewhere.transfers == 1


# ------------------------------------------------------------------------------ candidates


def test_candidates_come_best_first_with_their_log_probabilities() -> None:
    probabilities = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])
    tokens, log_probs = top_candidates(probabilities.log() + 3.0, 2)
    assert tokens.tolist() == [[1, 2], [0, 2]]
    assert np.exp(log_probs) == pytest.approx(np.array([[0.6, 0.3], [0.5, 0.3]]))


def test_excluded_tokens_are_no_candidates_and_take_no_probability() -> None:
    probabilities = torch.tensor([[0.1, 0.6, 0.3]])
    tokens, log_probs = top_candidates(probabilities.log(), 2, excluded=torch.tensor([1]))
    assert tokens.tolist() == [[2, 0]]
    assert np.exp(log_probs) == pytest.approx(np.array([[0.75, 0.25]]))


def test_where_all_but_one_token_is_excluded_the_others_are_impossible() -> None:
    tokens, log_probs = top_candidates(torch.zeros(1, 3), 2, excluded=torch.tensor([0, 2]))
    assert tokens[0, 0] == 1
    assert log_probs.tolist() == [[0.0, -np.inf]]


def test_more_candidates_than_the_vocabulary_has_are_the_whole_vocabulary() -> None:
    tokens, _ = top_candidates(torch.zeros(2, 3), 9)
    assert tokens.shape == (2, 3)


@given(random_logits(), st.integers(1, 9), st.sets(st.integers(0, 149), max_size=5))
def test_candidates_are_the_first_of_the_sorted_row(
    logits: torch.Tensor, count: int, excluded: set[int]
) -> None:
    left_out = sorted(column for column in excluded if column < logits.shape[1] - 1)
    exact = logits.double()
    exact[:, left_out] = -torch.inf
    log_probs = exact.log_softmax(-1).numpy()
    expected = np.argsort(-log_probs, axis=1, kind="stable")[:, :count]  # the lowest id wins a tie
    columns = torch.tensor(left_out, dtype=torch.int64) if left_out else None
    for place in (logits, elsewhere(logits)):
        best, found = top_candidates(place, count, columns)
        assert best.tolist() == expected.tolist()
        assert best.dtype == np.int64
        assert found == pytest.approx(np.take_along_axis(log_probs, expected, 1), abs=1e-5)
        assert found.dtype == np.float64
    assert Elsewhere.transfers == 1


@pytest.mark.parametrize("count", [1, 8, 32])
def test_candidates_of_a_whole_vocabulary_are_those_of_a_sort(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    logits = (3 * torch.randn(5, 8191, generator=generator)).bfloat16()
    log_probs = logits.float().log_softmax(-1).numpy()
    expected = np.argsort(-log_probs, axis=1, kind="stable")[:, :count]
    for place in (logits, elsewhere(logits)):
        best, found = top_candidates(place, count)
        assert best.tolist() == expected.tolist()
        assert found == pytest.approx(np.take_along_axis(log_probs, expected, 1), abs=1e-6)


def test_logits_are_left_as_they_were() -> None:
    logits = torch.arange(6.0).view(2, 3)
    top_candidates(logits, 2, excluded=torch.tensor([2]))
    assert logits.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_row_that_is_not_a_number_leaves_the_others_alone() -> None:
    logits = torch.zeros(3, 128)
    logits[:, 5], logits[1, 7] = 2.0, torch.nan
    for place in (logits, elsewhere(logits)):
        best, found = top_candidates(place, 3)
        assert best[[0, 2]].tolist() == [[5, 0, 1]] * 2
        assert np.isfinite(found).all(axis=1).tolist() == [True, False, True]
