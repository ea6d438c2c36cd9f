# SPDX-License-Identifier: Apache-2.0
"""Failures that other trainers had with losses, each with numbers that were computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rlrun.advantage.group import Baseline, GroupAdvantage
from tests.loss.batches import flat, run
from tests.reference_float64 import Batch, Options, Token


def with_ratio(ratio: float, advantage: float, *, weight: float = 1.0) -> Token:
    return Token(math.log(ratio) - 2.0, -2.0, -2.0, -2.0, advantage, weight)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.25, 1.0, -1.25, -1.25),  # above 1 + 0.2 and below 1 + 0.28: not clipped
        (1.30, 1.0, -1.28, 0.0),
        (0.50, 1.0, -0.50, -0.50),  # a worse chance for a good answer is never clipped
        (0.79, -1.0, 0.80, 0.0),
        (0.81, -1.0, 0.81, 0.81),
        (1.50, -1.0, 1.50, 1.50),  # a better chance for a bad answer up to the dual clip
        (5.00, -1.0, 3.00, 0.0),
        (5.00, -2.0, 6.00, 0.0),
        (5.00, 1.0, -1.28, 0.0),  # the dual clip is for bad answers alone
    ],
)
def test_each_bound_is_on_its_own_side(
    ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    options = Options("grpo", clip_min=0.2, clip_max=0.28, clip_c=3.0)
    batch = [[with_ratio(ratio, advantage)]]
    output, found = run(options, flat(batch))
    assert float(output.loss) == pytest.approx(loss, rel=1e-6)
    assert found.tolist() == pytest.approx([gradient], rel=1e-6)
    assert float(output.metrics["train/ratio_clipped_fraction"]) == float(gradient == 0.0)


def test_the_ratio_of_a_sequence_is_the_mean_over_its_own_tokens() -> None:
    """Not the sum, and not over the length of the longest."""
    batch: Batch = [
        [with_ratio(math.exp(gap), 1.0) for gap in (0.1, 0.3)],
        [with_ratio(math.exp(gap), -1.0) for gap in (0.1, 0.1, 0.1, 0.5)],
    ]
    options = Options("gspo", level="sequence", clip_min=0.5, clip_max=0.5)
    output, gradient = run(options, flat(batch))
    ratio = math.exp(0.2)
    # One is as good as the other is bad, and their ratios are the same.
    assert float(output.loss) == pytest.approx(0.0, abs=1e-6)
    expected = [-ratio / 2 / 2] * 2 + [ratio / 4 / 2] * 4
    assert gradient.tolist() == pytest.approx(expected, rel=1e-5)


def test_an_importance_weight_is_a_factor_and_none_of_the_penalty() -> None:
    token = replace(with_ratio(1.1, -1.0, weight=0.5), ref=-3.0)
    options = Options("grpo", kl_penalty=0.1, kl_type="k1", kl_output_clamp=None)
    output, gradient = run(options, flat([[token]]))
    kl = token.logprob - token.ref
    assert float(output.loss) == pytest.approx(0.5 * 1.1 + 0.1 * kl, rel=1e-5)
    # That of k1 by itself, 1, and that of the sampling.
    assert gradient.tolist() == pytest.approx([0.5 * 1.1 + 0.1 * (1 + kl)], rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "above", "below"),
    [
        ("k1", 1.0, -1.0),
        ("k2", 0.5, 0.5),
        ("k3", math.exp(-1) - 1 + 1, math.exp(1) - 1 - 1),
    ],
)
def test_the_estimators_have_the_policy_first(kind: str, above: float, below: float) -> None:
    """``above``: the policy gives the token e times the chance that the reference gives it."""
    for ref, expected in ((-3.0, above), (-1.0, below)):
        batch: Batch = [[Token(-2.0, -2.0, -2.0, ref, 0.0, 1.0)]]
        options = Options("grpo", kl_penalty=1.0, kl_type=kind, kl_output_clamp=None)
        output, _ = run(options, flat(batch))
        assert float(output.loss) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("ref", [-3.0, -1.0])
def test_the_penalty_pulls_towards_the_reference(ref: float) -> None:
    """Exactly by the log-ratio: e^x - 1 - x from the sampling, 1 - e^x from k3 itself."""
    batch: Batch = [[Token(-2.0, -2.0, -2.0, ref, 0.0, 1.0)]]
    _, gradient = run(Options("grpo", kl_penalty=1.0, kl_output_clamp=None), flat(batch))
    assert gradient.tolist() == pytest.approx([-2.0 - ref], rel=1e-5)


def test_one_outlier_among_equal_others_has_an_advantage_of_ordinary_size() -> None:
    """From E[x^2] - E[x]^2 in float32 the others' standard deviation would be 5e-4, and A -2075."""
    reward = float(torch.tensor(0.95))
    group: list[float | None] = [0.0, *[reward] * 7]
    settings = GroupAdvantage(
        baseline=Baseline.LEAVE_ONE_OUT, normalize=True, clip_low=None, clip_high=None
    )
    (found,) = settings([group])
    # Mean 7/8 of the reward, so a sample std of reward / sqrt(8).
    assert found[0] == pytest.approx(-math.sqrt(8), rel=1e-4)
    assert found[1:] == pytest.approx([found[1]] * 7) and 0 < found[1] < 1


def test_the_mean_over_sequences_counts_each_once_however_long() -> None:
    batch: Batch = [[with_ratio(1.0, 1.0)], [with_ratio(1.0, -1.0)] * 9]
    by_token, _ = run(Options("grpo"), flat(batch))
    by_sequence, gradient = run(Options("grpo", level="sequence"), flat(batch))
    assert float(by_token.loss) == pytest.approx(0.8)
    assert float(by_sequence.loss) == pytest.approx(0.0, abs=1e-7)
    assert gradient.tolist() == pytest.approx([-0.5, *[0.5 / 9] * 9])


@pytest.mark.parametrize("kind", ["grpo", "gspo", "cispo", "reinforce", "dr_grpo"])
def test_on_policy_the_loss_of_a_centred_group_has_a_gradient_though_it_is_zero(kind: str) -> None:
    """A loss of 0 says nothing: what is learnt is in the gradient."""
    batch: Batch = [[with_ratio(1.0, 1.0)] * 2, [with_ratio(1.0, -1.0)] * 2]
    options = Options(kind, level="sequence" if kind == "gspo" else "token", normalizer=2)
    output, gradient = run(options, flat(batch))
    if kind not in ("cispo", "reinforce"):
        assert float(output.loss) == 0.0
    assert gradient.tolist() == pytest.approx([-0.25, -0.25, 0.25, 0.25])
