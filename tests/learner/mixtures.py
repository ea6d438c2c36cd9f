# SPDX-License-Identifier: Apache-2.0
"""Small mixtures of experts with random weights, as folders that a policy can be loaded from."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    JambaConfig,
    JambaForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.generation.hybrid import tiny_hybrid

VOCABULARY = 280
"""At least that of the token ids that tests use."""


def qwen3_moe(head_dim: int = 16) -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=head_dim,
        num_experts=6,
        num_experts_per_tok=2,
        norm_topk_prob=True,
    )
    model: PreTrainedModel = Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gate.weight"):
                parameter.normal_()  # so that experts are told apart
    return model


def jamba() -> PreTrainedModel:
    """Its router is a linear layer."""
    torch.manual_seed(0)
    model: PreTrainedModel = JambaForCausalLM(
        JambaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            num_experts=4,
            num_experts_per_tok=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=2,
            attn_layer_offset=1,
            mamba_d_state=4,
            mamba_dt_rank=4,
            pad_token_id=0,
        )
    )
    return model


def phimoe() -> PreTrainedModel:
    """Its router is a linear layer that returns a tuple, and draws at random in training mode."""
    torch.manual_seed(0)
    model: PreTrainedModel = PhimoeForCausalLM(
        PhimoeConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            num_local_experts=4,
            router_jitter_noise=0.4,
        )
    )
    return model


def nemotron_h() -> PreTrainedModel:
    return tiny_hybrid(VOCABULARY)


def saved(model: PreTrainedModel, folder: Path) -> str:
    """The folder as ``policy.model``."""
    model.save_pretrained(folder)
    return f"policy.model={folder}"
