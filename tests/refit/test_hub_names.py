# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlrun.learner.model import saved_tensors
from rlrun.models.resolve import resolve_model
from rlrun.refit.hub_names import with_hub_names
from tests.learner.mixtures import qwen3_moe, saved


@pytest.fixture(params=["rlrun:tiny", "rlrun:tiny-hybrid", "mixture"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> PreTrainedModel:
    if request.param == "mixture":
        folder = str(tmp_path / "mixture")
        saved(qwen3_moe(), Path(folder))
    else:
        folder = resolve_model(request.param)
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return loaded


def test_weights_are_named_and_shaped_as_in_files(model: PreTrainedModel, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "saved")
    files = load_file(tmp_path / "saved" / "model.safetensors")
    found = dict(with_hub_names(model, lambda: iter(saved_tensors(model).items()))())
    assert found.keys() == files.keys()
    for name, tensor in files.items():
        assert torch.equal(found[name], tensor), name
        assert found[name].is_contiguous()
