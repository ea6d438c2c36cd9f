# SPDX-License-Identifier: Apache-2.0
"""The clipped policy-gradient loss of PPO and GRPO, with DAPO's asymmetric clip and a dual clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlrun.interfaces import LossInputs, component, setting
from rlrun.loss.core import LeveledLoss, PolicyTerm, clipped_term
from rlrun.tensors import log_ratio


@component("loss/grpo")
@dataclass(kw_only=True, slots=True)
class ClippedLoss(LeveledLoss):
    """``max(-A r, -A clamp(r))`` with the token's ratio r = exp(logprobs - prev_logprobs).

    Sources: PPO (arXiv 1707.06347, eq. 7), GRPO (arXiv 2402.03300, eq. 3), asymmetric bounds and
    the token level of DAPO (arXiv 2503.14476), dual clip (arXiv 1912.09729).
    """

    needs_advantage: ClassVar[bool] = True

    ratio_clip_min: float = setting(ge=0, lt=1)
    ratio_clip_max: float = setting(ge=0)
    ratio_clip_c: float | None = setting(gt=1)

    def policy_term(self, inputs: LossInputs) -> PolicyTerm:
        """The clipped objective with one ratio per token."""
        return clipped_term(
            log_ratio(inputs.logprobs, inputs.prev_logprobs),
            inputs.advantages,
            low=self.ratio_clip_min,
            high=self.ratio_clip_max,
            dual=self.ratio_clip_c,
        )
