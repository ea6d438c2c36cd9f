# SPDX-License-Identifier: Apache-2.0
"""A small model of attention, state-space and expert layers with random weights."""

from __future__ import annotations

import torch
from transformers import NemotronHConfig, NemotronHForCausalLM


def tiny_hybrid(vocabulary: int) -> NemotronHForCausalLM:
    torch.manual_seed(0)
    config = NemotronHConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        layers_block_type=["mamba", "moe", "attention", "mamba"],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        mamba_num_heads=4,
        mamba_head_dim=16,
        ssm_state_size=8,
        n_groups=2,
        chunk_size=8,
        intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=16,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
    )
    return NemotronHForCausalLM(config)
