# SPDX-License-Identifier: Apache-2.0
"""Keys of verl's YAML and what they are called here, for people who bring a recipe."""

from __future__ import annotations

from rlrun.config.foreign import Absent, Chosen, Renamed, Target

_CRITIC = Absent("Nothing to set: there is no critic; advantages are those of advantage=group")
_REWARD_MODEL = Absent("Nothing to set: a reward is a function or an environment (env=python)")
_MICROBATCH = Renamed("policy.train_micro_batch_tokens", "counted in tokens, not in trajectories")
_DECIDED = Absent("Nothing to set: rlrun decides it; other engine arguments go to vllm_kwargs")
_FIXED_KL = Absent("Nothing to set: the KL penalty is part of the loss")
_KERNELS = Absent("Nothing to set: models are trained as transformers builds them")
_SHARDING = Absent(
    "Nothing to set: cluster=ray spreads the model over cluster.num_learner_ranks by FSDP2"
)
_NO_PARALLELISM = Absent(
    "Nothing to set: there is no tensor, sequence, context, pipeline or expert parallelism of the "
    "learner"
)
_PROFILER = Absent("Nothing to set: rlrun report shows what the time was spent on")

_ACTOR: dict[str, Target] = {
    "ppo_mini_batch_size": Renamed(
        "policy.train_global_batch_size", "counted in trajectories: times rollout.n"
    ),
    "ppo_micro_batch_size": _MICROBATCH,
    "ppo_micro_batch_size_per_gpu": _MICROBATCH,
    "ppo_max_token_len_per_gpu": Renamed("policy.train_micro_batch_tokens"),
    "use_dynamic_bsz": Absent(
        "Nothing to set: microbatches are cut by tokens; policy.train_micro_batch_tokens is the "
        "size"
    ),
    "ppo_epochs": Absent(
        "Nothing to set: a batch is trained once; several updates per step are "
        "policy.train_global_batch_size"
    ),
    "clip_ratio": Renamed("loss.ratio_clip_min", "and loss.ratio_clip_max", "loss/grpo"),
    "clip_ratio_low": Renamed("loss.ratio_clip_min", variant="loss/grpo"),
    "clip_ratio_high": Renamed("loss.ratio_clip_max", variant="loss/grpo"),
    "clip_ratio_c": Renamed("loss.ratio_clip_c", "null by default, 3 in verl", "loss/grpo"),
    "policy_loss.loss_mode": Chosen(
        "loss", "grpo", "vanilla; gspo and cispo are choices too, others are not offered"
    ),
    "policy_loss": Absent("Nothing to set: loss=NAME chooses a loss, and its keys are loss.*"),
    "loss_agg_mode": Renamed(
        "loss.level",
        "token-mean is token, seq-mean-token-mean sequence; seq-mean-token-sum-norm is "
        "loss=dr_grpo",
        "loss/grpo",
    ),
    "entropy_coeff": Absent("Nothing to set: there is no entropy bonus; see loss.ratio_clip_max"),
    "use_kl_loss": Renamed("loss.reference_policy_kl_penalty", "above 0 switches it on"),
    "kl_loss_coef": Renamed("loss.reference_policy_kl_penalty"),
    "kl_loss_type": Renamed(
        "loss.reference_policy_kl_type", "low_var_kl is k3, kl is k1, mse is k2", "loss/grpo"
    ),
    "shuffle": Absent("Nothing to set: the groups of a step are trained in stream order"),
    "grad_clip": Renamed("policy.max_grad_norm"),
    "optim.lr": Renamed("policy.optimizer.lr"),
    "optim.weight_decay": Renamed("policy.optimizer.weight_decay"),
    "optim.betas": Renamed("policy.optimizer.beta1", "and policy.optimizer.beta2"),
    "optim.lr_warmup_steps": Renamed("policy.scheduler.warmup_steps"),
    "optim.lr_warmup_steps_ratio": Renamed("policy.scheduler.warmup_steps", "counted in steps"),
    "optim.warmup_style": Renamed("policy.scheduler.decay"),
    "optim.lr_scheduler_type": Renamed("policy.scheduler.decay"),
    "optim.min_lr_ratio": Renamed("policy.scheduler.final_factor"),
    "optim.total_training_steps": Renamed("policy.scheduler.decay_steps"),
    "optim.clip_grad": Renamed("policy.max_grad_norm"),
    "optim": Absent("Nothing to set: the optimizer is AdamW"),
    "fsdp_config.param_offload": Renamed("policy.fsdp.cpu_offload"),
    "fsdp_config.optimizer_offload": Renamed("policy.fsdp.cpu_offload"),
    "fsdp_config.offload_policy": Renamed("policy.fsdp.cpu_offload"),
    "fsdp_config": _SHARDING,
    "strategy": _SHARDING,
    "megatron": _NO_PARALLELISM,
    "ulysses_sequence_parallel_size": _NO_PARALLELISM,
    "entropy_from_logits_with_chunking": Renamed("policy.logprob_chunk_tokens"),
    "checkpoint.async_save": Renamed("checkpointing.layout", "sharded saves beside training"),
    "checkpoint": Absent("Nothing to set: a checkpoint holds everything; rlrun export a model"),
    "profiler": _PROFILER,
    "": _KERNELS,
}

_ROLLOUT: dict[str, Target] = {
    "name": Chosen("generation", "vllm", "or generation=transformers; sglang is not offered"),
    "mode": Absent("Nothing to set: engines are always asynchronous"),
    "n": Renamed("grpo.num_generations_per_prompt"),
    "temperature": Renamed("generation.temperature"),
    "top_p": Renamed("generation.top_p"),
    "top_k": Renamed("generation.top_k", "null is off, -1 in verl"),
    "do_sample": Renamed("generation.temperature"),
    "prompt_length": Renamed("data.max_prompt_tokens", "longer prompts are left out, never cut"),
    "response_length": Renamed("generation.max_new_tokens", "of a turn"),
    "val_kwargs.n": Renamed("grpo.val_num_generations_per_prompt"),
    "val_kwargs.temperature": Renamed("generation.val_temperature"),
    "val_kwargs.top_p": Renamed("generation.val_top_p"),
    "val_kwargs.top_k": Renamed("generation.val_top_k", "null is off, -1 in verl"),
    "val_kwargs.do_sample": Renamed("generation.val_temperature", "0 for false"),
    "dtype": Renamed("policy.precision", "one for learner and engines"),
    "tensor_model_parallel_size": Renamed(
        "generation.tensor_parallel_size", variant="generation/vllm"
    ),
    "gpu_memory_utilization": Renamed(
        "generation.vllm_kwargs", "{gpu_memory_utilization: 0.5}", "generation/vllm"
    ),
    "max_num_seqs": Renamed("generation.vllm_kwargs", "{max_num_seqs: 64}", "generation/vllm"),
    "max_num_batched_tokens": Renamed(
        "generation.vllm_kwargs", "{max_num_batched_tokens: 8192}", "generation/vllm"
    ),
    "enforce_eager": Renamed("generation.vllm_kwargs", "{enforce_eager: true}", "generation/vllm"),
    "engine_kwargs": Renamed(
        "generation.vllm_kwargs", "a dict of vLLM's own arguments", "generation/vllm"
    ),
    "max_model_len": Renamed("policy.max_total_sequence_length"),
    "log_prob_micro_batch_size": _MICROBATCH,
    "log_prob_micro_batch_size_per_gpu": _MICROBATCH,
    "log_prob_max_token_len_per_gpu": Renamed("policy.train_micro_batch_tokens"),
    "calculate_log_probs": Absent("Nothing to set: log-probs of the engines are always kept"),
    "multi_turn.max_assistant_turns": Renamed("grpo.max_rollout_turns"),
    "multi_turn.max_user_turns": Renamed("grpo.max_rollout_turns"),
    "multi_turn.tool_config_path": Renamed(
        "env.environment", "with env=python: a class with tools", "env/python"
    ),
    "multi_turn.interaction_config_path": Renamed(
        "env.environment", "with env=python: a class of several turns", "env/python"
    ),
    "multi_turn.format": Renamed("generation.http.tool_parser", "for agents that ask over HTTP"),
    "multi_turn": Chosen("env", "python", "a class of yours; grpo.max_rollout_turns above 1"),
    "agent": Chosen("env", "gym", "agents over HTTP; a class of yours is env=python"),
    "profiler": _PROFILER,
    "": _DECIDED,
}

_MODEL: dict[str, Target] = {
    "path": Renamed("policy.model"),
    "custom_chat_template": Renamed("policy.chat_template"),
    "enable_gradient_checkpointing": Renamed("policy.activation_checkpointing", "off by default"),
    "use_remove_padding": Renamed("policy.sequence_packing"),
    "lora_rank": Renamed("policy.lora.rank", "and policy.lora.enabled=true"),
    "lora_alpha": Renamed("policy.lora.alpha"),
    "target_modules": Renamed("policy.lora.target_modules"),
    "trust_remote_code": Absent("Nothing to set: code in a model's folder is never run"),
    "override_config": Absent("Nothing to set: change config.json in the model's folder"),
    "": _KERNELS,
}

_DATA: dict[str, Target] = {
    "train_files": Renamed("data.train.source"),
    "val_files": Renamed("data.validation.source"),
    "train_batch_size": Renamed("grpo.num_prompts_per_step"),
    "gen_batch_size": Absent(
        "Nothing to set: dynamic sampling takes further prompts as it needs them"
    ),
    "val_batch_size": Renamed("grpo.val_batch_size"),
    "val_max_samples": Renamed("grpo.max_val_samples"),
    "train_max_samples": Renamed("data.train.limit"),
    "prompt_key": Renamed("data.train.prompt_field"),
    "reward_fn_key": Absent("Nothing to set: env=NAME scores all rows of a run"),
    "max_prompt_length": Renamed("data.max_prompt_tokens", "longer prompts are left out"),
    "max_response_length": Renamed("generation.max_new_tokens", "of a turn"),
    "filter_overlong_prompts": Absent("Nothing to set: this is always done"),
    "truncation": Absent("Nothing to set: longer prompts are left out, never cut"),
    "shuffle": Renamed("data.train.shuffle"),
    "seed": Renamed("grpo.seed"),
    "tokenizer": Renamed("policy.tokenizer"),
    "apply_chat_template_kwargs": Absent("Nothing to set: write policy.chat_template as needed"),
}

_ALGORITHM: dict[str, Target] = {
    "adv_estimator": Chosen(
        "advantage",
        "group",
        "grpo; rloo is advantage.baseline=leave_one_out advantage.normalize=false, others are "
        "not offered",
    ),
    "norm_adv_by_std_in_grpo": Renamed("advantage.normalize"),
    "use_kl_in_reward": _FIXED_KL,
    "kl_penalty": _FIXED_KL,
    "kl_ctrl": _FIXED_KL,
    "filter_groups.enable": Renamed("grpo.use_dynamic_sampling"),
    "filter_groups.max_num_gen_batches": Renamed("grpo.dynamic_sampling_max_gen_batches"),
    "filter_groups.metric": Absent("Nothing to set: groups are judged by their rewards"),
    "rollout_correction.rollout_is": Renamed(
        "correction.level", "with correction.type=tis and correction.enabled=true"
    ),
    "rollout_correction.rollout_is_threshold": Renamed("correction.ratio_max"),
    "rollout_correction.rollout_rs": Renamed(
        "correction.type", "icepop masks instead of truncating, seq_mask_tis whole trajectories"
    ),
    "rollout_correction.rollout_rs_threshold": Renamed("correction.ratio_max"),
    "rollout_correction.rollout_rs_threshold_lower": Renamed("correction.ratio_min"),
    "rollout_correction": Renamed("correction.enabled", "null is on with grpo=async"),
    "gamma": _CRITIC,
    "lam": _CRITIC,
    "": Absent("Nothing to set: advantages are those of advantage=group"),
}

_TRAINER: dict[str, Target] = {
    "total_training_steps": Renamed("grpo.max_num_steps"),
    "total_epochs": Renamed("grpo.max_num_epochs"),
    "test_freq": Renamed("grpo.val_period", "0 is off, -1 in verl"),
    "val_before_train": Renamed("grpo.val_at_start"),
    "val_only": Absent("Nothing to set: rlrun eval evaluates a model or a run"),
    "save_freq": Renamed("checkpointing.save_period"),
    "max_actor_ckpt_to_keep": Renamed("checkpointing.keep_top_k", "beside the newest one"),
    "esi_redundant_time": Renamed("checkpointing.checkpoint_must_save_by"),
    "default_local_dir": Renamed("run_dir"),
    "resume_mode": Absent("Nothing to set: rlrun resume RUN_DIR goes on with a run"),
    "resume_from_path": Absent("Nothing to set: rlrun resume RUN_DIR goes on with a run"),
    "project_name": Renamed("logging.wandb.project"),
    "experiment_name": Renamed("run_dir"),
    "logger": Renamed(
        "logging.wandb.enabled", "and logging.mlflow.enabled, logging.tensorboard; files are always"
    ),
    "log_val_generations": Renamed("logging.validation_rows", "a file, rlrun view shows it"),
    "rollout_data_dir": Renamed("logging.trained", "true or false: trained/ in the run directory"),
    "validation_data_dir": Renamed(
        "logging.validation_rows", "true or false: validation/ in the run directory"
    ),
    "nnodes": Renamed("cluster.num_nodes", variant="cluster/ray"),
    "n_gpus_per_node": Renamed("cluster.gpus_per_node", variant="cluster/ray"),
    "device": Renamed("cluster.device"),
    "": Absent("Nothing to set: the trainer has no such parts"),
}

_TOP: dict[str, Target] = {
    "actor_rollout_ref.hybrid_engine": Renamed("cluster.colocated", variant="cluster/ray"),
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": _MICROBATCH,
    "actor_rollout_ref.ref": Absent(
        "Nothing to set: the reference is the first policy, and is spread as the policy is"
    ),
    "actor_rollout_ref": _DECIDED,
    "custom_reward_function.path": Renamed("env.reward_function", "FILE.py:NAME", "env/python"),
    "custom_reward_function": Renamed("env.reward_function", "FILE.py:NAME", "env/python"),
    "reward.custom_reward_function": Renamed("env.reward_function", "FILE.py:NAME", "env/python"),
    "reward_model.overlong_buffer.enable": Renamed("grpo.overlong_shaping.enabled"),
    "reward_model.overlong_buffer.len": Renamed("grpo.overlong_shaping.buffer_tokens"),
    "reward_model.overlong_buffer.penalty_factor": Renamed("grpo.overlong_shaping.penalty"),
    "reward_model.reward_manager": Chosen("env", "math", "or env=python with a function of yours"),
    "reward_model": _REWARD_MODEL,
    "reward": _REWARD_MODEL,
    "critic": _CRITIC,
    "async_training.staleness_threshold": Renamed(
        "grpo.max_trajectory_age_steps",
        "in steps and a bound, not a share of samples",
        "grpo/async",
    ),
    "async_training.partial_rollout": Renamed(
        "grpo.in_flight_weight_updates", variant="grpo/async"
    ),
    "async_training.require_batches": Renamed("grpo.num_prompts_per_step"),
    "async_training.trigger_parameter_sync_step": Absent(
        "Nothing to set: every step publishes its weights"
    ),
    "async_training": Chosen("grpo", "async"),
    "rollout.nnodes": Renamed("cluster.num_engines", variant="cluster/ray"),
    "rollout.n_gpus_per_node": Renamed("cluster.num_engines", variant="cluster/ray"),
    "rollout.total_rollout_steps": Renamed(
        "grpo.max_num_steps", "in steps of grpo.num_prompts_per_step prompts"
    ),
    "rollout.test_freq": Renamed("grpo.val_period"),
    "global_profiler": _PROFILER,
    "ray_kwargs": Renamed("cluster.address", variant="cluster/ray"),
}


def _all() -> dict[str, Target]:
    table: dict[str, Target] = {}
    for prefix, part in (
        ("data", _DATA),
        ("actor_rollout_ref.model", _MODEL),
        ("actor_rollout_ref.actor", _ACTOR),
        ("actor_rollout_ref.rollout", _ROLLOUT),
        ("algorithm", _ALGORITHM),
        ("trainer", _TRAINER),
    ):
        for name, target in part.items():
            table[f"{prefix}.{name}".rstrip(".")] = target
    return table | _TOP


VERL: dict[str, Target] = _all()
"""By verl's key; a section stands for every key below it that is not listed itself."""
