"""Text to token ids and back, and whether two models mean the same by their ids.

A thin face of transformers' fast tokenizers. Knows no weights, no devices and no sockets: what a
target server tells about its tokenizer arrives here as a ``TokenizerIdentity``.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from jinja2 import TemplateError
from transformers import AutoTokenizer, GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from autodraft.errors import ModelLoadError, TokenizerMismatch
from autodraft.models.embedded import is_embedded, resolve_embedded

_SHOWN_CONFLICTS: Final = 3

_IN_USE: Final[WeakValueDictionary[tuple[Any, ...], Any]] = WeakValueDictionary()
"""transformers' tokenizers that someone holds, by all that is asked of them here."""


@dataclass(frozen=True)
class TokenizerIdentity:
    """What decides whether two tokenizers give their ids the same meaning.

    The padded number of rows of a model's embedding is no part of it: models of one family differ
    there (Qwen2.5-14B has 152064 rows, 1.5B has 151936) and share their tokenizer.

    Attributes:
        fingerprint: SHA-256 of the base vocabulary, id by id, added tokens left out.
        added_tokens: Text of each added token by its id.
    """

    fingerprint: str
    added_tokens: Mapping[int, str]


class Tokenizer:
    """A fast tokenizer with the chat template and the EOS tokens of its model.

    Attributes:
        name: What it was loaded from.
        eos_ids: Ids that end an answer: the tokenizer's own and those of the model's generation
            settings.
    """

    def __init__(self, backend: Any, name: str, eos_ids: frozenset[int]) -> None:
        self.name = name
        self.eos_ids = eos_ids
        self._backend = backend
        # Not when first asked for: a load is followed by giving back what it left behind.
        self._fingerprint = _fingerprint(backend)

    @classmethod
    def load(
        cls, path_or_id: str, revision: str | None = None, hf_token: str | None = None
    ) -> "Tokenizer":
        """Load the tokenizer of a model.

        Args:
            path_or_id: Folder, ``.gguf`` file, hub id, or ``embedded:…``.
            revision: Hub revision; None takes the default branch.
            hf_token: Hugging Face token for gated models.

        Raises:
            ModelLoadError: If there is none, it is malformed, or it has no fast form.
        """
        location, gguf_file = _locate(path_or_id)
        hub: dict[str, Any] = {"revision": revision or "main", "token": hf_token}
        options = hub | ({"gguf_file": gguf_file} if gguf_file else {})
        try:
            backend = AutoTokenizer.from_pretrained(location, **options, trust_remote_code=False)
        except (OSError, ValueError, LookupError, TypeError, ImportError) as error:
            reason = " ".join(str(error).split())
            raise ModelLoadError(
                f"The tokenizer of {path_or_id!r} cannot be loaded: {reason} Name a folder that "
                "holds tokenizer.json, a .gguf file, a hub id that this machine can download or "
                "has cached, or an embedded model."
            ) from error
        if not backend.is_fast:
            raise ModelLoadError(
                f"The tokenizer of {path_or_id!r} has no fast form. Name a TOKENIZER_PATH that "
                "holds a tokenizer.json with the same vocabulary."
            )
        eos_ids = set() if gguf_file else _generation_eos_ids(location, hub)
        if backend.eos_token_id is not None:
            eos_ids.add(backend.eos_token_id)
        return cls(_shared(backend), path_or_id, frozenset(eos_ids))

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of a chat in the tokenizer's own template, the answer's opening added.

        Args:
            messages: Each with ``role`` and ``content``.

        Raises:
            ModelLoadError: If there is no template, or it refuses these messages.
        """
        if not self._backend.chat_template:
            raise ModelLoadError(
                f"The tokenizer of {self.name!r} has no chat template, so a chat cannot be put to "
                "the model as it was trained. Name a TOKENIZER_PATH with a chat template, or pass "
                "prompt_ids."
            )
        try:
            ids = self._backend.apply_chat_template(
                [dict(message) for message in messages],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        except (TemplateError, ValueError, TypeError) as error:
            raise ModelLoadError(
                f"The chat template of {self.name!r} refuses these messages: {error}. Each needs "
                "role and content as text, in an order that this model allows."
            ) from error
        return list(ids)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a plain text, with the tokens that the model wants at its start."""
        return list(self._backend.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        text = self._backend.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return str(text)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the base vocabulary, id by id, added tokens left out."""
        return self._fingerprint

    def added_tokens(self) -> dict[int, str]:
        """Return the text of each added token by its id."""
        return {index: token.content for index, token in self._backend.added_tokens_decoder.items()}

    @property
    def identity(self) -> TokenizerIdentity:
        """What ``require_compatible`` compares."""
        return TokenizerIdentity(self.fingerprint(), self.added_tokens())


def require_compatible(
    target: TokenizerIdentity, draft: TokenizerIdentity, *, target_name: str, draft_name: str
) -> None:
    """Check that every id which target and draft both define means the same text.

    Raises:
        TokenizerMismatch: If one does not; the message names both models.
    """
    if target.fingerprint != draft.fingerprint:
        raise TokenizerMismatch(
            f"The draft {draft_name!r} and the target {target_name!r} have different vocabularies "
            f"({draft.fingerprint[:12]}… and {target.fingerprint[:12]}…), so the draft's tokens "
            "mean nothing to the target. Choose a draft of the target's own family."
        )
    conflicts = [
        f"{index} is {draft.added_tokens[index]!r} and {target.added_tokens[index]!r}"
        for index in sorted(draft.added_tokens.keys() & target.added_tokens.keys())
        if draft.added_tokens[index] != target.added_tokens[index]
    ]
    if conflicts:
        raise TokenizerMismatch(
            f"The draft {draft_name!r} and the target {target_name!r} give {len(conflicts)} added "
            f"token(s) different meanings: {'; '.join(conflicts[:_SHOWN_CONFLICTS])}. Choose a "
            "draft whose added tokens are the target's."
        )


def draft_only_ids(target: TokenizerIdentity, draft: TokenizerIdentity) -> frozenset[int]:
    """Return the ids that only the draft defines: it must never propose them."""
    return frozenset(draft.added_tokens.keys() - target.added_tokens.keys())


def _shared(backend: Any) -> Any:
    """Return a tokenizer that someone holds and that does all the same; this one if none does.

    A draft's is its target's nearly always, and the tables of one take 13 MB for a vocabulary of
    50,000. Nothing here changes a tokenizer once it is loaded.
    """
    tables = hashlib.sha256(backend.backend_tokenizer.to_str().encode()).digest()
    settings = (backend.chat_template, backend.special_tokens_map, backend.model_max_length)
    return _IN_USE.setdefault((type(backend), tables, repr(settings)), backend)


def _fingerprint(backend: Any) -> str:
    """Return the SHA-256 of the base vocabulary, id by id, added tokens left out."""
    vocabulary = backend.backend_tokenizer.get_vocab(with_added_tokens=False)
    added = backend.added_tokens_decoder
    digest = hashlib.sha256()
    for text, index in sorted(vocabulary.items(), key=lambda item: (item[1], item[0])):
        if index not in added:
            digest.update(f"{index}\t{text}\n".encode())
    return digest.hexdigest()


def _locate(path_or_id: str) -> tuple[str, str | None]:
    """Return what ``from_pretrained`` takes: a folder or hub id, and the GGUF file in it if any."""
    if is_embedded(path_or_id):
        return str(resolve_embedded(path_or_id)), None
    path = Path(path_or_id)
    if path.suffix == ".gguf":
        return str(path.parent), path.name
    return path_or_id, None


def _generation_eos_ids(location: str, hub: Mapping[str, Any]) -> set[int]:
    """Return the EOS ids of the model's generation settings; none where it has no such file."""
    try:
        eos = GenerationConfig.from_pretrained(location, **hub).eos_token_id
    except OSError as error:
        if (path := Path(location) / GENERATION_CONFIG_NAME).is_file():
            raise ModelLoadError(
                f"{path} cannot be read ({error}). It names the tokens that end an answer: mend "
                "it, or fetch the model again."
            ) from error
        return set()
    if eos is None:
        return set()
    return set(eos) if isinstance(eos, list) else {eos}


def unknown_to_target(
    target: TokenizerIdentity, draft: TokenizerIdentity, target_rows: int, draft_rows: int
) -> list[int]:
    """Return the ids that a draft must not propose, rising.

    They are the draft's own added tokens and the padding rows of its head that the target's lacks.
    """
    return sorted(draft_only_ids(target, draft).union(range(target_rows, draft_rows)))
