# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that a processor is slow at is said aloud."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rlrun.batch import Sample
from rlrun.interfaces import Precision
from rlrun.learner.bfloat16 import RoundedLinear, precision_notice
from rlrun.learner.learner import Learner

MakeLearner = Callable[..., Learner]

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("capability", "precision", "device", "told"),
    [
        ("AVX2", Precision.BFLOAT16, CPU, True),
        ("AVX2", Precision.FLOAT32, CPU, False),
        ("AVX2", Precision.BFLOAT16, GPU, False),
        ("AVX512", Precision.BFLOAT16, CPU, False),
        ("DEFAULT", Precision.BFLOAT16, CPU, False),
    ],
)
def test_bfloat16_without_instructions_is_told(
    capability: str,
    precision: Precision,
    device: torch.device,
    told: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    notice = precision_notice(precision, device)
    assert (notice is not None) == told
    assert notice is None or "policy.precision=float32" in notice


def autocast_loss(learner: Learner, samples: list[Sample]) -> torch.Tensor:
    learner.update([samples], step=1)
    return torch.cat([p.grad.flatten() for p in learner.model.parameters() if p.grad is not None])


def test_rounded_products_are_bfloat16s(
    make_learner: MakeLearner, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probs and gradient agree with torch's own bfloat16 as far as its accumulation allows."""
    settings = ("policy.precision=bfloat16", "policy.optimizer.lr=0", "policy.max_grad_norm=null")
    found = {}
    for capability in ("AVX2", "AVX512"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda c=capability: c)
        learner = make_learner(*settings)
        kinds = {type(m) for m in learner.model.modules() if isinstance(m, torch.nn.Linear)}
        assert kinds == {RoundedLinear if capability == "AVX2" else torch.nn.Linear}
        logprobs = np.concatenate(learner.logprobs(samples).logprobs)
        found[capability] = torch.from_numpy(logprobs), autocast_loss(learner, samples)
    exact = make_learner(*settings[1:], "policy.precision=float32")
    reference = np.concatenate(exact.logprobs(samples).logprobs), autocast_loss(exact, samples)
    for ours, theirs, full in zip(found["AVX2"], found["AVX512"], reference, strict=True):
        full = torch.as_tensor(full)
        rounding = (theirs - full).norm()
        assert rounding > 1e-4 * full.norm()
        assert (ours - theirs).norm() < 2 * rounding
        assert 0.3 * rounding < (ours - full).norm() < 2 * rounding


def test_a_rounded_layer_rounds_operands_result_and_gradients() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(7, 5)
    layer.__class__ = RoundedLinear
    inputs = torch.randn(3, 7, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(inputs)
    assert output.dtype == torch.bfloat16
    x, w, b = (v.detach().bfloat16().double() for v in (inputs, layer.weight, layer.bias))
    torch.testing.assert_close(output.double(), x @ w.T + b, rtol=2**-8, atol=0)
    direction = torch.randn(3, 5).bfloat16()
    output.backward(direction)
    for gradient, expected in (
        (inputs.grad, direction.double() @ w),
        (layer.weight.grad, direction.double().T @ x),
    ):
        assert gradient is not None
        torch.testing.assert_close(gradient.double(), expected, rtol=2**-8, atol=1e-6)
        assert torch.equal(gradient, gradient.bfloat16().float())
    assert torch.equal(layer(inputs), torch.nn.functional.linear(inputs, layer.weight, layer.bias))
