# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that a processor is slow at is said aloud."""

from __future__ import annotations

import pytest
import torch

from rlrun.interfaces import Precision
from rlrun.learner.model import precision_notice

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
