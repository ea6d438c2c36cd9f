# SPDX-License-Identifier: Apache-2.0
"""Arguments of TRL are refused with what they are called here."""

import re

import pytest

from rlrun.config.foreign import Absent, Chosen, Renamed, available
from rlrun.config.keys import all_keys
from rlrun.config.paths import conf_dir
from rlrun.config.trl import TRL
from rlrun.config.variants import discover
from tests.config.config_problems import QUICK, problems
from tests.factories import ROOT

REMEDIES = [
    ("learning_rate", "Here it is policy.optimizer.lr"),
    ("num_generations", "Here it is grpo.num_generations_per_prompt"),
    ("epsilon_high", "Here it is loss.ratio_clip_max"),
    ("use_vllm", "Here it is the choice generation=vllm"),
    ("reward_funcs", "Here it is env.reward_function, with env=python"),
    ("min_p", "reproduce the distribution"),
]


@pytest.mark.parametrize("key", sorted(TRL))
def test_what_an_argument_of_trl_is_called_here_exists(key: str) -> None:
    discover()
    assert key not in all_keys()
    match TRL[key]:
        case Renamed(target, _, variant):
            assert available(variant) and target in all_keys()
        case Chosen(group, choice):
            assert (conf_dir() / group / f"{choice}.yaml").is_file()
        case Absent(reason):
            assert reason.startswith("Nothing to set: ")


def test_arguments_of_trl_are_refused_with_their_names_here() -> None:
    flags = [f"{key}=1" for key, _ in REMEDIES]
    found = {problem.where: problem for problem in problems([QUICK, *flags])}
    assert len(found) == len(REMEDIES)
    for flag, (key, remedy) in zip(flags, REMEDIES, strict=True):
        assert found[flag].what == f"{key} is a key of TRL"
        assert remedy in found[flag].remedy


def test_the_page_for_users_of_trl_knows_no_others() -> None:
    page = (ROOT / "docs/migration_trl.md").read_text(encoding="utf-8")
    tables = page[page.index("## The constructor") : page.index("## Names of metrics")]
    first = [row.split("|")[1] for row in tables.splitlines() if row.startswith("| `")]
    told = {name.partition("=")[0] for cell in first for name in re.findall(r"`([^`]+)`", cell)}
    assert told - {"bnpo", "luspo"} <= set(TRL)
