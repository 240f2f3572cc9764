"""Caches kept from one answer to the next: a chat's next turn forwards only what is new.

An engine and a server in this process, over a real socket; how far two prompts agree is counted by
hand.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import processors

from autodraft import Autodraft
from autodraft.config import MethodSpec
from autodraft.decoding.sampling import GREEDY, Sampling
from autodraft.models.kv_cache import KVCache
from autodraft.models.runner import ModelRunner
from autodraft.models.tokenizer import Tokenizer
from tests.fakes import CHATML, SPECIAL_TOKENS, prompt_of, save_tiny_model
from tests.integration.test_colocated import SERVER_ONLY, engine_for, spec
from tests.local_server import LocalServer

pytestmark = pytest.mark.usefixtures("one_thread")

CHAIN = spec("chain", "user")
METHODS = [
    SERVER_ONLY,
    CHAIN,
    spec("fixed_tree", "user"),
    spec("lookup", "user"),
    spec("chain"),
    spec("lookup"),
]
PROMPT = prompt_of(12, seed=6)
TOKENS = 21
FURTHER = prompt_of(8, seed=7)


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.fixture(scope="module")
def server(tiny_pair: tuple[Path, Path]) -> Iterator[LocalServer]:
    running = LocalServer(tiny_pair[0], draft_model_path=str(tiny_pair[1]), dtype="float32")
    yield running
    running.stop()


Connect = Callable[[], Any]


@pytest.fixture
def connect(tiny_pair: tuple[Path, Path], server: LocalServer) -> Connect:
    """Return a function that makes an engine with a connection, and caches, of its own."""

    @contextmanager
    def engine() -> Iterator[Autodraft]:
        with engine_for(tiny_pair, server, "chain,chain@server") as running:
            yield running

    return engine


@pytest.fixture(scope="module")
def fresh(tiny_pair: tuple[Path, Path], server: LocalServer) -> Iterator[Callable[..., list[int]]]:
    """Return a function that answers without reusing anything, by plain decoding."""
    with engine_for(tiny_pair, server, "server_only") as engine:

        def answer(prompt: Sequence[int], count: int, sampling: Sampling = GREEDY) -> list[int]:
            how = {"max_new_tokens": count, "sampling": sampling, "reuse_prefix": False}
            return engine.run(prompt_ids=prompt, method=SERVER_ONLY, **how).token_ids

        yield answer


@pytest.mark.parametrize("method", METHODS, ids=lambda spec: spec.label)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0, seed=8)])
def test_a_second_turn_reuses_prompt_and_answer_of_the_first(
    connect: Connect, fresh: Callable[..., list[int]], method: MethodSpec, sampling: Sampling
) -> None:
    with connect() as engine:
        how = {"method": method, "max_new_tokens": TOKENS, "sampling": sampling}
        first = engine.run(prompt_ids=PROMPT, **how)
        longer = [*PROMPT, *first.token_ids, *FURTHER]
        second = engine.run(prompt_ids=longer, **how)
    assert first.request.reused_prompt_tokens == 0
    assert first.token_ids == fresh(PROMPT, TOKENS, sampling)
    # 12 of the prompt and 21 of the answer; the last token of an answer is never forwarded.
    assert second.request.reused_prompt_tokens == 12 + 21 - 1
    assert second.request.prompt_tokens == 12 + 21 + 8
    assert second.token_ids == fresh(longer, TOKENS, sampling)


def test_the_next_turn_of_a_chat_reuses_what_the_template_makes_of_the_turns_before(
    connect: Connect, fresh: Callable[..., list[int]]
) -> None:
    with connect() as engine:
        chat = [turn("system", "Be brief."), turn("user", "Hi!")]
        first = engine.run(messages=chat, method=CHAIN, max_new_tokens=TOKENS)
        # One token for each byte and each special token:
        # <|im_start|> "system\n" "Be brief." <|im_end|> "\n" is 1 + 7 + 9 + 1 + 1 = 19,
        # <|im_start|> "user\n" "Hi!" <|im_end|> "\n" is 1 + 5 + 3 + 1 + 1 = 11,
        # <|im_start|> "assistant\n" is 1 + 10 = 11.
        assert first.request.prompt_tokens == 19 + 11 + 11
        assert engine.decode(first.token_ids)[:1] != "Y"  # the answer below is another one
        longer = [*chat, turn("assistant", "Yes?"), turn("user", "Why?")]
        ids = engine.encode_chat(longer)
        second = engine.run(messages=longer, method=CHAIN, max_new_tokens=TOKENS)
    # "Yes?" <|im_end|> "\n" is 4 + 1 + 1 = 6, the next user's turn 1 + 5 + 4 + 1 + 1 = 12.
    assert second.request.prompt_tokens == len(ids) == 41 + 6 + 12 + 11
    assert second.request.reused_prompt_tokens == 41
    assert second.token_ids == fresh(ids, TOKENS)


def test_an_edited_history_reuses_what_stands_before_the_edit(
    connect: Connect, fresh: Callable[..., list[int]]
) -> None:
    with connect() as engine:
        engine.run("Hello there", method=CHAIN, max_new_tokens=TOKENS)
        ids = engine.encode_chat([turn("user", "Hello you")])
        edited = engine.run("Hello you", method=CHAIN, max_new_tokens=TOKENS)
        again = engine.run("Hello you", method=CHAIN, max_new_tokens=TOKENS)
    assert edited.request.reused_prompt_tokens == 1 + 5 + 6  # <|im_start|> "user\n" "Hello "
    assert edited.token_ids == again.token_ids == fresh(ids, TOKENS)
    assert again.request.reused_prompt_tokens == len(ids) - 1  # all but its last token


def test_methods_take_turns_over_the_same_caches(
    connect: Connect, fresh: Callable[..., list[int]]
) -> None:
    prompt = list(PROMPT)
    with connect() as engine:
        for number, method in enumerate([*METHODS, *reversed(METHODS)]):
            result = engine.run(prompt_ids=prompt, method=method, max_new_tokens=7)
            expected = 0 if number == 0 else len(prompt) - 1 - 3
            assert result.request.reused_prompt_tokens == expected, method.label
            assert result.token_ids == fresh(prompt, 7), method.label
            prompt += [*result.token_ids, *FURTHER[:3]]


def test_without_reuse_nothing_is_taken_and_nothing_is_left(connect: Connect) -> None:
    with connect() as engine:
        reused = [
            engine.run(
                prompt_ids=PROMPT, method=CHAIN, max_new_tokens=7, reuse_prefix=wanted
            ).request.reused_prompt_tokens
            for wanted in (False, True, False, True)
        ]
    # The second leaves its cache to the fourth; the third neither takes nor spoils it.
    assert reused == [0, 0, 0, 11]


def test_another_connection_does_not_see_what_this_one_left(connect: Connect) -> None:
    with connect() as one, connect() as other:
        how = {"prompt_ids": PROMPT, "method": CHAIN, "max_new_tokens": 7}
        one.run(**how)
        assert other.run(**how).request.reused_prompt_tokens == 0
        assert one.run(**how).request.reused_prompt_tokens == 11


# ------------------------------------------------------------------- the draft, and what is held


@pytest.fixture
def prefilled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Layers of the model and tokens of each prefill; the draft has one layer, the target two."""
    calls: list[tuple[int, int]] = []
    prefill = ModelRunner.prefill

    def counted(self: ModelRunner, cache: KVCache, tokens: Sequence[int]) -> Any:
        calls.append((len(self.layout.layers), len(tokens)))
        return prefill(self, cache, tokens)

    monkeypatch.setattr(ModelRunner, "prefill", counted)
    return calls


@pytest.mark.parametrize("method", [CHAIN, spec("chain")], ids=["at the user", "at the server"])
def test_the_draft_forwards_only_what_is_new(
    connect: Connect, prefilled: list[tuple[int, int]], method: MethodSpec
) -> None:
    with connect() as engine:
        first = engine.run(prompt_ids=PROMPT, method=method, max_new_tokens=TOKENS)
        # A draft's cache holds the context of its last tree and the accepted nodes but a leaf.
        last = [round_ for round_ in first.rounds if round_.depth][-1]
        held = last.context_tokens + min(last.accepted_length, last.depth - 1)
        assert held >= 12 + 21 - 5
        longer = [*PROMPT, *first.token_ids, *FURTHER]
        prefilled.clear()
        engine.run(prompt_ids=longer, method=method, max_new_tokens=TOKENS)
    drafts = [tokens for layers, tokens in prefilled if layers == 1]
    targets = [tokens for layers, tokens in prefilled if layers == 2]
    assert targets == [41 - 32]
    assert drafts[0] == 41 - held
    # Behind the prompt it catches up with what each round has made, once.
    assert sum(drafts[1:]) < TOKENS


def test_a_draft_catches_up_with_turns_that_it_took_no_part_in(
    connect: Connect, prefilled: list[tuple[int, int]], fresh: Callable[..., list[int]]
) -> None:
    with connect() as engine:
        engine.run(prompt_ids=PROMPT, method=CHAIN, max_new_tokens=1)
        alone = engine.run(prompt_ids=PROMPT, method=SERVER_ONLY, max_new_tokens=TOKENS)
        longer = [*PROMPT, *alone.token_ids, *FURTHER]
        prefilled.clear()
        result = engine.run(prompt_ids=longer, method=CHAIN, max_new_tokens=TOKENS)
        assert next(tokens for layers, tokens in prefilled if layers == 1) == 41 - 12
    assert result.token_ids == fresh(longer, TOKENS)


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each cache was released that a model allocated, in the order they were made."""
    released: Counter[int] = Counter()
    made: list[KVCache] = []
    new_cache, release = ModelRunner.new_cache, ModelRunner.release

    def allocated(self: ModelRunner, capacity: int) -> KVCache:
        made.append(new_cache(self, capacity))
        released[len(made) - 1] = 0
        return made[-1]

    def given_back(self: ModelRunner, cache: KVCache) -> None:
        released[next(number for number, one in enumerate(made) if one is cache)] += 1
        release(self, cache)

    monkeypatch.setattr(ModelRunner, "new_cache", allocated)
    monkeypatch.setattr(ModelRunner, "release", given_back)
    return released


def test_after_the_connection_nothing_is_kept_and_each_cache_was_released_once(
    tiny_pair: tuple[Path, Path], caches: Counter[int]
) -> None:
    own = LocalServer(tiny_pair[0], draft_model_path=str(tiny_pair[1]), dtype="float32")
    try:
        engine = engine_for(tiny_pair, own, "chain,chain@server")
        with engine:
            caches.clear()  # those of loading are nobody's answer's
            for method in [*METHODS, *METHODS]:
                engine.run(prompt_ids=PROMPT, method=method, max_new_tokens=7)
            stream = engine.stream(prompt_ids=PROMPT, method=CHAIN, max_new_tokens=500)
            next(stream)
            stream.close()
            assert 0 in caches.values()
        with engine:
            again = engine.run(prompt_ids=PROMPT, method=CHAIN, max_new_tokens=7)
        assert again.request.reused_prompt_tokens == 0
    finally:
        own.stop()
    assert set(caches.values()) == {1}


def test_a_turn_that_begins_while_the_model_is_busy_reuses_the_one_before(
    connect: Connect, server: LocalServer
) -> None:
    # Another client's forward takes its time between two turns of this one.
    free = threading.Event()

    async def keep_busy() -> None:
        server.service._worker.submit(free.wait, 30)

    with connect() as engine:
        engine.run(prompt_ids=PROMPT, method=SERVER_ONLY, max_new_tokens=1)
        target = engine._user.connect()
        close_session = target.close_session

        def close_behind_a_forward() -> Any:
            server._call(keep_busy())
            threading.Timer(0.3, free.set).start()
            return close_session()

        target.close_session = close_behind_a_forward
        engine.run(prompt_ids=PROMPT, method=SERVER_ONLY, max_new_tokens=1)
        target.close_session = close_session
        third = engine.run(prompt_ids=PROMPT, method=SERVER_ONLY, max_new_tokens=1)
    assert third.request.reused_prompt_tokens == 11


# ----------------------------------------------------------------------------- the template's BOS


def begin_with_bos(folder: Path) -> None:
    """Let a folder's tokenizer put a BOS before every text, and its template before every chat."""
    bos = SPECIAL_TOKENS[0]
    path = folder / "tokenizer.json"
    backend = Backend.from_file(str(path))
    number = backend.token_to_id(bos)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, number)]
    )
    backend.save(str(path))
    settings = folder / "tokenizer_config.json"
    changes = {"bos_token": bos, "chat_template": "{{ bos_token }}" + CHATML}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | changes))


def test_a_chat_with_system_prompt_and_turns_begins_with_one_bos(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "target", seed=1)
    begin_with_bos(folder)
    tokenizer = Tokenizer.load(str(folder))
    bos = 256
    assert tokenizer.encode("Hi!")[0] == bos
    chat = [turn("system", "Be brief."), turn("user", "Hi!"), turn("assistant", "Yes?")]
    chat.append(turn("user", "Why?"))
    ids = tokenizer.encode_chat(chat)
    assert [place for place, token in enumerate(ids) if token == bos] == [0]
    opening = [257, *tokenizer.encode("assistant\n")[1:]]
    assert ids[-len(opening) :] == opening
    assert len(ids) == 1 + 41 + 6 + 12 + 11
    server = LocalServer(folder, dtype="float32")
    try:
        with engine_for((folder, folder), server, "chain") as engine:
            assert engine.encode_chat(chat) == ids
            by_chat = engine.run(messages=chat, method=CHAIN, max_new_tokens=7)
            by_ids = engine.run(prompt_ids=ids, method=CHAIN, max_new_tokens=7)
        assert by_chat.request.prompt_tokens == by_ids.request.prompt_tokens == len(ids)
        assert by_chat.token_ids == by_ids.token_ids
        assert by_ids.request.reused_prompt_tokens == len(ids) - 1
    finally:
        server.stop()
