# SPDX-License-Identifier: Apache-2.0
"""How long the parts of a step take on GPUs, and which age that needs. See docs/planning.md.

Rough on purpose: what a machine really does is measured by a first short run, from which ``rlrun
simulate --from RUN_DIR`` goes on. It is good for telling that a split or an age is far off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlrun.planning.shape import Shape

PEAK_FLOPS = 989e12
"""bfloat16 operations per second of an H100 without sparsity."""
BANDWIDTH = 3.35e12
"""Bytes per second of its memory."""
TRAINING_SHARE = 0.25
"""Of PEAK_FLOPS, what forward and backward passes of FSDP2 reach on long sequences."""
DECODING_SHARE = 0.5
"""Of BANDWIDTH and PEAK_FLOPS, what decoding reaches."""
MEAN_SHARE = 0.25
"""Mean length of a response over the longest, as long as no run has told."""


@dataclass(frozen=True, slots=True)
class Step:
    """The work of one RL step.

    Attributes:
        trajectories: In a batch.
        longest: Tokens of the longest response.
        ranks: GPUs that train.
        engines: That sample.
        gpus_per_engine: Of each.
        at_once: Sequences that an engine decodes at once.
        passes: Forward passes per token beside the one with gradient, recomputation included.
    """

    trajectories: int
    longest: int
    ranks: int
    engines: int
    gpus_per_engine: int
    at_once: int
    passes: int


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds.

    Attributes:
        token: Of one decoded token of every sequence of an engine.
        generate: To sample a batch if the engines are always full.
        longest: Of the longest response.
        train: All passes over a batch.
    """

    token: float
    generate: float
    longest: float
    train: float

    @property
    def sync(self) -> float:
        """A step in which training waits for the last response of its batch."""
        return max(self.generate, self.longest) + self.train

    @property
    def concurrent(self) -> float:
        """A step in which both work at once."""
        return max(self.generate, self.train)

    @property
    def age_needed(self) -> int:
        """Steps that pass while the longest response is sampled: no wait and no loss below it."""
        return math.ceil(self.longest / self.concurrent)


def times(shape: Shape, step: Step) -> Times:
    """What the parts of a step take."""
    mean = max(1.0, MEAN_SHARE * step.longest)
    token = _token_seconds(shape, step, mean)
    sampled = step.trajectories * mean
    return Times(
        token=token,
        generate=sampled * token / (step.engines * step.at_once),
        longest=step.longest * token,
        train=sampled
        * _pass_flops(shape, mean)
        * (3 + step.passes)
        / (step.ranks * PEAK_FLOPS * TRAINING_SHARE),
    )


def _pass_flops(shape: Shape, length: float) -> float:
    """Operations of a forward pass per token of a sequence of this length."""
    attended = sum(layer.attended for layer in shape.layers)
    return 2 * shape.active + attended * length


def _token_seconds(shape: Shape, step: Step, mean: float) -> float:
    """One token for each of ``at_once`` sequences: read what is needed, or compute it."""
    width = 2
    touched = min(shape.parameters, step.at_once * shape.active)
    cache = shape.kv_per_token * width * mean / 2 + 2 * 4 * shape.state_per_sequence
    read = (width * touched + step.at_once * cache) / BANDWIDTH
    computed = step.at_once * _pass_flops(shape, mean / 2) / PEAK_FLOPS
    return max(read, computed) / (DECODING_SHARE * step.gpus_per_engine)
