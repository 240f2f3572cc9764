"""One test for each symptom of speculative decoding that is not lossless: where answers end.

Tiny models in float32 over a loopback link and, where users would see it, over a real one.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from autodraft import Autodraft, GenerationResult
from autodraft.config import MethodSpec
from autodraft.decoding.sampling import GREEDY, Sampling
from autodraft.decoding.stopping import StopRules
from autodraft.decoding.wish import Wish
from autodraft.engine.methods import DraftSide, make_method
from autodraft.engine.remote import RemoteTarget, TargetWish
from autodraft.engine.rounds import Meters
from autodraft.engine.session import Request
from autodraft.models.runner import ModelRunner
from autodraft.models.tokenizer import Tokenizer
from autodraft.protocol import messages as msg
from tests.fakes import (
    SHARP,
    LoopbackLink,
    greedy_reference,
    prompt_of,
    save_tiny_tokenizer,
    tiny_model,
    tiny_runner,
)
from tests.integration.test_colocated import engine_for, spec
from tests.integration.test_symptoms import (
    CHAIN,
    SERVER_ONLY,
    SPECS,
    answer_of,
    every_method,
    every_sampling,
)
from tests.local_server import LocalServer

pytestmark = pytest.mark.usefixtures("one_thread")

SCORED = Wish(top_logprobs=0)
PROMPT = prompt_of(12, seed=4)


@pytest.fixture(scope="module")
def model() -> Any:
    """Nearly sure of every token, so that it accepts its own drafts to the last level."""
    return tiny_model(scale=SHARP)


@pytest.fixture(scope="module")
def target(model: Any) -> ModelRunner:
    return ModelRunner(model, "target")


@pytest.fixture(scope="module")
def reference(model: Any) -> list[int]:
    answer = greedy_reference(model, PROMPT, 11)
    assert len(set(answer)) == 11  # so that each can be the end
    return answer


# --------------------------------------------------------------------------------- the last token


@every_method
@pytest.mark.parametrize("place", range(11))
def test_nothing_continues_past_an_eos_accepted_in_mid_block(
    spec: MethodSpec, place: int, target: ModelRunner, reference: list[int]
) -> None:
    # With the target as its own draft the chain's blocks are the tokens 0, 1 to 5 and 6 to 10.
    eos = reference[place]
    answer = answer_of(spec, target, target, PROMPT, 40, (eos,))
    assert answer.tokens == reference[: place + 1]
    assert answer.request.record.finish_reason == answer.link.verifier.finish == "stop"
    assert answer.link.verifier.emitted == place + 1
    if spec == CHAIN:
        assert [round_.accepted_length for round_ in answer.request.rounds] == (
            [] if place == 0 else [4] if place <= 5 else [4, 4]
        )


def test_a_stream_behind_an_answer_of_its_first_token_has_no_step(
    target: ModelRunner, reference: list[int]
) -> None:
    # One more step, without tokens, would be taken for a token of no time, and for no end.
    remote = RemoteTarget(LoopbackLink(target, reference[:1]), TargetWish("loopback"))
    remote.open(StopRules(frozenset(reference[:1]), 40), 0, "server_only")
    remote.send_prompt(PROMPT)
    assert remote.first_token().tokens == reference[:1]
    remote.ask_generate()
    assert list(remote.steps()) == []
    assert remote.close_session().forwards == 1


@every_method
@pytest.mark.parametrize("beyond", range(1, 5))
def test_a_stop_token_in_mid_block_wins_over_a_cap_beyond_it(
    spec: MethodSpec, beyond: int, target: ModelRunner, reference: list[int]
) -> None:
    answer = answer_of(spec, target, target, PROMPT, 3 + beyond, (reference[2],))
    assert answer.tokens == reference[:3]
    assert answer.request.record.finish_reason == "stop"


@every_method
def test_a_stop_token_behind_the_cap_is_not_reached(
    spec: MethodSpec, target: ModelRunner, reference: list[int]
) -> None:
    for cap in range(1, 4):
        answer = answer_of(spec, target, target, PROMPT, cap, (reference[3],))
        assert answer.tokens == reference[:cap]
        assert answer.request.record.finish_reason == "length"
    answer = answer_of(spec, target, target, PROMPT, 4, (reference[3],))
    assert answer.request.record.finish_reason == "stop"  # an end at the cap is an end


@every_method
@pytest.mark.parametrize("place", range(8))
def test_usage_counts_nothing_after_the_eos(
    spec: MethodSpec, place: int, target: ModelRunner, reference: list[int]
) -> None:
    answer = answer_of(spec, target, target, PROMPT, 40, (reference[place],), SCORED)
    record, rounds, scores = answer.request.record, answer.request.rounds, answer.request.scores
    assert record.output_ids == answer.tokens == reference[: place + 1]
    assert record.output_tokens == place + 1
    assert record.round_tokens == place
    assert sum(round_.emitted_tokens for round_ in rounds) == (place if rounds else 0)
    assert scores is not None
    assert len(scores) == place + 1
    assert record.output_gaps == [score.gap for score in scores]
    assert record.sent_nodes == sum(round_.num_nodes for round_ in rounds)
    if spec == CHAIN:  # what was drafted and verified behind the EOS is there, but apart
        assert record.sent_nodes == record.drafted_nodes == 4 * len(rounds)
        assert record.accepted_tokens == 4 * len(rounds)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0, seed=2)])
def test_a_last_candidate_rejected_at_depth_one_leaves_no_trace(sampling: Sampling) -> None:
    target, draft = tiny_runner(), tiny_runner(num_hidden_layers=1)
    one = MethodSpec(method="chain", width=1, max_depth=1, node_budget=1)
    wish = Wish(sampling)
    expected = answer_of(SERVER_ONLY, target, draft, PROMPT, 60, wish=wish).tokens
    answer = answer_of(one, target, draft, PROMPT, 60, wish=wish)
    assert answer.tokens == expected
    assert set(answer.accepted) == {0, 1}
    assert {(0, 0), (0, 1), (1, 0)} <= set(zip(answer.accepted, answer.accepted[1:], strict=False))


# ------------------------------------------------------------------------------- the edges of a run


@every_method
@every_sampling
def test_a_prompt_of_one_token_is_answered(spec: MethodSpec, sampling: Sampling) -> None:
    model = tiny_model()
    target, draft, wish = (
        ModelRunner(model, "target"),
        tiny_runner(num_hidden_layers=1),
        Wish(sampling),
    )
    answer = answer_of(spec, target, draft, [5], 30, wish=wish)
    assert answer.tokens == answer_of(SERVER_ONLY, target, draft, [5], 30, wish=wish).tokens
    if sampling.plain:
        assert answer.tokens == greedy_reference(model, [5], 30)


@every_method
@every_sampling
def test_an_answer_fills_the_context_to_its_last_position(
    spec: MethodSpec, sampling: Sampling
) -> None:
    # Learned positions: one too many is an error. Both models end where the answer does.
    config: dict[str, Any] = {"n_embd": 32, "n_head": 4, "max_position_embeddings": 40}
    model = tiny_model("gpt2", n_layer=2, **config)
    target = ModelRunner(model, "target")
    draft, wish = tiny_runner("gpt2", n_layer=1, **config), Wish(sampling)
    prompt = prompt_of(25, seed=7)
    answer = answer_of(spec, target, draft, prompt, 15, wish=wish)
    assert len(prompt) + len(answer.tokens) == 40
    assert answer.tokens == answer_of(SERVER_ONLY, target, draft, prompt, 15, wish=wish).tokens
    assert answer.request.record.finish_reason == "length"
    if sampling.plain:
        assert answer.tokens == greedy_reference(model, prompt, 15)


# ------------------------------------------------------------------------------------------- emoji

CYCLE = "😀éA"
"""Seven bytes in UTF-8, all different: each byte has one that follows it."""


def save_emoji_model(folder: Path) -> Path:
    """Write a model of bytes that says the cycle over and over, whatever comes before it."""
    vocab = save_tiny_tokenizer(folder)
    tokenizer = Tokenizer.load(str(folder))
    ids = tokenizer.encode(CYCLE)
    assert len(set(ids)) == len(CYCLE.encode()) == 7
    ends = {"eos_token_id": vocab - 1, "pad_token_id": vocab - 3}
    model = tiny_model(vocab_size=vocab, **ends)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        states = model.model.norm(model.model.embed_tokens.weight)
        model.lm_head.weight.zero_()
        begin = tokenizer.encode("\n")
        for before, after in zip([*begin, *ids], [*ids[:1], *ids[1:], ids[0]], strict=True):
            model.lm_head.weight[after] += 20 * states[before] / states[before].square().sum()
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def emoji(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Autodraft]:
    folder = save_emoji_model(tmp_path_factory.mktemp("emoji") / "target")
    server = LocalServer(folder, draft_model_path=str(folder), dtype="float32")
    with engine_for((folder, folder), server, "chain,chain@server") as engine:
        yield engine
    server.stop()


EMOJI_METHODS = [
    SERVER_ONLY,
    CHAIN,
    spec("fixed_tree", "user"),
    spec("lookup", "user"),
    spec("chain"),
]


@pytest.mark.parametrize("method", EMOJI_METHODS, ids=lambda spec: spec.label)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.5, seed=1)])
@pytest.mark.parametrize("tokens", [35, 30])
def test_emoji_are_streamed_whole(
    emoji: Autodraft, method: MethodSpec, sampling: Sampling, tokens: int
) -> None:
    how: dict[str, Any] = {"method": method, "max_new_tokens": tokens, "sampling": sampling}
    ends: list[GenerationResult] = []
    pieces = list(emoji.stream("Hi!", **how, on_end=ends.append))
    whole = emoji.run("Hi!", **how)
    assert "".join(pieces) == whole.text == ends[0].text
    if tokens == 35:  # else the limit cuts an emoji, and its first half is shown as the last piece
        assert whole.text == CYCLE * 5
        assert all("\ufffd" not in piece for piece in pieces)
    else:
        assert whole.text == CYCLE * 4 + "\ufffd"
        assert all("\ufffd" not in piece for piece in pieces[:-1])
    assert len(pieces) > 2


# ----------------------------------------------------------------------------------- user cancel


def after(blocks: int) -> Callable[[], bool]:
    """A user who cancels when so many blocks are there."""
    left = iter(range(blocks, 0, -1))
    return lambda: next(left) == 1


@pytest.mark.parametrize("method", SPECS, ids=lambda spec: spec.label)
@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_a_user_cancel_ends_the_answer_at_a_block_and_leaves_the_link_usable(
    method: MethodSpec, blocks: int, target: ModelRunner
) -> None:
    link = LoopbackLink(target)
    remote = RemoteTarget(link, TargetWish("loopback"))
    side = DraftSide(runner=target)

    def request(**options: Any) -> Request:
        rules = StopRules(frozenset(), 30)
        decoder = make_method(method, side, SCORED)
        return Request(remote, decoder, PROMPT, rules, Meters(), wish=SCORED, **options)

    cancelled, whole = request(cancelled=after(blocks)), request()
    found, expected = list(cancelled), list(whole)
    assert found == expected[:blocks]
    record = cancelled.record
    assert record.finish_reason == "cancelled"
    assert record.output_ids == [token for block in found for token in block]
    assert cancelled.scores is not None
    assert len(cancelled.scores) == record.output_tokens < 30
    assert whole.record.finish_reason == "length"
    assert [type(message) for message in link.sent].count(msg.Close) == 2


def test_a_cancel_after_the_last_block_changes_nothing(
    target: ModelRunner, reference: list[int]
) -> None:
    link = LoopbackLink(target, [reference[3]])
    remote = RemoteTarget(link, TargetWish("loopback"))
    rules = StopRules(frozenset({reference[3]}), 30)
    decoder = make_method(CHAIN, DraftSide(runner=target))
    request = Request(remote, decoder, PROMPT, rules, Meters(), cancelled=after(2))
    assert [token for block in request for token in block] == reference[:4]
    assert request.record.finish_reason == "stop"


@pytest.fixture(scope="module")
def engine(tiny_pair: tuple[Path, Path]) -> Iterator[Autodraft]:
    server = LocalServer(tiny_pair[0], draft_model_path=str(tiny_pair[1]), dtype="float32")
    with engine_for(tiny_pair, server, "chain,chain@server") as running:
        yield running
    server.stop()


@pytest.mark.parametrize("method", [SERVER_ONLY, CHAIN, spec("chain")], ids=lambda spec: spec.label)
@pytest.mark.parametrize("reuse", [True, False])
def test_a_user_cancel_over_a_real_link_gives_a_prefix_and_the_next_answer_is_whole(
    engine: Autodraft, method: MethodSpec, reuse: bool
) -> None:
    prompt = [token + 1 for token in PROMPT]
    whole = engine.run(
        prompt_ids=prompt, method=SERVER_ONLY, max_new_tokens=500, reuse_prefix=False
    )
    for blocks in (1, 3):
        result = engine.run(
            prompt_ids=prompt,
            method=method,
            max_new_tokens=500,
            reuse_prefix=reuse,
            cancelled=after(blocks),
        )
        assert result.finish_reason == result.request.finish_reason == "cancelled"
        assert blocks <= len(result.token_ids) < len(whole.token_ids)
        assert result.token_ids == whole.token_ids[: len(result.token_ids)]
        assert result.text == engine.decode(result.token_ids)
        again = engine.run(prompt_ids=prompt, method=method, max_new_tokens=60, reuse_prefix=reuse)
        assert again.token_ids == whole.token_ids[:60]


@pytest.mark.parametrize("method", [SERVER_ONLY, CHAIN], ids=lambda spec: spec.label)
def test_a_cancelled_stream_ends_with_what_was_shown(engine: Autodraft, method: MethodSpec) -> None:
    ends: list[GenerationResult] = []
    pieces = list(
        engine.stream(
            "Hi!", method=method, max_new_tokens=500, cancelled=after(3), on_end=ends.append
        )
    )
    assert ends[0].finish_reason == "cancelled"
    assert "".join(pieces) == ends[0].text == engine.decode(ends[0].token_ids)
