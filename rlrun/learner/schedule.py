# SPDX-License-Identifier: Apache-2.0
"""The learning rate of a step. Its position is the step's number, so a resume cannot shift it."""

from __future__ import annotations

import math

from rlrun.config.schema import Decay, Schedule


def lr_factor(step: int, schedule: Schedule) -> float:
    """What the peak learning rate is multiplied with in step ``step`` (from 1).

    Rises linearly from ``warmup_start_factor`` to 1, reached in step ``warmup_steps``; then decays
    to ``final_factor``, reached in step ``decay_steps``. All optimizer updates of one step use the
    same rate; validation and skipped updates do not move it.
    """
    if step < schedule.warmup_steps:
        start = schedule.warmup_start_factor
        return start + (1.0 - start) * step / schedule.warmup_steps
    if schedule.decay is Decay.CONSTANT or schedule.decay_steps is None:
        return 1.0
    span = max(1, schedule.decay_steps - schedule.warmup_steps)
    progress = min(1.0, (step - schedule.warmup_steps) / span)
    remaining = 1.0 - progress
    if schedule.decay is Decay.COSINE:
        remaining = 0.5 * (1.0 + math.cos(math.pi * progress))
    return schedule.final_factor + (1.0 - schedule.final_factor) * remaining
