# SPDX-License-Identifier: Apache-2.0
"""Small mixtures of experts with random weights, as folders that a policy can be loaded from."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM

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


def nemotron_h() -> PreTrainedModel:
    return tiny_hybrid(VOCABULARY)


def saved(model: PreTrainedModel, folder: Path) -> str:
    """The folder as ``policy.model``."""
    model.save_pretrained(folder)
    return f"policy.model={folder}"
