"""Every method's output is the target's own, token for token, over a real link and a real pair.

In float32, against transformers' ``generate(do_sample=False)``, which shares no code with us.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from autodraft import Autodraft
from autodraft.config import MethodSpec
from autodraft.models.embedded import EMBEDDED_DRAFT, EMBEDDED_TARGET, resolve_embedded
from tests.servers import TOKEN, TargetProcess, target_process

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(900)]

NUM_PROMPTS = 20
MAX_NEW_TOKENS = 16
WEAK_PROMPTS = 8  # a weak draft is slow: fewer prompts
PROMPTS = [
    "What is the capital of France?",
    "Write a Python function that reverses a list.",
    "Count from one to twenty.",
    "Translate to French: The cat sleeps on the sofa.",
    "Explain photosynthesis to a child.",
    "List three fruits.",
    "What is 17 times 23? Think step by step.",
    "Say hello.",
    "Write a haiku about rain.",
    "Who wrote Hamlet?",
    "Give me a recipe for pancakes.",
    "Summarise: The meeting was moved from Monday to Thursday because the room was taken.",
    "What does HTTP stand for?",
    "Name the planets of the solar system in order.",
    "Write a JSON object with the keys name and age.",
    "Correct the spelling: I recieve teh mesage.",
    "Why is the sky blue?",
    "Repeat the word echo ten times.",
    "What is the difference between a list and a tuple in Python?",
    "Begin a letter to my landlord about a broken window.",
]
SPECS = [
    MethodSpec(method="server_only", width=0, max_depth=0, node_budget=0),
    MethodSpec(method="chain", width=1, max_depth=5, node_budget=5),
    MethodSpec(method="fixed_tree", width=4, max_depth=3, node_budget=12),
    MethodSpec(method="opt_tree", width=6, max_depth=6, node_budget=20),
    MethodSpec(method="lookup", width=0, max_depth=6, node_budget=20),
    MethodSpec(method="chain", width=1, max_depth=5, node_budget=5, retrieval=True),
    MethodSpec(method="opt_tree", width=6, max_depth=6, node_budget=20, retrieval=True),
    MethodSpec(method="chain", placement="server", width=1, max_depth=5, node_budget=5),
    MethodSpec(method="opt_tree", placement="server", width=6, max_depth=6, node_budget=20),
]
RETRIEVING = [spec for spec in SPECS if spec.retrieval or spec.method == "lookup"]
REPEATING_PROMPT = (
    "Write this sentence again, word for word: The meeting was moved from Monday to Thursday "
    "because the room was taken."
)
# Shapes that keep the draft's own first choice at every level: two levels, and no node left out.
WHOLE = [
    MethodSpec(method="chain", width=1, max_depth=5, node_budget=5),
    MethodSpec(method="fixed_tree", width=3, max_depth=2, node_budget=12),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TargetProcess]:
    with target_process(tmp_path_factory.mktemp("target"), "--dtype", "float32") as process:
        yield process


Expected = tuple[list[int], list[int]]  # prompt ids, answer


@pytest.fixture(scope="module")
def greedy() -> Callable[[str], Expected]:
    """transformers' own greedy generation, behind the chat template."""
    folder = resolve_embedded(EMBEDDED_TARGET)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def answer(prompt: str) -> Expected:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        output = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            do_sample=False,
            max_new_tokens=MAX_NEW_TOKENS,
        )
        return ids, output[0, len(ids) :].tolist()

    return answer


@pytest.fixture(scope="module")
def expected(greedy: Callable[[str], Expected]) -> list[Expected]:
    """Prompt ids and answer for each prompt."""
    return [greedy(prompt) for prompt in PROMPTS]


def engine_for(server: TargetProcess, draft: str) -> Autodraft:
    return Autodraft(
        draft_model=draft,
        target_model=EMBEDDED_TARGET,
        target_port=server.port,
        dtype="float32",
        token=TOKEN,
    )


def test_there_are_twenty_different_prompts() -> None:
    assert len(set(PROMPTS)) == NUM_PROMPTS


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.label)
def test_a_weak_draft_changes_nothing(
    server: TargetProcess, expected: list[Expected], spec: MethodSpec
) -> None:
    with engine_for(server, EMBEDDED_DRAFT) as engine:
        for ids, answer in expected[:WEAK_PROMPTS]:
            result = engine.run(prompt_ids=ids, method=spec, max_new_tokens=MAX_NEW_TOKENS)
            assert result.token_ids == answer
            assert result.finish_reason == ("length" if len(answer) == MAX_NEW_TOKENS else "stop")


@pytest.mark.parametrize("spec", WHOLE, ids=lambda spec: spec.method)
def test_the_target_as_its_own_draft_accepts_every_token(
    server: TargetProcess, expected: list[Expected], spec: MethodSpec
) -> None:
    with engine_for(server, EMBEDDED_TARGET) as engine:
        for ids, answer in expected:
            result = engine.run(prompt_ids=ids, method=spec, max_new_tokens=MAX_NEW_TOKENS)
            assert result.token_ids == answer
            for round_ in result.rounds:
                assert round_.accepted_length == round_.depth
            full = result.rounds[: (len(answer) - 1) // (spec.max_depth + 1)]
            assert [round_.emitted_tokens for round_ in full] == [spec.max_depth + 1] * len(full)


@pytest.mark.parametrize("spec", RETRIEVING, ids=lambda spec: spec.label)
def test_retrieval_gets_a_repetition_accepted_and_changes_nothing(
    server: TargetProcess, greedy: Callable[[str], Expected], spec: MethodSpec
) -> None:
    ids, answer = greedy(REPEATING_PROMPT)
    with engine_for(server, EMBEDDED_DRAFT) as engine:
        result = engine.run(prompt_ids=ids, method=spec, max_new_tokens=MAX_NEW_TOKENS)
    assert result.token_ids == answer
    assert result.request.method == spec.label
    assert result.request.accepted_tokens > len(answer) / 2


def test_the_chat_template_is_the_targets_own(
    server: TargetProcess, expected: list[Expected]
) -> None:
    with engine_for(server, EMBEDDED_DRAFT) as engine:
        encoded = [engine.encode_chat([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    assert encoded == [ids for ids, _ in expected]


def test_figures_of_one_request_agree_with_each_other(
    server: TargetProcess, expected: list[Expected]
) -> None:
    ids, answer = expected[2]
    with engine_for(server, EMBEDDED_DRAFT) as engine:
        result = engine.run(prompt_ids=ids, method=SPECS[1], max_new_tokens=MAX_NEW_TOKENS)
        description = engine.describe()
    record, rounds = result.request, result.rounds
    assert record.output_tokens == len(answer) == 1 + sum(r.emitted_tokens for r in rounds)
    assert record.target_forwards == record.rounds + 1 == len(rounds) + 1
    assert record.sent_nodes == sum(r.num_nodes for r in rounds)
    assert record.target_busy_s <= record.target_held_s <= record.total_s + 1.0
    assert all(r.verify_s + r.queue_s <= r.wait_s <= r.round_s for r in rounds)
    assert all(r.uplink_bytes <= 4 * r.num_nodes + 32 for r in rounds)
    assert record.draft_energy_method == record.target_energy_method == "modelled"
    assert description["target"]["dtype"] == "float32"
    json.dumps(description)


def test_a_consumer_that_stops_early_leaves_the_link_usable(
    server: TargetProcess, expected: list[Expected]
) -> None:
    ids, answer = expected[0]
    with engine_for(server, EMBEDDED_DRAFT) as engine:
        for spec in SPECS:
            stream = engine.stream(prompt_ids=expected[4][0], method=spec, max_new_tokens=200)
            next(stream)
            stream.close()
            result = engine.run(prompt_ids=ids, method=spec, max_new_tokens=MAX_NEW_TOKENS)
            assert result.token_ids == answer


def test_streamed_text_is_the_whole_text(server: TargetProcess, tmp_path: Path) -> None:
    with engine_for(server, EMBEDDED_DRAFT) as engine:
        prompt = "Say hello in Japanese, with emoji."
        pieces = list(engine.stream(prompt, method="chain", max_new_tokens=32))
        whole = engine.run(prompt, method="server_only", max_new_tokens=32)
    assert "".join(pieces) == whole.text


def test_a_stop_string_ends_every_method_at_the_same_token(server: TargetProcess) -> None:
    prompt = "Explain photosynthesis to a child."
    with engine_for(server, EMBEDDED_DRAFT) as engine:
        whole = engine.run(prompt, method="server_only", max_new_tokens=40)
        stop = [whole.text[24:29], "never said"]
        results = [engine.run(prompt, method=spec, max_new_tokens=40, stop=stop) for spec in SPECS]
        pieces = list(engine.stream(prompt, method=SPECS[2], max_new_tokens=40, stop=stop))
    first = results[0]
    assert first.text == whole.text[: whole.text.index(stop[0])]
    assert first.finish_reason == "stop"
    assert first.token_ids == whole.token_ids[: len(first.token_ids)]
    assert len(first.token_ids) < len(whole.token_ids)
    for result in results[1:]:
        assert (result.token_ids, result.text) == (first.token_ids, first.text)
        assert result.finish_reason == "stop"
    assert "".join(pieces) == first.text
