# SPDX-License-Identifier: Apache-2.0
"""Refits of a live engine: versions, running requests, and what the probe finds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlrun.derived import sampling_of
from rlrun.errors import GenerationError, TrainingError
from rlrun.generation.sampler import Sampler
from rlrun.interfaces import Precision, Weights
from rlrun.learner.learner import Learner
from rlrun.learner.model import saved_tensors
from rlrun.refit.hub_names import with_hub_names
from rlrun.refit.probe import Probe
from rlrun.types import Completion, GenerationRequest, Sampling
from tests.factories import config
from tests.generation.vllm_session import CONTEXT, VLLMSession

if TYPE_CHECKING:
    from rlrun.generation.vllm_generator import VLLMGenerator


def change(model: PreTrainedModel, seed: int, scale: float = 0.02) -> None:
    """Moves every weight, as an update does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)


def probe_of(vllm: VLLMSession, generator: VLLMGenerator | None = None) -> Probe:
    sampler = Sampler(vllm.model, vllm.inputs.renderer, None)
    return Probe(
        generator or vllm.generator,
        sampler.score,
        token_ids=[(5 * i + 3) % 40 + 4 for i in range(29)],
        max_tokens=CONTEXT,
        precision=Precision.FLOAT32,
    )


def requests(count: int, tokens: int = 200) -> list[GenerationRequest]:
    return [GenerationRequest((5, 6, 7), tokens, seed, Sampling(2.0)) for seed in range(count)]


@pytest.fixture(autouse=True)
def forced_lengths(vllm: VLLMSession) -> Iterator[None]:
    with vllm.endless():
        yield


async def refit_meanwhile(
    vllm: VLLMSession, generator: VLLMGenerator, version: int
) -> list[Completion]:
    """Completions of which some were running when the weights changed."""
    task = asyncio.create_task(generator.generate(requests(48)))
    await vllm.begun()
    await generator.refit(version)
    return await task


def covers(completion: Completion) -> bool:
    ends = [0, *(span.end for span in completion.weight_versions)]
    starts = [*(span.start for span in completion.weight_versions), len(completion.token_ids)]
    return ends == starts


def test_a_refit_brings_every_weight_and_its_version(vllm: VLLMSession) -> None:
    for version in (3, 4):
        change(vllm.model, version)
        vllm.refit(version)
        assert vllm.run(probe_of(vllm).check(version)) < 2e-4
        (completion,) = vllm.run(vllm.generator.generate(requests(1, 5)))
        assert [span.version for span in completion.weight_versions] == [version]


def test_running_requests_go_on_with_the_new_weights(vllm: VLLMSession) -> None:
    vllm.refit(10)
    change(vllm.model, 1)
    completions = vllm.run(refit_meanwhile(vllm, vllm.generator, 11))
    assert all(map(covers, completions))
    versions = [[span.version for span in c.weight_versions] for c in completions]
    assert [10, 11] in versions
    assert {v for spans in versions for v in spans} == {10, 11}
    vllm.run(probe_of(vllm).check(11))


@pytest.mark.parametrize("recompute", [True, False])
def test_recomputing_makes_later_log_probs_those_of_the_new_weights_alone(
    vllm: VLLMSession, recompute: bool
) -> None:
    vllm.refit(30)
    change(vllm.model, 3, scale=0.05)
    generator = vllm.with_settings(recompute_kv_cache=recompute)
    completions = vllm.run(refit_meanwhile(vllm, generator, 31))
    across = [c for c in completions if len(c.weight_versions) == 2]
    assert across
    differences = []
    for completion in across:
        ids = torch.tensor([[5, 6, 7, *completion.token_ids]])
        with torch.no_grad():
            logits = vllm.model(input_ids=ids).logits[0, 2:-1] / 2.0
        learner = logits.log_softmax(-1).gather(-1, ids[0, 3:, None])[:, 0]
        start = completion.weight_versions[1].start
        found = torch.tensor(completion.logprobs[start:])
        differences.append((found - learner[start:]).abs().max().item())
    assert (max(differences) < 1e-3) == recompute


def test_a_cancelled_refit_is_finished_all_the_same(vllm: VLLMSession) -> None:
    change(vllm.model, 4)

    async def run() -> None:
        task = asyncio.create_task(vllm.generator.refit(40))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    vllm.run(run())
    vllm.run(probe_of(vllm).check(40))


def test_refits_and_cancelled_requests_at_once_leave_nothing_behind(vllm: VLLMSession) -> None:
    async def run() -> None:
        for version in range(50, 54):
            tasks = [
                asyncio.create_task(vllm.generator.generate(requests(6, 120))) for _ in range(4)
            ]
            await vllm.begun()
            refit = asyncio.create_task(vllm.generator.refit(version))
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await refit
            assert [isinstance(result, list) for result in results] == [False, True] * 2

    vllm.run(run())
    assert vllm.generator.engines[0].outstanding == 0
    assert vllm.generator.engines[0].llm.get_num_unfinished_requests() == 0
    vllm.run(probe_of(vllm).check(53))


def test_the_probe_takes_milliseconds(vllm: VLLMSession) -> None:
    probe = probe_of(vllm)

    def seconds() -> float:
        started = time.perf_counter()
        vllm.run(probe.check(0))
        return time.perf_counter() - started

    # About 0.01 where nothing else runs, which is to come once.
    assert any(seconds() < 0.1 for _ in range(200))


def with_weights(vllm: VLLMSession, weights: dict[str, Tensor] | Weights) -> VLLMGenerator:
    """A generator on the session's engine that is given other weights than the learner's."""
    from rlrun.refit.cpu import SharedMemoryTransfer

    def read() -> Iterator[tuple[str, Tensor]]:
        return iter(weights.items()) if isinstance(weights, dict) else weights()

    generator = vllm.with_settings()
    generator.transfer = SharedMemoryTransfer(read)
    return generator


def test_a_refit_brings_an_adapter_as_part_of_the_weights(vllm: VLLMSession) -> None:
    pytest.importorskip("peft")
    run = config("policy.lora.enabled=true", "policy.lora.rank=4")
    learner = Learner(run.policy, run.loss, sampling_of(run, training=True), torch.device("cpu"))
    generator = with_weights(vllm, with_hub_names(learner.model, learner.weights))
    probe = Probe(
        generator,
        learner.score,
        token_ids=[(13 * i + 1) % 40 + 4 for i in range(48)],
        max_tokens=CONTEXT,
        precision=Precision.FLOAT32,
    )
    vllm.run(generator.refit(90))
    assert vllm.run(probe.check(90)) < 2e-4
    assert learner.adapter is not None
    with torch.no_grad():
        for name, parameter in learner.adapter.parameters().items():
            if ".lora_B." in name:
                parameter.normal_(std=0.02)
    with pytest.raises(TrainingError, match="engine 0 of 1"):
        vllm.run(probe.check(90))
    vllm.run(generator.refit(91))
    assert vllm.run(probe.check(91)) < 2e-4
    vllm.refit(92)


DROPPED = ("embed_tokens.weight", "q_proj.weight", "down_proj.weight", "model.norm.weight")


@pytest.mark.parametrize("dropped", DROPPED)
def test_a_refit_that_drops_a_tensor_is_caught(vllm: VLLMSession, dropped: str) -> None:
    vllm.refit(60)
    change(vllm.model, 5)
    weights = saved_tensors(vllm.model)
    name = next(name for name in weights if name.endswith(dropped))
    del weights[name]
    generator = with_weights(vllm, weights)
    with pytest.raises((TrainingError, GenerationError), match="engine 0 of 1"):
        vllm.run(generator.refit(61))
        vllm.run(probe_of(vllm, generator).check(61))
    vllm.refit(62)
    vllm.run(probe_of(vllm).check(62))


def test_a_refit_that_brings_the_previous_version_is_caught(vllm: VLLMSession) -> None:
    previous = {name: value.clone() for name, value in saved_tensors(vllm.model).items()}
    # As little as an update at an ordinary learning rate.
    change(vllm.model, 6, scale=3e-4)
    generator = with_weights(vllm, previous)
    vllm.run(generator.refit(70))
    with pytest.raises(TrainingError, match=r"refit to weight version 70: engine 0 of 1 .* nats"):
        vllm.run(probe_of(vllm, generator).check(70))


def test_a_prefix_cache_that_outlives_a_refit_is_caught(vllm: VLLMSession) -> None:
    class OneSalt(type(vllm.generator)):  # type: ignore[misc]  # vLLM is imported by the fixture
        """Forgets that prefixes must not be shared across refits."""

        salt = "always"

    generator = vllm.of_class(OneSalt)
    probe = probe_of(vllm, generator)
    vllm.run(generator.refit(80))
    vllm.run(probe.check(80))
    change(vllm.model, 7)
    vllm.run(generator.refit(81))
    with pytest.raises(TrainingError, match="engine 0 of 1"):
        vllm.run(probe.check(81))
    vllm.refit(82)
    vllm.run(probe_of(vllm).check(82))


def test_weights_that_diverged_are_no_difference_of_an_engine(vllm: VLLMSession) -> None:
    def nan(token_ids: Sequence[int]) -> list[float]:
        return [float("nan")] * (len(token_ids) - 1)

    probe = Probe(
        vllm.generator, nan, token_ids=[5, 6, 7], max_tokens=9, precision=Precision.BFLOAT16
    )
    assert probe.token_ids == (5, 6, 7, 5, 6, 7, 5, 6, 7)
    with pytest.raises(TrainingError, match="not finite: the weights have diverged"):
        vllm.run(probe.check(0))
