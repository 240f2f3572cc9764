"""The target writes chats: both the user's turns and the answers, many chats in one forward.

Every slot of the batch holds one chat at its own position; a finished chat makes room for the next
one at once, so no row of a forward is wasted. The forced words of a start go through the same
steps as written ones. What the target thought at each step, its most probable tokens, is kept: it
is the soft label of distillation and costs nothing here.

The model is the stock class over a static cache. Only its attention call is ours: the queries of
a group of heads become rows of one small matrix, which is several times faster on a CPU than
repeating keys and values for each head.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from autodraft.models.runner import cache_argument
from distillation.samples import ANSWER, FORCED, USER, Chat
from distillation.starts import draw_follow_up, draw_start

ATTENTION: Final = "chat_writer"
_BLOCK: Final = 32


@dataclass(frozen=True)
class WriterSettings:
    """How chats are written.

    Attributes:
        slots: Chats written at once.
        max_tokens: Longest chat, system line included.
        max_user_tokens: Longest user's turn; longer ones are ended there.
        temperature: Of user's turns and of sampled answers.
        top_k: Tokens that sampling chooses from.
        sampled_share: Share of answers that are sampled; the others are greedy.
        follow_up_share: Share of finished answers that a further user's turn follows.
        soft_labels: Probable tokens kept for each position.
    """

    slots: int = 128
    max_tokens: int = 384
    max_user_tokens: int = 160
    temperature: float = 1.0
    top_k: int = 50
    sampled_share: float = 0.12
    follow_up_share: float = 0.35
    soft_labels: int = 16


@dataclass(frozen=True)
class ChatMarkup:
    """Token ids that frame the turns of a chat (from the model's own chat template).

    Attributes:
        opening: System line and the head of the first user's turn.
        to_answer: From the end of a user's turn to the start of the answer.
        to_user: From the end of an answer to the start of the next user's turn.
        end: The token that ends a turn; ``to_answer`` and ``to_user`` begin with it.
    """

    opening: list[int]
    to_answer: list[int]
    to_user: list[int]
    end: int

    @classmethod
    def of(cls, tokenizer: Any) -> "ChatMarkup":
        """Read the markup off a tokenizer's template by framing two marked turns."""
        marks = ("@@first@@", "@@answer@@", "@@second@@")
        roles = ("user", "assistant", "user")
        text = tokenizer.apply_chat_template(
            [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)],
            tokenize=False,
        )
        opening, rest = text.split(marks[0])
        to_answer, rest = rest.split(marks[1])
        to_user = rest.split(marks[2])[0]

        def ids(part: str) -> list[int]:
            return list(tokenizer(part, add_special_tokens=False)["input_ids"])

        return cls(ids(opening), ids(to_answer), ids(to_user), ids(to_answer)[0])


@dataclass
class _Draft:
    """A chat under way."""

    category: str
    greedy: bool
    tokens: list[int]
    roles: list[int]
    label_ids: list[npt.NDArray[np.int64]] = field(default_factory=list)
    label_probs: list[npt.NDArray[np.float32]] = field(default_factory=list)
    stage: int = USER
    turn_start: int = 0


class ChatWriter:
    """An endless source of chats from one target."""

    def __init__(self, model: Any, tokenizer: Any, settings: WriterSettings, seed: int) -> None:
        """Take the target, a stock model, and its tokenizer; all randomness follows the seed."""
        AttentionInterface.register(ATTENTION, _grouped_attention)
        model.set_attn_implementation(ATTENTION)
        self._model = model.eval()
        self._cache_argument = cache_argument(model)
        self._tokenizer = tokenizer
        self._settings = settings
        self._markup = ChatMarkup.of(tokenizer)
        self._rng = np.random.default_rng(seed)
        self._noise = torch.Generator().manual_seed(seed)
        self._cache = _SlotCache(model, settings.slots, settings.max_tokens)
        self._drafts = [self._new_draft() for _ in range(settings.slots)]
        self._fed = np.zeros(settings.slots, dtype=np.int64)

    def __iter__(self) -> Iterator[Chat]:
        """Yield chats as they are finished."""
        while True:
            ids, probs, sampled = self._step()
            for slot, draft in enumerate(self._drafts):
                position = self._fed[slot] = self._fed[slot] + 1
                draft.label_ids.append(ids[slot])
                draft.label_probs.append(probs[slot])
                if position < len(draft.tokens):
                    continue  # the next token is forced
                greedy = draft.stage == ANSWER and draft.greedy
                self._extend(draft, int(ids[slot, 0] if greedy else sampled[slot]))
                if draft.stage == FORCED:
                    yield self._finished(draft)
                    self._drafts[slot] = self._new_draft()
                    self._fed[slot] = 0

    @torch.inference_mode()
    def _step(self) -> tuple[Any, Any, Any]:
        """Forward one token of each chat; return soft labels and a sampled token for each."""
        slots = range(self._settings.slots)
        tokens = [self._drafts[slot].tokens[self._fed[slot]] for slot in slots]
        positions = torch.from_numpy(self._fed)[:, None]
        end = min(-(-int(self._fed.max() + 1) // _BLOCK) * _BLOCK, self._settings.max_tokens)
        self._cache.place(self._fed, end)
        hidden = torch.arange(end)[None] > positions
        mask = torch.zeros(hidden.shape, dtype=self._model.dtype).masked_fill_(
            hidden, torch.finfo(self._model.dtype).min
        )
        logits = self._model(
            input_ids=torch.tensor(tokens)[:, None],
            position_ids=positions,
            attention_mask=mask[:, None, None],
            use_cache=True,
            **{self._cache_argument: self._cache},
        ).logits[:, -1]
        kept = max(self._settings.top_k, self._settings.soft_labels)
        values, ids = logits.topk(kept, dim=-1)
        probs = (values.float() - logits.float().logsumexp(-1, keepdim=True)).exp()
        pool = probs[:, : self._settings.top_k] ** (1 / self._settings.temperature)
        drawn = torch.multinomial(pool, 1, generator=self._noise)
        sampled = ids.gather(1, drawn)[:, 0]
        count = self._settings.soft_labels
        return ids[:, :count].numpy(), probs[:, :count].numpy(), sampled.numpy()

    def _new_draft(self) -> _Draft:
        start = draw_start(self._rng)
        opening = self._markup.opening
        words = self._tokenizer(start.text, add_special_tokens=False)["input_ids"]
        return _Draft(
            category=start.category,
            greedy=bool(self._rng.random() >= self._settings.sampled_share),
            tokens=[*opening, *words],
            roles=[FORCED] * (len(opening) + len(words)),
            turn_start=len(opening),
        )

    def _extend(self, draft: _Draft, token: int) -> None:
        """Add a written token and, where it ends a turn, the markup of the next one."""
        draft.tokens.append(token)
        draft.roles.append(draft.stage)
        full = len(draft.tokens) >= self._settings.max_tokens
        if draft.stage == ANSWER:
            if full or (token == self._markup.end and not self._follows_up(draft)):
                draft.stage = FORCED
            elif token == self._markup.end:
                words = self._tokenizer(draw_follow_up(self._rng))["input_ids"]
                self._force(draft, [*self._markup.to_user[1:], *words])
                draft.stage, draft.turn_start = USER, len(draft.tokens) - len(words)
            return
        room = self._settings.max_tokens - len(draft.tokens) - len(self._markup.to_answer)
        too_long = len(draft.tokens) - draft.turn_start >= self._settings.max_user_tokens
        if room < 2:
            draft.stage = FORCED
        elif token == self._markup.end or too_long:
            ended = token == self._markup.end
            self._force(draft, self._markup.to_answer[1:] if ended else self._markup.to_answer)
            draft.stage = ANSWER

    def _follows_up(self, draft: _Draft) -> bool:
        room = self._settings.max_tokens - len(draft.tokens)
        return room > 100 and self._rng.random() < self._settings.follow_up_share

    @staticmethod
    def _force(draft: _Draft, tokens: list[int]) -> None:
        draft.tokens += tokens
        draft.roles += [FORCED] * len(tokens)

    @staticmethod
    def _finished(draft: _Draft) -> Chat:
        """Return the chat; label i is the target's view of token i + 1."""
        return Chat(
            category=draft.category,
            greedy=draft.greedy,
            tokens=np.array(draft.tokens, dtype=np.uint16),
            roles=np.array(draft.roles, dtype=np.uint8),
            label_ids=np.array(draft.label_ids, dtype=np.uint16),
            label_probs=np.array(draft.label_probs, dtype=np.float16),
        )


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped
    """Keys and values of one layer: every row of the batch writes at its own position."""

    is_sliding = False

    def __init__(self, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
        super().__init__()
        self.keys = torch.zeros(shape, dtype=dtype)
        self.values = torch.zeros(shape, dtype=dtype)
        self.is_initialized = True
        self.rows = torch.arange(shape[0])
        self.positions = torch.zeros(shape[0], dtype=torch.int64)
        self.end = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing is left to initialise."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys[self.rows, :, self.positions] = key_states[:, :, 0]
        self.values[self.rows, :, self.positions] = value_states[:, :, 0]
        return self.keys[:, :, : self.end], self.values[:, :, : self.end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.end, 0

    def get_seq_length(self) -> int:
        return self.end

    def get_max_length(self) -> int:
        return int(self.keys.shape[-2])

    def get_max_cache_shape(self) -> int:  # its name before transformers 5.21
        return self.get_max_length()


class _SlotCache(Cache):  # type: ignore[misc]  # transformers is untyped
    def __init__(self, model: Any, slots: int, capacity: int) -> None:
        config = model.config
        shape = (slots, config.num_key_value_heads, capacity, config.head_dim)
        super().__init__(
            layers=[_SlotLayer(shape, model.dtype) for _ in range(config.num_hidden_layers)]
        )

    def place(self, positions: npt.NDArray[np.int64], end: int) -> None:
        """Say where the next forward writes, and how far any row can see."""
        for layer in self.layers:
            layer.positions = torch.from_numpy(positions.copy())
            layer.end = end


def _grouped_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attend with one query per row: [B, H, 1, D] over [B, G, S, D]."""
    batch, heads, _one, dim = query.shape
    groups = key.shape[1]
    grouped = query.reshape(batch, groups, heads // groups, dim)
    output = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    return output.reshape(batch, 1, heads, dim), None
