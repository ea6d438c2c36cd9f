# SPDX-License-Identifier: Apache-2.0
"""The attention that copies nothing computes what transformers' own does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from rlrun.learner.attention import NAME, attends_by_sequence, use_attention
from rlrun.learner.model import check_packing, hidden_states
from rlrun.learner.rows import TokenRows

CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def new_model(window: int | None = None) -> PreTrainedModel:
    torch.manual_seed(0)
    config: PreTrainedConfig = MistralConfig(**SHAPE, sliding_window=window)
    if window is None:
        config = Qwen3Config(**SHAPE, head_dim=8)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    return model


@torch.no_grad()
def decoded(model: PreTrainedModel) -> torch.Tensor:
    """Logits of a left-padded prompt and of three tokens behind it, with a cache."""
    cache, mask = DynamicCache(config=model.config), torch.ones(2, 6, dtype=torch.int64)
    mask[1, :2] = 0
    tokens, logits = torch.arange(12).view(2, 6), []
    for _ in range(4):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        output = model(
            input_ids=tokens, attention_mask=mask, position_ids=positions, past_key_values=cache
        )
        logits.append(output.logits[:, -1])
        tokens = tokens[:, :1] + 1
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], -1)
    return torch.stack(logits)


@pytest.mark.parametrize("window", [None, 4])
def test_decoding_with_padding_and_shared_heads_gives_the_same_logits(window: int | None) -> None:
    model = new_model(window)
    expected = decoded(model)
    use_attention(model)
    assert model.config._attn_implementation == NAME
    torch.testing.assert_close(decoded(model), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
def test_packed_sequences_are_what_they_are_alone(window: int | None) -> None:
    model = new_model(window)
    use_attention(model)
    assert attends_by_sequence(model) == (window is None)
    sequences = [list(range(1, 10)), [5, 6], list(range(20, 31))]
    masks = [[False] + [True] * (len(sequence) - 1) for sequence in sequences]
    check_packing(model, "a model")
    with torch.no_grad():
        packed = hidden_states(model, TokenRows.packed(sequences, masks, CPU))[0]
        padded = hidden_states(model, TokenRows.padded(sequences, masks, CPU))
        alone = [model.model(torch.tensor([sequence]))[0][0] for sequence in sequences]
    torch.testing.assert_close(packed, torch.cat(alone), atol=1e-5, rtol=1e-5)
    for row, expected in zip(padded, alone, strict=True):
        torch.testing.assert_close(row[: len(expected)], expected, atol=1e-5, rtol=1e-5)


def test_a_saved_model_names_no_attention_of_ours(tmp_path: Path) -> None:
    model = new_model()
    use_attention(model)
    model.save_pretrained(tmp_path)
    assert NAME not in (tmp_path / "config.json").read_text()
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"
