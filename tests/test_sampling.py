# SPDX-License-Identifier: Apache-2.0
"""What the filters keep, and that draws follow the distribution that is left."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.sampling import draw_tokens, process_logits, token_logprobs
from rlrun.types import Sampling

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 0.5, -3.0]])


def expected_probabilities(logits: list[float], sampling: Sampling) -> list[float]:
    """The definition in plain floating point, token by token, for logits without ties."""
    weights = [math.exp(x / (sampling.temperature or 1.0)) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: -weights[i])
    if sampling.temperature > 0:
        order = order[: sampling.top_k]
        total, kept, reached = sum(weights[i] for i in order), [], 0.0
        for i in order:
            kept.append(i)
            reached += weights[i] / total
            if reached >= sampling.top_p:
                break
        order = kept
    total = sum(weights[i] for i in order)
    return [weights[i] / total if i in order else 0.0 for i in range(len(logits))]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(0.7),
        Sampling(1.0, top_p=0.9),
        Sampling(1.0, top_k=3),
        Sampling(0.7, top_p=0.8, top_k=4),
        Sampling(2.0, top_p=0.5, top_k=2),
        Sampling(1.0, top_p=1e-6),
        Sampling(0.0, top_p=0.5, top_k=1),
    ],
)
def test_filters_keep_what_their_definition_keeps(sampling: Sampling) -> None:
    found = process_logits(LOGITS, sampling).softmax(-1)[0]
    expected = expected_probabilities(LOGITS[0].tolist(), sampling)
    torch.testing.assert_close(found, torch.tensor(expected))
    assert [p == 0 for p in found.tolist()] == [p == 0 for p in expected]


def test_logprobs_are_renormalized_over_what_is_kept() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    kept = process_logits(logits, Sampling(1.0, top_k=2))
    plain = process_logits(logits, Sampling(1.0))
    token = torch.tensor([0])
    ratio = torch.exp(token_logprobs(plain, token) - token_logprobs(kept, token))
    assert ratio.item() == pytest.approx(0.909969, abs=1e-6)
    assert token_logprobs(kept, torch.tensor([2])).item() == -math.inf


def test_logits_are_neither_changed_nor_cut_from_the_graph() -> None:
    logits = LOGITS.clone().requires_grad_()
    processed = process_logits(logits, Sampling(0.7, top_p=0.9, top_k=3))
    torch.autograd.backward(token_logprobs(processed, torch.tensor([0])).sum())
    assert torch.equal(logits, LOGITS)
    assert logits.grad is not None and torch.isfinite(logits.grad).all()
    assert logits.grad[0, 0] > 0 and logits.grad[0, 5] == 0


def test_bfloat16_logits_give_float32() -> None:
    assert process_logits(LOGITS.bfloat16(), Sampling(1.0)).dtype is torch.float32


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=40),
    st.floats(0.05, 1, exclude_min=True),
    st.integers(1, 40),
    st.floats(0.1, 3),
    st.floats(0, 1, exclude_max=True),
)
def test_a_drawn_token_is_always_a_kept_one(
    logits: list[float], top_p: float, top_k: int, temperature: float, uniform: float
) -> None:
    processed = process_logits(torch.tensor([logits]), Sampling(temperature, top_p, top_k))
    token = draw_tokens(processed, torch.tensor([uniform], dtype=torch.float64))
    assert math.isfinite(token_logprobs(processed, token).item())


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_p=0.95, top_k=5)])
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    count = 20_000
    # One request's first number each, as the sampler takes them.
    uniforms = [np.random.Generator(np.random.Philox(key=seed)).random() for seed in range(count)]
    processed = process_logits(LOGITS, sampling).expand(count, -1)
    drawn = draw_tokens(processed, torch.tensor(uniforms, dtype=torch.float64))
    observed = drawn.bincount(minlength=6).double()
    expected = torch.tensor(expected_probabilities(LOGITS[0].tolist(), sampling)) * count
    kept = expected > 0
    assert observed[~kept].sum() == 0
    chi_square = ((observed - expected)[kept] ** 2 / expected[kept]).sum().item()
    assert chi_square < 25.7  # exceeded once in 10,000 with 5 degrees of freedom


def test_a_draw_depends_on_its_own_row_only() -> None:
    logits = torch.randn(64, 300, generator=torch.Generator().manual_seed(0))
    uniforms = torch.rand(64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = draw_tokens(logits, uniforms)
    alone = [draw_tokens(logits[i : i + 1], uniforms[i : i + 1]).item() for i in range(64)]
    assert together.tolist() == alone


@pytest.mark.parametrize("size", [1, 5, 511, 512, 513, 2000])
def test_a_draw_is_where_the_cumulative_distribution_passes_its_number(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(50, size, generator=generator) * 3
    logits[:, 1::3] = -torch.inf
    uniforms = torch.rand(50, dtype=torch.float64, generator=generator)
    uniforms[:3] = torch.tensor([0.0, 1 - 2**-53, 0.5])
    drawn = draw_tokens(logits, uniforms)
    sums = logits.double().softmax(-1).cumsum(-1)
    below = torch.where(drawn > 0, sums.gather(-1, (drawn - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    assert (below - 1e-6 <= uniforms).all()
    assert (uniforms <= sums.gather(-1, drawn[:, None])[:, 0] + 1e-6).all()
    assert logits.gather(-1, drawn[:, None]).isfinite().all()


def test_logits_that_are_not_finite_draw_a_token_of_the_vocabulary() -> None:
    drawn = draw_tokens(torch.full((2, 700), torch.nan), torch.tensor([0.1, 0.9]).double())
    assert (drawn < 700).all()
