"""Tiny models whose answers can be checked by hand or by stock transformers, and a link without a
socket that runs the target in this process.

Weights are drawn for each tensor from its name and the seed: a model with fewer layers and the
same seed is the other one with layers cut off, and so a draft that is right now and then.
"""

import json
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.utils import logging as transformers_logging

from autodraft.decoding.stopping import Decode, StopRules
from autodraft.decoding.wish import PLAIN, Wish
from autodraft.engine.drafter import DraftSource
from autodraft.engine.kept import Kept
from autodraft.engine.remote import RemoteTarget, TargetWish
from autodraft.engine.rounds import Meters, Rounds
from autodraft.engine.session import Method, Request, Speculative
from autodraft.engine.verifier import Verifier
from autodraft.engine.wishes import scores_message, wish_of
from autodraft.models.runner import ModelRunner
from autodraft.policy import Policy
from autodraft.protocol import messages as msg
from autodraft.protocol.codec import (
    decode_client,
    decode_server,
    encode,
    pack_path,
    pack_tokens,
    unpack_nodes,
    unpack_tokens,
)
from autodraft.transport.client import Link, Reply

VOCAB = 128
MAX_CONTEXT = 2048
SHARP = 1000.0
"""Logit scale at which a tiny model is nearly sure of every next token."""

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_CONTEXT,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tiny_model(
    family: str = "llama",
    seed: int = 0,
    *,
    scale: float = 4.0,
    attention: str = "sdpa",
    **config: Any,
) -> Any:
    """Build a stock causal language model with random weights, in float32.

    Args:
        family: transformers' model type: ``llama``, ``qwen2``, ``qwen3``, …
        seed: Seed of the weights.
        scale: Standard deviation of the logits; the larger, the surer the model.
        attention: transformers' attention implementation.
        config: Fields of the configuration that differ from the common ones.
    """
    settings = AutoConfig.for_model(family, **{**_COMMON, **config})
    model = AutoModelForCausalLM.from_config(settings, attn_implementation=attention).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() < 2 and not name.endswith("bias"):
                continue  # norms stay ones
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
            gain = scale if name == "lm_head.weight" else 1.5
            spread = 1.0 if "embed" in name else gain / weight.shape[-1] ** 0.5
            weight.normal_(0.0, spread, generator=generator)
    return model.eval()


def tiny_runner(family: str = "llama", seed: int = 0, **options: Any) -> ModelRunner:
    """Wrap a tiny model; options as for ``tiny_model``."""
    return ModelRunner(tiny_model(family, seed, **options), f"tiny {family}")


def memoryless_model(seed: int = 0) -> Any:
    """Build a tiny model that sees the last token only, so that its answers soon go in a circle."""
    model = tiny_model(seed=seed)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


def greedy_reference(
    model: Any, prompt: Sequence[int], max_new_tokens: int, eos_ids: frozenset[int] = frozenset()
) -> list[int]:
    """Decode token by token with the stock class and transformers' own cache, no code of ours."""
    cache = DynamicCache(config=model.config)
    ids = list(prompt)
    answer: list[int] = []
    while len(answer) < max_new_tokens:
        with torch.inference_mode():
            output = model(input_ids=torch.tensor([ids]), cache=cache, use_cache=True)
        ids = [int(output.logits[0, -1].argmax())]
        answer += ids
        if ids[0] in eos_ids:
            break
    return answer


def prompt_of(length: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    """Return random token ids."""
    ids: list[int] = np.random.default_rng(seed).integers(0, vocab, length).tolist()
    return ids


def save_tiny_tokenizer(folder: Path) -> int:
    """Write a byte-level tokenizer with a ChatML template; return the size of its vocabulary.

    One id for each byte, then ``SPECIAL_TOKENS``; an answer ends at ``<|im_end|>``.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({text: index for index, text in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL_TOKENS])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": CHATML,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_CONTEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return len(alphabet) + len(SPECIAL_TOKENS)


def save_tiny_model(folder: Path, seed: int = 0, family: str = "llama", **options: Any) -> Path:
    """Write a tiny model and its tokenizer as ``load_model`` and target servers read them.

    Folders written with different seeds or layers share their tokenizer, so any two of them can be
    draft and target. Returns the folder; options as for ``tiny_model``.
    """
    vocab = save_tiny_tokenizer(folder)
    ends = {"eos_token_id": vocab - 1, "pad_token_id": vocab - len(SPECIAL_TOKENS)}
    model = tiny_model(family, seed, **{"vocab_size": vocab, **ends, **options})
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder)
    return folder


class LoopbackLink(Link):
    """A link whose target sits in this process: every message is encoded and decoded, none sent.

    Errors of the verifier are raised where the message was sent.
    """

    def __init__(
        self,
        target: ModelRunner,
        eos_ids: Sequence[int] = (),
        decode: Decode | None = None,
        waits: int = 3,
        **welcome: Any,
    ) -> None:
        """Prepare.

        Args:
            target: The model.
            eos_ids: Token ids that end an answer.
            decode: Turns token ids into text.
            waits: How often a reply is still awaited when asked.
            welcome: Fields of the server's welcome that differ.
        """
        self.address = "loopback"
        self.uplink_bytes = 0
        self.downlink_bytes = 0
        self.sent: list[msg.ClientMessage] = []
        self.received: list[msg.ServerMessage] = []
        self.closed = False
        self._target = target
        self._eos_ids = frozenset(eos_ids)
        self._welcome_fields = welcome
        self._replies: deque[bytes] = deque()
        self._decode = decode
        self._waits = waits
        self._waits_left = 0
        self._kept = Kept()
        self._open: msg.Open | None = None
        self._verifier: Verifier | None = None

    @property
    def verifier(self) -> Verifier:
        """The target's side of the session that is open, or was opened last."""
        assert self._verifier is not None
        return self._verifier

    def send(self, message: msg.ClientMessage) -> None:
        frame = encode(message)
        self.uplink_bytes += len(frame)
        self.sent.append(message)
        self._waits_left = self._waits
        for reply in self._answers(decode_client(frame)):
            self._replies.append(encode(reply))

    def waiting(self) -> bool:
        self._waits_left -= 1
        return self._waits_left >= 0

    def receive(self, expected: type[Reply], timeout_s: float = 0.0) -> Reply:
        frame = self._replies.popleft()
        self.downlink_bytes += len(frame)
        message = decode_server(frame)
        self.received.append(message)
        assert isinstance(message, expected)
        return message

    def close(self) -> None:
        self.closed = True

    def _answers(self, message: msg.ClientMessage) -> Sequence[msg.ServerMessage]:
        match message:
            case msg.Hello():
                return [self._welcome()]
            case msg.Open():
                self._open = message
                return [msg.Opened("session", bool(message.exact))]
            case msg.Prefill():
                return [self._prefilled(unpack_tokens(message.tokens))]
            case msg.Verify():
                tokens, parents = unpack_nodes(message.nodes)
                path, bonus = self.verifier.verify(tokens, parents)
                packed = pack_path(path, len(tokens))
                scores = scores_message(self.verifier.take_scores())
                return [msg.Verified(message.round, packed, bonus, 100_000, 10_000_000, scores)]
            case msg.Generate():
                return list(self._stream())
            case msg.Close():
                if self._open is not None and self._open.reuse:
                    self.verifier.release()
                redecided = self.verifier.redecided
                return [msg.Closed(self.verifier.forwards, 0, 0, 0, redecided=redecided)]
            case msg.Ping():
                return [msg.Pong()]
            case _:
                return []

    def _prefilled(self, prompt: Any) -> msg.Prefilled:
        asked = self._open
        assert asked is not None
        wish = wish_of(asked, exact=bool(asked.exact))
        rules = StopRules(self._eos_ids, asked.max_new_tokens, tuple(asked.stop or ()))
        kept = self._kept if wish.reuse else None
        budget = asked.node_budget
        self._verifier = Verifier(self._target, prompt, rules, budget, self._decode, wish, kept)
        token = self._verifier.prefill()
        scores = scores_message(self._verifier.take_scores())
        return msg.Prefilled(token, 0, 0, self._verifier.reused, scores)

    def _stream(self) -> Sequence[msg.Tokens]:
        pieces, verifier = [], self.verifier
        while verifier.finish is None:
            token = verifier.step()
            finish = {None: msg.Finish.RUNNING, "stop": msg.Finish.STOP}.get(
                verifier.finish, msg.Finish.LENGTH
            )
            ended = verifier.finish is not None
            scores = scores_message(verifier.take_scores())
            pieces.append(msg.Tokens(pack_tokens([token]), finish, ended, 0, 0, scores))
        return pieces or [msg.Tokens(b"", msg.Finish.STOP, True, 0, 0)]

    def _welcome(self) -> msg.Welcome:
        fields: dict[str, Any] = {
            "version": msg.PROTOCOL_VERSION,
            "software": "0",
            "server_name": "loopback",
            "model": "tiny",
            "revision": "",
            "quantization": "none",
            "dtype": self._target.dtype,
            "device": self._target.device,
            "tokenizer_hash": "",
            "added_tokens": {},
            "eos_ids": sorted(self._eos_ids),
            "vocab_size": self._target.vocab_size,
            "max_context": self._target.max_context,
            "max_nodes": 1024,
            "max_depth": 128,
            "max_frame_bytes": 2**20,
            "energy_method": "modelled",
        }
        return msg.Welcome(**{**fields, **self._welcome_fields})


@dataclass(frozen=True)
class Answer:
    """A finished speculative request, and the link it went over."""

    tokens: list[int]
    request: Request
    link: LoopbackLink

    @property
    def accepted(self) -> list[int]:
        """Accepted length of each round."""
        return [round_.accepted_length for round_ in self.request.rounds]

    @property
    def depths(self) -> list[int]:
        """Depth of each round's tree."""
        return [round_.depth for round_ in self.request.rounds]


def speculate(
    target: ModelRunner,
    drafter: DraftSource,
    policy: Policy,
    prompt: Sequence[int],
    max_new_tokens: int,
    eos_ids: Sequence[int] = (),
    **welcome: Any,
) -> Answer:
    """Answer a prompt by drafter and policy, in the library's own round loop."""
    method = Speculative("test", Rounds(policy, drafter))
    return answer_by(method, target, prompt, max_new_tokens, eos_ids, **welcome)


def answer_by(
    method: Method,
    target: ModelRunner,
    prompt: Sequence[int],
    max_new_tokens: int,
    eos_ids: Sequence[int] = (),
    wish: Wish = PLAIN,
    meters: Meters | None = None,
    **welcome: Any,
) -> Answer:
    """Answer a prompt by a method over a loopback link."""
    link = LoopbackLink(target, eos_ids, **welcome)
    remote = RemoteTarget(link, TargetWish("loopback"))
    rules = StopRules(frozenset(eos_ids), max_new_tokens)
    request = Request(remote, method, prompt, rules, meters or Meters(), wish=wish)
    return Answer([token for block in request for token in block], request, link)
