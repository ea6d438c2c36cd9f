# SPDX-License-Identifier: Apache-2.0
"""recipes/qwen2.5_1.5b_math.yaml has the values of the reference's recipe, key by key."""

from __future__ import annotations

from rlrun.config import load

VALUES = {
    "grpo.num_prompts_per_step": 32,
    "grpo.num_generations_per_prompt": 16,
    "grpo.max_rollout_turns": 1,
    "grpo.max_num_epochs": 1,
    "grpo.max_num_steps": None,  # 1,000,000 there: the data end first
    "grpo.val_period": 10,
    "grpo.val_at_start": False,
    "grpo.val_at_end": False,
    "grpo.val_batch_size": 256,
    "grpo.val_num_generations_per_prompt": 1,
    "grpo.max_val_samples": 256,
    "grpo.overlong_filtering": True,
    "grpo.overlong_shaping.enabled": False,
    "grpo.reward_scaling.enabled": False,
    "grpo.use_dynamic_sampling": False,
    "grpo.dynamic_sampling_max_gen_batches": 10,
    "grpo.seq_logprob_error_threshold": None,
    "grpo.seed": 42,
    "advantage.baseline": "leave_one_out",
    "advantage.normalize": True,
    "advantage.clip_low": None,
    "advantage.clip_high": None,
    "loss.reference_policy_kl_penalty": 0.01,
    "loss.reference_policy_kl_type": "k3",
    "loss.kl_input_clamp": 20.0,
    "loss.kl_output_clamp": 10.0,
    "loss.use_on_policy_kl_approximation": False,
    "loss.level": "token",
    "loss.ratio_clip_min": 0.2,
    "loss.ratio_clip_max": 0.2,
    "loss.ratio_clip_c": None,
    "correction.enabled": None,  # false there: on exactly where tokens can be stale
    "checkpointing.enabled": True,
    "checkpointing.metric": "validation/accuracy",
    "checkpointing.higher_is_better": True,
    "checkpointing.keep_top_k": 3,
    "checkpointing.save_period": 10,
    "checkpointing.checkpoint_must_save_by": None,
    "policy.model": "Qwen/Qwen2.5-1.5B",
    "policy.train_global_batch_size": None,  # 512 there, which is the whole batch
    "policy.max_total_sequence_length": 512,
    "policy.precision": "bfloat16",
    "policy.activation_checkpointing": False,
    "policy.lora.enabled": False,
    "policy.sequence_packing": True,
    "policy.max_grad_norm": 1.0,
    "policy.optimizer.lr": 5e-6,
    "policy.optimizer.weight_decay": 0.01,
    "policy.optimizer.beta1": 0.9,
    "policy.optimizer.beta2": 0.999,
    "policy.optimizer.eps": 1e-8,
    "policy.scheduler.warmup_start_factor": 0.1,
    "policy.scheduler.warmup_steps": 50,
    "policy.scheduler.decay": "constant",
    "generation.max_new_tokens": 512,
    "generation.temperature": 1.0,
    "generation.top_p": 1.0,
    "generation.top_k": None,
    "generation.tensor_parallel_size": 1,
    "data.train.shuffle": True,
}


def test_every_value_is_that_of_the_reference() -> None:
    values = load(["+recipe=qwen2.5_1.5b_math"]).values
    assert {key: values[key] for key in VALUES} == VALUES


def test_async_changes_the_schedule_and_a_guard_alone() -> None:
    before = load(["+recipe=qwen2.5_1.5b_math"]).values
    after = load(["+recipe=qwen2.5_1.5b_math_async"]).values
    changed = {key for key, value in before.items() if after.get(key, value) != value}
    assert changed == {"grpo.seq_logprob_error_threshold"}


def test_the_batch_of_llama_is_the_one_that_it_is_named_for() -> None:
    values = load(["+recipe=llama3.1_8b_math_async"]).values
    batch = ("num_prompts_per_step", "num_generations_per_prompt")
    assert [values[f"grpo.{name}"] for name in batch] == [64, 32]
    assert values["policy.train_global_batch_size"] == 512
    assert values["policy.max_total_sequence_length"] == 4096
    assert (values["cluster.num_nodes"], values["cluster.gpus_per_node"]) == (1, 8)
