# SPDX-License-Identifier: Apache-2.0
"""Turns the groups of a step into a batch: log-probs, masks, advantages, importance weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rlrun.batch import Batch, Floats, Masked, Sample, collect_samples, mask_where, with_advantages
from rlrun.interfaces import GRPO, Advantage, Correction, CorrectionInputs
from rlrun.learner.handle import LearnerHandle
from rlrun.penalties import Penalties
from rlrun.rewards import sequence_error_mask
from rlrun.types import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch with what was measured on the way.

    Attributes:
        batch: Ready for the learner.
        entropies: Of each sample's tokens, in nats, in the order of ``batch.samples``.
        metrics: ``correction/*``, none of them if nothing is trained, and ``penalty/*``.
        warning: What the correction has to say about its metrics, or None.
    """

    batch: Batch
    entropies: list[Floats]
    metrics: dict[str, float]
    warning: str | None


@dataclass(slots=True)
class MismatchGuard:
    """Steps in a row, up to now, in which generator and learner disagreed too much."""

    bad_steps: int = 0


@dataclass(frozen=True, slots=True)
class Preparation:
    """The parts that a batch goes through.

    Attributes:
        learner: For log-probs under the weights before the update.
        grpo: Rewards and masks.
        advantage: The advantage slot.
        correction: The correction slot.
        max_new_tokens: Limit of a response.
        asynchronous: Whether weights may be stale.
        guard: Counts bad steps.
        penalties: Penalties for the form of a response.
    """

    learner: LearnerHandle
    grpo: GRPO
    advantage: Advantage
    correction: Correction
    max_new_tokens: int
    asynchronous: bool
    guard: MismatchGuard
    penalties: Penalties

    def __call__(
        self, step: int, groups: Sequence[TrajectoryGroup], mask_before: int | None
    ) -> Prepared:
        """Makes the batch of a step; tokens of versions below ``mask_before`` get no loss.

        Masks come before advantages: a sample that is out must not move its group's baseline.

        Raises:
            TrainingError: Generator and learner have disagreed for too many steps in a row.
        """
        samples = collect_samples(
            groups, self.grpo, self.max_new_tokens, mask_before, self.penalties.reward
        )
        if self.grpo.seq_logprob_error_threshold is None:
            # Known before the pass over the log-probs, they spare the update a pass of its own.
            samples, entropies = self._with_logprobs(self._with_advantages(samples, groups))
        else:
            samples, entropies = self._with_logprobs(samples)
            out = sequence_error_mask(_flat(samples), self.grpo.seq_logprob_error_threshold)
            samples = mask_where(samples, out.tolist(), Masked.LOGPROB_ERROR)
            samples = self._with_advantages(samples, groups)
        samples, metrics, warning = self._with_weights(samples)
        metrics |= self.penalties.take_counts()
        return Prepared(Batch(step, tuple(groups), tuple(samples)), entropies, metrics, warning)

    def _with_advantages(
        self, samples: list[Sample], groups: Sequence[TrajectoryGroup]
    ) -> list[Sample]:
        generated = [trajectory for group in groups for trajectory in group.trajectories]
        return self.penalties.with_turn_advantages(
            with_advantages(samples, self.advantage), generated
        )

    def _with_logprobs(self, samples: list[Sample]) -> tuple[list[Sample], list[Floats]]:
        prev = self.learner.logprobs(samples)
        refs: Sequence[Floats | None] = self.learner.ref_logprobs(samples) or [None] * len(samples)
        with_logprobs = [
            replace(sample, prev_logprobs=logprobs, ref_logprobs=ref)
            for sample, logprobs, ref in zip(samples, prev.logprobs, refs, strict=True)
        ]
        return with_logprobs, prev.entropies

    def _with_weights(
        self, samples: list[Sample]
    ) -> tuple[list[Sample], dict[str, float], str | None]:
        trained = [i for i, sample in enumerate(samples) if sample.masked is None]
        if not trained:
            return samples, {}, None
        inputs = _flat([samples[i] for i in trained])
        output = self.correction(inputs, asynchronous=self.asynchronous)
        counts = [len(samples[i].prev_logprobs) for i in trained]
        for index, weights in zip(trained, output.weights.split(counts), strict=True):
            samples[index] = replace(samples[index], weights=weights.numpy())
        metrics = dict(output.metrics)
        verdict = self.correction.check(metrics, self.guard.bad_steps)
        self.guard.bad_steps = self.guard.bad_steps + 1 if verdict.bad else 0
        return samples, metrics, verdict.warning


def _flat(samples: Sequence[Sample]) -> CorrectionInputs:
    counts = [len(sample.prev_logprobs) for sample in samples]
    return CorrectionInputs(
        prev_logprobs=torch.from_numpy(np.concatenate([s.prev_logprobs for s in samples])),
        generation_logprobs=torch.from_numpy(
            np.concatenate([s.generation_logprobs for s in samples])
        ),
        trajectory=torch.from_numpy(np.repeat(np.arange(len(samples)), counts)),
        num_trajectories=len(samples),
    )
