# SPDX-License-Identifier: Apache-2.0
"""What faults in whole runs once showed, each as a run of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import SMALL
from tests.e2e.forked import forked


@pytest.mark.parametrize("schedule", ["sync", "async"])
def test_weights_that_diverged_end_the_run_at_once_and_are_not_saved(
    tmp_path: Path, schedule: str
) -> None:
    run = tmp_path / "run"
    done = forked(
        "train",
        *SMALL,
        f"grpo={schedule}",
        "policy.optimizer.lr=1e30",
        "policy.scheduler.warmup_steps=0",
        "grpo.val_at_start=false",
        "checkpointing.save_period=100",
        f"run_dir={run}",
    )
    assert done.code == 6, done.err
    assert done.err.count("\n") == 1 and "not finite" in done.err
    assert json.loads((run / "status.json").read_text())["exit_code"] == 6
    assert not list((run / "checkpoints").iterdir())
