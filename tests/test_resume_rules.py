# SPDX-License-Identifier: Apache-2.0
"""A resume may make a run longer, and shorter only as far as it has not come yet."""

from __future__ import annotations

import pytest

from rlrun.config import load
from rlrun.errors import ConfigError
from rlrun.inputs import read_prompts
from rlrun.resume_rules import check_length, check_overrides


def check(done: int, *overrides: str) -> None:
    """Of a run with 9,500 rows in an epoch and 16 in a step, so that 594 steps are an epoch."""
    config = load(["+recipe=quickstart", *overrides]).config
    check_length(config, read_prompts(config, lambda notice: None).stream, done, overrides)


def test_an_end_that_is_not_passed_is_taken() -> None:
    check(7, "grpo.max_num_steps=8")
    check(8, "grpo.max_num_steps=8")
    check(594, "grpo.max_num_steps=null", "grpo.max_num_epochs=1")


@pytest.mark.parametrize(
    ("done", "override", "remedy"),
    [
        (9, "grpo.max_num_steps=8", "Give 9 or more"),
        (595, "grpo.max_num_epochs=1", "Give 2 or more"),
    ],
)
def test_an_end_that_is_passed_is_refused(done: int, override: str, remedy: str) -> None:
    others = ("grpo.max_num_steps=null",) if "epochs" in override else ()
    with pytest.raises(ConfigError) as refused:
        check(done, *others, override)
    (problem,) = refused.value.problems
    assert (problem.where, refused.value.exit_code) == (override, 2)
    assert problem.remedy.startswith(remedy)


def test_what_was_trained_with_is_kept() -> None:
    check_overrides(["grpo.max_num_steps=9", "logging.tensorboard=false", "cluster=ray"])
    with pytest.raises(ConfigError) as refused:
        check_overrides(["grpo.seed=1", "grpo.max_num_steps=9"])
    assert [problem.where for problem in refused.value.problems] == ["grpo.seed=1"]
