"""Distilling a draft: chats that the target writes, what is learned from them, what is left out."""

import json
import zlib
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from distillation.batches import USER_WEIGHT, LabelMix, epoch, labels_of, make_batch
from distillation.chat_writer import ChatMarkup, ChatWriter, WriterSettings
from distillation.gathering import load_sources, without_questions
from distillation.heldout import chain_mat, report_held_out, split_held_out
from distillation.overlap import overlapping, question_runs, word_runs
from distillation.samples import (
    ANSWER,
    FORCED,
    USER,
    Chat,
    SampleFileError,
    load_chats,
    save_chats,
)
from distillation.shipping import MODEL_CARD_NAME, TrainingStory, ship
from distillation.starts import BLANKS, STARTS, draw_start
from distillation.student import OutputHead, choose_output_ids, cut_student, trained_weights
from distillation.training import (
    Trainer,
    TrainingSettings,
    distillation_loss,
    saved_output_ids,
)
from transformers import AutoTokenizer

from autodraft.models.prepared import sha256_of
from autodraft.models.shipped_draft import WEIGHTS_NAME
from tests.fakes import greedy_reference, save_tiny_tokenizer, tiny_model


def chat(tokens: list[int], roles: list[int], category: str = "maths", greedy: bool = True) -> Chat:
    return Chat(category, greedy, np.array(tokens, np.uint16), np.array(roles, np.uint8))


def toy_target(vocab: int) -> Any:
    """A target whose next token follows mostly from the last one: a small student can learn it."""
    model = tiny_model(
        vocab_size=vocab, num_hidden_layers=3, tie_word_embeddings=True, scale=1.0, head_dim=8
    )
    with torch.no_grad():
        embedding = model.get_input_embeddings().weight
        embedding.copy_(torch.nn.functional.normalize(embedding, dim=1))
        model.model.norm.weight.mul_(3.0)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.003)
    return model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tiny_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def target(tokenizer: Any) -> Any:
    return toy_target(len(tokenizer))


SETTINGS = WriterSettings(slots=32, max_tokens=160, max_user_tokens=40, soft_labels=4, top_k=20)


@pytest.fixture(scope="module")
def written(target: Any, tokenizer: Any) -> list[Chat]:
    return list(islice(ChatWriter(target, tokenizer, SETTINGS, seed=3), 160))


# --------------------------------------------------------------------------------------- writing


def test_a_greedy_answer_is_the_targets_own(
    target: Any, tokenizer: Any, written: list[Chat]
) -> None:
    """Compared with transformers' own cache and attention, which share no code with the writer."""
    target.set_attn_implementation("eager")
    compared = 0
    for one in [one for one in written if one.greedy][:10]:
        start = int(np.flatnonzero(one.roles == ANSWER)[0])
        length = int(np.append(np.flatnonzero(one.roles[start:] != ANSWER), len(one.roles))[0])
        length = min(length, len(one.tokens) - start)
        expected = greedy_reference(target, one.tokens[:start].tolist(), length)
        assert one.tokens[start : start + length].tolist() == expected
        compared += length
    assert compared > 200


def test_labels_are_the_targets_distribution(target: Any, written: list[Chat]) -> None:
    target.set_attn_implementation("eager")
    one = written[0]
    with torch.inference_mode():
        ids = torch.from_numpy(one.tokens.astype(np.int64))[None, :-1]
        probs = target(input_ids=ids).logits[0].softmax(-1)
    best = probs.topk(4)
    assert one.label_ids is not None
    assert one.label_probs is not None
    assert one.label_ids.shape == (len(one.tokens) - 1, 4)
    np.testing.assert_allclose(one.label_probs, best.values.numpy(), atol=2e-3)
    assert (one.label_ids[:, 0] == best.indices[:, 0].numpy()).mean() > 0.99


def test_roles_tell_whose_words_they_are(tokenizer: Any, written: list[Chat]) -> None:
    markup = ChatMarkup.of(tokenizer)
    for one in written:
        assert one.tokens[: len(markup.opening)].tolist() == markup.opening
        assert (one.roles[: len(markup.opening)] == FORCED).all()
        assert len(one.tokens) == len(one.roles) <= SETTINGS.max_tokens
        answers = np.flatnonzero(one.roles == ANSWER)
        if len(answers):
            before = one.tokens[: answers[0]].tolist()
            assert before[-len(markup.to_answer) :] == markup.to_answer


def test_chats_follow_the_seed(target: Any, tokenizer: Any, written: list[Chat]) -> None:
    again = list(islice(ChatWriter(target, tokenizer, SETTINGS, seed=3), 3))
    other = list(islice(ChatWriter(target, tokenizer, SETTINGS, seed=4), 3))
    assert [one.tokens.tolist() for one in again] == [one.tokens.tolist() for one in written[:3]]
    assert [one.tokens.tolist() for one in other] != [one.tokens.tolist() for one in again]


def test_every_start_has_its_blanks_filled() -> None:
    rng = np.random.default_rng(0)
    starts = [draw_start(rng) for _ in range(3000)]
    assert {start.category for start in starts} == set(STARTS)
    assert not any(f"{{{blank}}}" in start.text for start in starts for blank in BLANKS)
    assert len({start.text for start in starts}) > 1000


# ------------------------------------------------------------------------------------- training


def test_a_toy_student_learns_to_agree(target: Any, written: list[Chat], tmp_path: Path) -> None:
    student = cut_student(target, (0,))
    with torch.no_grad():  # forget the layer: what it knows afterwards it has learned
        for name, weight in student.named_parameters():
            if "layers" in name and weight.dim() == 2:
                generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                weight.normal_(0.0, 0.02, generator=generator)
    head = OutputHead(student, np.arange(target.config.vocab_size))
    training, held_out = written[:140], written[140:]
    before = report_held_out(student, head, held_out)
    settings = TrainingSettings(minutes=0.15, learning_rate=1e-2, tokens_per_batch=1024)
    trainer = Trainer(student, head, settings)
    losses: list[float] = []
    trainer.train(training, lambda state: losses.append(state.loss), tmp_path / "checkpoint.pt")
    after = report_held_out(student, head, held_out)
    assert before.top1 < 0.3
    assert after.top1 > 0.8
    assert after.chain_mat[3] > 2.5 > before.chain_mat[3]
    assert losses[-1] < losses[0]


def test_a_killed_training_goes_on(target: Any, written: list[Chat], tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    ids = choose_output_ids(written, target.config.vocab_size, 100, required=[258])
    student = cut_student(target, (0, 2))
    first = Trainer(student, OutputHead(student, ids), TrainingSettings(minutes=0.02))
    first.train(written, lambda _: None, path)

    fresh = cut_student(target, (0, 2))
    second = Trainer(fresh, OutputHead(fresh, saved_output_ids(path)), TrainingSettings(0.04))
    second.resume(path)
    assert second.state == first.state
    for name, tensor in trained_weights(student).items():
        assert torch.equal(tensor, fresh.state_dict()[name])
    second.train(written, lambda _: None)
    assert second.state.step > first.state.step
    assert second.state.elapsed_s >= 60 * 0.04

    other = OutputHead(fresh, ids[1:])
    with pytest.raises(ValueError, match="another output vocabulary"):
        Trainer(fresh, other, TrainingSettings(1)).resume(path)


def test_the_loss_is_the_cross_entropy_of_the_labels(target: Any) -> None:
    student = cut_student(target, (0,))
    ids = np.array([3, 5, 8])
    head = OutputHead(student, ids)
    one = Chat(
        "maths",
        True,
        np.array([1, 3, 5], np.uint16),
        np.array([FORCED, ANSWER, ANSWER], np.uint8),
        np.array([[3, 7], [5, 8]], np.uint16),  # 7 cannot be said
        np.array([[0.5, 0.25], [0.5, 0.25]], np.float16),
    )
    batch = make_batch([one], LabelMix(hard_share=0.5, count=2))
    with torch.no_grad():
        loss = float(distillation_loss(student, head, batch))
        hidden = student.model(input_ids=torch.tensor([[1, 3, 5]])).last_hidden_state[0, :2]
        log_probs = (hidden @ head.rows.T).log_softmax(-1)
    # Weights: the best token 0.5 + 0.5 · 0.5, the second 0.5 · 0.25, and none for token 7.
    expected = 0.75 * log_probs[0, 0] + 0.75 * log_probs[1, 1] + 0.125 * log_probs[1, 2]
    assert loss == pytest.approx(-float(expected) / 1.625, rel=1e-5)


def test_labels_weigh_answers_more_than_users_and_markup_not_at_all() -> None:
    ids, weights = labels_of(
        chat([9, 4, 5, 6], [FORCED, FORCED, USER, ANSWER]), LabelMix(hard_share=0.5, count=2)
    )
    assert ids[:, 0].tolist() == [4, 5, 6]
    assert weights[:, 0].tolist() == pytest.approx([0.0, USER_WEIGHT, 1.0])
    assert weights[:, 1].tolist() == [0.0, 0.0, 0.0]


def test_an_epoch_shows_every_chat_once_within_the_batch_size() -> None:
    chats = [chat([number] * (5 + number), [ANSWER] * (5 + number)) for number in range(40)]
    groups = list(epoch(chats, 100, np.random.default_rng(0)))
    assert sorted(int(one.tokens[0]) for group in groups for one in group) == list(range(40))
    for group in groups:
        longest = max(len(one.tokens) for one in group)
        assert longest * len(group) <= 100 or len(group) == 1


def test_a_batch_points_at_what_it_teaches() -> None:
    batch = make_batch(
        [chat([1, 2, 3], [FORCED, ANSWER, ANSWER]), chat([4, 5], [FORCED, ANSWER])],
        LabelMix(1.0, 1),
    )
    assert batch.tokens.tolist() == [[1, 2, 3], [4, 5, 0]]
    assert batch.positions.tolist() == [0, 1, 3]
    assert batch.label_ids.tolist() == [[2], [3], [5]]


# --------------------------------------------------------------------------------------- student


def test_the_student_is_cut_from_the_targets_layers(target: Any) -> None:
    student = cut_student(target, (2, 0))
    ours, theirs = student.state_dict(), target.state_dict()
    assert student.config.num_hidden_layers == 2
    for place, layer in ((0, 2), (1, 0)):
        name = "mlp.up_proj.weight"
        assert torch.equal(
            ours[f"model.layers.{place}.{name}"], theirs[f"model.layers.{layer}.{name}"]
        )
    assert not student.get_input_embeddings().weight.requires_grad
    assert student.get_output_embeddings().weight is student.get_input_embeddings().weight
    with pytest.raises(ValueError, match="layers 0 to 2"):
        cut_student(target, (3,))


def test_output_ids_are_what_the_target_says_most() -> None:
    said = chat([7, 7, 5, 5, 5, 9], [USER, USER, ANSWER, ANSWER, ANSWER, ANSWER])
    assert choose_output_ids([said], 16, 2).tolist() == [5, 9]
    assert choose_output_ids([said], 16, 2, required=[11]).tolist() == [5, 11]
    assert len(choose_output_ids([said], 16, 99)) == 16


# -------------------------------------------------------------------------------------- held out


@pytest.mark.parametrize(
    ("agreement", "depth", "mat"),
    [
        ([1, 1, 1, 1, 1, 1], 2, 2 * 3 / 2),  # 3 + 3
        ([0, 0, 0], 4, 1.0),
        ([1, 0, 1, 0], 1, 2.0),  # a hit and its bonus, twice
        ([1, 1, 0, 0, 1], 8, 5 / 3),  # 3 + 1 + 1
        ([1, 1, 1], 8, 3.0),  # cut at the end of the answer
    ],
)
def test_chain_mat_by_hand(agreement: list[int], depth: int, mat: float) -> None:
    assert chain_mat([np.array(agreement, dtype=bool)], depth) == pytest.approx(mat)


def test_the_held_out_split_does_not_depend_on_the_order() -> None:
    chats = [chat([number, 1, 2], [ANSWER] * 3) for number in range(2000)]
    known, held = split_held_out(chats)
    again = split_held_out(chats[::-1])[1]
    assert 20 < len(held) < 100
    assert len(known) + len(held) == 2000
    assert {int(one.tokens[0]) for one in held} == {int(one.tokens[0]) for one in again}


def test_a_report_needs_a_greedy_answer(target: Any) -> None:
    student = cut_student(target, (0,))
    head = OutputHead(student, np.arange(50))
    with pytest.raises(ValueError, match="no held-out chat"):
        report_held_out(student, head, [chat([1, 2], [ANSWER, ANSWER], greedy=False)])


# ------------------------------------------------------------------------------ files and overlap


def test_chats_survive_the_file(tmp_path: Path, written: list[Chat]) -> None:
    path = tmp_path / "chats.npz"
    save_chats(path, written)
    for saved, loaded in zip(written, load_chats(path), strict=True):
        assert (saved.category, saved.greedy) == (loaded.category, loaded.greedy)
        for name in ("tokens", "roles", "label_ids", "label_probs"):
            np.testing.assert_array_equal(getattr(saved, name), getattr(loaded, name))


def test_a_file_of_single_turns_is_read(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    np.savez(
        path,
        tokens=np.array([1, 2, 3, 4, 5], np.uint16),
        lengths=np.array([3, 2], np.int32),
        answer_start=np.array([2, 1], np.int32),
        category=np.array(["qa", "code"]),
        greedy=np.array([True, False]),
    )
    first, second = load_chats(path)
    assert first.roles.tolist() == [USER, USER, ANSWER]
    assert (second.tokens.tolist(), second.category, second.greedy) == ([4, 5], "code", False)
    assert second.label_ids is None


def test_a_damaged_sample_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    path.write_bytes(b"no zip")
    with pytest.raises(SampleFileError, match=r"cannot be read as chats.*Expected is an \.npz"):
        load_chats(path)
    np.savez(path, tokens=np.zeros(3, np.uint16), lengths=np.array([2], np.int32))
    with pytest.raises(SampleFileError, match="lengths add up to 2, but there are 3"):
        load_chats(path)


def test_runs_of_eight_words_ignore_case_and_punctuation() -> None:
    runs = list(word_runs("One, two three: FOUR five six seven eight -- nine!"))
    assert runs == [
        ("one", "two", "three", "four", "five", "six", "seven", "eight"),
        ("two", "three", "four", "five", "six", "seven", "eight", "nine"),
    ]


def test_chats_that_quote_a_question_are_dropped(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    question = "How many apples are left when Tom eats three of them?"
    rows = [{"turns": ["short", question]}, {"prompt": "x"}, {"question": "y", "answer": question}]
    (tmp_path / "bench.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    texts = ("Say: how many apples are left when Tom eats... now", "how many apples are left over")
    chats = [
        chat(ids, [USER] * len(ids)) for ids in (tokenizer(text)["input_ids"] for text in texts)
    ]
    assert overlapping(chats, question_runs(tmp_path), tokenizer.decode) == [0]

    monkeypatch.setenv("AUTODRAFT_BENCH_DIR", str(tmp_path))
    clean = without_questions({"file": chats}, tokenizer, required=True)
    assert clean == {"file": chats[1:]}
    assert "share an eight-word run with a benchmark question: 0" in capsys.readouterr().out

    monkeypatch.delenv("AUTODRAFT_BENCH_DIR")
    with pytest.raises(ValueError, match="Set AUTODRAFT_BENCH_DIR"):
        without_questions({"file": chats}, tokenizer, required=True)


def test_no_chats_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--write-minutes"):
        load_sources([], tmp_path)


# -------------------------------------------------------------------------------------- shipping


def test_what_ships_is_named_by_its_checksum(target: Any, tmp_path: Path) -> None:
    student = cut_student(target, (0, 2))
    story = TrainingStory("python train.py --minutes 9", 1.5, {"a": (10, 200)}, {"top-1": 0.5})
    ids = np.array([2, 5, 7])
    first = ship(tmp_path, trained_weights(student), ids, (0, 2), story)
    second = ship(tmp_path, trained_weights(student), ids, (0, 2), story)
    assert (first.version, second.version) == (1, 2)
    assert second.sha256 == sha256_of(tmp_path / WEIGHTS_NAME)
    assert (second.target_layers, second.output_tokens) == ((0, 2), 3)
    text = (tmp_path / MODEL_CARD_NAME).read_text()
    for fact in (
        second.sha256,
        "--minutes 9",
        "1.5 hours",
        "| a | 10 | 200 |",
        "| top-1 | 0.500 |",
    ):
        assert fact in text
