# SPDX-License-Identifier: Apache-2.0
"""Experts of joined weights compute what those of transformers compute."""

from __future__ import annotations

import torch
from transformers import NemotronHConfig, Qwen3MoeConfig
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from rlrun.refit.experts import ACTIVATIONS, mix

TOKENS, HIDDEN, INNER, EXPERTS, CHOSEN = 23, 16, 12, 5, 2


def routed() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, and weights and numbers of the experts of each."""
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN)
    weights, experts = torch.randn(TOKENS, EXPERTS).softmax(-1).topk(CHOSEN)
    return hidden, weights, experts


def drawn(module: torch.nn.Module) -> torch.nn.Module:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


def test_experts_with_gates_are_those_of_qwen3_moe() -> None:
    hidden, weights, experts = routed()
    config = Qwen3MoeConfig(
        hidden_size=HIDDEN, moe_intermediate_size=INNER, num_experts=EXPERTS, hidden_act="silu"
    )
    theirs = drawn(Qwen3MoeExperts(config))
    found = mix(
        hidden, theirs.gate_up_proj, theirs.down_proj, weights, experts, ACTIVATIONS["silu"]
    )
    torch.testing.assert_close(found, theirs(hidden, experts, weights))


def test_experts_without_gates_are_those_of_nemotron_h() -> None:
    hidden, weights, experts = routed()
    config = NemotronHConfig(
        hidden_size=HIDDEN, moe_intermediate_size=INNER, n_routed_experts=EXPERTS
    )
    theirs = drawn(NemotronHExperts(config))
    assert config.mlp_hidden_act == "relu2"
    found = mix(
        hidden, theirs.up_proj, theirs.down_proj, weights, experts, ACTIVATIONS["relu2_no_mul"]
    )
    torch.testing.assert_close(found, theirs(hidden, experts, weights))


def test_experts_that_are_elsewhere_add_nothing_and_biases_are_the_experts_own() -> None:
    hidden, weights, experts = routed()
    up, down = 0.3 * torch.randn(EXPERTS, INNER, HIDDEN), 0.3 * torch.randn(EXPERTS, HIDDEN, INNER)
    up_bias, down_bias = torch.randn(EXPERTS, INNER), torch.randn(EXPERTS, HIDDEN)
    act = ACTIVATIONS["relu2_no_mul"]
    here = experts.where(experts < 3, -1)
    found = mix(hidden, up, down, weights, here, act, up_bias, down_bias)
    expected = torch.zeros(TOKENS, HIDDEN)
    for token in range(TOKENS):
        for place in range(CHOSEN):
            one = int(here[token, place])
            if one >= 0:
                inner = act(up[one] @ hidden[token] + up_bias[one])
                expected[token] += weights[token, place] * (down[one] @ inner + down_bias[one])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
