# SPDX-License-Identifier: Apache-2.0
"""The model, and how much memory each part of a run needs for it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from rlrun.cluster.ray import RayCluster
from rlrun.config.schema import RunConfig
from rlrun.console.counted import counted
from rlrun.errors import NotHere
from rlrun.generation.vllm import VLLMGeneration
from rlrun.interfaces import Device, Precision
from rlrun.learner.bfloat16 import precision_notice
from rlrun.models.resolve import read_model_config
from rlrun.planning.kept import Unforeseen
from rlrun.planning.memory import (
    FLOAT,
    HALF,
    Engine,
    Learner,
    Part,
    engine_parts,
    sequences_that_fit,
    state_parts,
)
from rlrun.planning.plan import Layout, engine_of, layout_of, learner_memory, learner_of
from rlrun.planning.shape import Shape, check_weights, config_of, contradictions, shape_of
from rlrun.preflight.cores import look_at_cores
from rlrun.preflight.lines import Findings
from rlrun.preflight.speed import look_at_speed

GIB, MIB = 2**30, 2**20


def look_at_model(config: RunConfig, findings: Findings) -> None:
    """Model, memory, split and age.

    Raises:
        DataError: The model cannot be built; NotHere: it is not here, and nothing says its shape.
        ConfigError: Its adapters do not fit it.
    """
    policy = config.policy
    if policy.architecture:
        try:
            found = read_model_config(policy.model)
        except NotHere as error:
            findings.unverified("model files", f"{error.where}: {error.what}", error.remedy)
        else:
            for what in contradictions(policy, found):
                remedy = "Correct it, or write policy.architecture=null to read the model's own"
                findings.fail("model files", what, remedy)
    model = config_of(policy)
    shape = shape_of(policy, model)
    if not policy.architecture:
        check_weights(policy, model)
    findings.add("model", _in_words(shape))
    if shape.is_recurrent and policy.sequence_packing:
        findings.fail(
            "model",
            f"policy.sequence_packing=true, and {shape.name} has layers that would carry their "
            "state from one packed trajectory to the next",
            "Set policy.sequence_packing=false",
        )
    device = torch.device("cuda" if _is_on_gpus(config) else "cpu")
    notice = precision_notice(policy.precision, device)
    if notice is not None:
        findings.add("note", notice)
    layout = layout_of(config, torch.cuda.device_count())
    memory = _memory_of_each(config)
    try:
        parts = learner_memory(config, model, shape, layout)
    except Unforeseen as error:
        remedy = "A short run shows what it needs: scale=smoke"
        findings.unverified("memory", f"cannot be foreseen: {error}", remedy)
        return
    _look_at_memory(config, findings, layout, shape, parts, memory)
    if _is_on_gpus(config):
        look_at_speed(config, findings, layout, shape, memory)
    else:
        look_at_cores(config, layout, findings)


def _in_words(shape: Shape) -> str:
    text = f"{shape.name}, {shape.parameters:,} parameters"
    if shape.adapters:
        text += f"; {shape.adapters:,} more are trained as adapters, these are frozen"
    if shape.active < 0.9 * (shape.parameters - shape.vocabulary * shape.hidden):
        text += f", {shape.active:,} of which take part in a token"
    return text


def _is_on_gpus(config: RunConfig) -> bool:
    if isinstance(config.cluster, RayCluster):
        return config.cluster.gpus_per_node > 0
    return _device(config) == "cuda"


def _device(config: RunConfig) -> str:
    wanted = config.cluster.device
    if wanted is Device.AUTO:
        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cuda" if wanted is Device.CUDA else "cpu"


def _memory_of_each(config: RunConfig) -> float | None:
    """Bytes that a rank may take: of a GPU, or its part of this machine; None if nobody knows."""
    cluster = config.cluster
    if _is_on_gpus(config):
        if isinstance(cluster, RayCluster) and cluster.gpu_memory_gib is not None:
            return cluster.gpu_memory_gib * GIB
        if torch.cuda.is_available():
            return float(torch.cuda.get_device_properties(0).total_memory)
        return None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    ranks = 1
    if isinstance(cluster, RayCluster):
        ranks = -(-cluster.num_learner_ranks // cluster.num_nodes)
    return total / ranks


def _look_at_memory(
    config: RunConfig,
    findings: Findings,
    layout: Layout,
    shape: Shape,
    parts: Sequence[Part],
    memory: float | None,
) -> None:
    place = "GPU" if _is_on_gpus(config) else "CPU"
    needed = sum(part.bytes for part in parts)
    each = f"each of {layout.ranks} ranks needs" if layout.ranks > 1 else "the learner needs"
    detail = f"{each} {_gib(needed)} at the worst moment of a step"
    if memory is not None:
        detail += f", of {_gib(memory)} of its {place}"
    detail += f" ({_listed(parts)})"
    if place == "CPU":
        detail += "; the C library may keep up to as much again of what was freed"
    _compare(findings, "memory", detail, needed, memory, _smaller(config, parts))
    if layout.engines and place == "GPU":
        _look_at_engines(config, findings, layout, shape, memory)
        if layout.colocated:
            _look_at_sharing(findings, engine_of(config, layout), parts, memory)
    _look_at_machines(config, findings, shape, learner_of(config, layout))


def _compare(
    findings: Findings,
    name: str,
    detail: str,
    needed: float,
    memory: float | None,
    remedy: str,
) -> None:
    if memory is None:
        where = "Check it where the GPUs are; with cluster=ray, cluster.gpu_memory_gib names them"
        findings.unverified(name, f"{detail}; there is no GPU here to compare with", where)
    elif needed > memory:
        findings.fail(name, f"{detail}: too much", remedy)
    else:
        findings.add(name, detail)


def _look_at_engines(
    config: RunConfig, findings: Findings, layout: Layout, shape: Shape, memory: float | None
) -> None:
    engine = engine_of(config, layout)
    weights, _, itself = engine_parts(shape, engine)
    detail = (
        f"each of {counted(layout.engines * engine.gpus, 'GPU')} of engines holds "
        f"{_gib(weights.bytes)} of "
        f"weights and may take {engine.share:.0%} of its memory"
    )
    if memory is None:
        _compare(findings, "engine memory", detail, 0.0, None, "")
        return
    fit = sequences_that_fit(shape, engine, memory)
    detail += (
        f"; there is room for {counted(fit, 'trajectory', 'trajectories')} of {engine.longest} "
        f"tokens at once on an engine, to which {engine.sequences} come"
    )
    if fit == 0:
        findings.fail(
            "engine memory",
            detail,
            "Raise generation.tensor_parallel_size or gpu_memory_utilization in "
            "generation.vllm_kwargs, or shorten policy.max_total_sequence_length",
        )
        return
    if fit < engine.sequences:
        detail += "; the others wait while all are that long"
    findings.add("engine memory", detail)


def _look_at_sharing(
    findings: Findings, engine: Engine, parts: Sequence[Part], memory: float | None
) -> None:
    """Whether a GPU holds the learner's state beside an engine that is awake."""
    if memory is None:
        return
    kept = sum(part.bytes for part in parts if part.name in ("weights", "optimizer"))
    needed = kept + engine.share * memory
    detail = f"while an engine samples, its GPU holds {_gib(kept)} of the learner beside it"
    if needed > memory:
        remedy = "Lower gpu_memory_utilization in generation.vllm_kwargs, or give each its own GPU"
        findings.fail("shared GPU", f"{detail}: too much", remedy)
    else:
        findings.add("shared GPU", detail)


def _look_at_machines(
    config: RunConfig, findings: Findings, shape: Shape, learner: Learner
) -> None:
    """What a machine of a cluster must hold beside its GPUs, and what no test has run."""
    cluster = config.cluster
    if not isinstance(cluster, RayCluster) or cluster.gpus_per_node == 0:
        return
    ranks = min(cluster.gpus_per_node, cluster.num_learner_ranks)
    loading = FLOAT * shape.parameters * ranks
    width = HALF if config.policy.precision is Precision.BFLOAT16 else FLOAT
    refit = FLOAT + 2 * width * min(cluster.gpus_per_node, cluster.num_engines)
    detail = (
        f"a node full of ranks needs {_gib(loading)} while they load, one full of engines "
        f"{_gib(refit * shape.parameters)} for refits"
    )
    if learner.offloaded:
        state = ranks * sum(part.bytes for part in state_parts(shape, learner))
        detail += f"; weights, gradients and optimizer of the ranks are there too, {_gib(state)}"
    findings.add("machine memory", detail)
    if isinstance(config.generation, VLLMGeneration):
        findings.unverified(
            "cluster",
            "rlrun's tests run Ray actors on CPUs; vLLM inside of them, GPUs and several machines "
            "have not been run",
            "Begin with scale=1node or a few steps",
        )


def _smaller(config: RunConfig, parts: Sequence[Part]) -> str:
    """What would take memory from the largest part."""
    largest = max(parts, key=lambda part: part.bytes).name
    if largest == "activations" and not config.policy.activation_checkpointing:
        return "Set policy.activation_checkpointing=true, or lower policy.train_micro_batch_tokens"
    if largest in ("activations", "layer inputs", "one layer again", "one layer backward"):
        return (
            "Lower policy.train_micro_batch_tokens, and policy.max_total_sequence_length if that "
            "is already as low as it can be"
        )
    if largest == "logits":
        return "Lower policy.logprob_chunk_tokens"
    if isinstance(config.cluster, RayCluster):
        return "Raise cluster.num_learner_ranks, or train adapters (policy.lora.enabled=true)"
    return "Choose a smaller model, train adapters (policy.lora.enabled=true), or cluster=ray"


def _listed(parts: Sequence[Part]) -> str:
    return ", ".join(f"{part.name} {_gib(part.bytes)}" for part in parts)


def _gib(amount: float) -> str:
    if 0 < amount < GIB / 10:
        return f"{amount / MIB:.1f} MiB"
    return f"{amount / GIB:.2f} GiB" if amount < 100 * GIB else f"{amount / GIB:,.0f} GiB"
