# SPDX-License-Identifier: Apache-2.0
"""A scan in segments is the scan of the whole sequence, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.nemotron_h import modeling_nemotron_h

from rlrun.learner.scan import SCAN, SegmentedScan, use_segments
from tests.generation.hybrid import tiny_hybrid

BATCH, HEADS, HEAD, STATE, GROUPS, CHUNK = 2, 4, 3, 5, 2, 8


def inputs(length: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    return {
        "hidden_states": draw(BATCH, length, HEADS, HEAD),
        "dt": draw(BATCH, length, HEADS),
        "A": (-draw(HEADS).exp()).detach().requires_grad_(),
        "B": draw(BATCH, length, GROUPS, STATE),
        "C": draw(BATCH, length, GROUPS, STATE),
        "D": draw(HEADS),
        "dt_bias": draw(HEADS),
    }


def plain() -> object:
    scan = modeling_nemotron_h.__dict__[SCAN]
    return scan.scan if isinstance(scan, SegmentedScan) else scan


@pytest.mark.parametrize("length", [7, 16, 17, 40, 61])
@pytest.mark.parametrize("with_state", [False, True])
def test_segments_give_the_same_values_state_and_gradients(length: int, with_state: bool) -> None:
    state = torch.randn(BATCH, HEADS, HEAD, STATE) if with_state else None
    found = []
    for scan in (plain(), SegmentedScan(plain(), segment_tokens=20)):
        tensors = inputs(length)
        output, last = scan(
            **tensors,
            chunk_size=CHUNK,
            dt_softplus=True,
            initial_states=state,
            return_final_states=True,
        )
        (output.square().sum() + last.sum()).backward()
        found.append((output, last, [tensor.grad for tensor in tensors.values()]))
    (output, last, gradients), (other, other_last, other_gradients) = found
    torch.testing.assert_close(other, output, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(other_last, last, rtol=1e-4, atol=1e-4)
    for gradient, expected in zip(other_gradients, gradients, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-3)


def test_a_hybrid_computes_the_same_in_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_hybrid(50)
    model.train(False)
    ids = torch.arange(61)[None] * 7 % 50
    monkeypatch.setattr(modeling_nemotron_h, SCAN, plain())
    whole = model(input_ids=ids, use_cache=False).logits
    assert use_segments(model)
    monkeypatch.setattr(modeling_nemotron_h.__dict__[SCAN], "segment_tokens", 16)
    torch.testing.assert_close(
        model(input_ids=ids, use_cache=False).logits, whole, rtol=1e-4, atol=1e-4
    )


def test_a_model_without_state_space_layers_is_left_alone() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(vocab_size=8, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
    assert not use_segments(Qwen3ForCausalLM(config))
