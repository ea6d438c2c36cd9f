# SPDX-License-Identifier: Apache-2.0
"""A learner on the embedded model, and samples that it can train on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rlrun.batch import Sample
from rlrun.config.schema import RunConfig
from rlrun.derived import sampling_of
from rlrun.learner.learner import Learner
from rlrun.learner.sharding import Ranks
from tests.factories import config, sample, trajectory

MakeLearner = Callable[..., Learner]


def new_learner(*overrides: str, ranks: Ranks | None = None) -> Learner:
    settings: RunConfig = config(*overrides)
    sampling = sampling_of(settings, training=True)
    return Learner(settings.policy, settings.loss, sampling, torch.device("cpu"), ranks)


@pytest.fixture
def make_learner() -> MakeLearner:
    return new_learner


@pytest.fixture
def samples() -> list[Sample]:
    return ragged_samples()


def ragged_samples() -> list[Sample]:
    """Ragged prompts and responses of valid token ids, with advantages of both signs."""
    rng = np.random.default_rng(7)
    made = []
    for i in range(12):
        before = rng.integers(3, 270, rng.integers(2, 9)).tolist()
        sampled = rng.integers(3, 270, rng.integers(1, 12)).tolist()
        logprobs = rng.normal(-3.0, 1.0, len(sampled)).tolist()
        made.append(
            sample(
                trajectory(sampled, before=before, logprobs=logprobs),
                position=i // 4,
                advantage=float(rng.normal()),
                seed=i,
            )
        )
    return made
