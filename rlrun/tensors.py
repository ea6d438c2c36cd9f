# SPDX-License-Identifier: Apache-2.0
"""Pure functions on flat token tensors: log-ratios, KL estimators, sums and means per trajectory.

Everything is [N] over trained tokens; ``trajectory`` says which trajectory a token belongs to. A
masked token is not in the tensors, so nothing here multiplies by a mask. Only tensor methods are
used: importing this module does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are held within this bound before exp: 4.9e8 and its square are within float32, and
a ratio beyond says only that the two distributions have nothing in common."""

LOGPROB_FLOOR = -1e4
"""Log-probs below (such as -inf, a token outside top-k) count as this: differences stay defined."""


def log_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``log(numerator / denominator)`` of two probabilities given as log-probs [N].

    Both are floored at LOGPROB_FLOOR, with no gradient below it. NaN stays NaN.
    """
    return numerator.clamp(min=LOGPROB_FLOOR) - denominator.clamp(min=LOGPROB_FLOOR)


def bounded_exp(exponent: Tensor) -> Tensor:
    """``exp(clamp(x, -MAX_LOG_RATIO, MAX_LOG_RATIO))``; the gradient is 0 beyond the bound.

    The clamp comes before the exp: exp first gives inf, and 0 * inf = NaN in the gradient.
    """
    return exponent.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def k1(log_r: Tensor) -> Tensor:
    """``-log r``: unbiased for KL(p || q) with r = q/p and samples of p; may be negative."""
    return -log_r


def k2(log_r: Tensor) -> Tensor:
    """``(log r)^2 / 2``: biased, low variance, at least 0."""
    return log_r.square() / 2


def k3(log_r: Tensor) -> Tensor:
    """``r - 1 - log r``: unbiased for KL(p || q) with r = q/p and samples of p; at least 0.

    The caller bounds log r. expm1 keeps the digits that ``exp(x) - 1`` loses for small x.
    """
    return log_r.expm1() - log_r


def mean_share(values: Tensor, total: int) -> Tensor:
    """``sum(values) / total``: this part's share of a mean over ``total`` items, a scalar.

    Accumulated in float64, so that shares add up to the same mean however the items were split.
    0 (with a gradient of 0) where there are no values; never NaN for finite values.
    """
    return values.double().sum().div(max(total, 1)).to(values.dtype)


def segment_counts(trajectory: Tensor, num_trajectories: int) -> Tensor:
    """Number of tokens of each trajectory, int64 [num_trajectories]."""
    ones = trajectory.new_ones(trajectory.shape)
    return trajectory.new_zeros(num_trajectories).index_add(0, trajectory, ones)


def segment_sum(values: Tensor, trajectory: Tensor, num_trajectories: int) -> Tensor:
    """Sum of ``values`` [N] per trajectory, [num_trajectories]; exactly 0 for one without tokens.

    Accumulated in float64 in token order. On CPU the order is fixed; on a GPU it is fixed if
    torch runs in deterministic mode, and otherwise changes the sum by float64 rounding at most.
    """
    wide = values.double()
    return wide.new_zeros(num_trajectories).index_add(0, trajectory, wide).to(values.dtype)


def segment_mean(values: Tensor, trajectory: Tensor, num_trajectories: int) -> Tensor:
    """Mean of ``values`` [N] per trajectory, [num_trajectories]; exactly 0 where there is none."""
    wide = values.double()
    counts = segment_counts(trajectory, num_trajectories).clamp(min=1)
    return (segment_sum(wide, trajectory, num_trajectories) / counts).to(values.dtype)


def segment_expand(per_trajectory: Tensor, trajectory: Tensor) -> Tensor:
    """Gives each token the value of its trajectory: [num_trajectories] to [N].

    By index_select, because the backward of indexing with brackets adds up in parallel on CPU, in
    no fixed order.
    """
    return per_trajectory.double().index_select(0, trajectory).to(per_trajectory.dtype)


def effective_sample_fraction(weights: Tensor) -> float:
    """``(sum w)^2 / (n sum w^2)`` in [0, 1]: which share of n samples the weights leave (Kish).

    1 for equal weights (and for n = 0: nothing was lost), 1/n if one sample has all the weight,
    0 if all weights are 0.
    """
    n = weights.numel()
    if n == 0:
        return 1.0
    wide = weights.double()
    squares = float(wide.square().sum())
    return min(float(wide.sum()) ** 2 / (n * squares), 1.0) if squares > 0 else 0.0
