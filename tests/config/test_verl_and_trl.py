# SPDX-License-Identifier: Apache-2.0
"""Keys of verl and arguments of TRL are refused with what they are called here."""

import re
from collections.abc import Mapping

import pytest

from rlrun.config.foreign import Absent, Chosen, Renamed, Target, available
from rlrun.config.keys import all_keys
from rlrun.config.paths import conf_dir
from rlrun.config.trl import TRL
from rlrun.config.variants import discover
from rlrun.config.verl import VERL
from tests.config.config_problems import QUICK, problems
from tests.factories import ROOT

VERL_REMEDIES = [
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

TRL_REMEDIES = [
    ("learning_rate", "Here it is policy.optimizer.lr"),
    ("num_generations", "Here it is grpo.num_generations_per_prompt"),
    ("epsilon_high", "Here it is loss.ratio_clip_max"),
    ("use_vllm", "Here it is the choice generation=vllm"),
    ("reward_funcs", "Here it is env.reward_function, with env=python"),
    ("min_p", "reproduce the distribution"),
]


@pytest.mark.parametrize(
    ("table", "key"), [(table, key) for table in (VERL, TRL) for key in sorted(table)]
)
def test_what_a_key_is_called_here_exists(table: Mapping[str, Target], key: str) -> None:
    discover()
    assert key not in all_keys()
    match table[key]:
        case Renamed(target, _, variant):
            assert available(variant) and target in all_keys()
        case Chosen(group, choice):
            assert (conf_dir() / group / f"{choice}.yaml").is_file()
        case Absent(reason):
            assert reason.startswith("Nothing to set: ")


@pytest.mark.parametrize(("library", "remedies"), [("verl", VERL_REMEDIES), ("TRL", TRL_REMEDIES)])
def test_keys_are_refused_with_their_names_here(
    library: str, remedies: list[tuple[str, str]]
) -> None:
    flags = [f"+{key}=1" for key, _ in remedies]
    found = {problem.where: problem for problem in problems([QUICK, *flags])}
    assert len(found) == len(remedies)
    for flag, (key, remedy) in zip(flags, remedies, strict=True):
        assert found[flag].what == f"{key} is a key of {library}"
        assert remedy in found[flag].remedy


def test_the_page_for_users_of_trl_knows_no_others() -> None:
    page = (ROOT / "docs/migration_trl.md").read_text(encoding="utf-8")
    tables = page[page.index("## The constructor") : page.index("## Names of metrics")]
    first = [row.split("|")[1] for row in tables.splitlines() if row.startswith("| `")]
    told = {name.partition("=")[0] for cell in first for name in re.findall(r"`([^`]+)`", cell)}
    assert told - {"bnpo", "luspo"} <= set(TRL)
