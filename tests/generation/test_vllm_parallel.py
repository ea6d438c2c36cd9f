# SPDX-License-Identifier: Apache-2.0
"""An engine of two processes, each with its half of every layer of a mixture."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlrun.generation.sampler import Sampler
from rlrun.generation.vllm import VLLMGeneration
from rlrun.interfaces import Precision
from rlrun.models.resolve import resolve_model
from rlrun.process.temporary import ELSEWHERE
from rlrun.refit.probe import Probe
from rlrun.rendering.renderer import Renderer
from rlrun.types import GenerationRequest, Sampling
from tests.factories import config
from tests.generation.vllm_session import CONTEXT, inputs_for
from tests.learner.mixtures import qwen3_moe, saved


def test_two_processes_share_a_mixture_and_leave_no_memory_when_killed(
    tmp_path: Path,
) -> None:
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

    kept: list[Path] = []

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
            engine = generator.engines[0]
            assert engine._folder is not None
            lines = (engine._folder.path / ELSEWHERE).read_text().splitlines()
            kept.extend(Path(line.split(maxsplit=1)[1]) for line in lines)
            assert all(path.exists() for path in kept)
            # As by a machine without memory: nobody of them comes to clean up.
            workers = await engine.control(engine.llm.collective_rpc("rlrun_process"))
            for process in (parent_of(workers[0]), *workers):
                os.kill(process, signal.SIGKILL)
        finally:
            await generator.close()

    asyncio.run(run())
    assert any(path.name.startswith("psm_") for path in kept)
    assert not [path for path in kept if path.exists()]


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
