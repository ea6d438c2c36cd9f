# SPDX-License-Identifier: Apache-2.0
"""The update goes on from the pass that found its log-probs, where that changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlrun.batch import Masked, Sample
from rlrun.learner.learner import Learner

MakeLearner = Callable[..., Learner]

LR_0 = ("policy.optimizer.lr=0", "policy.max_grad_norm=null")


def counting(learner: Learner) -> list[int]:
    """Grows by one entry per pass through the model from now on."""
    passes: list[int] = []
    learner.model.get_decoder().register_forward_hook(lambda *_: passes.append(1))
    return passes


def with_prev(learner: Learner, samples: Sequence[Sample]) -> list[Sample]:
    found = learner.logprobs(samples).logprobs
    return [replace(s, prev_logprobs=f) for s, f in zip(samples, found, strict=True)]


def gradient(learner: Learner, samples: Sequence[Sample], step: int = 1) -> torch.Tensor:
    learner.update([[s for s in samples if s.masked is None]], step=step)
    return torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("packing", ["true", "false"])
@pytest.mark.parametrize("loss", ["grpo", "gspo", "cispo"])
def test_the_gradient_is_that_of_a_pass_of_its_own(
    make_learner: MakeLearner, samples: list[Sample], packing: str, loss: str
) -> None:
    settings = (
        *LR_0,
        f"policy.sequence_packing={packing}",
        f"loss={loss}",
        "loss.reference_policy_kl_penalty=0",
    )
    samples[3] = replace(samples[3], masked=Masked.OVERLONG, advantage=0.0)
    samples[5] = replace(samples[5], advantage=0.0)
    learner = make_learner(*settings)
    passes = counting(learner)
    samples = with_prev(learner, samples)
    ours = gradient(learner, samples)
    assert len(passes) == 1
    theirs = gradient(make_learner(*settings), samples)
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()


def test_on_policy_ratios_are_exactly_one(make_learner: MakeLearner, samples: list[Sample]) -> None:
    learner = make_learner(*LR_0)
    samples = with_prev(learner, samples)
    metrics = learner.update([samples], step=1)
    assert metrics["train/ratio_mean"] == 1.0


@pytest.mark.parametrize(
    "reason",
    [
        "policy.train_micro_batch_tokens=64",
        "policy.activation_checkpointing=true",
        "policy.train_global_batch_size=8",
        "loss.reference_policy_kl_penalty=0.1",
    ],
)
def test_it_is_not_kept_where_it_would_not_serve(
    make_learner: MakeLearner, samples: list[Sample], reason: str
) -> None:
    learner = make_learner(*LR_0, reason)
    learner.logprobs(samples)
    assert learner._kept is None


def test_it_is_not_kept_when_most_tokens_have_no_advantage(
    make_learner: MakeLearner, samples: list[Sample]
) -> None:
    samples = samples[:2] + [replace(s, advantage=0.0) for s in samples[2:]]
    learner = make_learner(*LR_0)
    learner.logprobs(samples)
    assert learner._kept is None


def test_it_serves_one_update_only(make_learner: MakeLearner, samples: list[Sample]) -> None:
    learner, fresh = make_learner(), make_learner()
    before = with_prev(learner, samples)
    passes = counting(learner)
    learner.update([before, before], step=1)
    assert len(passes) == 1  # for the second minibatch, under weights that have moved
    fresh.update([before, before], step=1)
    for ours, theirs in zip(learner.model.parameters(), fresh.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_it_does_not_outlive_a_load(
    make_learner: MakeLearner, samples: list[Sample], tmp_path: Path
) -> None:
    learner = make_learner(*LR_0)
    learner.save(tmp_path)
    samples = with_prev(learner, samples)
    learner.load(tmp_path)
    passes = counting(learner)
    learner.update([samples], step=1)
    assert len(passes) == 1


def test_other_samples_do_not_use_it(make_learner: MakeLearner, samples: list[Sample]) -> None:
    learner = make_learner(*LR_0)
    first = with_prev(learner, samples[:6])
    others = with_prev(make_learner(*LR_0), samples[6:])
    passes = counting(learner)
    learner.update([[*first, *others]], step=1)
    assert len(passes) == 1
