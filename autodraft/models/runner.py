"""Forwards of a stock causal language model over our own cache.

The runner turns arrays into tensors and back and synchronises once per call. It does not know
drafting from verifying, nor where its model came from.
"""

import inspect
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from autodraft.errors import ContextLengthError
from autodraft.models.kv_cache import KVCache
from autodraft.models.output_head import cut_output_head
from autodraft.models.probe import observe_layout, require_tree_attention

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

PREFILL_CHUNK: Final = 512
"""Prompt tokens per forward: bounds the memory of a long prompt's attention."""


class ModelRunner:
    """One loaded model.

    Attributes:
        max_context: Most tokens that the model's positions allow.
        vocab_size: Token ids it knows; its logits have as many columns, or one for each output id.
        layout: What one token takes in the cache.
    """

    def __init__(self, model: Any, name: str, output_ids: IntArray | None = None) -> None:
        """Wrap a loaded ``PreTrainedModel`` in evaluation mode.

        Args:
            model: The model.
            name: What to call it in messages.
            output_ids: The only token ids it is to say, rising, [O]; None is all. The head is cut
                to their rows, so that a step does not pay for the others.

        Raises:
            ModelLoadError: If its past cannot be rolled back, its attention follows no tree, or its
                head cannot be cut.
        """
        self._model = model.eval()
        self._output_ids = output_ids
        self._cache_argument = cache_argument(model)
        self._device = model.get_input_embeddings().weight.device
        self._dtype = model.dtype
        config = model.config.get_text_config()
        self.max_context = int(config.max_position_embeddings)
        self.vocab_size = int(config.vocab_size)
        if output_ids is not None:
            cut_output_head(model, output_ids, name)
        with torch.inference_mode():
            self.layout = observe_layout(model, self._cache_argument, name)
            require_tree_attention(self, model, name)

    @property
    def device(self) -> str:
        """Device of the model's input, in torch's words."""
        return str(self._device)

    @property
    def devices(self) -> frozenset[torch.device]:
        """Devices that hold the weights: several where the model is spread."""
        return frozenset(weight.device for weight in self._model.parameters())

    @property
    def dtype(self) -> str:
        """Floating-point type of the weights, for example ``bfloat16``."""
        return str(self._dtype).removeprefix("torch.")

    def columns_of(self, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the columns of the logits that stand for token ids; unsaid ones have none."""
        ids = np.asarray(token_ids, dtype=np.int64)
        if self._output_ids is not None:
            ids = np.flatnonzero(np.isin(self._output_ids, ids))
        return torch.from_numpy(ids).to(self._device)

    def token_ids(self, columns: IntArray) -> IntArray:
        """Return the token ids that columns of the logits stand for, in the same shape."""
        return columns if self._output_ids is None else self._output_ids[columns]

    def new_cache(self, capacity: int) -> KVCache:
        """Allocate an empty cache for ``capacity`` tokens."""
        return KVCache(self.layout, capacity)

    @torch.inference_mode()
    def prefill(self, cache: KVCache, tokens: Sequence[int] | IntArray) -> torch.Tensor:
        """Forward tokens that follow the cache one by one; return the last one's logits, [1, V].

        Raises:
            ContextLengthError: If the cache has no room for them.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        logits = torch.empty(0)
        for start in range(0, len(ids), PREFILL_CHUNK):
            chunk = ids[start : start + PREFILL_CHUNK]
            positions = np.arange(cache.length, cache.length + len(chunk))
            logits = self._forward(cache, chunk, positions, None, logits_to_keep=1)
        return logits

    @torch.inference_mode()
    def forward(
        self, cache: KVCache, tokens: IntArray, positions: IntArray, visible: BoolArray
    ) -> torch.Tensor:
        """Forward tree nodes and return the logits after each, [N, V].

        Args:
            cache: Takes the nodes' keys and values in its next N slots.
            tokens: Token ids, [N].
            positions: Absolute positions, [N].
            visible: Which of the last S slots (these N included) each node attends to, [N, S];
                all slots before those are visible to every node.

        Raises:
            ContextLengthError: If the cache has no room for them.
        """
        if len(tokens) == 1 and visible.all():  # a plain decoding step, without a mask
            return self._forward(cache, tokens, positions, None, logits_to_keep=0)
        mask = self._attention_mask(cache.length + len(tokens), visible)
        return self._forward(cache, tokens, positions, mask, logits_to_keep=0)

    def _forward(
        self,
        cache: KVCache,
        tokens: IntArray,
        positions: IntArray,
        mask: torch.Tensor | None,
        logits_to_keep: int,
    ) -> torch.Tensor:
        if cache.length + len(tokens) > cache.capacity:
            raise ContextLengthError(
                f"{len(tokens)} more tokens do not fit a cache of {cache.capacity} that holds "
                f"{cache.length}."
            )
        output = self._model(
            input_ids=torch.from_numpy(tokens).unsqueeze(0).to(self._device),
            position_ids=torch.from_numpy(positions).unsqueeze(0).to(self._device),
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=logits_to_keep,
            **{self._cache_argument: cache},
        )
        cache.advance(len(tokens))
        logits: torch.Tensor = output.logits[0]
        return logits

    def _attention_mask(self, num_slots: int, visible: BoolArray) -> torch.Tensor:
        """Return the additive mask of stock attention, [1, 1, N, slots]."""
        num_queries, tail = visible.shape
        mask = torch.zeros((num_queries, num_slots), dtype=self._dtype, device=self._device)
        hidden = torch.from_numpy(~visible).to(self._device)
        mask[:, num_slots - tail :].masked_fill_(hidden, torch.finfo(self._dtype).min)
        return mask[None, None]


def cache_argument(model: Any) -> str:
    """Return what this version of transformers calls the cache."""
    known = inspect.signature(model.forward).parameters
    return "cache" if "cache" in known else "past_key_values"


def best_tokens(logits: torch.Tensor) -> IntArray:
    """Return the arg-max of each row, [N]; the lowest id wins a tie."""
    # max() is vectorised on CPUs where argmax() is not: five times faster in bfloat16.
    tokens: IntArray = logits.max(dim=-1).indices.cpu().numpy()
    return tokens


def top_candidates(
    logits: torch.Tensor, count: int, excluded: torch.Tensor | None = None
) -> tuple[IntArray, FloatArray]:
    """Return the most probable columns of each row and their log-probabilities.

    Args:
        logits: [N, V].
        count: Candidates per row, K.
        excluded: Columns that must not be proposed, or None.

    Returns:
        Columns [N, K], best first, and natural log-probabilities [N, K].
    """
    if excluded is not None:
        logits = logits.index_fill(-1, excluded, -torch.inf)
    best = logits.topk(min(count, logits.shape[-1]), dim=-1)
    log_total = logits.float().logsumexp(dim=-1, keepdim=True)
    log_probs = best.values.float() - log_total
    return best.indices.cpu().numpy(), log_probs.double().cpu().numpy()
