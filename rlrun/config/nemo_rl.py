# SPDX-License-Identifier: Apache-2.0
"""Keys of NeMo RL's YAML and what they are called here, for people who bring a recipe."""

from __future__ import annotations

from rlrun.config.foreign import Absent, Chosen, Renamed, Target

FSDP_ALONE = (
    "Nothing to set: cluster=ray spreads the model over cluster.num_learner_ranks by FSDP2; there "
    "is no tensor, sequence, context, pipeline or expert parallelism of the learner"
)
_FSDP = Absent(FSDP_ALONE)
_HUGGING_FACE = Absent(
    "Nothing to set: models are trained as transformers builds them, without Megatron"
)
_BY_TOKENS = Absent(
    "Nothing to set: microbatches are cut by tokens; policy.train_micro_batch_tokens is the size"
)
_PORTS = Absent("Nothing to set: free ports are taken; generation.http.port is the server's")
_DERIVED = Absent("Nothing to set: rlrun decides it; other engine arguments go to vllm_kwargs")
_ARGUMENT = Renamed(
    "generation.vllm_kwargs",
    "a dict; entries have the names of vLLM's arguments",
    "generation/vllm",
)
_SINKS = Absent(
    "Nothing to set: metrics.jsonl is always written; logging.tensorboard, logging.wandb and "
    "logging.mlflow are the others"
)
_FREE_PORTS = Absent("Nothing to set: free ports are taken")
_ALWAYS = Absent("Nothing to set: this is always done")
_MODEL_ONLY = Absent("Nothing to set: text models alone are trained")
_SCHEDULER = Absent("Nothing to set: the schedule of this version has no such parts")
_MEMORY = Absent("Nothing to set: microbatches bound the memory; lower train_micro_batch_tokens")

_LORA: dict[str, Target] = {
    "enabled": Renamed("policy.lora.enabled"),
    "dim": Renamed("policy.lora.rank"),
    "alpha": Renamed("policy.lora.alpha"),
    "target_modules": Renamed("policy.lora.target_modules"),
    "match_all_linear": Renamed("policy.lora.target_modules", "all-linear for true"),
}
_ONE_LORA = Absent("Nothing to set: adapters have no dropout, and begin as in the LoRA paper")

_GRPO: dict[str, Target] = {
    "normalize_rewards": Renamed("advantage.normalize"),
    "use_leave_one_out_baseline": Renamed(
        "advantage.baseline", "true is leave_one_out, false is mean"
    ),
    "advantage_clip_low": Renamed("advantage.clip_low"),
    "advantage_clip_high": Renamed("advantage.clip_high"),
    "adv_estimator.name": Chosen("advantage", "group", "the estimator of name: grpo"),
    "adv_estimator.normalize_rewards": Renamed("advantage.normalize"),
    "adv_estimator.use_leave_one_out_baseline": Renamed(
        "advantage.baseline", "true is leave_one_out, false is mean"
    ),
    "adv_estimator.minus_baseline": Renamed("advantage.baseline", "false is none"),
    "adv_estimator": Absent("Nothing to set: advantages are those of advantage=group"),
    "batch_multiplier": Absent(
        "Nothing to set: dynamic sampling takes further prompts as it needs them"
    ),
    "reward_shaping.enabled": Renamed("grpo.overlong_shaping.enabled"),
    "reward_shaping.overlong_buffer_length": Renamed("grpo.overlong_shaping.buffer_tokens"),
    "reward_shaping.overlong_buffer_penalty": Renamed("grpo.overlong_shaping.penalty"),
    "reward_shaping.max_response_length": Renamed("grpo.overlong_shaping.max_response_tokens"),
    "reward_shaping": Absent("Nothing to set: rewards are shaped by overlong_shaping alone"),
    "calculate_advantages_on_gpu": Absent(
        "Nothing to set: advantages are a few numbers, computed in float64"
    ),
    "deduplicate_multimodal_data": _MODEL_ONLY,
    "debug_payload_metrics": _ALWAYS,
    "async_grpo.enabled": Chosen("grpo", "async"),
    "async_grpo.max_trajectory_age_steps": Renamed(
        "grpo.max_trajectory_age_steps", variant="grpo/async"
    ),
    "async_grpo.max_generation_failures": Renamed("grpo.max_generation_failures"),
    "async_grpo.in_flight_weight_updates": Renamed(
        "grpo.in_flight_weight_updates", variant="grpo/async"
    ),
    "async_grpo.recompute_kv_cache_after_weight_updates": Renamed(
        "grpo.recompute_kv_cache_after_weight_updates", variant="grpo/async"
    ),
}

_LOSS: dict[str, Target] = {
    "disable_ppo_ratio": Chosen("loss", "reinforce"),
    "token_level_loss": Renamed("loss.level", "true is token, false is sequence", "loss/grpo"),
    "sequence_level_importance_ratios": Chosen("loss", "gspo"),
    "ratio_clip_min": Renamed("loss.ratio_clip_min", variant="loss/grpo"),
    "ratio_clip_max": Renamed("loss.ratio_clip_max", variant="loss/grpo"),
    "ratio_clip_c": Renamed("loss.ratio_clip_c", variant="loss/grpo"),
    "reference_policy_kl_penalty": Renamed("loss.reference_policy_kl_penalty"),
    "reference_policy_kl_type": Renamed("loss.reference_policy_kl_type", variant="loss/grpo"),
    "kl_input_clamp_value": Renamed("loss.kl_input_clamp", variant="loss/grpo"),
    "kl_output_clamp_value": Renamed("loss.kl_output_clamp", variant="loss/grpo"),
    "use_kl_in_reward": Absent("Nothing to set: the KL penalty is part of the loss"),
    "use_importance_sampling_correction": Renamed("correction.enabled"),
    "truncated_importance_sampling_type": Renamed("correction.type"),
    "truncated_importance_sampling_ratio": Renamed("correction.ratio_max"),
    "truncated_importance_sampling_ratio_min": Renamed("correction.ratio_min"),
    "use_on_policy_kl_approximation": Renamed(
        "loss.use_on_policy_kl_approximation", variant="loss/grpo"
    ),
    "force_on_policy_ratio": Renamed(
        "policy.train_global_batch_size", "null gives one update per step, whose ratio is 1"
    ),
    "use_cispo": Chosen("loss", "cispo"),
    "positive_example_nll_weight": Absent("Nothing to set: no loss has this term"),
}

_POLICY: dict[str, Target] = {
    "model_name": Renamed("policy.model"),
    "tokenizer.name": Renamed("policy.tokenizer"),
    "tokenizer.chat_template": Renamed("policy.chat_template", "null is the tokenizer's own"),
    "tokenizer.chat_template_kwargs": Absent(
        "Nothing to set: write policy.chat_template as needed"
    ),
    "tokenizer.use_fastokens": Absent("Nothing to set: tokenizers are those of transformers"),
    "hf_config_overrides": Absent("Nothing to set: change config.json in the model's folder"),
    "train_micro_batch_size": Renamed(
        "policy.train_micro_batch_tokens", "counted in tokens, not in trajectories"
    ),
    "generation_batch_size": Renamed(
        "generation.max_batch_size", variant="generation/transformers"
    ),
    "logprob_batch_size": Renamed(
        "policy.train_micro_batch_tokens", "one size for log-probs and updates"
    ),
    "logprob_chunk_size": Renamed("policy.logprob_chunk_tokens"),
    "offload_optimizer_for_logprob": _MEMORY,
    "dtensor_cfg.activation_checkpointing": Renamed("policy.activation_checkpointing"),
    "dtensor_cfg.cpu_offload": Renamed("policy.fsdp.cpu_offload"),
    **{f"dtensor_cfg.lora_cfg.{key}": target for key, target in _LORA.items()},
    "dtensor_cfg.lora_cfg": _ONE_LORA,
    "dtensor_cfg": _FSDP,
    **{
        f"megatron_cfg.{name}": _FSDP
        for name in (
            "tensor_model_parallel_size",
            "expert_tensor_parallel_size",
            "expert_model_parallel_size",
            "pipeline_model_parallel_size",
            "context_parallel_size",
            "sequence_parallel",
        )
    },
    "megatron_cfg.activation_checkpointing": Renamed("policy.activation_checkpointing"),
    "megatron_cfg.freeze_moe_router": Renamed("policy.freeze_moe_router"),
    "megatron_cfg.moe_router_dtype": Renamed("policy.moe_router_fp32", "true for fp32"),
    "megatron_cfg.optimizer.lr": Renamed("policy.optimizer.lr"),
    "megatron_cfg.optimizer.weight_decay": Renamed("policy.optimizer.weight_decay"),
    "megatron_cfg.optimizer.adam_beta1": Renamed("policy.optimizer.beta1"),
    "megatron_cfg.optimizer.adam_beta2": Renamed("policy.optimizer.beta2"),
    "megatron_cfg.optimizer.adam_eps": Renamed("policy.optimizer.eps"),
    "megatron_cfg.optimizer.clip_grad": Renamed("policy.max_grad_norm"),
    "megatron_cfg.optimizer.min_lr": Renamed(
        "policy.scheduler.final_factor", "a share of the learning rate"
    ),
    "megatron_cfg.scheduler.lr_decay_style": Renamed("policy.scheduler.decay"),
    "megatron_cfg.scheduler.lr_decay_iters": Renamed("policy.scheduler.decay_steps"),
    "megatron_cfg.scheduler.lr_warmup_iters": Renamed("policy.scheduler.warmup_steps"),
    "megatron_cfg.scheduler.lr_warmup_init": Renamed(
        "policy.scheduler.warmup_start_factor", "a share of the learning rate"
    ),
    **{f"megatron_cfg.peft.{key}": target for key, target in _LORA.items()},
    "megatron_cfg.peft": _ONE_LORA,
    "megatron_cfg": _HUGGING_FACE,
    "dynamic_batching.train_mb_tokens": Renamed("policy.train_micro_batch_tokens"),
    "dynamic_batching.logprob_mb_tokens": Renamed("policy.train_micro_batch_tokens"),
    "dynamic_batching": _BY_TOKENS,
    "sequence_packing.train_mb_tokens": Renamed("policy.train_micro_batch_tokens"),
    "sequence_packing.logprob_mb_tokens": Renamed("policy.train_micro_batch_tokens"),
    "sequence_packing.enabled": Renamed("policy.sequence_packing"),
    "sequence_packing.algorithm": _BY_TOKENS,
    "sequence_packing.microbatch_order": _BY_TOKENS,
    "sequence_packing.sequence_length_round": _BY_TOKENS,
    "make_sequence_length_divisible_by": _BY_TOKENS,
    "optimizer.name": Absent("Nothing to set: the optimizer is AdamW"),
    "optimizer.kwargs.lr": Renamed("policy.optimizer.lr"),
    "optimizer.kwargs.betas": Renamed("policy.optimizer.beta1", "and policy.optimizer.beta2"),
    "optimizer.kwargs.eps": Renamed("policy.optimizer.eps"),
    "optimizer.kwargs.weight_decay": Renamed("policy.optimizer.weight_decay"),
    "optimizer.kwargs": Absent("Nothing to set: the optimizer is plain AdamW"),
    "scheduler.name": Renamed("policy.scheduler.decay"),
    "scheduler.kwargs.start_factor": Renamed("policy.scheduler.warmup_start_factor"),
    "scheduler.kwargs.total_iters": Renamed("policy.scheduler.warmup_steps"),
    "scheduler.kwargs": Renamed("policy.scheduler.decay", "with warm-up and decay as own keys"),
    "scheduler.milestones": Renamed("policy.scheduler.warmup_steps"),
    "draft": Absent("Nothing to set: no draft model is trained"),
    "refit_buffer_size_gb": Absent("Nothing to set: a refit needs no buffer of a given size"),
}

_GENERATION: dict[str, Target] = {
    "backend": Chosen("generation", "vllm"),
    "max_new_tokens": Renamed("generation.max_new_tokens"),
    "temperature": Renamed("generation.temperature"),
    "top_p": Renamed("generation.top_p"),
    "top_k": Renamed("generation.top_k"),
    "val_temperature": Renamed("generation.val_temperature"),
    "val_top_p": Renamed("generation.val_top_p"),
    "val_top_k": Renamed("generation.val_top_k"),
    "stop_strings": Renamed("generation.stop"),
    "stop_token_ids": Renamed(
        "generation.stop", "strings; the tokenizer's end of sequence always stops"
    ),
    "bad_words": Absent(
        "Nothing to set: the learner could not reproduce log-probs of censored samples"
    ),
    "port_range_low": _PORTS,
    "port_range_high": _PORTS,
    "colocated.enabled": Renamed("cluster.colocated", variant="cluster/ray"),
    "colocated": Renamed("cluster.num_engines", "one GPU for each engine", "cluster/ray"),
    "refit_transport": Renamed("generation.refit", variant="generation/vllm"),
    "refit_cfg": _DERIVED,
    "vllm_cfg.async_engine": Absent("Nothing to set: engines are always asynchronous"),
    "vllm_cfg.precision": Renamed("policy.precision"),
    "vllm_cfg.logprobs_mode": _DERIVED,
    "vllm_cfg.tensor_parallel_size": Renamed(
        "generation.tensor_parallel_size", variant="generation/vllm"
    ),
    "vllm_cfg.max_model_len": Renamed("policy.max_total_sequence_length"),
    "vllm_cfg.expose_http_server": Renamed("generation.expose_http_server"),
    "vllm_cfg.http_server_serving_chat_kwargs": Renamed(
        "generation.http.tool_parser", "and generation.http.reasoning_parser"
    ),
    "vllm_cfg.tool_parser_plugin": Renamed("generation.http.tool_parser"),
    "vllm_cfg.reasoning_parser_plugin": Renamed("generation.http.reasoning_parser"),
    "vllm_cfg.load_format": _DERIVED,
    "vllm_cfg.skip_tokenizer_init": _DERIVED,
    "vllm_cfg.use_tqdm": _DERIVED,
    "vllm_cfg.enable_vllm_metrics_logger": _SINKS,
    "vllm_cfg.vllm_metrics_logger_interval": _SINKS,
    "vllm_cfg": _ARGUMENT,
    "vllm_kwargs": _ARGUMENT,
    "": _DERIVED,
}

_DATASET: dict[str, Target] = {
    "dataset_name": Renamed("data.{part}.source", "hf:NAME@SUBSET for a data set of the hub"),
    "data_path": Renamed("data.{part}.source"),
    "input_key": Renamed("data.{part}.prompt_field"),
    "output_key": Renamed("data.{part}.answer_field"),
    "subset": Renamed("data.{part}.source", "as hf:NAME@SUBSET"),
    "split_validation_size": Absent("Nothing to set: give data.validation rows of its own"),
    "prompt_file": Renamed("data.{part}.prompt_template", "the text itself"),
    "system_prompt_file": Renamed("data.{part}.system_prompt", "the text itself"),
    "env_name": Chosen("env", "math", "the environment of all rows"),
    "processor": Absent("Nothing to set: rows are read by their fields"),
    "repeat": Renamed("grpo.max_num_epochs"),
}

_DATA: dict[str, Target] = {
    "max_input_seq_length": Renamed("data.max_prompt_tokens", "longer prompts are left out"),
    "shuffle": Renamed("data.train.shuffle"),
    "num_workers": Absent("Nothing to set: rows are read once, before the run"),
    "use_multiple_dataloader": Absent("Nothing to set: there is one stream of prompts"),
    "num_prompts_per_dataloader": Absent("Nothing to set: there is one stream of prompts"),
    "custom_dataloader": Absent("Nothing to set: there is one stream of prompts"),
    "default": Absent("Nothing to set: write the values into data.train and data.validation"),
}

_TOP: dict[str, Target] = {
    "env.math": Chosen("env", "math"),
    "env.should_use_nemo_gym": Chosen("env", "gym"),
    "env.should_log_nemo_gym_responses": Renamed("logging.trained", "true or false"),
    "env.should_mask_flagged_samples": Absent("Nothing to set: flagged samples are not trained"),
    "env.nemo_gym.effort_levels.low_string": Renamed("grpo.effort.low_string"),
    "env.nemo_gym.effort_levels.low_weight": Renamed("grpo.effort.low_weight"),
    "env.nemo_gym.effort_levels.low_penalty": Renamed("grpo.effort.low_penalty"),
    "env.nemo_gym.effort_levels.low_ub": Renamed("grpo.effort.low_tokens"),
    "env.nemo_gym.thinking_tags": Renamed(
        "grpo.reward_penalties.think_open", "and grpo.reward_penalties.think_close"
    ),
    "env.nemo_gym.invalid_tool_call_patterns": Absent(
        "Nothing to set: what generation.http.tool_parser cannot read is invalid"
    ),
    "env.nemo_gym.port_range_low": _FREE_PORTS,
    "env.nemo_gym.port_range_high": _FREE_PORTS,
    "env.nemo_gym.uv_venv_dir": Renamed("env.venv", "made by rlrun gym setup", "env/gym"),
    "env.nemo_gym": Renamed("env.config_paths", "and env.config_overrides", "env/gym"),
    "reward_penalties.penalize_duplicated_reasoning": Renamed(
        "grpo.reward_penalties.duplicated_reasoning"
    ),
    "reward_penalties.penalize_empty_final_answer": Renamed(
        "grpo.reward_penalties.empty_final_answer"
    ),
    "reward_penalties.penalize_unwanted_tokens": Renamed(
        "grpo.reward_penalties.unwanted_tokens", "the list of ids; [] is off"
    ),
    "reward_penalties.penalize_malformed_think_tag": Renamed(
        "grpo.reward_penalties.malformed_thinking"
    ),
    "reward_penalties.token_ids.unwanted": Renamed("grpo.reward_penalties.unwanted_tokens"),
    "reward_penalties.token_ids.think_open": Renamed(
        "grpo.reward_penalties.think_open", "the text of the tag"
    ),
    "reward_penalties.token_ids.think_close": Renamed(
        "grpo.reward_penalties.think_close", "the text of the tag"
    ),
    "reward_penalties": Renamed("grpo.reward_penalties.duplicated_reasoning", "and its siblings"),
    "logger.log_dir": Renamed("run_dir"),
    "logger.tensorboard_enabled": Renamed("logging.tensorboard"),
    "logger.tensorboard": Renamed("logging.tensorboard", "true or false"),
    "logger.wandb_enabled": Renamed("logging.wandb.enabled"),
    "logger.wandb.project": Renamed("logging.wandb.project"),
    "logger.mlflow_enabled": Renamed("logging.mlflow.enabled"),
    "logger.mlflow.experiment_name": Renamed("logging.mlflow.experiment"),
    "logger.mlflow.tracking_uri": Renamed("logging.mlflow.tracking_uri"),
    "logger.num_val_samples_to_print": Renamed("logging.validation_rows", "a file, not the log"),
    "logger": _SINKS,
    "checkpointing.checkpoint_dir": Renamed("run_dir", "checkpoints are in its checkpoints/"),
    "checkpointing.metric_name": Renamed(
        "checkpointing.metric", "val:accuracy is validation/accuracy"
    ),
    "checkpointing.ft_save_period": Renamed("checkpointing.save_period"),
    "checkpointing.ft_keep_latest_k": Absent(
        "Nothing to set: the latest checkpoint is always kept"
    ),
    "checkpointing.model_save_format": Absent("Nothing to set: weights are safetensors"),
    "checkpointing.save_consolidated": Absent("Nothing to set: rlrun export writes one folder"),
    "checkpointing.save_optimizer": Absent("Nothing to set: the optimizer is always saved"),
    "checkpointing.pretrained_checkpoint": Renamed("policy.model"),
    "cluster.master_port_range_low": _FREE_PORTS,
    "cluster.master_port_range_high": _FREE_PORTS,
    "cluster.segment_size": Absent("Nothing to set: machines have no segments"),
    "async_rl.sampler": Chosen("batching", "fifo"),
    "async_rl.rollout_failure.native.generation_timeout_s": Renamed("grpo.group_timeout_s"),
    "async_rl.rollout_failure.native.env_timeout_s": Renamed("grpo.rollout_timeout_s"),
    "async_rl.rollout_failure": Renamed("grpo.max_generation_failures"),
    "async_rl.stall_watchdog": Renamed("grpo.no_progress_timeout_s"),
    "async_rl": _SCHEDULER,
    "data_plane": _SCHEDULER,
    "on_policy_distillation": Absent("Nothing to set: there is no distillation"),
}


def _all() -> dict[str, Target]:
    table: dict[str, Target] = dict(_TOP)
    for prefix, part in (
        ("grpo", _GRPO),
        ("loss_fn", _LOSS),
        ("policy", _POLICY),
        ("policy.generation", _GENERATION),
        ("data", _DATA),
    ):
        for name, target in part.items():
            table[f"{prefix}.{name}".rstrip(".")] = target
    for part_name in ("train", "validation"):
        for name, target in _DATASET.items():
            if isinstance(target, Renamed):
                target = Renamed(target.key.format(part=part_name), target.note)
            table[f"data.{part_name}.{name}"] = target
    return table


NEMO_RL: dict[str, Target] = _all()
"""By NeMo RL's key; a section stands for every key below it that is not listed itself."""
