# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

import pytest

from rlrun.config.foreign import Absent, Chosen, Renamed, available, find_key
from rlrun.config.keys import all_keys
from rlrun.config.nemo_rl import NEMO_RL
from rlrun.config.paths import conf_dir
from rlrun.config.variants import discover
from tests.config.config_problems import QUICK, problems

Recipe = Callable[..., str]


@pytest.mark.parametrize("key", sorted(NEMO_RL))
def test_what_a_key_of_nemo_rl_is_called_here_exists(key: str) -> None:
    discover()
    match NEMO_RL[key]:
        case Renamed(target, _, variant):
            assert not available(variant) or target in all_keys()
        case Chosen(group, choice):
            name = f"{group}/{choice}"
            assert not available(name) or (conf_dir() / f"{name}.yaml").is_file()
        case Absent(reason):
            assert reason.startswith("Nothing to set: ")


@pytest.mark.parametrize("key", sorted(NEMO_RL))
def test_no_key_of_ours_is_taken_for_one_of_nemo_rl(key: str) -> None:
    discover()
    assert key not in all_keys()


REMEDIES = [
    ("loss_fn.ratio_clip_min", "loss.ratio_clip_min"),
    ("policy.generation.temperature", "generation.temperature"),
    ("policy.train_micro_batch_size", "policy.train_micro_batch_tokens"),
    ("checkpointing.checkpoint_dir", "run_dir"),
    ("logger.log_dir", "run_dir"),
    ("logger.wandb_enabled", "logging.wandb.enabled"),
    ("logger.monitor_gpus", "metrics.jsonl is always written"),
    ("reward_penalties.penalize_empty_final_answer", "grpo.reward_penalties.empty_final_answer"),
    ("env.nemo_gym.effort_levels.low_ub", "grpo.effort.low_tokens"),
    ("policy.generation.colocated.enabled", "cluster.colocated"),
    ("grpo.normalize_rewards", "advantage.normalize"),
    ("grpo.use_leave_one_out_baseline", "advantage.baseline"),
    ("policy.model_name", "policy.model"),
    ("policy.tokenizer.name", "policy.tokenizer"),
    ("data.max_input_seq_length", "data.max_prompt_tokens"),
    ("data.train.dataset_name", "data.train.source"),
    ("data.validation.input_key", "data.validation.prompt_field"),
    ("policy.dtensor_cfg.tensor_parallel_size", "FSDP2"),
    ("policy.dtensor_cfg.activation_checkpointing", "policy.activation_checkpointing"),
    ("policy.megatron_cfg.context_parallel_size", "FSDP2"),
    ("policy.megatron_cfg.optimizer.lr", "policy.optimizer.lr"),
    ("policy.dtensor_cfg.lora_cfg.dim", "policy.lora.rank"),
    ("policy.megatron_cfg.peft.alpha", "policy.lora.alpha"),
    ("policy.dtensor_cfg.lora_cfg.dropout", "no dropout"),
    ("policy.megatron_cfg.moe_router_dtype", "policy.moe_router_fp32"),
    ("policy.megatron_cfg.moe_permute_fusion", "without Megatron"),
    ("policy.optimizer.kwargs.lr", "policy.optimizer.lr"),
    ("policy.sequence_packing.enabled", "policy.sequence_packing"),
    ("loss_fn.use_cispo", "loss=cispo"),
    ("loss_fn.sequence_level_importance_ratios", "loss=gspo"),
    ("grpo.reward_shaping.overlong_buffer_length", "grpo.overlong_shaping.buffer_tokens"),
    ("env.math.num_workers", "env=math"),
    ("policy.generation.vllm_cfg.async_engine", "always asynchronous"),
    ("policy.generation.vllm_cfg.tensor_parallel_size", "generation.tensor_parallel_size"),
    ("policy.generation.vllm_cfg.gpu_memory_utilization", "generation.vllm_kwargs"),
    ("policy.generation.vllm_cfg.expose_http_server", "generation.expose_http_server"),
    ("policy.generation.vllm_kwargs", "generation.vllm_kwargs"),
    ("policy.generation.anything_else", "rlrun decides it"),
    ("async_rl.stall_watchdog.interval_s", "grpo.no_progress_timeout_s"),
    ("checkpointing.metric_name", "checkpointing.metric"),
]


@pytest.mark.parametrize("prefix", ["", "+", "++"])
def test_keys_of_nemo_rl_are_refused_with_their_names_here(prefix: str) -> None:
    found = {problem.where: problem for problem in problems([QUICK, *flags_of(prefix)])}
    assert len(found) == len(REMEDIES)
    for flag, (key, remedy) in zip(flags_of(prefix), REMEDIES, strict=True):
        assert f"{key} is a key of NeMo RL" in found[flag].what
        assert remedy in found[flag].remedy


def flags_of(prefix: str) -> list[str]:
    return [f"{prefix}{key}=1" for key, _ in REMEDIES]


def test_keys_of_the_asynchronous_schedule_are_explained() -> None:
    remedy = find_key("grpo.async_grpo.max_trajectory_age_steps", NEMO_RL)
    assert remedy == "Here it is grpo.max_trajectory_age_steps, with grpo=async"


def test_every_line_of_a_pasted_section_is_answered(recipe: Recipe) -> None:
    flag = recipe(
        "defaults: [quickstart, _self_]\n"
        "loss_fn:\n  ratio_clip_min: 0.2\n  token_level_loss: true\n"
        "policy:\n  generation:\n    top_p: 1.0\n    vllm_kwargs: {}\n"
        "logger: {gpu_monitoring: {collection_interval: 10}}\n"
    )
    found = problems([flag])
    assert [problem.where for problem in found] == [f"mine.yaml:{line}" for line in (3, 4, 7, 8, 9)]
    assert all("NeMo RL" in problem.what for problem in found)
