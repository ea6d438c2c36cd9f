# SPDX-License-Identifier: Apache-2.0
"""Arguments of TRL's GRPOTrainer and GRPOConfig and what they are called here.

docs/migration_trl.md says more of each.
"""

from __future__ import annotations

from rlrun.config.foreign import Absent, Chosen, Renamed, Target

_BATCH = Renamed(
    "grpo.num_prompts_per_step",
    "prompts of a step, each with grpo.num_generations_per_prompt trajectories",
)
_BEST = Renamed("checkpointing.metric", "the best of checkpointing.keep_top_k are kept")
_DISTRIBUTION = Absent("Nothing to set: the learner would have to reproduce the distribution")
_NOT_OFFERED = Absent("Nothing to set: it is not offered")

TRL: dict[str, Target] = {
    "model": Renamed("policy.model"),
    "model_name_or_path": Renamed("policy.model"),
    "train_dataset": Renamed("data.train.source"),
    "eval_dataset": Renamed("data.validation.source"),
    "dataset_name": Renamed("data.train.source", "hf:NAME for a data set of the hub"),
    "reward_funcs": Renamed("env.reward_function", "FILE.py:NAME", "env/python"),
    "processing_class": Renamed("policy.tokenizer"),
    "peft_config": Renamed("policy.lora.enabled", "and the other keys of policy.lora"),
    "use_peft": Renamed("policy.lora.enabled"),
    "lora_r": Renamed("policy.lora.rank"),
    "lora_alpha": Renamed("policy.lora.alpha"),
    "lora_target_modules": Renamed("policy.lora.target_modules"),
    "tools": Renamed("env.environment", "a class with tools", "env/python"),
    "environment_factory": Renamed("env.environment", "a class with tools", "env/python"),
    "output_dir": Renamed("run_dir"),
    "per_device_train_batch_size": _BATCH,
    "gradient_accumulation_steps": _BATCH,
    "generation_batch_size": _BATCH,
    "steps_per_generation": _BATCH,
    "num_generations": Renamed("grpo.num_generations_per_prompt"),
    "num_generations_eval": Renamed("grpo.val_num_generations_per_prompt"),
    "max_completion_length": Renamed("generation.max_new_tokens"),
    "max_prompt_length": Renamed("data.max_prompt_tokens", "longer prompts are left out"),
    "vllm_max_model_length": Renamed("policy.max_total_sequence_length"),
    "max_steps": Renamed("grpo.max_num_steps"),
    "num_train_epochs": Renamed("grpo.max_num_epochs"),
    "eval_steps": Renamed("grpo.val_period"),
    "save_steps": Renamed("checkpointing.save_period"),
    "save_total_limit": Renamed("checkpointing.keep_top_k", "beside the newest one"),
    "load_best_model_at_end": _BEST,
    "metric_for_best_model": _BEST,
    "resume_from_checkpoint": Absent("Nothing to set: rlrun resume RUN_DIR goes on with a run"),
    "seed": Renamed("grpo.seed"),
    "shuffle_dataset": Renamed("data.train.shuffle"),
    "learning_rate": Renamed("policy.optimizer.lr"),
    "adam_beta1": Renamed("policy.optimizer.beta1"),
    "adam_beta2": Renamed("policy.optimizer.beta2"),
    "adam_epsilon": Renamed("policy.optimizer.eps"),
    "weight_decay": Renamed("policy.optimizer.weight_decay"),
    "max_grad_norm": Renamed("policy.max_grad_norm"),
    "lr_scheduler_type": Renamed("policy.scheduler.decay"),
    "warmup_steps": Renamed("policy.scheduler.warmup_steps"),
    "bf16": Renamed("policy.precision", "bfloat16"),
    "gradient_checkpointing": Renamed("policy.activation_checkpointing"),
    "temperature": Renamed("generation.temperature"),
    "top_p": Renamed("generation.top_p"),
    "top_k": Renamed("generation.top_k", "null is off"),
    "min_p": _DISTRIBUTION,
    "repetition_penalty": _DISTRIBUTION,
    "chat_template_kwargs": Renamed("policy.chat_template", "write the template as needed"),
    "beta": Renamed("loss.reference_policy_kl_penalty"),
    "epsilon": Renamed("loss.ratio_clip_min", variant="loss/grpo"),
    "epsilon_high": Renamed("loss.ratio_clip_max", variant="loss/grpo"),
    "delta": Renamed("loss.ratio_clip_c", "a bound for negative advantages", "loss/grpo"),
    "num_iterations": Absent(
        "Nothing to set: a batch is trained once; several updates per step are "
        "policy.train_global_batch_size"
    ),
    "importance_sampling_level": Chosen("loss", "gspo", "for sequence; token is loss=grpo"),
    "loss_type": Renamed(
        "loss.level",
        "dapo is token, grpo sequence; dr_grpo and cispo are choices of loss",
        "loss/grpo",
    ),
    "scale_rewards": Renamed("advantage.normalize"),
    "reward_weights": Absent("Nothing to set: weigh the parts in the reward function"),
    "multi_objective_aggregation": _NOT_OFFERED,
    "mask_truncated_completions": Renamed("grpo.overlong_filtering"),
    "top_entropy_quantile": _NOT_OFFERED,
    "off_policy_mask_threshold": _NOT_OFFERED,
    "sync_ref_model": Absent("Nothing to set: the reference is the first policy"),
    "use_bias_correction_kl": Renamed("loss.use_on_policy_kl_approximation"),
    "use_vllm": Chosen("generation", "vllm"),
    "vllm_mode": Renamed("cluster.colocated", "rlrun starts its engines itself", "cluster/ray"),
    "vllm_tensor_parallel_size": Renamed(
        "generation.tensor_parallel_size", variant="generation/vllm"
    ),
    "vllm_gpu_memory_utilization": Renamed(
        "generation.vllm_kwargs", "{gpu_memory_utilization: 0.5}", "generation/vllm"
    ),
    "vllm_importance_sampling_correction": Renamed("correction.enabled"),
    "vllm_importance_sampling_mode": Renamed("correction.type", "and correction.level"),
    "vllm_importance_sampling_cap": Renamed("correction.ratio_max"),
    "max_tool_calling_iterations": Renamed("grpo.max_rollout_turns"),
    "log_completions": Absent("Nothing to set: trained/ in the run directory has them all"),
    "report_to": Renamed("logging.wandb.enabled", "and logging.mlflow.enabled"),
}
"""By TRL's name, which has no sections."""
