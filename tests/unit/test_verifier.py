"""Drafter, link messages, verifier and round loop together: the text is the target's own.

Tiny models in float32 over a loopback link; the reference is decoded by the stock class with
transformers' cache, which shares no code with ours.
"""

from typing import Any

import numpy as np
import pytest
import torch

from autodraft.decoding.sampling import Sampling
from autodraft.decoding.stopping import StopRules
from autodraft.decoding.wish import PLAIN, Wish
from autodraft.engine.drafter import Drafter
from autodraft.engine.kept import Kept
from autodraft.engine.verifier import Verifier
from autodraft.errors import AutodraftError, ProtocolError
from autodraft.models.runner import ModelRunner
from autodraft.policy import POLICIES, ChainPolicy, FixedTreePolicy, Policy, TreeLimits
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import unpack_nodes
from autodraft.tree.draft_tree import IntArray
from tests.fakes import (
    SHARP,
    VOCAB,
    Answer,
    greedy_reference,
    prompt_of,
    speculate,
    tiny_model,
    tiny_runner,
)

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = prompt_of(12, seed=6)
LIMITS = {
    "chain": TreeLimits(width=1, max_depth=4, node_budget=4),
    "fixed_tree": TreeLimits(width=3, max_depth=4, node_budget=12),
    "opt_tree": TreeLimits(width=4, max_depth=6, node_budget=16),
}
TOKENS = 40


def make_policy(name: str) -> Policy:
    return POLICIES[name](LIMITS[name])


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model()


@pytest.fixture(scope="module")
def target(model: Any) -> ModelRunner:
    return ModelRunner(model, "target")


@pytest.fixture(scope="module")
def reference(model: Any) -> list[int]:
    return greedy_reference(model, PROMPT, TOKENS)


@pytest.fixture(scope="module")
def half_right() -> ModelRunner:
    """The target's first layer and head: a draft that is right now and then."""
    return tiny_runner(num_hidden_layers=1)


@pytest.fixture(scope="module")
def never_right() -> ModelRunner:
    """The target with its head turned round: it proposes what the target finds least likely."""
    model = tiny_model()
    with torch.no_grad():
        model.lm_head.weight.neg_()
    return ModelRunner(model, "never right")


def longest_match(tokens: IntArray, parents: IntArray, continuation: list[int]) -> int:
    """Length of the longest path of a sent tree that the continuation begins with."""
    node, length = 0, 0
    for token in continuation:
        children = np.flatnonzero((parents == node) & (tokens == token)) + 1
        if len(children) == 0:
            break
        node, length = int(children[0]), length + 1
    return length


def check_accounts(answer: Answer, reference: list[int]) -> None:
    """Check every round against the reference: what could be accepted was, and nothing else."""
    done = 1
    trees = [item for item in answer.link.sent if isinstance(item, msg.Verify)]
    assert [tree.round for tree in trees] == list(range(1, len(trees) + 1))
    for tree, round_ in zip(trees, answer.request.rounds, strict=True):
        match = longest_match(*unpack_nodes(tree.nodes), reference[done:])
        assert round_.accepted_length == match
        assert round_.emitted_tokens == match + 1
        assert len(tree.nodes) == 4 * round_.num_nodes
        assert round_.uplink_bytes <= 4 * round_.num_nodes + 32
        assert round_.downlink_bytes <= 64
        done += match + 1
    assert done == len(answer.tokens)
    assert answer.link.verifier.emitted == len(answer.tokens)
    assert answer.link.verifier.forwards == 1 + len(trees)


def test_the_reference_is_worth_comparing_with(reference: list[int]) -> None:
    assert len(set(reference)) > TOKENS / 2


@pytest.mark.parametrize("name", LIMITS)
def test_the_target_as_its_own_draft_gives_the_targets_text(
    name: str, target: ModelRunner, reference: list[int]
) -> None:
    answer = speculate(target, Drafter(target), make_policy(name), PROMPT, TOKENS)
    assert answer.tokens == reference
    check_accounts(answer, reference)


@pytest.mark.parametrize("name", LIMITS)
def test_the_target_as_its_own_sure_draft_accepts_every_level_of_every_round(name: str) -> None:
    model = tiny_model(scale=SHARP)
    target, policy = ModelRunner(model, "sure"), make_policy(name)
    reference = greedy_reference(model, PROMPT, TOKENS)
    answer = speculate(target, Drafter(target), policy, PROMPT, TOKENS)
    assert answer.tokens == reference
    assert answer.accepted == answer.depths
    depth = LIMITS[name].max_depth
    full, rest = divmod(TOKENS - 1, depth + 1)
    assert answer.depths == [depth] * full + [rest - 1] * (rest > 0)
    check_accounts(answer, reference)


def test_a_chain_of_the_target_itself_is_always_accepted_whole(
    target: ModelRunner, reference: list[int]
) -> None:
    answer = speculate(target, Drafter(target), make_policy("chain"), PROMPT, TOKENS)
    assert answer.accepted == answer.depths == [4] * 7 + [3]


@pytest.mark.parametrize("name", LIMITS)
def test_a_draft_that_is_never_right_changes_nothing(
    name: str, target: ModelRunner, never_right: ModelRunner, reference: list[int]
) -> None:
    answer = speculate(target, Drafter(never_right), make_policy(name), PROMPT, TOKENS)
    assert answer.tokens == reference
    assert answer.accepted == [0] * (TOKENS - 1)
    assert answer.depths[0] >= 1
    check_accounts(answer, reference)


@pytest.mark.parametrize("name", LIMITS)
def test_a_draft_that_is_right_now_and_then_changes_nothing(
    name: str, target: ModelRunner, half_right: ModelRunner, reference: list[int]
) -> None:
    answer = speculate(target, Drafter(half_right), make_policy(name), PROMPT, TOKENS)
    assert answer.tokens == reference
    assert len(set(answer.accepted)) >= 2
    check_accounts(answer, reference)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_family_gives_its_own_text_on_several_prompts(family: str, attention: str) -> None:
    model = tiny_model(family, seed=3, attention=attention)
    target = ModelRunner(model, family)
    drafter = Drafter(tiny_runner(family, seed=3, num_hidden_layers=1, attention=attention))
    for seed in range(3):
        prompt = prompt_of(5 + 9 * seed, seed)
        answer = speculate(target, drafter, make_policy("fixed_tree"), prompt, 20)
        assert answer.tokens == greedy_reference(model, prompt, 20)


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("position", range(8))
def test_an_eos_anywhere_in_a_block_ends_the_answer_there(
    name: str, position: int, model: Any, target: ModelRunner
) -> None:
    eos = list(dict.fromkeys(greedy_reference(model, PROMPT, 20)))[position]
    reference = greedy_reference(model, PROMPT, 20, frozenset({eos}))
    answer = speculate(target, Drafter(target), make_policy(name), PROMPT, 20, [eos, VOCAB + 5])
    assert answer.tokens == reference
    assert answer.tokens[-1] == eos
    assert answer.request.record.finish_reason == "stop"
    assert answer.link.verifier.finish == "stop"
    assert answer.link.verifier.emitted == len(reference)
    assert sum(r.emitted_tokens for r in answer.request.rounds) == len(reference) - 1


@pytest.mark.parametrize("draft", ["target", "half_right"])
@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("limit", range(1, 13))
def test_a_token_limit_anywhere_in_a_block_ends_the_answer_there(
    name: str, limit: int, draft: str, reference: list[int], request: pytest.FixtureRequest
) -> None:
    target, drafter = (
        request.getfixturevalue("target"),
        Drafter(request.getfixturevalue(draft)),
    )
    answer = speculate(target, drafter, make_policy(name), PROMPT, limit)
    assert answer.tokens == reference[:limit]
    assert answer.request.record.finish_reason == "length"
    assert answer.link.verifier.finish == "length"
    assert answer.link.verifier.emitted == limit
    check_accounts(answer, reference)


@pytest.mark.parametrize("prompt_tokens", [12, 29, 30, 31, 45])
def test_a_draft_model_with_a_shorter_context_changes_nothing(
    prompt_tokens: int, model: Any, target: ModelRunner
) -> None:
    draft = tiny_runner(max_position_embeddings=30)
    prompt = prompt_of(prompt_tokens, seed=6)
    answer = speculate(target, Drafter(draft), make_policy("fixed_tree"), prompt, 30)
    reference = greedy_reference(model, prompt, 30)
    assert answer.tokens == reference
    assert answer.depths[-1] == 0
    assert (answer.depths[0] > 0) == (prompt_tokens < 29)
    check_accounts(answer, reference)


def test_the_servers_limit_on_depth_holds(target: ModelRunner, reference: list[int]) -> None:
    answer = speculate(target, Drafter(target), make_policy("chain"), PROMPT, TOKENS, max_depth=2)
    assert answer.tokens == reference
    assert max(answer.depths) == 2


def test_an_answer_may_fill_the_context_to_its_last_position() -> None:
    config: dict[str, Any] = {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "max_position_embeddings": 40,
    }
    model = tiny_model("gpt2", **config)  # learned positions: one too many is an error
    target = ModelRunner(model, "gpt2")
    prompt = prompt_of(25, seed=7)
    for name in LIMITS:
        answer = speculate(target, Drafter(target), make_policy(name), prompt, 40 - 25)
        assert answer.tokens == greedy_reference(model, prompt, 15)


def verifier_of(
    target: ModelRunner, max_new_tokens: int = TOKENS, wish: Wish = PLAIN, kept: Kept | None = None
) -> Verifier:
    rules = StopRules(frozenset(), max_new_tokens)
    return Verifier(target, np.array(PROMPT), rules, 16, None, wish, kept)


def array(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def test_steps_and_rounds_can_be_mixed(target: ModelRunner, reference: list[int]) -> None:
    verifier = verifier_of(target)
    output = [verifier.prefill(), verifier.step()]
    chain = [*reference[2:5], (reference[5] + 1) % VOCAB]
    path, bonus = verifier.verify(np.array(chain), array(0, 1, 2, 3))
    assert path.tolist() == [1, 2, 3]
    output += [*chain[:3], bonus, verifier.step()]
    path, bonus = verifier.verify(array(), array())
    assert path.tolist() == []
    output += [bonus, verifier.step()]
    assert output == reference[:9]
    assert verifier.emitted == 9
    assert verifier.forwards == 6


def test_a_branch_of_a_tree_in_any_topological_order_is_followed(
    target: ModelRunner, reference: list[int]
) -> None:
    verifier = verifier_of(target)
    verifier.prefill()
    wrong = (reference[1] + 1) % VOCAB
    tokens = array(wrong, wrong, reference[1], 3, reference[2], reference[3], 5)
    parents = array(0, 1, 0, 2, 3, 5, 4)
    path, bonus = verifier.verify(tokens, parents)
    assert path.tolist() == [3, 5, 6]
    assert bonus == reference[4]
    assert [verifier.step() for _ in range(5)] == reference[5:10]


@pytest.mark.parametrize(
    ("tokens", "parents", "words"),
    [
        (array(1, 2), array(2, 0), "does not come after its parent"),
        (array(1, 2), array(0, 9), "does not come after its parent"),
        (array(5, 5), array(0, 0), "carry the same token"),
        (array(5, VOCAB), array(0, 0), f"Token id {VOCAB} is not one of the target's {VOCAB}"),
    ],
    ids=["child first", "unknown parent", "twin siblings", "unknown token"],
)
def test_a_malformed_tree_is_a_protocol_error_and_changes_nothing(
    tokens: IntArray,
    parents: IntArray,
    words: str,
    target: ModelRunner,
    reference: list[int],
) -> None:
    verifier = verifier_of(target)
    verifier.prefill()
    with pytest.raises(ProtocolError, match=words):
        verifier.verify(tokens, parents)
    assert verifier.step() == reference[1]


def test_a_tree_beyond_the_models_last_position_is_a_typed_error() -> None:
    config: dict[str, Any] = {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "max_position_embeddings": 20,
    }
    verifier = verifier_of(tiny_runner("gpt2", **config), max_new_tokens=20 - len(PROMPT))
    verifier.prefill()
    with pytest.raises(AutodraftError):
        verifier.verify(np.arange(12), np.arange(12))


def test_more_nodes_than_the_budget_are_a_typed_error(target: ModelRunner) -> None:
    verifier = Verifier(target, np.array(PROMPT), StopRules(frozenset(), 1), node_budget=4)
    verifier.prefill()
    with pytest.raises(AutodraftError):
        verifier.verify(np.arange(8), np.arange(8))


def test_a_round_is_one_forward_and_one_message_each_way(target: ModelRunner) -> None:
    policy = FixedTreePolicy(LIMITS["fixed_tree"])
    answer = speculate(target, Drafter(target), policy, PROMPT, TOKENS)
    record, rounds = answer.request.record, answer.request.rounds
    assert record.target_forwards == 1 + len(rounds)
    assert record.rounds == len(rounds)
    assert record.round_tokens == TOKENS - 1
    assert record.accepted_tokens == sum(answer.accepted)
    assert record.uplink_bytes > sum(r.uplink_bytes for r in rounds)
    assert [type(item).__name__ for item in answer.link.sent[:3]] == ["Hello", "Open", "Prefill"]
    assert [type(item).__name__ for item in answer.link.received[-2:]] == ["Verified", "Closed"]
    assert len(answer.link.sent) == 3 + len(rounds) + 1


def test_an_answer_of_one_token_has_no_round(target: ModelRunner, reference: list[int]) -> None:
    answer = speculate(target, Drafter(target), ChainPolicy(LIMITS["chain"]), PROMPT, 1)
    assert answer.tokens == reference[:1]
    assert answer.request.rounds == []


def test_a_score_comes_for_each_token_that_a_step_or_a_round_adds(
    target: ModelRunner, reference: list[int]
) -> None:
    verifier = verifier_of(target, wish=Wish(top_logprobs=1))
    verifier.prefill()
    counts = [len(verifier.take_scores())]
    wrong = (reference[3] + 1) % VOCAB
    verifier.verify(array(reference[1], reference[2], wrong), array(0, 1, 2))
    scores = verifier.take_scores()
    counts.append(len(scores))
    verifier.step()
    counts.append(len(verifier.take_scores()))
    assert counts == [1, 3, 1]
    assert [score.top[0][0] for score in scores] == reference[1:4]
    assert all(score.logprob == score.top[0][1] for score in scores)
    assert verifier.take_scores() == []


def test_drawn_tokens_are_the_same_by_steps_and_by_rounds(target: ModelRunner) -> None:
    wish = Wish(Sampling(temperature=1.0, repetition_penalty=1.2, seed=9))
    alone = verifier_of(target, wish=wish)
    drawn = [alone.prefill(), *(alone.step() for _ in range(9))]
    verifier = verifier_of(target, wish=wish)
    assert verifier.prefill() == drawn[0]
    wrong = (drawn[2] + 1) % VOCAB
    path, bonus = verifier.verify(array(drawn[1], wrong, drawn[2], drawn[3]), array(0, 1, 1, 3))
    assert (path.tolist(), bonus) == ([1, 3, 4], drawn[4])
    path, bonus = verifier.verify(array(wrong), array(0))
    assert (path.tolist(), bonus) == ([], drawn[5])
    assert [verifier.step() for _ in range(4)] == drawn[6:10]
