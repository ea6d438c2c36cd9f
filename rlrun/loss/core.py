# SPDX-License-Identifier: Apache-2.0
"""What all losses share: loss = policy term + beta * KL to the reference, as addable shares.

A variant says what one token contributes (``policy_term``); this module weighs it by the
importance-sampling correction, adds the KL penalty, divides by the size of the whole minibatch and
reports the metrics. docs/loss.md has the formulas.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from rlrun.interfaces import Loss, LossInputs, LossOutput, setting
from rlrun.tensors import (
    MAX_LOG_RATIO,
    bounded_exp,
    k1,
    k2,
    k3,
    log_ratio,
    mean_share,
    segment_mean,
)

if TYPE_CHECKING:
    from torch import Tensor


class Level(StrEnum):
    """What a loss averages over."""

    TOKEN = "token"
    """All trained tokens of the minibatch count the same."""
    SEQUENCE = "sequence"
    """All trajectories count the same: the mean over trajectories of their token means."""


class KLType(StrEnum):
    """Estimator of KL(policy || reference) from one sampled token (rlrun.tensors)."""

    K1 = "k1"
    K2 = "k2"
    K3 = "k3"


MAX_KL_EXPONENT = 30.0
"""Input clamp of the KL where none is set: e^30 is the largest of which float64 still has the
gradient (to 1e-3), and it is no likely log-ratio of a sampled token."""

_ESTIMATORS: dict[KLType, Callable[[Tensor], Tensor]] = {
    KLType.K1: k1,
    KLType.K2: k2,
    KLType.K3: k3,
}


@dataclass(frozen=True, slots=True)
class PolicyTerm:
    """What a variant makes of each token, all [N].

    Attributes:
        loss: To be minimised, before importance weights; carries the gradient.
        ratio: Probability ratio of the current policy to the one before the update, unclipped.
        clipped: Bool, true where a bound took the token's gradient away (or, for a variant whose
            gradient outlives its clip, where the ratio was replaced by the bound).
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


@dataclass(kw_only=True, slots=True)
class PolicyLoss(Loss):
    """A policy-gradient loss with a KL penalty; variants add the policy term and the reduction."""

    reference_policy_kl_type: KLType
    kl_input_clamp: float | None = setting(gt=0)
    kl_output_clamp: float | None = setting(gt=0)
    use_on_policy_kl_approximation: bool

    @abstractmethod
    def policy_term(self, inputs: LossInputs) -> PolicyTerm:
        """The variant's objective, token by token."""

    @abstractmethod
    def share(self, values: Tensor, inputs: LossInputs) -> Tensor:
        """This microbatch's share of the minibatch's reduction of ``values`` [N], a scalar."""

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The share of the loss and of its metrics; see the base class."""
        drawn, kept = within_support(inputs)
        term = self.policy_term(drawn)
        policy_loss = self.share(_among_all(drawn.weights * term.loss, kept), inputs)
        loss = policy_loss
        values = {
            "train/ratio_mean": term.ratio,
            "train/ratio_clipped_fraction": term.clipped.to(inputs.logprobs.dtype),
        }
        assert inputs.ref_logprobs is not None or self.reference_policy_kl_penalty == 0
        if inputs.ref_logprobs is not None:
            kl = self.reference_kl(inputs, inputs.ref_logprobs)
            values["train/kl_to_reference"] = kl
            if self.reference_policy_kl_penalty > 0:
                loss = loss + self.reference_policy_kl_penalty * self.share(kl, inputs)
        metrics = {
            name: mean_share(value.detach(), inputs.total_tokens) for name, value in values.items()
        }
        metrics["train/policy_loss"] = policy_loss.detach()
        return LossOutput(loss=loss, metrics=metrics)

    def reference_kl(self, inputs: LossInputs, ref_logprobs: Tensor) -> Tensor:
        """KL(policy || reference) of each token [N], with the gradient of its expectation.

        The tokens are samples of the policy, so the expectation's gradient has a score-function
        part beside the estimator's own; the weight carries it: exp(c - stop(c)), which is 1, or
        with use_on_policy_kl_approximation exp(c - generation), which also corrects for tokens
        sampled from older weights. Where a clamp is active the token has no gradient at all.
        """
        # In float64: k3's own gradient and its weight's nearly cancel, e^x against e^x.
        unfiltered = inputs.unfiltered_logprobs
        current = (inputs.logprobs if unfiltered is None else unfiltered).double()
        log_r = log_ratio(ref_logprobs.double(), current)
        if self.use_on_policy_kl_approximation:
            weight = bounded_exp(log_ratio(current, inputs.generation_logprobs.double()))
        else:
            weight = log_ratio(current, current.detach()).exp()
        bound = MAX_KL_EXPONENT if self.kl_input_clamp is None else self.kl_input_clamp
        weight = weight.where(log_r.abs() <= bound, weight.detach())
        kl = weight * _ESTIMATORS[self.reference_policy_kl_type](log_r.clamp(-bound, bound))
        if self.kl_output_clamp is not None:
            kl = kl.clamp(-self.kl_output_clamp, self.kl_output_clamp)
        return kl.to(inputs.logprobs.dtype)


def within_support(inputs: LossInputs) -> tuple[LossInputs, Tensor]:
    """The inputs without the tokens that a filter (top-k, top-p) excludes for the learner.

    Generator and learner may disagree about which tokens a filter keeps. A token of probability 0
    has no ratio; it is left out of the policy term, still counted in every divisor. NaN stays, and
    makes the loss NaN.

    Returns:
        The inputs, and which of all tokens they are, bool [N].
    """
    excluded = float("-inf")
    keep = (inputs.logprobs != excluded) & (inputs.prev_logprobs != excluded)
    if bool(keep.all()):
        return inputs, keep
    drawn = replace(
        inputs,
        logprobs=inputs.logprobs[keep],
        prev_logprobs=inputs.prev_logprobs[keep],
        generation_logprobs=inputs.generation_logprobs[keep],
        advantages=inputs.advantages[keep],
        weights=inputs.weights[keep],
        trajectory=inputs.trajectory[keep],
        ref_logprobs=None,
        unfiltered_logprobs=None,
    )
    return drawn, keep


def _among_all(values: Tensor, kept: Tensor) -> Tensor:
    """The values of the kept tokens among those of all [N], which are 0."""
    if len(values) == len(kept):
        return values
    return values.new_zeros(kept.shape).masked_scatter(kept, values)


@dataclass(kw_only=True, slots=True)
class LeveledLoss(PolicyLoss):
    """A loss that is a mean, over tokens or over trajectories."""

    level: Level

    def share(self, values: Tensor, inputs: LossInputs) -> Tensor:
        """Token level: sum / total_tokens. Sequence level: sum of token means / total_trajectories.

        Both divide by the sizes of the whole minibatch over all microbatches and ranks, never by
        the microbatch's own: a mean of means would weigh short microbatches too much.
        """
        if self.level is Level.TOKEN:
            return mean_share(values, inputs.total_tokens)
        means = segment_mean(values.double(), inputs.trajectory, inputs.num_trajectories)
        return mean_share(means, inputs.total_trajectories).to(values.dtype)


def clipped_term(
    log_ratios: Tensor, advantages: Tensor, *, low: float, high: float, dual: float | None
) -> PolicyTerm:
    """The pessimistic clipped objective of PPO (arXiv 1707.06347, eq. 7), token by token.

    ``max(-A r, -A clamp(r, 1 - low, 1 + high))``, and with ``dual`` at most ``-A dual`` where A < 0
    (arXiv 1912.09729).

    Args:
        log_ratios: log r, [N].
        advantages: A, [N].
        low: How far r may fall below 1, in [0, 1).
        high: How far r may rise above 1, at least 0.
        dual: Bound of r for negative advantages, above 1, or None.
    """
    ratio = bounded_exp(log_ratios)
    loss = (-advantages * ratio).maximum(-advantages * ratio.clamp(1 - low, 1 + high))
    frozen = ratio.detach()
    clipped = ((advantages > 0) & (frozen > 1 + high)) | ((advantages < 0) & (frozen < 1 - low))
    if dual is not None:
        negative = advantages < 0
        loss = loss.minimum(-advantages * dual).where(negative, loss)
        clipped = clipped | (negative & (frozen > dual))
    clipped = clipped | ((log_ratios.detach().abs() > MAX_LOG_RATIO) & (advantages != 0))
    return PolicyTerm(loss=loss, ratio=frozen, clipped=clipped)
