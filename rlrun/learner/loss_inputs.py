# SPDX-License-Identifier: Apache-2.0
"""What a loss is given: the sampled tokens of a microbatch as flat vectors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlrun.batch import Floats, Sample
from rlrun.interfaces import LossInputs
from rlrun.learner.logprobs import TokenValues


def loss_inputs(
    forward: TokenValues,
    chosen: Sequence[Sample],
    minibatch: Sequence[Sample],
    *,
    with_reference: bool,
    device: torch.device,
) -> LossInputs:
    """The inputs of a loss over one microbatch.

    Args:
        forward: Present log-probs of the sampled tokens, sample by sample.
        chosen: The samples of the microbatch, in the same order.
        minibatch: All samples of the optimizer step, whose totals the loss divides by.
        with_reference: Whether there are log-probs of a reference policy.
        device: Where the vectors are wanted.
    """

    def on_device(arrays: Sequence[Floats]) -> Tensor:
        return flat(arrays).to(device)

    counts = np.array([sample.trajectory.num_sampled for sample in chosen], np.int64)
    references = [s.ref_logprobs for s in chosen if s.ref_logprobs is not None]
    return LossInputs(
        logprobs=forward.logprobs,
        unfiltered_logprobs=forward.unfiltered,
        prev_logprobs=on_device([sample.prev_logprobs for sample in chosen]),
        generation_logprobs=on_device([sample.generation_logprobs for sample in chosen]),
        ref_logprobs=on_device(references) if with_reference else None,
        advantages=on_device([sample.token_advantages for sample in chosen]),
        weights=on_device([sample.weights for sample in chosen]),
        trajectory=torch.from_numpy(np.repeat(np.arange(len(chosen)), counts)).to(device),
        num_trajectories=len(chosen),
        total_tokens=sum(sample.trajectory.num_sampled for sample in minibatch),
        total_trajectories=len(minibatch),
    )


def flat(arrays: Sequence[Floats]) -> Tensor:
    """One float32 vector of all, on the CPU; there may be none."""
    return torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *arrays]))
