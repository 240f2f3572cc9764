"""The names that users import, and what ``Autodraft.run`` says to wrong arguments."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import autodraft
from autodraft import Autodraft
from autodraft.config import (
    AlgorithmsConfig,
    ExperimentConfig,
    MethodSpec,
    ModelsConfig,
    RuntimeConfig,
)
from autodraft.errors import AutodraftError, ConfigError, ContextLengthError, TokenizerMismatch
from autodraft.models.loader import LoadedModel, ModelSource, load_model
from autodraft.transport.shaping import LinkShape
from tests.fakes import LoopbackLink, greedy_reference, save_tiny_model, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

MESSAGES = [{"role": "user", "content": "Hi!"}]


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


WATCH_TORCH = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"), os.environ.get("GOMP_SPINCOUNT"))

sys.meta_path.insert(0, Watch())
"""


@pytest.mark.parametrize(
    "module", ["autodraft.api", "autodraft.engine.drafter", "autodraft.models.loader"]
)
@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({}, "PASSIVE 10000"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None"),
        ({"GOMP_SPINCOUNT": "5"}, "None 5"),
    ],
)
def test_idle_threads_spin_briefly_before_torch_is_imported_unless_the_user_says_otherwise(
    module: str, given: dict[str, str], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in given.items():
        monkeypatch.setenv(variable, value)
    assert run_python(f"{WATCH_TORCH}\nimport {module}").splitlines()[0] == seen


def test_the_public_names_are_these() -> None:
    assert autodraft.__all__ == [
        "Autodraft",
        "AutodraftError",
        "ExperimentConfig",
        "GenerationResult",
        "MethodSpec",
        "RequestRecord",
        "RoundRecord",
        "Sampling",
        "ServerConfig",
        "TokenScore",
        "__version__",
        "serve_target",
    ]
    assert dir(autodraft) == autodraft.__all__


@pytest.mark.parametrize("name", autodraft.__all__)
def test_every_public_name_exists(name: str) -> None:
    item = getattr(autodraft, name)
    assert name == "__version__" or item.__name__ == name


def test_another_name_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'autodraft' has no attribute 'Autodaft'"):
        autodraft.Autodaft  # noqa: B018
    assert not hasattr(autodraft, "torch")


@pytest.mark.parametrize(
    "code",
    [
        "import autodraft",
        "import autodraft; autodraft.AutodraftError; autodraft.__version__; dir(autodraft)",
        "from autodraft import ExperimentConfig, MethodSpec, ServerConfig, RoundRecord",
        "from autodraft import Sampling, TokenScore; Sampling(temperature=0.8)",
        "import autodraft.protocol.codec, autodraft.tree.growth, autodraft.transport.client",
    ],
)
def test_what_needs_no_model_leaves_torch_out(code: str) -> None:
    check = "import sys; print([n for n in ('torch', 'transformers') if n in sys.modules])"
    assert run_python(f"{code}; {check}") == "[]"


def test_an_engine_is_prepared_without_files_or_link(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    engine = Autodraft(draft_model=missing, target_model=missing, target_port=1)
    engine.close()
    engine.close()


def test_an_option_that_is_not_allowed_is_a_config_error() -> None:
    with pytest.raises(AutodraftError, match="3bit"):
        Autodraft(draft_model="a", target_model="b", draft_quantization="3bit")


@pytest.mark.parametrize(
    "prompts",
    [
        {},
        {"input_text": "Hi!", "prompt_ids": [1]},
        {"input_text": "Hi!", "messages": MESSAGES},
        {"messages": MESSAGES, "prompt_ids": [1]},
    ],
    ids=["none", "text and ids", "text and chat", "chat and ids"],
)
def test_not_exactly_one_prompt_is_an_error_before_anything_is_connected(
    prompts: dict[str, Any],
) -> None:
    engine = Autodraft(draft_model="a", target_model="b", target_port=1)
    with pytest.raises(ValueError, match="exactly one of input_text, messages and prompt_ids"):
        engine.run(**prompts)
    with pytest.raises(ValueError, match="exactly one of input_text, messages and prompt_ids"):
        next(iter(engine.stream(**prompts)))


@pytest.fixture(scope="module")
def target(tiny_pair: tuple[Path, Path]) -> LoadedModel:
    return load_model(ModelSource(str(tiny_pair[0]), dtype="float32", device_map="cpu"))


@pytest.fixture
def links(target: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> list[LoopbackLink]:
    """Every link an engine opens, to a target in this process."""
    opened: list[LoopbackLink] = []

    def link(host: str, port: int, token: str | None, shape: LinkShape) -> LoopbackLink:
        tokenizer = target.tokenizer
        opened.append(
            LoopbackLink(
                target.runner,
                sorted(tokenizer.eos_ids),
                tokenizer_hash=tokenizer.fingerprint(),
                added_tokens=tokenizer.added_tokens(),
                max_context=200,
            )
        )
        return opened[-1]

    monkeypatch.setattr("autodraft.engine.user.Link", link)
    return opened


@pytest.fixture
def engine(tiny_pair: tuple[Path, Path], links: list[LoopbackLink]) -> Autodraft:
    return Autodraft(
        draft_model=str(tiny_pair[1]),
        target_model=str(tiny_pair[0]),
        dtype="float32",
        device_map="cpu",
    )


def test_text_chat_and_ids_of_one_prompt_give_one_answer(engine: Autodraft) -> None:
    ids = engine.encode_chat(MESSAGES)
    results = [
        engine.run("Hi!", max_new_tokens=20),
        engine.run(messages=MESSAGES, max_new_tokens=20),
        engine.run(prompt_ids=ids, max_new_tokens=20),
    ]
    model = tiny_model(seed=1, vocab_size=259, eos_token_id=258, pad_token_id=256)
    expected = greedy_reference(model, ids, 20, frozenset({258}))
    assert [result.token_ids for result in results] == [expected] * 3
    assert results[0].text == engine.decode(expected)
    assert results[0].request.method == "opt_tree"
    assert results[0].request.prompt_tokens == len(ids)


@pytest.mark.parametrize("method", ["server_only", "chain", "fixed_tree", "opt_tree", "lookup"])
def test_a_stream_is_the_text_of_the_run(engine: Autodraft, method: str) -> None:
    results: list[autodraft.GenerationResult] = []
    pieces = list(engine.stream("Hi!", method=method, max_new_tokens=40, on_end=results.append))
    whole = engine.run("Hi!", method=method, max_new_tokens=40)
    assert "".join(pieces) == whole.text == results[0].text
    assert results[0].token_ids == whole.token_ids
    assert whole.request.method == method


def test_a_misspelt_method_is_an_error_and_never_another_method(engine: Autodraft) -> None:
    with pytest.raises(ConfigError, match="opt_tree"):
        engine.run("Hi!", method="opt_tre")


ELSEWHERE = MethodSpec(
    method="autodraft", placement="server", width=4, max_depth=4, node_budget=4, cs=0.5
)


@pytest.mark.parametrize("method", ["autodraft@server", ELSEWHERE], ids=["by name", "by limits"])
def test_a_method_that_does_not_exist_yet_is_refused(
    engine: Autodraft, links: list[LoopbackLink], method: str | MethodSpec
) -> None:
    with pytest.raises(ConfigError, match="does not exist yet in this version"):
        engine.run("Hi!", method=method)
    assert [type(item).__name__ for item in links[0].sent] == ["Hello"]


@pytest.mark.parametrize("max_new_tokens", [0, -3])
def test_an_answer_of_no_tokens_cannot_be_asked_for(engine: Autodraft, max_new_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"max_new_tokens is {max_new_tokens}; .* at least 1"):
        engine.run("Hi!", max_new_tokens=max_new_tokens)


@pytest.mark.parametrize("length", [0, 200, 5000])
def test_a_prompt_that_leaves_no_room_is_refused_with_the_limit(
    engine: Autodraft, length: int
) -> None:
    with pytest.raises(ContextLengthError, match=rf"{length} tokens; .* 1 to 199\."):
        engine.run(prompt_ids=[5] * length)


def test_a_prompt_that_leaves_room_for_one_token_gets_one(engine: Autodraft) -> None:
    result = engine.run(prompt_ids=[5] * 199)
    assert len(result.token_ids) == 1
    assert result.finish_reason in {"length", "stop"}


def test_a_refused_run_leaves_the_engine_usable(
    engine: Autodraft, links: list[LoopbackLink]
) -> None:
    with pytest.raises(ConfigError):
        engine.run("Hi!", method="opt_tre")
    with pytest.raises(ContextLengthError):
        engine.run(prompt_ids=[])
    assert engine.run("Hi!", max_new_tokens=3).token_ids
    assert len(links) == 1


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that engines have loaded."""
    names: list[str] = []

    def counted(source: ModelSource) -> LoadedModel:
        names.append(source.name)
        return load_model(source)

    monkeypatch.setattr("autodraft.engine.user.load_model", counted)
    return names


def test_the_draft_model_is_loaded_once(
    engine: Autodraft, links: list[LoopbackLink], loads: list[str]
) -> None:
    with engine:
        engine.run("Hi!", max_new_tokens=3)
        engine.run("Ho!", max_new_tokens=3)
    engine.run("Ha!", max_new_tokens=3)
    assert len(loads) == 1
    assert len(links) == 2
    assert links[0].closed
    assert not links[1].closed


def engine_without_draft_methods(pair: tuple[Path, Path], draft: Path) -> Autodraft:
    models = {"base_model_path": str(pair[0]), "draft_model_path": str(draft), "dtype": "float32"}
    return Autodraft.from_config(
        ExperimentConfig(
            runtime=RuntimeConfig(device_map="cpu"),
            models=ModelsConfig(**models),
            algorithms=AlgorithmsConfig(method_names=("server_only", "lookup")),
        )
    )


def test_methods_without_a_draft_model_load_none_until_another_method_is_run(
    tiny_pair: tuple[Path, Path], links: list[LoopbackLink], loads: list[str]
) -> None:
    with engine_without_draft_methods(tiny_pair, tiny_pair[1]) as engine:
        answers = [engine.run("Hi!", method="lookup", max_new_tokens=9)]
        answers.append(engine.run("Hi!", method="server_only", max_new_tokens=9))
        assert loads == []
        assert engine.describe()["draft"] is None
        answers.append(engine.run("Hi!", method="chain", max_new_tokens=9))
        assert loads == [str(tiny_pair[1])]
        assert engine.describe()["draft"]["model"] == str(tiny_pair[1])
    answers.append(engine.run("Hi!", method="opt_tree", max_new_tokens=9))  # connects anew
    assert len(loads) == 1
    assert len(links) == 2
    assert len({tuple(answer.token_ids) for answer in answers}) == 1


def test_a_wrong_draft_model_is_refused_when_it_is_needed_and_hurts_no_one_else(
    tmp_path: Path,
    tiny_pair: tuple[Path, Path],
    links: list[LoopbackLink],
    change_vocabulary: Callable[[Path], None],
) -> None:
    draft = save_tiny_model(tmp_path / "draft")
    change_vocabulary(draft)
    with engine_without_draft_methods(tiny_pair, draft) as engine:
        for _ in range(2):
            with pytest.raises(TokenizerMismatch):
                engine.run("Hi!", method="chain", max_new_tokens=3)
            assert engine.run("Hi!", method="lookup", max_new_tokens=3).token_ids
    assert len(links) == 1


def test_a_method_with_retrieval_is_recorded_under_its_own_name(engine: Autodraft) -> None:
    limits = {"method": "opt_tree", "width": 3, "max_depth": 4, "node_budget": 8}
    plain = engine.run("Hi!", method=MethodSpec(**limits), max_new_tokens=30)
    grafted = engine.run("Hi!", method=MethodSpec(**limits, retrieval=True), max_new_tokens=30)
    assert grafted.token_ids == plain.token_ids
    assert (plain.request.method, grafted.request.method) == ("opt_tree", "opt_tree+retrieval")


def test_a_draft_with_another_tokenizer_is_refused_and_the_link_closed(
    tmp_path: Path,
    tiny_pair: tuple[Path, Path],
    links: list[LoopbackLink],
    change_vocabulary: Callable[[Path], None],
) -> None:
    draft = save_tiny_model(tmp_path / "draft")
    change_vocabulary(draft)
    engine = Autodraft(draft_model=str(draft), target_model=str(tiny_pair[0]), dtype="float32")
    with pytest.raises(TokenizerMismatch) as caught:
        engine.connect()
    assert str(draft) in str(caught.value)
    assert links[0].closed


@pytest.fixture
def change_vocabulary() -> Callable[[Path], None]:
    """Return a function that swaps two letters in a folder's tokenizer."""

    def swap(folder: Path) -> None:
        path = folder / "tokenizer.json"
        text = path.read_text(encoding="utf-8")
        first, second = '"a":', '"b":'
        assert text.count(first) == text.count(second) == 1
        text = text.replace(first, "\0").replace(second, first).replace("\0", second)
        path.write_text(text, encoding="utf-8")

    return swap


@pytest.mark.parametrize(
    ("method", "cs", "text"),
    [
        ("opt_tree", 0.5, "cs=0.5 is for method='autodraft'"),
        ("autodraft", "cheap", "tps, balanced, cost"),
    ],
)
def test_a_cost_sensitivity_that_means_nothing_is_an_error(
    engine: Autodraft, method: str, cs: float | str, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        engine.run("Hi!", method=method, cs=cs)


def test_an_objective_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConfigError, match="total_cost"):
        Autodraft(draft_model="d", target_model="t", cost="totalcost")
