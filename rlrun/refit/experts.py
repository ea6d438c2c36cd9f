# SPDX-License-Identifier: Apache-2.0
"""What the experts of a mixture compute, as plain torch operations on their joined weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

Activation = Callable[[Tensor], Tensor]


def _gated(function: Activation) -> Activation:
    """Of a tensor whose first half along the last dimension is the gate of its second."""

    def activate(values: Tensor) -> Tensor:
        gate, up = values.chunk(2, dim=-1)
        return function(gate) * up

    return activate


def _gelu_tanh(values: Tensor) -> Tensor:
    return functional.gelu(values, approximate="tanh")


def _relu2(values: Tensor) -> Tensor:
    return functional.relu(values).square()


ACTIVATIONS: Mapping[str, Activation] = {
    "silu": _gated(functional.silu),
    "gelu": _gated(functional.gelu),
    "gelu_tanh": _gated(_gelu_tanh),
    "silu_no_mul": functional.silu,
    "gelu_no_mul": functional.gelu,
    "gelu_tanh_no_mul": _gelu_tanh,
    "relu2_no_mul": _relu2,
}
"""By vLLM's names: plain ones of experts with gates, the others of experts without."""


def mix(
    hidden: Tensor,
    up: Tensor,
    down: Tensor,
    weights: Tensor,
    experts: Tensor,
    activation: Activation,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """The weighted sum of what each token's experts say, [tokens, hidden].

    Args:
        hidden: [tokens, hidden].
        up: [experts, inner, hidden]; inner holds gate and value one behind the other if gated.
        down: [experts, hidden, inner].
        weights: [tokens, chosen]; of each token's experts.
        experts: [tokens, chosen]; which they are. Below 0: an expert that is not here.
        activation: Between up and down.
        up_bias: [experts, inner].
        down_bias: [experts, hidden].
    """
    mixed = torch.zeros_like(hidden)
    for expert in experts.unique().tolist():
        if expert < 0:
            continue
        token, place = (experts == expert).nonzero(as_tuple=True)
        inner = activation(
            functional.linear(
                hidden[token], up[expert], None if up_bias is None else up_bias[expert]
            )
        )
        out = functional.linear(
            inner, down[expert], None if down_bias is None else down_bias[expert]
        )
        mixed.index_add_(0, token, (out * weights[token, place, None]).to(mixed.dtype))
    return mixed
