# SPDX-License-Identifier: Apache-2.0
"""The embedded model and requests for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from rlrun.data.generators.addition import addition_pairs, question
from rlrun.models.resolve import resolve_model
from rlrun.rendering.renderer import Renderer
from rlrun.types import GenerationRequest, Sampling

Requests = Callable[..., list[GenerationRequest]]


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    return Renderer(AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny")))


@pytest.fixture
def model() -> PreTrainedModel:
    torch.set_num_threads(1)
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(resolve_model("rlrun:tiny"))
    return loaded


@pytest.fixture(scope="session")
def requests_for(renderer: Renderer) -> Requests:
    def make(
        prompts: int,
        samples: int = 1,
        sampling: Sampling | None = None,
        max_new_tokens: int = 28,
        seed: int = 0,
    ) -> list[GenerationRequest]:
        """Questions of one and two digits, so that prompts differ in length."""
        rendered = [
            renderer.prompt_ids([{"role": "user", "content": question(a, b)}])
            for a, b in addition_pairs("validation")[:prompts]
        ]
        return [
            GenerationRequest(ids, max_new_tokens, seed + i, sampling or Sampling(1.0))
            for i, ids in enumerate(ids for ids in rendered for _ in range(samples))
        ]

    return make
