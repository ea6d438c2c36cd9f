# SPDX-License-Identifier: Apache-2.0
"""A policy learns to use a tool: several turns, and only what it sampled is trained."""

from __future__ import annotations

import math
import re
from itertools import groupby
from pathlib import Path

import pytest

from rlrun.audit import audit
from rlrun.env.arithmetic import calculate, show
from rlrun.metrics.logs import read_metrics
from rlrun.rendering.renderer import Renderer
from rlrun.run_dir.records import TrainedLine, read_trained
from tests.e2e.calculator_policy import save_policy, write_rows
from tests.e2e.forked import forked
from tests.factories import config

pytestmark = pytest.mark.timeout(600)

STEPS = 12
CALL = re.compile(r"<calc>([^<>]*)</calc>\Z")


@pytest.fixture(scope="module")
def tool_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a policy that calls the calculator in two of five responses at first."""
    folder = tmp_path_factory.mktemp("tools")
    save_policy(folder / "policy")
    done = forked(
        "train",
        "+recipe=quickstart",
        "env=calculator",
        "generation.stop=['</calc>']",
        "grpo.max_rollout_turns=3",
        "data=default",
        f"data.train.source={write_rows(folder / 'train.jsonl', 1000, seed=7)}",
        f"data.validation.source={write_rows(folder / 'validation.jsonl', 64, seed=8)}",
        f"policy.model={folder / 'policy'}",
        "policy.max_total_sequence_length=96",
        f"grpo.max_num_steps={STEPS}",
        "grpo.val_period=0",
        f"run_dir={folder / 'run'}",
    )
    assert done.code == 0, done.err
    return folder / "run"


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.load(config().policy)


def trained(run_dir: Path, step: int) -> list[TrainedLine]:
    return list(read_trained(run_dir / f"trained/step_{step:06d}.jsonl"))


def called(rows: list[TrainedLine]) -> float:
    """The share of responses that called the calculator."""
    return sum("<calc>" in row["response"] for row in rows) / len(rows)


def parts(row: TrainedLine) -> list[tuple[bool, int, int]]:
    """(sampled, start, end) of the stretches of a trajectory, the prompt first."""
    found, start = [], 0
    for sampled, stretch in groupby(row["token_loss_mask"]):
        end = start + len(list(stretch))
        found.append((bool(sampled), start, end))
        start = end
    return found


def test_reward_rises_because_the_tool_is_used(tool_run: Path) -> None:
    rewards = [line["train/reward_mean"] for line in read_metrics(tool_run / "metrics.jsonl")[1:]]
    assert len(rewards) == STEPS
    assert sum(rewards[-3:]) / 3 - sum(rewards[:3]) / 3 > 0.15
    assert called(trained(tool_run, STEPS)) - called(trained(tool_run, 1)) > 0.15
    accuracy = [
        line["validation/accuracy"]
        for line in read_metrics(tool_run / "metrics.jsonl")
        if "validation/accuracy" in line
    ]
    assert accuracy[-1] - accuracy[0] > 0.15


def test_only_sampled_tokens_are_trained(tool_run: Path, renderer: Renderer) -> None:
    """Between two turns: the end that the stop string left out, the tool's message, the opening."""
    turns = 0
    for row in trained(tool_run, 1) + trained(tool_run, STEPS):
        (prompt, *rest) = parts(row)
        assert prompt == (False, 0, row["input_length"])
        assert [sampled for sampled, _, _ in rest] == [True, False] * (len(rest) // 2) + [True]
        texts = [renderer.decode(row["token_ids"][a:b], skip_special=False) for _, a, b in rest]
        for call, result in zip(texts[::2], texts[1::2], strict=False):
            match = CALL.search(call)
            assert match is not None
            said = result.removeprefix("<|im_end|>\n<|im_start|>tool\n")
            said = said.removesuffix("<|im_end|>\n<|im_start|>assistant\n")
            assert said == answered(match.group(1))
            turns += 1
    assert turns > 100


def answered(call: str) -> str:
    try:
        return show(calculate(call))
    except ValueError as problem:
        return f"error: {problem}"


def test_versions_and_advantages_are_those_of_the_sampled_tokens(tool_run: Path) -> None:
    for row in trained(tool_run, STEPS):
        sampled = [[STEPS - 1, start, end] for mask, start, end in parts(row) if mask]
        assert row["weight_versions"] == sampled
        values = {value for value, m in zip_mask(row, "advantages") if m}
        assert len(values) == 1
        for name in ("advantages", "generation_logprobs", "prev_logprobs"):
            assert all(value == 0 for value, mask in zip_mask(row, name) if not mask)


def zip_mask(row: TrainedLine, name: str) -> list[tuple[float, int]]:
    return list(zip(row[name], row["token_loss_mask"], strict=True))  # type: ignore[literal-required]


def test_the_learner_sees_each_turn_in_the_context_that_it_was_sampled_in(tool_run: Path) -> None:
    """One forward pass over the whole dialogue gives the log-probs of turns sampled one by one."""
    for row in trained(tool_run, STEPS):
        for ours, theirs in zip(row["generation_logprobs"], row["prev_logprobs"], strict=True):
            assert ours is not None and theirs is not None
            assert math.isclose(ours, theirs, abs_tol=1e-3)


def test_the_numbers_of_every_step_are_sound(tool_run: Path) -> None:
    for line in read_metrics(tool_run / "metrics.jsonl")[1:]:
        assert math.isfinite(line["train/loss"]) and line["train/grad_norm"] > 0
        assert line["rollout/failed_samples"] == 0
        tokens = {name: count for name, count in line.items() if name.startswith("tokens/")}
        assert tokens.pop("tokens/generated") == sum(tokens.values())
    assert audit(tool_run).ok
