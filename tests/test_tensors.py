# SPDX-License-Identifier: Apache-2.0
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.tensors import (
    bounded_exp,
    effective_sample_fraction,
    k1,
    k2,
    k3,
    log_ratio,
    mean_share,
    segment_counts,
    segment_expand,
    segment_mean,
    segment_sum,
)

LENGTHS = st.lists(st.integers(0, 5), max_size=6)


def indices(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([i for i, n in enumerate(lengths) for _ in range(n)], dtype=torch.int64)


@settings(deadline=None)
@given(lengths=LENGTHS, seed=st.integers(0, 2**32 - 1))
def test_segments_equal_loops(lengths: list[int], seed: int) -> None:
    trajectory = indices(lengths)
    values = torch.randn(len(trajectory), generator=torch.Generator().manual_seed(seed))
    parts = [values[trajectory == i].tolist() for i in range(len(lengths))]
    sums = [sum(part) for part in parts]
    means = [sum(part) / len(part) if part else 0.0 for part in parts]
    n = len(lengths)
    assert segment_counts(trajectory, n).tolist() == lengths
    assert segment_sum(values, trajectory, n).tolist() == pytest.approx(sums, rel=1e-6, abs=1e-7)
    assert segment_mean(values, trajectory, n).tolist() == pytest.approx(means, rel=1e-6, abs=1e-7)
    expanded = segment_expand(torch.arange(float(n)), trajectory)
    assert expanded.tolist() == [float(i) for i in trajectory]


def test_a_segment_without_tokens_is_exactly_zero() -> None:
    values = torch.tensor([1e30, -1.0])
    trajectory = torch.tensor([1, 3])
    assert segment_sum(values, trajectory, 5)[[0, 2, 4]].tolist() == [0.0] * 3
    assert segment_mean(values, trajectory, 5)[[0, 2, 4]].tolist() == [0.0] * 3


def test_segment_gradients_equal_finite_differences() -> None:
    trajectory = indices([2, 0, 3])
    values = torch.randn(5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(5, dtype=torch.float64)

    def spread_means(values: torch.Tensor) -> torch.Tensor:
        means = segment_mean(values, trajectory, 3)
        return segment_sum(segment_expand(means, trajectory) * weights, trajectory, 3)

    assert torch.autograd.gradcheck(spread_means, (values,))


def test_sums_do_not_lose_small_terms() -> None:
    values = torch.full((200_000,), 0.1)
    total = float(values.double().sum())
    trajectory = torch.zeros(200_000, dtype=torch.int64)
    assert float(segment_sum(values, trajectory, 1)) == pytest.approx(total, rel=1e-7)
    assert float(mean_share(values, 1)) == pytest.approx(total, rel=1e-7)


def test_results_and_gradients_repeat_to_the_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(100_000, generator=generator).requires_grad_()
    trajectory = torch.randint(0, 50, (100_000,), generator=generator).sort().values

    def once() -> list[torch.Tensor]:
        means = segment_mean(values, trajectory, 50)
        loss = mean_share(segment_expand(means, trajectory) * values, 100_000)
        return [means, loss, *torch.autograd.grad(loss, values)]

    for first, second in zip(once(), once(), strict=True):
        assert torch.equal(first, second)


def test_share_of_nothing_is_zero_with_a_gradient() -> None:
    empty = torch.zeros(0, requires_grad=True)
    share = mean_share(empty, 0)
    (gradient,) = torch.autograd.grad(share, empty)
    assert share.item() == 0.0
    assert gradient.shape == (0,)


@pytest.mark.parametrize("x", [-math.inf, -1e4, -200.0, -21.0, 21.0, 89.0, 200.0, math.inf])
def test_bounded_exp_is_finite_with_a_gradient_of_zero_beyond(x: float) -> None:
    exponent = torch.tensor([x], requires_grad=True)
    result = bounded_exp(exponent)
    (gradient,) = torch.autograd.grad(result.sum(), exponent)
    assert result.item() == pytest.approx(math.exp(math.copysign(20.0, x)), rel=1e-6)
    assert gradient.item() == 0.0


def test_log_ratio_of_two_impossible_tokens_is_zero() -> None:
    impossible = torch.tensor([-math.inf])
    assert log_ratio(impossible, impossible).item() == 0.0
    assert log_ratio(impossible, torch.tensor([-1.0])).item() == -9999.0
    assert math.isnan(log_ratio(torch.tensor([math.nan]), impossible).item())


def test_kl_estimators_have_the_kl_as_their_mean() -> None:
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    log_r = (q / p).log()
    kl = float((p * (p / q).log()).sum())
    assert float((p * k1(log_r)).sum()) == pytest.approx(kl)
    assert float((p * k3(log_r)).sum()) == pytest.approx(kl)
    assert float((p * k2(log_r)).sum()) == pytest.approx(float((p * log_r**2).sum()) / 2)
    assert bool((k3(log_r) >= 0).all())


def test_k3_keeps_its_digits_near_zero() -> None:
    x = 1e-3
    exact = x**2 / 2 + x**3 / 6
    assert k3(torch.tensor([x])).item() == pytest.approx(exact, rel=2e-4)


@given(weights=st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_effective_sample_fraction_is_between_its_extremes(weights: list[float]) -> None:
    fraction = effective_sample_fraction(torch.tensor(weights, dtype=torch.float64))
    assert 0.0 <= fraction <= 1.0


def test_effective_sample_fraction_of_known_weights() -> None:
    assert effective_sample_fraction(torch.ones(7)) == 1.0
    assert effective_sample_fraction(torch.tensor([5.0, 0, 0, 0])) == pytest.approx(0.25)
    assert effective_sample_fraction(torch.tensor([3.0, 1.0])) == pytest.approx(16 / 20)
    assert effective_sample_fraction(torch.zeros(3)) == 0.0
    assert effective_sample_fraction(torch.zeros(0)) == 1.0


def test_importing_the_numerics_does_not_import_torch() -> None:
    modules = [
        "rlrun.tensors",
        "rlrun.rewards",
        "rlrun.advantage.group",
        "rlrun.correction.importance",
        "rlrun.loss.cispo",
        "rlrun.loss.dr_grpo",
        "rlrun.loss.grpo",
        "rlrun.loss.gspo",
        "rlrun.loss.reinforce",
    ]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
