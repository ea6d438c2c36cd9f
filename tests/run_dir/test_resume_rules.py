# SPDX-License-Identifier: Apache-2.0
"""A resume may make a run longer, and shorter only as far as it has not come yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.checkpoint.training_state import save_json
from rlrun.config import load
from rlrun.errors import ConfigError
from rlrun.grpo.saving import made_so_far
from rlrun.inputs import read_prompts
from rlrun.run_dir.resume_rules import check_length, check_overrides
from tests.scheduler.scheduler_cases import Story


def check(done: int, *overrides: str, begun: int | None = None) -> None:
    """Of a run with 9,500 rows in an epoch and 16 in a step, so that 594 steps are an epoch."""
    config = load(["+recipe=quickstart", *overrides]).config
    stream = read_prompts(config, lambda notice: None).stream
    check_length(config, stream, done, 16 * done if begun is None else begun, overrides)


def test_an_end_that_is_not_passed_is_taken() -> None:
    check(7, "grpo.max_num_steps=8")
    check(8, "grpo.max_num_steps=8")
    check(594, "grpo.max_num_steps=null", "grpo.max_num_epochs=1", begun=9500)


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


def test_prompts_that_are_begun_are_not_taken_back() -> None:
    """An asynchronous run is ahead: its checkpoint has groups of the epoch that is to go."""
    with pytest.raises(ConfigError, match="begun 9501 prompts") as refused:
        check(594, "grpo.max_num_steps=null", "grpo.max_num_epochs=1", begun=9501)
    assert refused.value.problems[0].remedy.startswith("Give 2 or more")


def test_made_is_what_the_newest_readable_checkpoint_says(tmp_path: Path) -> None:
    assert made_so_far(tmp_path) == (0, 0)
    for step, max_age in ((1, 0), (2, 2)):
        run = Story(max_age=max_age, in_flight_batches=max(1, max_age))
        state = run.scheduler.state()
        state["at"]["trained"] = step
        folder = tmp_path / f"step_{step:06d}"
        folder.mkdir()
        save_json(folder / "state.json", {"scheduler": state})
    assert made_so_far(tmp_path) == (2, 4)
    renamed = folder.rename(tmp_path / "step_000099")
    assert made_so_far(tmp_path) == (1, 2)
    folder = renamed.rename(folder)
    assert made_so_far(tmp_path) == (2, 4)
    (folder / "state.json").write_text("{")
    assert made_so_far(tmp_path) == (1, 2)


def test_what_was_trained_with_is_kept() -> None:
    check_overrides(["grpo.max_num_steps=9", "logging.tensorboard=false", "cluster=ray"])
    with pytest.raises(ConfigError) as refused:
        check_overrides(["grpo.seed=1", "grpo.max_num_steps=9"])
    assert [problem.where for problem in refused.value.problems] == ["grpo.seed=1"]
