# SPDX-License-Identifier: Apache-2.0
"""How GPUs are split, how long a step takes on them, and which age the longest answer needs."""

from __future__ import annotations

from rlrun.cluster.ray import RayCluster
from rlrun.config.schema import RunConfig
from rlrun.console.counted import counted
from rlrun.generation.vllm import VLLMGeneration
from rlrun.grpo.async_ import AsyncGRPO
from rlrun.planning.plan import Layout, step_of
from rlrun.planning.shape import Shape
from rlrun.planning.speed import MEAN_SHARE, Times, times
from rlrun.preflight.lines import Findings


def look_at_speed(
    config: RunConfig, findings: Findings, layout: Layout, shape: Shape, memory: float | None
) -> None:
    """Split, time of a step, and the age that the longest answer needs."""
    ranks, engines = layout.ranks, layout.engines * layout.gpus_per_engine
    where = "which take turns" if layout.colocated else "apart"
    nodes = config.cluster.num_nodes if isinstance(config.cluster, RayCluster) else 1
    findings.add(
        "split",
        f"{counted(layout.gpus, 'GPU')} on {counted(nodes, 'node')}: {ranks} to train and "
        f"{engines or ranks} to sample, {where}",
    )
    if memory is None or not isinstance(config.generation, VLLMGeneration):
        return
    found = times(shape, step_of(config, layout, shape, memory))
    findings.add("step time", _times_in_words(config, found))
    _look_at_age(config, findings, found)


def _times_in_words(config: RunConfig, found: Times) -> str:
    grpo = config.grpo
    batch = grpo.num_prompts_per_step * grpo.num_generations_per_prompt
    waits = found.concurrent if grpo.concurrent else found.sync
    other = found.sync if grpo.concurrent else found.concurrent
    kind = "synchronously" if grpo.concurrent else "asynchronously, with the same split"
    tokens = MEAN_SHARE * config.generation.max_new_tokens * batch
    return (
        f"about {waits:.0f} s (H100 rates, answers a quarter of the longest on average): "
        f"{found.generate:.0f} s to sample {batch} answers of {tokens / 1e6:.1f} million tokens, "
        f"{found.longest:.0f} s for the longest alone, {found.train:.0f} s to train; "
        f"{kind} {other:.0f} s"
    )


def _look_at_age(config: RunConfig, findings: Findings, found: Times) -> None:
    grpo = config.grpo
    needed = found.age_needed
    measure = "Measure it: rlrun simulate --from RUN_DIR after a first short run"
    if not isinstance(grpo, AsyncGRPO):
        gain = found.sync / found.concurrent
        worth = "worth it" if gain > 1.2 else "hardly worth it"
        findings.add(
            "async",
            f"grpo=async would be about {gain:.1f} times as fast: {worth}; it would need an age of "
            f"{needed} for the longest answer",
        )
        return
    age = grpo.max_trajectory_age_steps
    detail = (
        f"the longest answer takes about {counted(needed, 'step')}, max_trajectory_age_steps={age}"
    )
    if age >= needed:
        findings.add("age", f"{detail}: nothing waits for it")
    else:
        what = f"{detail}: steps wait for answers longer than {age / needed:.0%} of the longest"
        findings.unverified("age", what, f"Raise the age if such answers are common. {measure}")
