"""One test for each symptom of speculative decoding that is not lossless: the choice of tokens.

Tiny models in float32 over a loopback link, every method that the user's side runs; the references
are decoded by stock classes, without code of ours. Where answers end is the matter of
``test_symptoms_stopping.py``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache, RepetitionPenaltyLogitsProcessor

from autodraft import Autodraft
from autodraft.config import MethodSpec
from autodraft.decoding.sampler import Sampler
from autodraft.decoding.sampling import GREEDY, Sampling
from autodraft.decoding.stopping import StopRules
from autodraft.decoding.wish import PLAIN, Wish
from autodraft.engine.judge import Judge
from autodraft.engine.methods import DraftSide, make_method
from autodraft.errors import TokenizerMismatch
from autodraft.models.runner import ModelRunner
from autodraft.records import TokenScore
from tests.fakes import (
    SHARP,
    VOCAB,
    Answer,
    answer_by,
    greedy_reference,
    prompt_of,
    save_tiny_model,
    tiny_model,
    tiny_runner,
)
from tests.local_server import LocalServer

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = prompt_of(12, seed=6)
SERVER_ONLY = MethodSpec(method="server_only", width=0, max_depth=0, node_budget=0)
CHAIN = MethodSpec(method="chain", width=1, max_depth=4, node_budget=4)
SPECS = [
    SERVER_ONLY,
    CHAIN,
    MethodSpec(method="fixed_tree", width=3, max_depth=3, node_budget=9),
    MethodSpec(method="opt_tree", width=4, max_depth=4, node_budget=12, retrieval=True),
    MethodSpec(method="lookup", width=0, max_depth=4, node_budget=8),
]
DRAWN = Sampling(temperature=1.0, seed=11)
PENALISED = Sampling(
    repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, logit_bias={3: 2.0}
)
DRAWN_PENALISED = Sampling(temperature=0.8, top_k=30, top_p=0.95, repetition_penalty=1.3, seed=5)
SAMPLINGS = {
    "greedy": GREEDY,
    "sampled": DRAWN,
    "penalised": PENALISED,
    "sampled and penalised": DRAWN_PENALISED,
}

every_method = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.label)
every_sampling = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)


def answer_of(
    spec: MethodSpec,
    target: ModelRunner,
    draft: ModelRunner,
    prompt: list[int],
    max_new_tokens: int,
    eos_ids: tuple[int, ...] = (),
    wish: Wish = PLAIN,
) -> Answer:
    """Answer a prompt by a method as the library makes it."""
    side = DraftSide(runner=draft, excluded=range(target.vocab_size, draft.vocab_size))
    method = make_method(spec, side, wish, eos_ids)
    return answer_by(method, target, prompt, max_new_tokens, eos_ids, wish)


Edit = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def plain_reference(model: Any, prompt: list[int], count: int, edit: Edit) -> list[int]:
    """Decode token by token with the stock class; the best of the edited logits is the next."""
    cache, ids = DynamicCache(config=model.config), torch.tensor([prompt])
    fed = ids
    for _ in range(count):
        with torch.inference_mode():
            logits = model(input_ids=fed, cache=cache, use_cache=True).logits[:, -1]
        fed = edit(ids, logits.clone()).argmax(-1, keepdim=True)
        ids = torch.cat((ids, fed), dim=1)
    return ids[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def target(model: Any) -> ModelRunner:
    return ModelRunner(model, "target")


@pytest.fixture(scope="module")
def half_right() -> ModelRunner:
    """The target's first layer and head: a draft that is right now and then."""
    return tiny_runner(num_hidden_layers=1)


# --------------------------------------------------------------------------- vocabulary sizes


def padded_models(rows: int, wide: int) -> tuple[Any, Any]:
    """Two models of equal weights as far as both go, with fewer and with more rows."""
    narrow = tiny_model(vocab_size=wide)
    narrow.resize_token_embeddings(rows)
    return narrow, tiny_model(vocab_size=wide)


@every_method
@every_sampling
def test_a_draft_with_fewer_padded_rows_than_the_target_changes_nothing(
    spec: MethodSpec, sampling: Sampling
) -> None:
    narrow, wide = padded_models(VOCAB - 8, VOCAB)
    target, draft, wish = ModelRunner(wide, "14B"), ModelRunner(narrow, "1.5B"), Wish(sampling)
    expected = answer_of(SERVER_ONLY, target, draft, PROMPT, 60, wish=wish).tokens
    answer = answer_of(spec, target, draft, PROMPT, 60, wish=wish)
    assert answer.tokens == expected
    assert max(expected) >= VOCAB - 8  # also where the target says what the draft has no row for
    if sampling.plain:
        assert expected == greedy_reference(wide, PROMPT, 60)
        assert spec.needs_draft_model <= (sum(answer.accepted) > 10)


@every_method
@every_sampling
def test_a_draft_with_more_padded_rows_than_the_target_changes_nothing(
    spec: MethodSpec, sampling: Sampling
) -> None:
    narrow, wide = padded_models(VOCAB - 8, VOCAB)
    target, draft, wish = ModelRunner(narrow, "14B"), ModelRunner(wide, "1.5B"), Wish(sampling)
    prompt = [token % target.vocab_size for token in PROMPT]
    expected = answer_of(SERVER_ONLY, target, draft, prompt, 60, wish=wish).tokens
    answer = answer_of(spec, target, draft, prompt, 60, wish=wish)
    assert answer.tokens == expected
    if sampling.plain:
        assert expected == greedy_reference(narrow, prompt, 60)
        assert spec.needs_draft_model <= (sum(answer.accepted) > 10)


@pytest.fixture(scope="module")
def server(tiny_pair: tuple[Path, Path]) -> Any:
    running = LocalServer(tiny_pair[0], dtype="float32")
    yield running
    running.stop()


def engine_of(server: LocalServer, target: Path, draft: Path) -> Autodraft:
    return Autodraft(
        draft_model=str(draft), target_model=str(target), target_port=server.port, dtype="float32"
    )


def test_a_pair_with_equal_tokenizers_and_other_padding_works_over_a_real_link(
    tiny_pair: tuple[Path, Path], server: LocalServer, tmp_path: Path
) -> None:
    padded = save_tiny_model(tmp_path / "padded", seed=1, num_hidden_layers=1, vocab_size=272)
    with engine_of(server, tiny_pair[0], padded) as engine:
        for sampling in SAMPLINGS.values():
            drafted, plain = (
                engine.run("Hi!", method=method, max_new_tokens=30, sampling=sampling)
                for method in ("chain", "server_only")
            )
            assert drafted.token_ids == plain.token_ids


def test_a_draft_with_a_different_tokenizer_is_refused_and_both_are_named(
    tiny_pair: tuple[Path, Path], server: LocalServer, tmp_path: Path
) -> None:
    other = save_tiny_model(tmp_path / "other", seed=1)
    path = other / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    swapped = text.replace('"a":', "\0").replace('"b":', '"a":').replace("\0", '"b":')
    assert swapped != text
    path.write_text(swapped, encoding="utf-8")
    with pytest.raises(TokenizerMismatch) as caught:
        engine_of(server, tiny_pair[0], other).connect()
    assert str(other) in str(caught.value)
    assert str(tiny_pair[0]) in str(caught.value)


# ------------------------------------------------------------------------- context and caches


@every_sampling
@pytest.mark.parametrize("prompt_tokens", [12, 29, 30, 31, 45])
def test_a_draft_context_shorter_than_the_targets_changes_nothing(
    prompt_tokens: int, sampling: Sampling, target: ModelRunner
) -> None:
    draft, wish = tiny_runner(max_position_embeddings=30), Wish(sampling)
    prompt = prompt_of(prompt_tokens, seed=6)
    expected = answer_of(SERVER_ONLY, target, draft, prompt, 30, wish=wish).tokens
    answer = answer_of(CHAIN, target, draft, prompt, 30, wish=wish)
    assert answer.tokens == expected
    assert answer.depths[-1] == 0
    assert (answer.depths[0] > 0) == (prompt_tokens < 29)


@pytest.mark.parametrize(
    ("sampling", "scale"),
    [(GREEDY, SHARP), (Sampling(temperature=1.0, seed=3), 4.0)],
    ids=["greedy", "sampled"],
)
def test_a_draft_cache_does_not_drift_self_drafts_are_all_accepted_over_2000_tokens(
    sampling: Sampling, scale: float
) -> None:
    model = tiny_model(scale=scale, max_position_embeddings=2304)
    target, draft = ModelRunner(model, "target"), ModelRunner(model, "draft")
    answer = answer_of(CHAIN, target, draft, PROMPT, 2001, wish=Wish(sampling))
    assert answer.depths == [4] * 400
    assert answer.accepted == answer.depths
    assert answer.request.record.target_forwards == 401


# --------------------------------------------------------------------------- the choice itself


@every_method
def test_a_repetition_penalty_is_as_strong_as_in_server_only_decoding(
    spec: MethodSpec, model: Any, target: ModelRunner, half_right: ModelRunner
) -> None:
    processor = RepetitionPenaltyLogitsProcessor(1.5)
    expected = plain_reference(model, PROMPT, 80, processor)
    wish = Wish(Sampling(repetition_penalty=1.5))
    answer = answer_of(spec, target, half_right, PROMPT, 80, wish=wish)
    assert answer.tokens == expected
    unpenalised = greedy_reference(model, PROMPT, 80)
    assert len(set(expected)) > len(set(unpenalised))


@every_method
def test_presence_and_frequency_penalties_count_what_the_same_round_has_accepted(
    spec: MethodSpec, model: Any, target: ModelRunner, half_right: ModelRunner
) -> None:
    def edit(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(ids[0, len(PROMPT) :], minlength=VOCAB)
        logits[0, 3] += 2.0
        return logits - 0.5 * (counts > 0) - 0.75 * counts

    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.75, logit_bias={3: 2.0})
    answer = answer_of(spec, target, half_right, PROMPT, 80, wish=Wish(sampling))
    assert answer.tokens == plain_reference(model, PROMPT, 80, edit)


@every_method
@every_sampling
def test_logprobs_are_equal_to_server_onlys(spec: MethodSpec, sampling: Sampling) -> None:
    model = tiny_model(scale=1.0)  # where rounding stays well below 1e-5
    target, draft = ModelRunner(model, "target"), tiny_runner(scale=1.0, num_hidden_layers=1)
    wish = Wish(sampling, top_logprobs=3)
    plain = answer_of(SERVER_ONLY, target, draft, PROMPT, 40, wish=wish)
    answer = answer_of(spec, target, draft, PROMPT, 40, wish=wish)
    assert answer.tokens == plain.tokens
    found, expected = answer.request.scores, plain.request.scores
    assert found is not None
    assert expected is not None
    assert len(found) == len(expected) == 40
    for one, other in zip(found, expected, strict=True):
        assert_equal_scores(one, other)
    assert answer.request.record.output_gaps == [score.gap for score in found]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([PROMPT + answer.tokens])).logits[0]
    logs = logits[len(PROMPT) - 1 : -1].log_softmax(-1)
    for score, row, token in zip(found, logs, answer.tokens, strict=True):
        best = row.topk(3)
        reference = TokenScore(
            score.gap,
            float(row[token]),
            list(zip(best.indices.tolist(), best.values.tolist(), strict=True)),
        )
        assert_equal_scores(score, reference)


def assert_equal_scores(one: TokenScore, other: TokenScore) -> None:
    """Equal within 1e-5: rows computed together may differ in the last bits."""
    assert one.gap == pytest.approx(other.gap, abs=1e-5)
    assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
    assert [token for token, _ in one.top] == [token for token, _ in other.top]
    logprobs = [value for _, value in other.top]
    assert [value for _, value in one.top] == pytest.approx(logprobs, abs=1e-5)


# --------------------------------------------------------------------------- sibling nodes

SIBLINGS = np.array([1, 3, 4, 3, 4, 5]), np.array([-1, 0, 0, 1, 1, 2])
"""The root 1, its children 3 and 4, and below: 3 and 4 behind 3, 5 behind 4."""
PATHS = [[], [3], [4], [3, 3], [3, 4], [4, 5]]


def test_penalties_do_not_leak_between_sibling_nodes_by_hand() -> None:
    # Behind the node 3 the token 3 has 5 - 2, so 4 wins; behind its sibling 4 it is 4 that loses.
    # A penalty that leaked would take 2 off both, and 3 would win behind both.
    row = [0.0, 0.0, 0.0, 5.0, 4.0, 0.0]
    runner = tiny_runner(vocab_size=6)
    wish = Wish(Sampling(presence_penalty=2.0))
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 1, 0, 2]):
        judge = Judge(runner, [1], StopRules(frozenset(), 9), wish)
        choices = judge.choices(torch.tensor([row] * 6), *SIBLINGS)
        expected = {0: 3, 1: 4, 2: 3}
        assert [choices[node] for node in order] == [expected[node] for node in order]


@every_sampling
def test_penalties_do_not_leak_between_sibling_nodes_or_into_the_next_round(
    sampling: Sampling,
) -> None:
    runner = tiny_runner(vocab_size=6)
    generator = np.random.default_rng(2)
    wish = Wish(sampling, top_logprobs=0)
    for _ in range(20):
        logits = generator.normal(0, 2, (6, 6)).astype(np.float32)
        judge = Judge(runner, [2, 1], StopRules(frozenset(), 9), wish)
        choices = judge.choices(torch.from_numpy(logits), *SIBLINGS)
        for node in generator.permutation(6).tolist():
            assert choices[node] == chosen_alone(sampling, [2, 1], PATHS[node], logits[node])
        judge.commit([4, 5])
        behind = judge.choices(torch.from_numpy(logits), *SIBLINGS)
        assert behind[1] == chosen_alone(sampling, [2, 1], [4, 5, 3], logits[1])


def chosen_alone(
    sampling: Sampling, prompt: list[int], path: list[int], row: np.ndarray[Any, Any]
) -> int:
    """What a sampler chooses that has seen this path and no other."""
    fresh = Sampler(sampling, prompt, (), 6)
    fresh.append(path)
    return fresh.choose(row.copy()).token


@every_sampling
def test_a_drafts_guesses_for_one_sibling_do_not_depend_on_the_other(sampling: Sampling) -> None:
    logits = np.random.default_rng(4).normal(0, 2, (2, 6)).astype(np.float32)
    shared = Sampler(sampling, [2, 1], (), 6)
    tokens, log_probs = shared.rank(logits.copy(), [[3], [4]], 4)
    for number, token in enumerate((3, 4)):
        fresh = Sampler(sampling, [2, 1], (), 6)
        fresh.append([token])
        alone, alone_logs = fresh.rank(logits[number : number + 1].copy(), [[]], 4)
        assert tokens[number].tolist() == alone[0].tolist()
        assert log_probs[number] == pytest.approx(alone_logs[0])
