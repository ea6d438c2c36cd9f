# SPDX-License-Identifier: Apache-2.0
"""Each option of the algorithm in a run of a few steps, through the command line."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.audit import audit
from rlrun.metrics.logs import read_metrics
from rlrun.run_dir.records import TrainedLine, read_trained
from tests.e2e.forked import forked

TINY = (
    "+recipe=quickstart",
    "grpo.num_prompts_per_step=4",
    "grpo.num_generations_per_prompt=4",
    "grpo.max_num_steps=3",
    "grpo.val_period=0",
    "grpo.val_at_start=false",
    "grpo.val_at_end=false",
    "checkpointing.metric=null",
    "num_threads=1",
)

Lines = list[dict[str, float]]
Check = Callable[[list[TrainedLine], Lines], None]


def every_group_has_signal(rows: list[TrainedLine], lines: Lines) -> None:
    groups = defaultdict(set)
    for row in rows:
        groups[row["group_id"]].add(row["unfiltered_reward"])
    assert len(groups) == 12
    assert all(len(rewards) > 1 for rewards in groups.values())
    assert lines[-1]["tokens/zero_signal"] > 0
    assert sum(line["train/dropped_groups"] for line in lines) > 0


def ratios_move_within_a_step(rows: list[TrainedLine], lines: Lines) -> None:
    """From the second update on, the policy is no longer the one that sampled."""
    assert all(line["train/ratio_mean"] != 1.0 for line in lines)


def one_update_is_exactly_on_policy(rows: list[TrainedLine], lines: Lines) -> None:
    assert all(line["train/ratio_mean"] == pytest.approx(1.0, abs=1e-6) for line in lines)


def the_reference_is_left_behind(rows: list[TrainedLine], lines: Lines) -> None:
    first, *later = [line["train/kl_to_reference"] for line in lines]
    assert first == pytest.approx(0.0, abs=1e-6)
    assert all(value > 1e-6 for value in later)


def truncated_samples_are_out(rows: list[TrainedLine], lines: Lines) -> None:
    assert 0 < sum(row["truncated"] for row in rows) < len(rows)
    assert all(row["sample_loss_mask"] != row["truncated"] for row in rows)
    assert all(row["reward"] is not None for row in rows)
    assert lines[-1]["tokens/filtered"] > 0


def long_responses_lose_reward(rows: list[TrainedLine], lines: Lines) -> None:
    for row in rows:
        length = sum(row["token_loss_mask"])
        assert row["reward"] is not None and row["unfiltered_reward"] is not None
        penalty = max(0.0, (length - 12) / 16)
        assert row["reward"] == pytest.approx(row["unfiltered_reward"] - penalty)
    assert lines[0]["train/shaped_reward_mean"] < lines[0]["train/reward_mean"]


def rewards_are_mapped(rows: list[TrainedLine], lines: Lines) -> None:
    assert {row["reward"] for row in rows} == {-1.0, 1.0}
    assert {row["unfiltered_reward"] for row in rows} == {0.0, 1.0}


def weights_are_measured(rows: list[TrainedLine], lines: Lines) -> None:
    assert all(line["correction/ess"] == pytest.approx(1.0, abs=1e-3) for line in lines)


def nothing_else(rows: list[TrainedLine], lines: Lines) -> None:
    assert len(rows) == 48


OPTIONS: dict[str, tuple[tuple[str, ...], Check]] = {
    "plain": ((), one_update_is_exactly_on_policy),
    "dynamic sampling": (("grpo.use_dynamic_sampling=true",), every_group_has_signal),
    "minibatches": (
        ("policy.train_global_batch_size=4", "policy.optimizer.lr=3e-3"),
        ratios_move_within_a_step,
    ),
    "KL penalty": (
        ("loss.reference_policy_kl_penalty=0.1", "policy.optimizer.lr=3e-3"),
        the_reference_is_left_behind,
    ),
    "overlong filtering": (
        ("grpo.overlong_filtering=true", "generation.max_new_tokens=10"),
        truncated_samples_are_out,
    ),
    "overlong shaping": (
        (
            "grpo.overlong_shaping.enabled=true",
            "grpo.overlong_shaping.buffer_tokens=16",
            "grpo.overlong_shaping.max_response_tokens=28",
        ),
        long_responses_lose_reward,
    ),
    "reward scaling": (
        ("grpo.reward_scaling.enabled=true", "grpo.reward_scaling.target_min=-1"),
        rewards_are_mapped,
    ),
    "correction": (("correction.enabled=true",), weights_are_measured),
    "leave one out": (
        ("advantage.baseline=leave_one_out", "advantage.normalize=false", "loss=dr_grpo"),
        nothing_else,
    ),
    "sequence level": (("loss=gspo", "policy.sequence_packing=true"), nothing_else),
    "sampling filters": (
        ("generation.top_p=0.9", "generation.top_k=20", "generation.temperature=0.8"),
        one_update_is_exactly_on_policy,
    ),
    "bfloat16": (
        ("policy.precision=bfloat16", "policy.activation_checkpointing=true"),
        nothing_else,
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_does_what_it_says_and_the_books_close(name: str, tmp_path: Path) -> None:
    overrides, check = OPTIONS[name]
    run_dir = tmp_path / "run"
    done = forked("train", *TINY, *overrides, f"run_dir={run_dir}")
    assert (done.code, done.err) == (0, "")
    lines = list(read_metrics(run_dir / "metrics.jsonl"))
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        if not line["train/skipped_update"]:
            assert math.isfinite(line["train/loss"]) and line["train/grad_norm"] > 0
        tokens = {key: count for key, count in line.items() if key.startswith("tokens/")}
        assert tokens.pop("tokens/generated") == sum(tokens.values())
    files = sorted((run_dir / "trained").glob("step_*.jsonl"))
    check([row for path in files for row in read_trained(path)], lines)
    report = audit(run_dir)
    assert report.ok, report.text()
