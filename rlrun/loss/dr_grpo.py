# SPDX-License-Identifier: Apache-2.0
"""Dr. GRPO: the clipped loss divided by a constant instead of by the lengths of responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlrun.interfaces import LossInputs, component, setting
from rlrun.loss.core import PolicyLoss, PolicyTerm, clipped_term
from rlrun.tensors import log_ratio, mean_share

if TYPE_CHECKING:
    from torch import Tensor


@component("loss/dr_grpo")
@dataclass(kw_only=True, slots=True)
class DrGRPOLoss(PolicyLoss):
    """``sum over tokens / (normalizer_tokens * number of trajectories)`` of the clipped objective.

    Source: Dr. GRPO (arXiv 2503.20783), which goes with advantages that are not
    divided by a standard deviation (advantage.normalize=false).
    """

    needs_advantage: ClassVar[bool] = True

    ratio_clip_min: float = setting(ge=0, lt=1)
    ratio_clip_max: float = setting(ge=0)
    ratio_clip_c: float | None = setting(gt=1)
    normalizer_tokens: int = setting(ge=1)

    def policy_term(self, inputs: LossInputs) -> PolicyTerm:
        """The clipped objective with one ratio per token."""
        return clipped_term(
            log_ratio(inputs.logprobs, inputs.prev_logprobs),
            inputs.advantages,
            low=self.ratio_clip_min,
            high=self.ratio_clip_max,
            dual=self.ratio_clip_c,
        )

    def share(self, values: Tensor, inputs: LossInputs) -> Tensor:
        """Divides by a constant number of tokens per trajectory instead of the actual lengths."""
        return mean_share(values, self.normalizer_tokens * inputs.total_trajectories)
