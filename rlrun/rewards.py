# SPDX-License-Identifier: Apache-2.0
"""From the environment's reward to the one that is trained: scaling, overlong penalty, error mask.

A reward is scaled first, then the overlong penalty is added. Whether a group has signal is decided
on the unshaped rewards; what is masked must be known before advantages are computed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlrun.errors import TrainingError
from rlrun.interfaces import CorrectionInputs, OverlongShaping, RewardScaling
from rlrun.tensors import bounded_exp, log_ratio, segment_mean

if TYPE_CHECKING:
    from torch import Tensor


def scale(reward: float, scaling: RewardScaling) -> float:
    """The reward clamped to the source interval and mapped linearly to the target interval.

    Raises:
        TrainingError: The reward is NaN or infinite.
    """
    if not math.isfinite(reward):
        raise TrainingError(
            "reward",
            f"the reward is {reward}",
            "An environment that cannot score a response reports a failure, not a number",
        )
    if not scaling.enabled:
        return reward
    clamped = min(max(reward, scaling.source_min), scaling.source_max)
    share = (clamped - scaling.source_min) / (scaling.source_max - scaling.source_min)
    return scaling.target_min + share * (scaling.target_max - scaling.target_min)


def overlong_penalty(response_tokens: int, shaping: OverlongShaping, max_new_tokens: int) -> float:
    """What is added to the reward of a long response, in [-penalty, 0].

    0 up to ``limit - buffer_tokens``, then falling linearly to ``-penalty`` at ``limit``, and
    ``-penalty`` beyond (DAPO, arXiv 2503.14476, eq. 13). It never depends on the reward's sign or
    size, so being long never pays.

    Args:
        response_tokens: All tokens that the policy sampled, over all turns.
        shaping: Its ``max_response_tokens`` is the limit.
        max_new_tokens: The limit where ``max_response_tokens`` is null.
    """
    if not shaping.enabled:
        return 0.0
    limit = max_new_tokens if shaping.max_response_tokens is None else shaping.max_response_tokens
    excess = (response_tokens - (limit - shaping.buffer_tokens)) / shaping.buffer_tokens
    return -shaping.penalty * min(max(excess, 0.0), 1.0)


def sequence_error_mask(inputs: CorrectionInputs, threshold: float) -> Tensor:
    """Which trajectories the learner and the generator disagree on: bool [num_trajectories].

    True (out) where the mean over the trained tokens of exp(|generation - prev|) is above
    ``threshold`` or NaN; a trajectory without trained tokens is not.
    """
    gap = log_ratio(inputs.prev_logprobs.double(), inputs.generation_logprobs.double())
    errors = segment_mean(bounded_exp(gap.abs()), inputs.trajectory, inputs.num_trajectories)
    return ~(errors <= threshold)
