# SPDX-License-Identifier: Apache-2.0
"""bfloat16 on processors that have no instructions for it.

Such a processor's own kernels convert operand by operand and take five to eight times as long as
float32. The linear layers, where nearly all of the time goes, are computed here in float32 from
operands that were rounded to bfloat16, and the result is rounded: what hardware with bfloat16
inputs and a float32 accumulator does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlrun.interfaces import Precision


class RoundedLinear(nn.Linear):
    """A linear layer with bfloat16 operands and result, in whose products float32 is used."""

    def forward(self, input: Tensor) -> Tensor:  # the name that nn.Linear has
        """Like nn.Linear, whose result under autocast has the same type."""
        device = input.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(input)
        with torch.autocast(device, enabled=False):
            bias = None if self.bias is None else _rounded(self.bias)
            product = nn.functional.linear(_rounded(input), _rounded(self.weight), bias)
            return product.bfloat16()


def _rounded(values: Tensor) -> Tensor:
    """The nearest bfloat16 values, as float32; their gradients are rounded likewise."""
    return values.bfloat16().float()


def lacks_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16 by converting every operand."""
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"


def suit_precision(model: nn.Module, precision: Precision, device: torch.device) -> None:
    """Makes the linear layers of a model fast at the precision that it will be used at."""
    if precision is Precision.BFLOAT16 and lacks_bfloat16(device):
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = RoundedLinear


def precision_notice(precision: Precision, device: torch.device) -> str | None:
    """What is to be said about a precision that the device is slow at, or None."""
    if precision is Precision.BFLOAT16 and lacks_bfloat16(device):
        return (
            "this processor has no instructions for bfloat16: products are computed in float32 "
            "from rounded operands, which takes longer than policy.precision=float32"
        )
    return None
