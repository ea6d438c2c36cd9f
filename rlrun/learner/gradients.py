# SPDX-License-Identifier: Apache-2.0
"""Clips gradients by their global norm, and names those that are not finite."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from rlrun.errors import TrainingError
from rlrun.learner.sharding import Ranks, is_finite


def clip_gradients(
    model: nn.Module,
    ranks: Ranks,
    device: torch.device,
    max_norm: float | None,
    *,
    step: int,
    loss: float,
) -> float:
    """Scales the gradients down to a norm of ``max_norm``; None leaves them as they are.

    Every rank must call it.

    Args:
        model: Whose parameters have gradients.
        ranks: All ranks of the learner.
        device: Where they compute.
        max_norm: Largest L2 norm over all parameters and ranks.
        step: For the message.
        loss: What the gradients are of.

    Returns:
        The norm before clipping.

    Raises:
        TrainingError: The loss or a gradient is not finite.
    """
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    value = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if not (math.isfinite(value) and math.isfinite(loss)):
        # Before any clipping, which would spread a NaN to every gradient.
        raise _not_finite(_broken(model, ranks, device), step=step, loss=loss, norm=value)
    if max_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    return value


def _broken(model: nn.Module, ranks: Ranks, device: torch.device) -> list[str]:
    """Names of the parameters whose gradient is not finite, on whichever rank."""
    flaws = {
        name: torch.tensor(
            parameter.grad is not None and not is_finite(parameter.grad), device=device
        )
        for name, parameter in model.named_parameters()
    }
    # Of a sharded tensor one rank may have the only part that is broken.
    counts = ranks.sum(flaws)
    return [name for name in flaws if counts[name] > 0]


def _not_finite(broken: list[str], *, step: int, loss: float, norm: float) -> TrainingError:
    named = "the loss" if not math.isfinite(loss) else "the gradient norm"
    if broken:
        named = f"the gradient of {broken[0]} (and {len(broken) - 1} more)"
    return TrainingError(
        f"step {step}",
        f"{named} is not finite (loss {loss}, gradient norm {norm})",
        "The step's batch is in trained/; lower policy.optimizer.lr or check the rewards",
    )
