# SPDX-License-Identifier: Apache-2.0
"""Failures that other trainers had with log-probs and entropies, each with the right outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.batch import Masked, Sample
from rlrun.errors import TrainingError
from rlrun.learner.learner import Learner
from rlrun.learner.model import check_head

MakeLearner = Callable[..., Learner]


@pytest.mark.parametrize("capped", [lambda x: 30 * (x / 30).tanh(), lambda x: x * 0.9])
def test_logits_that_are_capped_or_scaled_are_not_taken_for_plain_ones(
    make_learner: MakeLearner, capped: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Log-probs are computed from the head alone, which knows nothing of either."""
    model = make_learner().model
    check_head(model, "plain")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)

    def hook(_: Any, __: Any, output: Any) -> Any:
        return SimpleNamespace(logits=capped(output.logits))

    model.register_forward_hook(hook)
    with pytest.raises(TrainingError, match="may cap or scale its logits"):
        check_head(model, "a model")


def test_the_entropy_of_a_filtered_distribution_is_finite_and_that_of_what_is_kept(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    """A token that is filtered out has the log-prob -inf, and 0 * -inf is NaN."""
    settings = ("generation.top_k=3", "generation.temperature=0.5")
    learner = make_learner(*settings)
    (one, *_) = samples
    (found,) = learner.logprobs([one]).entropies
    ids = torch.tensor([one.trajectory.token_ids])
    with torch.no_grad():
        logits = learner.model(input_ids=ids).logits[0].double()
    kept = logits[one.trajectory.input_length - 1 : -1].topk(3).values / 0.5
    shares = kept.softmax(-1)
    np.testing.assert_allclose(found, -(shares * shares.log()).sum(-1), atol=1e-5)


def test_temperature_divides_the_logits_of_policy_and_reference_alike(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    learner = make_learner("generation.temperature=0.5", "loss.reference_policy_kl_penalty=0.1")
    (one, *_) = samples
    (found,) = learner.logprobs([one]).logprobs
    references = learner.ref_logprobs([one])
    ids = torch.tensor([one.trajectory.token_ids])
    with torch.no_grad():
        logits = learner.model(input_ids=ids).logits[0, :-1].double()
    wanted = (logits / 0.5).log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
    expected = wanted[one.trajectory.input_length - 1 :]
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert references is not None
    np.testing.assert_allclose(references[0], expected, atol=2e-5)


def test_what_a_masked_sample_holds_reaches_nobody(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    """0 * NaN is NaN: what is masked must not be multiplied by a mask, but left out."""
    learner = make_learner("policy.optimizer.lr=0")
    good, bad = samples[:4], samples[4]
    broken = replace(
        bad,
        masked=Masked.LOGPROB_ERROR,
        advantage=float("nan"),
        generation_logprobs=np.full_like(bad.generation_logprobs, np.nan),
        prev_logprobs=np.full_like(bad.prev_logprobs, np.nan),
        weights=np.full_like(bad.weights, np.inf),
    )
    alone = learner.update([good], step=1)
    assert learner.update([[*good, broken]], step=1) == pytest.approx(alone, rel=1e-6)
