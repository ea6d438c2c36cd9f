# SPDX-License-Identifier: Apache-2.0
"""REINFORCE: the plain policy gradient, without a ratio to the policy before the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlrun.interfaces import LossInputs, component
from rlrun.loss.core import LeveledLoss, PolicyTerm
from rlrun.tensors import LOGPROB_FLOOR, bounded_exp, log_ratio


@component("loss/reinforce")
@dataclass(kw_only=True, slots=True)
class ReinforceLoss(LeveledLoss):
    """``-A logprobs``; nothing holds the policy near the one before the update.

    Source: REINFORCE (Williams 1992). Stale tokens are corrected by the importance weights alone,
    so one optimizer step per batch is what it is meant for.
    """

    needs_advantage: ClassVar[bool] = True

    def policy_term(self, inputs: LossInputs) -> PolicyTerm:
        """The log-prob weighted by the advantage."""
        ratio = bounded_exp(log_ratio(inputs.logprobs.detach(), inputs.prev_logprobs))
        return PolicyTerm(
            loss=-inputs.advantages * inputs.logprobs.clamp(min=LOGPROB_FLOOR),
            ratio=ratio,
            clipped=ratio.new_zeros(ratio.shape).bool(),
        )
