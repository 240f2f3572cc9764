"""Attention of several query heads to one key-value head, without copying the latter.

The stock function repeats keys and values of the whole context for every query head as soon as
there is a mask, in every layer of every forward. On a CPU that costs two to four times the
attention itself (docs/performance.md). This module knows masks and heads, no trees.
"""

from typing import Any, Final

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED_ATTENTION: Final = "autodraft_grouped_sdpa"

_STOCK_ONLY: Final = ("position_bias", "softcap")


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend as the stock ``sdpa`` function does.

    Args:
        module: The attention module that calls.
        query: [1, query heads, N, head dim].
        key: [1, key-value heads, S, head dim].
        value: [1, key-value heads, S, head dim].
        attention_mask: Added to the scores, [1, 1, N, S]; None attends causally.
        dropout: Of the attention weights; 0 in evaluation.
        scaling: Of the scores; None is 1 / sqrt(head dim).
        **options: Whatever else the module passes.

    Returns:
        [1, N, query heads, head dim], and no weights.
    """
    if attention_mask is None or any(options.get(name) is not None for name in _STOCK_ONLY):
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout, scaling, **options
        )
    attended = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return attended.transpose(1, 2).contiguous(), None


def group_attention(model: Any) -> None:
    """Let a stock model on a CPU attend by ``grouped_attention``, where it attends by ``sdpa``."""
    on_cpu = all(weight.device.type == "cpu" for weight in model.parameters())
    if on_cpu and model.config.get_text_config()._attn_implementation == "sdpa":
        AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)
        AttentionMaskInterface.register(GROUPED_ATTENTION, sdpa_mask)
        model.set_attn_implementation(GROUPED_ATTENTION)
