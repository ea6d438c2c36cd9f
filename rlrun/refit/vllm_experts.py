# SPDX-License-Identifier: Apache-2.0
"""Experts of a mixture as plain torch operations, for engines on a CPU.

vLLM's own kernel for CPUs packs the experts' weights when they are loaded, into parameters of the
same names and shapes: what a refit writes there as it comes from the learner is then read as if it
were packed. It also takes gated experts alone, which those of NemotronH are not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.oracle import unquantized

from rlrun.refit.experts import ACTIVATIONS, mix


class PlainExperts(CPUUnquantizedExperts):
    """Reads the parameters themselves, so that a refit is what the next token is computed with."""

    @classmethod
    def _supports_grouped_gemm(cls, moe_config: FusedMoEConfig) -> tuple[bool, str | None]:
        return True, None

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return True

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        # vLLM refuses a model with another one at the start.
        return activation.value in ACTIVATIONS

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Packs nothing."""

    def apply(
        self,
        *,
        output: Tensor,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        activation: MoEActivation,
        expert_map: Tensor | None,
        apply_router_weight_on_input: bool,
        **others: Any,
    ) -> None:
        """Writes ``mix`` of the arguments to ``output``; the others are for kernels."""
        weighted_before = apply_router_weight_on_input
        output.copy_(
            mix(
                hidden_states,
                w1,
                w2,
                torch.ones_like(topk_weights) if weighted_before else topk_weights,
                topk_ids if expert_map is None else expert_map[topk_ids],
                ACTIVATIONS[activation.value],
                self.w1_bias,
                self.w2_bias,
            )
        )


def use_plain_experts() -> None:
    """Makes vLLM take these for every mixture of this process that is not quantized."""
    unquantized.backend_to_kernel_cls = lambda backend: [PlainExperts]
    check = FusedMoEConfig.__post_init__

    def check_all_but_gates(config: FusedMoEConfig) -> None:
        try:
            check(config)
        except NotImplementedError:
            # The last of its checks: experts without gates are for GPUs.
            if config.is_act_and_mul:
                raise

    FusedMoEConfig.__post_init__ = check_all_but_gates
