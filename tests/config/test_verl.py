# SPDX-License-Identifier: Apache-2.0
"""Keys of verl are refused with what they are called here."""

import pytest

from rlrun.config.foreign import Absent, Chosen, Renamed, available
from rlrun.config.keys import all_keys
from rlrun.config.paths import conf_dir
from rlrun.config.variants import discover
from rlrun.config.verl import VERL
from tests.config.config_problems import QUICK, problems

REMEDIES = [
    ("data.train_files", "data.train.source"),
    ("data.train_batch_size", "grpo.num_prompts_per_step"),
    ("actor_rollout_ref.model.path", "policy.model"),
    ("actor_rollout_ref.actor.optim.lr", "policy.optimizer.lr"),
    ("actor_rollout_ref.actor.ppo_mini_batch_size", "times rollout.n"),
    ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size", "parallelism"),
    ("actor_rollout_ref.rollout.n", "grpo.num_generations_per_prompt"),
    ("actor_rollout_ref.rollout.engine_kwargs.vllm.max_num_seqs", "generation.vllm_kwargs"),
    ("actor_rollout_ref.rollout.load_format", "rlrun decides it"),
    ("actor_rollout_ref.ref.fsdp_config.param_offload", "the first policy"),
    ("algorithm.adv_estimator", "advantage=group"),
    ("algorithm.filter_groups.enable", "grpo.use_dynamic_sampling"),
    ("trainer.test_freq", "grpo.val_period"),
    ("trainer.nccl_timeout", "no such parts"),
    ("custom_reward_function.path", "env.reward_function"),
    ("critic.optim.lr", "no critic"),
    ("async_training.staleness_threshold", "grpo.max_trajectory_age_steps"),
]


@pytest.mark.parametrize("key", sorted(VERL))
def test_what_a_key_of_verl_is_called_here_exists(key: str) -> None:
    discover()
    assert key not in all_keys()
    match VERL[key]:
        case Renamed(target, _, variant):
            assert available(variant) and target in all_keys()
        case Chosen(group, choice):
            assert (conf_dir() / group / f"{choice}.yaml").is_file()
        case Absent(reason):
            assert reason.startswith("Nothing to set: ")


def test_keys_of_verl_are_refused_with_their_names_here() -> None:
    flags = [f"+{key}=1" for key, _ in REMEDIES]
    found = {problem.where: problem for problem in problems([QUICK, *flags])}
    assert len(found) == len(REMEDIES)
    for flag, (key, remedy) in zip(flags, REMEDIES, strict=True):
        assert found[flag].what == f"{key} is a key of verl"
        assert remedy in found[flag].remedy
