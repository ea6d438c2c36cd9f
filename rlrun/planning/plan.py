# SPDX-License-Identifier: Apache-2.0
"""The plan of a run: what computes where, what it needs there, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlrun.cluster.ray import RayCluster
from rlrun.config.schema import RunConfig
from rlrun.generation.vllm import VLLMGeneration
from rlrun.generation.vllm_args import COLOCATED_MEMORY
from rlrun.grpo.async_ import AsyncGRPO
from rlrun.interfaces import Precision
from rlrun.planning.kept import Kept, kept_bytes
from rlrun.planning.memory import Engine, Learner, Part, learner_parts, sequences_that_fit
from rlrun.planning.shape import Shape
from rlrun.planning.speed import Step

if TYPE_CHECKING:
    from transformers import PretrainedConfig

VLLM_MEMORY = 0.9
"""Share of a GPU that vLLM takes unless generation.vllm_kwargs says otherwise."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Who computes where.

    Attributes:
        ranks: Of the learner.
        engines: Of vLLM; 0 where transformers samples.
        gpus_per_engine: Of each.
        colocated: Ranks and engines share GPUs.
    """

    ranks: int
    engines: int
    gpus_per_engine: int
    colocated: bool

    @property
    def gpus(self) -> int:
        """GPUs in all, if it runs on GPUs."""
        engines = self.engines * self.gpus_per_engine
        return max(self.ranks, engines) if self.colocated else self.ranks + engines


def layout_of(config: RunConfig, gpus_here: int) -> Layout:
    """Who computes where; ``gpus_here`` decides whether a single GPU is shared."""
    generation, cluster = config.generation, config.cluster
    tensor_parallel = (
        generation.tensor_parallel_size if isinstance(generation, VLLMGeneration) else 1
    )
    if isinstance(cluster, RayCluster):
        return Layout(
            cluster.num_learner_ranks, cluster.num_engines, tensor_parallel, cluster.colocated
        )
    if not isinstance(generation, VLLMGeneration):
        return Layout(1, 0, 1, True)
    needed = generation.num_engines * tensor_parallel
    shared = gpus_here <= needed if gpus_here else not config.grpo.concurrent
    return Layout(1, generation.num_engines, tensor_parallel, shared)


def learner_of(config: RunConfig, layout: Layout) -> Learner:
    """How the policy is trained."""
    policy, cluster = config.policy, config.cluster
    on_gpus = isinstance(cluster, RayCluster) and cluster.gpus_per_node > 0
    return Learner(
        ranks=layout.ranks,
        offloaded=policy.fsdp.cpu_offload and layout.ranks > 1 and on_gpus,
        half=policy.precision is Precision.BFLOAT16,
        checkpointing=policy.activation_checkpointing,
        reference=config.loss.reference_policy_kl_penalty > 0 and not policy.lora.enabled,
        microbatch_tokens=policy.train_micro_batch_tokens,
        chunk_tokens=policy.logprob_chunk_tokens,
    )


def kept_of(config: RunConfig, model: PretrainedConfig, learner: Learner) -> Kept:
    """What a full microbatch keeps: as many of the longest trajectories as go in."""
    length = config.policy.max_total_sequence_length
    rows = max(1, config.policy.train_micro_batch_tokens // length)
    return kept_bytes(model, rows, length, half=learner.half, cast_weights=learner.ranks > 1)


def learner_memory(
    config: RunConfig, model: PretrainedConfig, shape: Shape, layout: Layout
) -> list[Part]:
    """What a learner rank needs at the worst moment of a step, by part."""
    learner = learner_of(config, layout)
    return learner_parts(shape, learner, kept_of(config, model, learner))


def in_flight(config: RunConfig) -> int:
    """Trajectories that are sampled at once."""
    grpo = config.grpo
    batches = grpo.in_flight_batches if isinstance(grpo, AsyncGRPO) else 1
    return batches * grpo.num_prompts_per_step * grpo.num_generations_per_prompt


def engine_of(config: RunConfig, layout: Layout) -> Engine:
    """How an engine samples."""
    generation = config.generation
    share = COLOCATED_MEMORY if layout.colocated else VLLM_MEMORY
    if isinstance(generation, VLLMGeneration):
        share = float(generation.vllm_kwargs.get("gpu_memory_utilization", share))
    return Engine(
        gpus=layout.gpus_per_engine,
        half=config.policy.precision is Precision.BFLOAT16,
        share=share,
        longest=config.policy.max_total_sequence_length,
        sequences=-(-in_flight(config) // max(1, layout.engines)),
    )


def step_of(config: RunConfig, layout: Layout, shape: Shape, gpu_bytes: float) -> Step:
    """The work of one step on GPUs of that memory."""
    grpo = config.grpo
    engine = engine_of(config, layout)
    # Room for the longest is room for several of the usual length; half the room is a fair guess.
    fit = max(1, 2 * sequences_that_fit(shape, engine, gpu_bytes))
    return Step(
        trajectories=grpo.num_prompts_per_step * grpo.num_generations_per_prompt,
        longest=config.generation.max_new_tokens,
        ranks=layout.ranks,
        engines=max(1, layout.engines),
        gpus_per_engine=layout.gpus_per_engine,
        at_once=max(1, min(engine.sequences, fit)),
        passes=1
        + config.policy.activation_checkpointing
        + (config.loss.reference_policy_kl_penalty > 0),
    )
