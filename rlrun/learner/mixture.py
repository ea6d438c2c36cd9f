# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts: which parts of a model route tokens, and how these are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlrun.config.schema import Policy
from rlrun.errors import ConfigError, Problem

_ROUTERS = ("gate", "router")
"""What transformers calls the router beside \"experts\"."""


def experts(model: PreTrainedModel) -> list[nn.Module]:
    """The experts of every mixture layer, each layer's as one module."""
    return [parts["experts"] for parts in _mixtures(model)]


def routers(model: PreTrainedModel) -> list[nn.Module]:
    """The module that chooses experts for a token, of every mixture layer."""
    return [parts[name] for parts in _mixtures(model) for name in _ROUTERS if name in parts]


def set_up_routers(model: PreTrainedModel, policy: Policy) -> None:
    """Freezes routers and lets them compute in float32, as the settings say.

    Raises:
        ConfigError: They say so, and the model has no router.
    """
    found = routers(model)
    asked = [
        key
        for key, value in (
            ("policy.freeze_moe_router", policy.freeze_moe_router),
            ("policy.moe_router_fp32", policy.moe_router_fp32),
        )
        if value
    ]
    if asked and not found:
        what = f"{type(model).__name__} (policy.model={policy.model}) has no router"
        raise ConfigError([Problem(key, what, "Set it to false") for key in asked])
    for router in found:
        if policy.freeze_moe_router:
            router.requires_grad_(False)
        if policy.moe_router_fp32:
            compute_in_float32(router)


def compute_in_float32(module: nn.Module) -> None:
    """Keeps autocast out of a module and gives it float32 inputs.

    Its outputs stay float32. A score that bfloat16 rounds can choose another expert.
    """
    original: Callable[..., Any] = module.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        exact = [_float32(value) for value in inputs]
        with torch.autocast(exact[0].device.type, enabled=False):
            return original(*exact, **{name: _float32(value) for name, value in named.items()})

    # Assigned through the dictionary, as a method of one module rather than of its class.
    module.__dict__["forward"] = forward


def _float32(value: Any) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.float() if floating else value


def _mixtures(model: PreTrainedModel) -> Iterator[dict[str, nn.Module]]:
    """The parts of every layer that has experts, by name."""
    for module in model.modules():
        parts = dict(module.named_children())
        if "experts" in parts:
            yield parts
