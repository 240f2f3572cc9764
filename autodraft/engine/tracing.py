"""What a draft would have said at each place of an answer: the trace that simulations run over.

One forward over the whole text in place of one for each token. Knows no target and no method.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from autodraft.models.candidates import top_candidates
from autodraft.models.runner import ModelRunner
from autodraft.profiling.traces import MOST_CANDIDATES, Trace, rounded
from autodraft.tree.draft_tree import FloatArray, IntArray

_CHUNK: Final = 64


def trace_answer(
    runner: ModelRunner, excluded: Sequence[int], prompt: Sequence[int], output: Sequence[int]
) -> Trace:
    """Return the trace of an answer.

    Args:
        runner: The draft model.
        excluded: Token ids that it has and the target does not: never candidates.
        prompt: Token ids of the prompt, at least one.
        output: Those of the answer, at least one. What lies beyond the draft's own context is left
            out of the trace.

    Raises:
        ValueError: If prompt or answer is empty, or the prompt alone fills the draft's context.
    """
    room = runner.max_context - len(prompt)
    if not prompt or not output or room < 1:
        raise ValueError(
            f"a prompt of {len(prompt)} and an answer of {len(output)} tokens cannot be traced "
            f"within a context of {runner.max_context}"
        )
    kept = list(output[:room])
    tokens, log_probs = _candidates(runner, excluded, list(prompt), kept)
    return Trace(
        prompt_ids=list(prompt),
        output_ids=kept,
        tokens=tokens.tolist(),
        log_probs=rounded(log_probs),
    )


def _candidates(
    runner: ModelRunner, excluded: Sequence[int], prompt: list[int], output: list[int]
) -> tuple[IntArray, FloatArray]:
    """Return the candidates at each place of an answer, [T, K] each."""
    columns = runner.columns_of(excluded) if excluded else None
    last = runner.vocab_size - 1  # for tokens that only the target has rows for
    text = np.minimum(np.array(prompt + output, dtype=np.int64), last)
    cache = runner.new_cache(len(text))
    try:
        found = [
            top_candidates(runner.prefill(cache, text[: len(prompt)]), MOST_CANDIDATES, columns)
        ]
        for start in range(len(prompt), len(text) - 1, _CHUNK):
            chunk = text[start : min(start + _CHUNK, len(text) - 1)]
            positions = np.arange(start, start + len(chunk))
            logits = runner.forward(cache, chunk, positions, np.tri(len(chunk), dtype=np.bool_))
            found.append(top_candidates(logits, MOST_CANDIDATES, columns))
    finally:
        runner.release(cache)
    tokens = runner.token_ids(np.concatenate([each for each, _ in found]))
    return tokens, np.concatenate([each for _, each in found])
