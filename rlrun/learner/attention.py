# SPDX-License-Identifier: Apache-2.0
"""Attention of models that compute it by torch's scaled_dot_product_attention, without waste.

transformers' own function copies every key and value once per query head that shares it as soon as
there is a mask, and tells packed sequences apart by a dense mask of T x T, most of which is false.
The one here copies nothing, and attends within each packed sequence alone. What it computes is the
same up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "rlrun_sdpa"
"""What a model's configuration calls this attention."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sequence_lengths: Sequence[int] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """See transformers' AttentionInterface.

    Args:
        module: The attention layer.
        query: [B, H, T, D].
        key: [B, G, K, D]; H / G query heads share each of its heads.
        value: Likewise.
        attention_mask: Broadcasts to [B, H, T, K]; None means causal.
        scaling: Of the products; None for 1 / sqrt(D).
        sequence_lengths: Of the sequences that make up the one row; None for rows of one sequence.
            The mask is then not looked at.
        others: What else transformers hands to an attention function.

    Returns:
        [B, T, H, D], and no attention weights.
    """
    shared = key.shape[1] != query.shape[1]
    if sequence_lengths is not None:
        lengths = list(sequence_lengths)
        parts = [
            scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=shared)
            for q, k, v in zip(
                query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True
            )
        ]
        return torch.cat(parts, 2).transpose(1, 2), None
    batch, heads, length, width = query.shape
    if shared and length == 1 and attention_mask is not None:
        # All query heads of a group see the same keys: they can be queries of one head.
        folded = query.reshape(batch, key.shape[1], -1, width)
        output = scaled_dot_product_attention(
            folded, key, value, attn_mask=attention_mask, scale=scaling
        )
        return output.reshape(batch, 1, heads, width), None
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **others
    )


def use_attention(model: PreTrainedModel) -> None:
    """Makes the model use it where it used torch's attention before."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    if model._supports_attention_backend and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


def attends_by_sequence(model: PreTrainedModel) -> bool:
    """Whether packed rows can say ``sequence_lengths`` instead of having a mask.

    Not where a layer sees less than all that came before: its window or chunks are in the mask.
    """
    config = model.config.get_text_config(decoder=True)
    if config._attn_implementation != NAME:
        return False
    entries = config.to_dict()
    layers = entries.get("layer_types")
    if layers is not None:
        return all(kind == "full_attention" for kind in layers)
    return entries.get("sliding_window") is None and entries.get("attention_chunk_size") is None


def no_mask(device: torch.device) -> Tensor:
    """What stands for the mask where ``sequence_lengths`` are given.

    Of four dimensions, it is handed on as it is; None would make transformers build one.
    """
    return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
