"""Traces of tiny models: the candidates of every place are those of one step after another."""

import numpy as np
import pytest

from autodraft.engine.tracing import trace_answer
from autodraft.models.candidates import top_candidates
from autodraft.models.runner import ModelRunner
from autodraft.profiling.traces import MOST_CANDIDATES
from tests.fakes import prompt_of, tiny_model, tiny_runner

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = prompt_of(11, seed=3)
OUTPUT = prompt_of(150, seed=4)  # more than two chunks


def stepwise(runner: ModelRunner, count: int) -> list[tuple[list[int], list[float]]]:
    """Return the candidates at the first places, token by token."""
    cache = runner.new_cache(len(PROMPT) + count)
    logits = runner.prefill(cache, PROMPT)
    found = []
    for token in OUTPUT[:count]:
        tokens, log_probs = top_candidates(logits, MOST_CANDIDATES)
        found.append((tokens[0].tolist(), log_probs[0].tolist()))
        logits = runner.prefill(cache, [token])
    return found


def test_every_place_has_the_drafts_candidates() -> None:
    runner = tiny_runner()
    trace = trace_answer(runner, (), PROMPT, OUTPUT)
    assert (trace.prompt_ids, trace.output_ids) == (PROMPT, OUTPUT)
    assert len(trace.tokens) == len(trace.log_probs) == len(OUTPUT)
    for place, (tokens, log_probs) in enumerate(stepwise(runner, len(OUTPUT))):
        assert trace.tokens[place] == tokens, place
        assert trace.log_probs[place] == pytest.approx(log_probs, abs=2e-4)


def test_tokens_that_the_target_lacks_are_no_candidates() -> None:
    runner = tiny_runner()
    free = trace_answer(runner, (), PROMPT, OUTPUT[:5])
    banned = free.tokens[2][0]
    held = trace_answer(runner, (banned,), PROMPT, OUTPUT[:5])
    assert all(banned not in row for row in held.tokens)
    assert held.tokens[2][0] == free.tokens[2][1]


def test_a_cut_head_speaks_of_token_ids() -> None:
    kept = np.arange(0, 60, 3)
    runner = ModelRunner(tiny_model(), "tiny", output_ids=kept)
    trace = trace_answer(runner, (), PROMPT, OUTPUT[:4])
    assert {token for row in trace.tokens for token in row} <= set(kept.tolist())


def test_what_lies_beyond_the_drafts_context_is_left_out() -> None:
    runner = tiny_runner()
    runner.max_context = len(PROMPT) + 7
    trace = trace_answer(runner, (), PROMPT, OUTPUT)
    assert trace.output_ids == OUTPUT[:7]
    assert len(trace.tokens) == 7
    runner.max_context = len(PROMPT)
    with pytest.raises(ValueError, match="cannot be traced within a context"):
        trace_answer(runner, (), PROMPT, OUTPUT)


@pytest.mark.parametrize(("prompt", "output"), [([], OUTPUT), (PROMPT, [])])
def test_nothing_cannot_be_traced(prompt: list[int], output: list[int]) -> None:
    with pytest.raises(ValueError, match="cannot be traced"):
        trace_answer(tiny_runner(), (), prompt, output)
