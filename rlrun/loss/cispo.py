# SPDX-License-Identifier: Apache-2.0
"""CISPO: REINFORCE weighted by the clipped ratio, so that no token loses its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlrun.interfaces import LossInputs, component, setting
from rlrun.loss.core import LeveledLoss, PolicyTerm
from rlrun.tensors import LOGPROB_FLOOR, bounded_exp, log_ratio


@component("loss/cispo")
@dataclass(kw_only=True, slots=True)
class CISPOLoss(LeveledLoss):
    """``-A stop(clamp(r)) logprobs`` with the token's ratio r = exp(logprobs - prev_logprobs).

    Source: CISPO (arXiv 2506.13585). The clamped ratio is a constant weight.
    """

    needs_advantage: ClassVar[bool] = True

    ratio_clip_min: float = setting(ge=0, le=1)
    ratio_clip_max: float = setting(ge=0)

    def policy_term(self, inputs: LossInputs) -> PolicyTerm:
        """The log-prob weighted by the advantage and the constant clamped ratio."""
        ratio = bounded_exp(log_ratio(inputs.logprobs.detach(), inputs.prev_logprobs))
        low, high = 1 - self.ratio_clip_min, 1 + self.ratio_clip_max
        logprobs = inputs.logprobs.clamp(min=LOGPROB_FLOOR)
        return PolicyTerm(
            loss=-inputs.advantages * ratio.clamp(low, high) * logprobs,
            ratio=ratio,
            clipped=((ratio < low) | (ratio > high)) & (inputs.advantages != 0),
        )
