# SPDX-License-Identifier: Apache-2.0
"""A step in which no sample is better than another teaches nothing, and moves nothing."""

from __future__ import annotations

from pathlib import Path

from rlrun.checkpoint.training_state import load_tensors
from rlrun.metrics.logs import read_metrics
from rlrun.models.resolve import resolve_model
from tests.conftest import SMALL
from tests.e2e.forked import forked as rlrun


def test_a_batch_without_signal_skips_the_optimizer_and_is_a_normal_step(tmp_path: Path) -> None:
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def always(response, answer, **row):\n    return 0.6\n")
    run_dir = tmp_path / "run"
    done = rlrun(
        "train",
        *SMALL,
        "env=python",
        f"env.reward_function={rewards}:always",
        "grpo.max_num_steps=2",
        "grpo.val_period=0",
        "grpo.val_at_start=false",
        "grpo.val_at_end=false",
        "checkpointing.metric=null",
        f"run_dir={run_dir}",
    )
    assert done.code == 0, done.err
    lines = read_metrics(run_dir / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["train/skipped_update"] == 1.0 for line in lines)
    assert all(line["train/zero_variance_groups"] == 4 for line in lines)
    assert lines[-1]["tokens/zero_signal"] == lines[-1]["tokens/generated"] > 0
    trained = load_tensors(run_dir / "checkpoints/step_000002/policy/model.safetensors")
    start = load_tensors(Path(resolve_model("rlrun:tiny")) / "model.safetensors")
    assert all(trained[name].equal(start[name]) for name in start)
