# SPDX-License-Identifier: Apache-2.0
"""GSPO: the clipped loss with one ratio per trajectory, the geometric mean over its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from rlrun.interfaces import LossInputs, component, setting
from rlrun.loss.core import Level, LeveledLoss, PolicyTerm, clipped_term
from rlrun.tensors import log_ratio, segment_expand, segment_mean


@component("loss/gspo")
@dataclass(kw_only=True, slots=True)
class GSPOLoss(LeveledLoss):
    """``max(-A s, -A clamp(s))`` with s = exp(mean over the trajectory of the token log-ratios).

    Source: GSPO (arXiv 2507.18071). The mean over the length keeps s near 1, so the
    clip range is some hundred times narrower than for token ratios.
    """

    needs_advantage: ClassVar[bool] = True

    ratio_clip_min: float = setting(ge=0, lt=1)
    ratio_clip_max: float = setting(ge=0)

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """A ratio of the sequence belongs to a mean over sequences."""
        if self.level is not Level.SEQUENCE:
            yield (
                ("level",),
                f"level={self.level.value} with loss=gspo, whose ratio is that of a whole sequence",
                "Set loss.level=sequence, or use loss=grpo for a loss by token",
            )

    def policy_term(self, inputs: LossInputs) -> PolicyTerm:
        """The clipped objective with the trajectory's ratio at each of its tokens."""
        token_ratios = log_ratio(inputs.logprobs, inputs.prev_logprobs)
        means = segment_mean(token_ratios, inputs.trajectory, inputs.num_trajectories)
        return clipped_term(
            segment_expand(means, inputs.trajectory),
            inputs.advantages,
            low=self.ratio_clip_min,
            high=self.ratio_clip_max,
            dual=None,
        )
