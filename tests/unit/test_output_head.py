"""A draft's head cut to the tokens it may say: same scores, fewer columns, ids mapped back."""

from pathlib import Path

import numpy as np
import pytest
import torch

from autodraft.engine.drafter import Drafter
from autodraft.errors import ModelLoadError
from autodraft.models.candidates import top_candidates
from autodraft.models.loader import ModelSource, load_model
from autodraft.models.output_head import OUTPUT_IDS_NAME, read_output_ids, write_output_ids
from autodraft.models.runner import ModelRunner
from autodraft.policy import FixedTreePolicy, TreeLimits
from tests.fakes import VOCAB, prompt_of, save_tiny_tokenizer, tiny_model

PROMPT = prompt_of(12, seed=5)
OUTPUT_IDS = np.array([3, 10, 11, 64, 127])


def last_logits(runner: ModelRunner) -> torch.Tensor:
    return runner.prefill(runner.new_cache(len(PROMPT)), PROMPT)


@pytest.mark.parametrize("tied", [False, True])
def test_a_cut_head_scores_its_tokens_as_the_whole_one(tied: bool) -> None:
    def model() -> object:
        return tiny_model(tie_word_embeddings=tied)

    whole = last_logits(ModelRunner(model(), "whole"))
    runner = ModelRunner(model(), "cut", OUTPUT_IDS)
    torch.testing.assert_close(last_logits(runner), whole[:, torch.from_numpy(OUTPUT_IDS)])
    assert runner.vocab_size == VOCAB
    columns, _ = top_candidates(last_logits(runner), 5)
    order = np.argsort(-whole[0].numpy()[OUTPUT_IDS])
    assert runner.token_ids(columns)[0].tolist() == OUTPUT_IDS[order].tolist()


def test_columns_of_tokens_that_cannot_be_said_are_left_out() -> None:
    runner = ModelRunner(tiny_model(), "cut", OUTPUT_IDS)
    assert runner.columns_of([127, 4, 10]).tolist() == [1, 4]
    whole = ModelRunner(tiny_model(), "whole")
    assert whole.columns_of([127, 4, 10]).tolist() == [127, 4, 10]
    assert whole.token_ids(np.array([[7, 0]])).tolist() == [[7, 0]]


def test_a_drafter_proposes_output_ids_only_and_none_that_is_excluded() -> None:
    drafter = Drafter(ModelRunner(tiny_model(), "cut", OUTPUT_IDS), excluded=[10, 4])
    limits = TreeLimits(width=4, max_depth=3, node_budget=40)
    drafter.start(PROMPT, 8, limits)
    tree = drafter.draft([*PROMPT, 7], FixedTreePolicy(limits), 3, 40).tree
    assert tree.num_nodes > 20
    assert set(tree.tokens[1:].tolist()) == {3, 11, 64, 127}


def test_a_row_that_the_head_lacks_is_an_error() -> None:
    with pytest.raises(ModelLoadError, match="names the token 128, but the head has 128 rows"):
        ModelRunner(tiny_model(), "cut", np.array([1, VOCAB]))


def test_a_head_of_another_kind_is_an_error() -> None:
    model = tiny_model()
    model.set_output_embeddings(torch.nn.Sequential(model.get_output_embeddings()))
    with pytest.raises(ModelLoadError, match="its head is a Sequential"):
        ModelRunner(model, "cut", OUTPUT_IDS)


def test_the_list_beside_a_checkpoint_counts_for_a_draft_only(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path)
    tiny_model(vocab_size=260).save_pretrained(tmp_path)
    write_output_ids(tmp_path, OUTPUT_IDS)
    source = ModelSource(str(tmp_path), dtype="float32")
    assert last_logits(load_model(source).runner).shape == (1, 260)
    drafts = ModelSource(str(tmp_path), dtype="float32", drafts=True)
    assert last_logits(load_model(drafts).runner).shape == (1, len(OUTPUT_IDS))


def test_no_list_is_the_whole_vocabulary(tmp_path: Path) -> None:
    assert read_output_ids(tmp_path) is None
    assert read_output_ids(tmp_path / "model.gguf") is None


@pytest.mark.parametrize("text", ["[]", "[1, 1]", "[1, -2]", "[true]", '{"ids": [1]}', "[1", "7"])
def test_a_malformed_list_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / OUTPUT_IDS_NAME).write_text(text)
    with pytest.raises(ModelLoadError, match=OUTPUT_IDS_NAME):
        read_output_ids(tmp_path)


def test_output_ids_are_read_rising(tmp_path: Path) -> None:
    write_output_ids(tmp_path, np.array([5, 2, 9]))
    ids = read_output_ids(tmp_path)
    assert ids is not None
    assert ids.tolist() == [2, 5, 9]
