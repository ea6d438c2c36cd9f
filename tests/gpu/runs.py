# SPDX-License-Identifier: Apache-2.0
"""What the GPU tests run, apart from them so that the configurations can be checked on a CPU."""

from __future__ import annotations

VLLM = ("generation=vllm", "policy.precision=bfloat16", "grpo.max_num_steps=12")
# What is learned shows later, by the age of what is trained.
LONGER = "grpo.max_num_steps=30"

RUNS: dict[str, tuple[str, ...]] = {
    "sync": ("+recipe=quickstart", *VLLM, "generation.refit=nccl"),
    "async": ("+recipe=quickstart", *VLLM, LONGER, "grpo=async", "generation.refit=nccl"),
    "colocated": ("+recipe=quickstart", *VLLM, "generation.refit=ipc"),
    "gym": ("+recipe=gym_quickstart", *VLLM),
    "checkpoint": (
        "+recipe=quickstart",
        "policy.precision=bfloat16",
        "policy.fsdp.cpu_offload=true",
        "cluster=ray",
        "cluster.gpus_per_node=2",
        "cluster.num_learner_ranks=2",
        "cluster.num_engines=2",
        "cluster.colocated=true",
        "checkpointing.layout=sharded",
        "checkpointing.save_period=2",
    ),
}
"""Overrides by test."""

FEWER = ("cluster.num_learner_ranks=1", "cluster.num_engines=1")
"""What the run of checkpoints is resumed with."""
