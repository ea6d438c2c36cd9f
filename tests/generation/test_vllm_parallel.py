# SPDX-License-Identifier: Apache-2.0
"""An engine of two processes, each with its half of every layer of a mixture."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlrun.generation.sampler import Sampler
from rlrun.generation.vllm import VLLMGeneration
from rlrun.interfaces import Precision
from rlrun.models.resolve import resolve_model
from rlrun.refit.probe import Probe
from rlrun.rendering.renderer import Renderer
from rlrun.types import GenerationRequest, Sampling
from tests.factories import config
from tests.generation.vllm_session import CONTEXT, inputs_for
from tests.learner.mixtures import qwen3_moe, saved


def test_two_processes_share_a_mixture_and_are_refitted(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="make vllm installs it")
    folder = tmp_path / "mixture"
    # vLLM's attention on a CPU wants heads of a multiple of 32.
    saved(qwen3_moe(head_dim=32), folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    renderer = Renderer(AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny")))
    inputs = inputs_for(model, renderer, tmp_path)
    inputs = replace(inputs, policy=replace(inputs.policy, model=str(folder)))
    settings = config("generation=vllm", "generation.tensor_parallel_size=2").generation
    assert isinstance(settings, VLLMGeneration)

    async def run() -> None:
        generator = await settings.start(inputs)
        try:
            probe = Probe(
                generator,
                Sampler(model, renderer, None).score,
                token_ids=[(5 * i + 3) % 40 + 4 for i in range(48)],
                max_tokens=CONTEXT,
                precision=Precision.FLOAT32,
            )
            for version in (0, 1):
                await generator.refit(version)
                difference = await probe.check(version)
                assert difference is not None and difference < 2e-4
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(1.02)
            (one,) = await generator.generate([GenerationRequest((5, 6, 7), 4, 0, Sampling(1.0))])
            assert [span.version for span in one.weight_versions] == [1]
        finally:
            await generator.close()

    asyncio.run(run())
