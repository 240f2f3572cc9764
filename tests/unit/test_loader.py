"""Loading tiny checkpoints from folders: what is taken, what is refused, and in which words."""

import json
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from autodraft.errors import ModelLoadError
from autodraft.models.loader import LoadedModel, ModelSource, load_model
from tests.fakes import greedy_reference, prompt_of, save_tiny_model, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

WEIGHTS = "model.safetensors"
PICKLE = "pytorch_model.bin"


def load(folder: Path, **options: Any) -> LoadedModel:
    return load_model(
        ModelSource(str(folder), **{"dtype": "float32", "device_map": "cpu"} | options)
    )


def refusal(folder: Path, **options: Any) -> str:
    """Return the message of the refusal, which is one paragraph that names the model."""
    with pytest.raises(ModelLoadError) as caught:
        load(folder, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def broken(tiny_pair: tuple[Path, Path], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies the tiny target and damages the copy."""

    def copy(damage: Callable[[Path], object]) -> Path:
        folder = tmp_path / "broken"
        shutil.copytree(tiny_pair[0], folder)
        damage(folder)
        return folder

    return copy


def edit_config(**changes: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return edit


def pickle_weights(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / PICKLE)
    (folder / WEIGHTS).unlink()


def shorten_weights(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def test_a_folder_is_loaded_with_its_weights_and_its_tokenizer(tmp_path: Path) -> None:
    loaded = load(save_tiny_model(tmp_path / "m", seed=5))
    ends: dict[str, Any] = {"eos_token_id": 258, "pad_token_id": 256}
    model = tiny_model(seed=5, vocab_size=259, **ends)
    prompt = loaded.tokenizer.encode_chat([{"role": "user", "content": "Hi!"}])
    cache = loaded.runner.new_cache(len(prompt) + 1)
    logits = loaded.runner.prefill(cache, prompt)
    assert int(logits[0].argmax()) == greedy_reference(model, prompt, 1)[0]
    assert loaded.runner.vocab_size == 259
    assert loaded.tokenizer.eos_ids == {258}
    assert loaded.revision == ""


def test_two_tiny_folders_share_their_tokenizer_and_not_their_weights(
    tiny_pair: tuple[Path, Path],
) -> None:
    target, draft = (load(folder) for folder in tiny_pair)
    assert target.tokenizer.identity == draft.tokenizer.identity
    assert len(target.runner.layout.layers) == 2
    assert len(draft.runner.layout.layers) == 1


def test_the_chat_template_of_a_tiny_folder_is_chatml(tiny_pair: tuple[Path, Path]) -> None:
    tokenizer = load(tiny_pair[0]).tokenizer
    ids = tokenizer.encode_chat([{"role": "user", "content": "é"}])
    assert ids[0] == 257
    assert ids.count(258) == 1
    assert tokenizer.decode(ids) == "user\né\nassistant\n"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_explicit_dtype_is_the_one_that_is_loaded(
    dtype: str, tiny_pair: tuple[Path, Path]
) -> None:
    runner = load(tiny_pair[0], dtype=dtype).runner
    assert runner.dtype == dtype
    assert runner.layout.layers[0][0].dtype == getattr(torch, dtype)


@pytest.mark.parametrize(("native", "dtype"), [(True, "bfloat16"), (False, "float32")])
@pytest.mark.parametrize("device_map", ["cpu", "auto"])
def test_an_automatic_dtype_on_a_cpu_is_the_one_it_multiplies_natively(
    native: bool,
    dtype: str,
    device_map: str,
    tiny_pair: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("autodraft.models.loader.native_bfloat16", lambda: native)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    loaded = load(tiny_pair[0], dtype="auto", device_map=device_map)
    assert loaded.runner.dtype == dtype
    assert loaded.runner.device == "cpu"


def test_an_unknown_dtype_is_refused_with_those_allowed(tiny_pair: tuple[Path, Path]) -> None:
    message = refusal(tiny_pair[0], dtype="fp8")
    assert "'fp8'" in message
    assert "auto, float32, bfloat16, float16" in message


def test_an_unknown_quantisation_is_refused_with_those_allowed(
    tiny_pair: tuple[Path, Path],
) -> None:
    message = refusal(tiny_pair[0], quantization="3bit")
    assert "'3bit'" in message
    assert "none, 8bit, 4bit" in message


@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
def test_quantisation_without_its_package_says_how_to_get_it(
    quantization: str, tiny_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    assert "pip install 'autodraft-sd[quant]'" in refusal(tiny_pair[0], quantization=quantization)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("quantization", ["8bit", "4bit"])
def test_a_quantised_model_is_really_quantised(
    quantization: str, dtype: str, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    folder, prompt = save_tiny_model(tmp_path / "m", hidden_size=64, head_dim=16), prompt_of(9)

    def logits(loaded: LoadedModel) -> np.ndarray[Any, Any]:
        cache = loaded.runner.new_cache(len(prompt))
        row: np.ndarray[Any, Any] = loaded.runner.prefill(cache, prompt)[0].double().numpy()
        return row

    plain = logits(load(folder, dtype=dtype))
    quantised = logits(load(folder, quantization=quantization, dtype=dtype))
    assert np.abs(plain - quantised).max() > 1e-2
    assert np.corrcoef(plain, quantised)[0, 1] > 0.8


def test_cuda_without_cuda_is_refused_with_the_way_out(
    tiny_pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    message = refusal(tiny_pair[0], device_map="cuda:0")
    assert "'cuda:0'" in message
    assert "DEVICE_MAP cpu or auto" in message


def test_a_device_that_does_not_exist_is_refused(tiny_pair: tuple[Path, Path]) -> None:
    assert "banana" in refusal(tiny_pair[0], device_map="banana")


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in message
    assert "a folder with config.json and safetensors" in message


def test_a_hub_id_that_is_not_at_hand_is_refused() -> None:
    message = refusal(Path("nobody/no-such-model"))
    assert "'nobody/no-such-model'" in message
    assert "HF_TOKEN" in message


def remove_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def empty_weights(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def remove_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    "damage",
    [
        remove_weights,
        shorten_weights,
        empty_weights,
        break_config,
        remove_tokenizer,
        edit_config(hidden_size=64),
        edit_config(num_hidden_layers=3),
        edit_config(model_type="nothing"),
        edit_config(model_type="t5", architectures=["T5ForConditionalGeneration"]),
    ],
    ids=[
        "no weights",
        "half the weights",
        "empty weights",
        "malformed config",
        "no tokenizer",
        "weights of another shape",
        "weights of a layer missing",
        "an unknown family",
        "no decoder-only model",
    ],
)
def test_a_damaged_folder_is_refused_by_name(
    damage: Callable[[Path], object], broken: Callable[..., Path]
) -> None:
    folder = broken(damage)
    assert repr(str(folder)) in refusal(folder)


@pytest.mark.parametrize("content", [b"", b"GGUFjunk", b"GGUF and nothing behind it"])
def test_a_malformed_gguf_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert repr(str(path)) in refusal(path)


def test_a_gguf_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert "model.gguf" in refusal(tmp_path / "model.gguf")


def test_pickled_weights_are_refused_with_the_way_out(broken: Callable[..., Path]) -> None:
    folder = broken(pickle_weights)
    message = refusal(folder)
    assert repr(str(folder)) in message
    assert "allow-pickle" in message or "allow_pickle" in message


def test_pickled_weights_are_loaded_where_that_is_allowed(
    broken: Callable[..., Path], tiny_pair: tuple[Path, Path]
) -> None:
    prompt = prompt_of(9)
    logits = []
    for loaded in (load(broken(pickle_weights), allow_pickle=True), load(tiny_pair[0])):
        logits.append(loaded.runner.prefill(loaded.runner.new_cache(9), prompt))
    assert torch.equal(*logits)


class _Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_code_inside_pickled_weights_never_runs(
    allow_pickle: bool, broken: Callable[..., Path], tmp_path: Path
) -> None:
    def plant(folder: Path) -> None:
        torch.save({"lm_head.weight": _Trap(tmp_path / "ran")}, folder / PICKLE)
        (folder / WEIGHTS).unlink()

    folder = broken(plant)
    assert repr(str(folder)) in refusal(folder, allow_pickle=allow_pickle)
    assert not (tmp_path / "ran").exists()


def test_a_models_own_code_never_runs(broken: Callable[..., Path], tmp_path: Path) -> None:
    def plant(folder: Path) -> None:
        (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
        classes = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
        edit_config(model_type="own", auto_map=classes)(folder)

    refusal(broken(plant))
    assert not (tmp_path / "ran").exists()


def test_a_sliding_window_is_refused_by_the_models_name(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "m", family="mistral", sliding_window=8)
    assert f"{folder}: layer 0" in refusal(folder)


def test_a_source_never_shows_its_token() -> None:
    source = ModelSource("a/model", hf_token="hf_secret")
    assert "hf_secret" not in repr(source)
    assert "hf_secret" not in str(source)
    assert "name='a/model'" in repr(source)


def test_models_loaded_by_several_threads_at_once_keep_their_tied_weights(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "m", tie_word_embeddings=True)
    before = PreTrainedModel.tie_weights
    start = threading.Barrier(4)

    def load_when_all_are_ready(_: int) -> LoadedModel:
        start.wait()
        return load(folder)

    with ThreadPoolExecutor(4) as pool:
        models = list(pool.map(load_when_all_are_ready, range(4)))
    assert PreTrainedModel.tie_weights is before
    prompt = prompt_of(5)
    logits = [model.runner.prefill(model.runner.new_cache(5), prompt) for model in models]
    assert all(torch.equal(logits[0], other) for other in logits[1:])
