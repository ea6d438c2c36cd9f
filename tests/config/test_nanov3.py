# SPDX-License-Identifier: Apache-2.0
"""recipes/nanov3.yaml has the values of the reference's recipe, in our names, key by key."""

from __future__ import annotations

import math

import pytest

from rlrun.config import load
from rlrun.config.load import Loaded

GRPO = {
    "num_prompts_per_step": 128,
    "num_generations_per_prompt": 16,
    "max_rollout_turns": 1,
    "max_num_epochs": 1,
    "max_num_steps": None,  # 1,000,000 there: the data end first
    "val_period": 5,
    "val_start_at": 0,
    "val_at_start": False,
    "val_at_end": False,
    "val_batch_size": 256,
    "max_val_samples": None,
    "val_num_generations_per_prompt": 4,
    "stop_at_validation_metric": None,
    "stop_at_validation_threshold": None,
    "overlong_filtering": True,
    "seed": 42,
    "use_dynamic_sampling": False,
    "overlong_shaping.enabled": False,
    "reward_scaling.enabled": False,
    "seq_logprob_error_threshold": 2.0,
    "invalid_tool_call_advantage": None,
    "malformed_thinking_advantage": None,
    "reward_penalties.duplicated_reasoning": False,
    "reward_penalties.empty_final_answer": False,
    "reward_penalties.malformed_thinking": False,
    "reward_penalties.unwanted_tokens": [],
}
OBJECTIVE = {
    "advantage.baseline": "leave_one_out",
    "advantage.normalize": True,
    "advantage.clip_low": None,
    "advantage.clip_high": None,
    "loss.reference_policy_kl_penalty": 0.0,
    "loss.reference_policy_kl_type": "k3",
    "loss.ratio_clip_min": 0.2,
    "loss.ratio_clip_max": 0.28,
    "loss.ratio_clip_c": None,
    "loss.level": "token",
    "correction.enabled": True,
    "correction.type": "none",
    "correction.level": "token",
    "correction.ratio_max": None,
}
POLICY = {
    "train_global_batch_size": None,  # 2,048 there, which is the whole batch
    "train_micro_batch_tokens": 49152,  # one of the longest
    "max_total_sequence_length": 49152,
    "precision": "bfloat16",
    "logprob_chunk_tokens": 2048,
    "activation_checkpointing": True,
    "max_grad_norm": 1.0,
    "freeze_moe_router": True,
    "moe_router_fp32": True,
    "fsdp.cpu_offload": False,
    "optimizer.lr": 3e-6,
    "optimizer.weight_decay": 0.0,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.999,
    "optimizer.eps": 1e-8,
    "scheduler.warmup_steps": 10,
    "scheduler.decay": "constant",
}
REST = {
    "generation.max_new_tokens": 49152,
    "generation.temperature": 1.0,
    "generation.top_p": 1.0,
    "generation.top_k": None,
    "generation.val_temperature": None,
    "generation.val_top_p": None,
    "generation.val_top_k": None,
    "generation.stop": [],
    "generation.expose_http_server": True,
    "generation.http.tool_parser": "qwen3_coder",
    "generation.http.reasoning_parser": "nano_v3",
    "generation.vllm_kwargs.mamba_ssm_cache_dtype": "float32",
    "generation.vllm_kwargs.compilation_config.backend": "eager",
    "checkpointing.enabled": True,
    "checkpointing.metric": "validation/reward_mean",
    "checkpointing.higher_is_better": True,
    "checkpointing.keep_top_k": None,  # 1,000,000 there
    "checkpointing.save_period": 10,
    "checkpointing.checkpoint_must_save_by": "00:03:40:00",
    "data.train.shuffle": False,
    "data.max_prompt_tokens": None,
    "env.config_overrides.code_gen.resources_servers.code_gen.num_processes": 1024,
    "cluster.num_nodes": 32,
    "cluster.gpus_per_node": 8,
}


@pytest.fixture(scope="module")
def nanov3() -> Loaded:
    return load(["+recipe=nanov3"])


def test_every_value_is_that_of_the_reference(nanov3: Loaded) -> None:
    expected = {f"grpo.{key}": value for key, value in GRPO.items()}
    expected |= {f"policy.{key}": value for key, value in POLICY.items()} | OBJECTIVE | REST
    found = {key: nanov3.values[key] for key in expected}
    assert found == expected


def test_a_step_is_one_update_and_the_rate_warms_up_from_a_tenth(nanov3: Loaded) -> None:
    policy = nanov3.config.policy
    assert policy.train_global_batch_size is None
    assert math.isclose(policy.optimizer.lr * policy.scheduler.warmup_start_factor, 3e-7)


def test_five_of_its_six_environments_are_named(nanov3: Loaded) -> None:
    paths = nanov3.values["env.config_paths"]
    assert isinstance(paths, list)
    assert [path.split("/")[1] for path in paths] == [
        "math_with_judge",
        "code_gen",
        "workplace_assistant",
        "mcqa",
        "structured_outputs",
    ]


def test_async_changes_the_schedule_and_the_correction_alone(nanov3: Loaded) -> None:
    other = load(["+recipe=nanov3_async"]).values
    changed = {key for key, value in nanov3.values.items() if other.get(key, value) != value}
    assert changed == {"correction.type", "correction.ratio_max"}
    assert other["grpo.max_trajectory_age_steps"] == 6
    assert other["grpo.max_num_in_flight_batches_in_generation"] == 3
