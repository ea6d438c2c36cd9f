# SPDX-License-Identifier: Apache-2.0
"""A user's reward function or environment by path: trained with, and what its faults do."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path

import pytest

from rlrun.audit import audit
from rlrun.metrics.logs import read_metrics
from rlrun.run_dir.records import TrainedLine, read_trained
from tests.conftest import Command
from tests.e2e.forked import forked

TINY = (
    "+recipe=quickstart",
    "env=python",
    "grpo.num_prompts_per_step=4",
    "grpo.num_generations_per_prompt=4",
    "grpo.max_num_steps=2",
    "grpo.val_period=0",
    "grpo.val_at_start=false",
    "grpo.val_at_end=false",
    "checkpointing.metric=null",
    "num_threads=1",
)

REWARDS = '''
"""Reward functions of a user."""
import random

import numpy as np

def parts(response, answer, **row):
    return {"correct": float(answer in response), "brevity": -0.01 * len(response)}

async def waiting(response: str, answer: str) -> float:
    return len(response) / 100

def fragile(response, answer):
    if "Answer" not in response:
        raise ValueError("there is no answer to judge")
    if len(response) % 3 == 0:
        return float("nan")
    return 1.0 if answer in response else 0.5

def noisy(response, answer):
    return random.random() + np.random.rand()

def never(response, answer):
    raise RuntimeError("the judge is out for lunch")
'''

ENVIRONMENTS = '''
"""An environment of a user: it asks once more before it scores."""

from rlrun.interfaces import Environment
from rlrun.types import EnvStep


class AskAgain(Environment):
    def __init__(self, question):
        self.question, self.scored = question, 0

    def state(self):
        return {"scored": self.scored}

    def restore(self, state):
        self.scored = state["scored"]

    async def step(self, episode):
        if episode.turn == 1:
            return EnvStep(messages=({"role": "user", "content": self.question},))
        first, asked, second = [message["content"] for message in episode.messages]
        assert asked == self.question and second == episode.response
        self.scored += 1
        told = {"first": float(len(first)), "scored": float(self.scored)}
        return EnvStep(reward=float(len(first) % 2), rewards=told)

    async def close(self):
        pass
'''


def write_code(folder: Path) -> Path:
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "environments.py").write_text(ENVIRONMENTS)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder, in which the commands run."""
    return write_code(tmp_path)


@pytest.fixture(scope="module")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder and the output of a run whose reward function fails now and then."""
    folder = write_code(tmp_path_factory.mktemp("fragile"))
    tolerant = "grpo.max_generation_failures=100"
    done = train(folder, "env.reward_function=rewards.py:fragile", tolerant)
    assert done.code == 0, done.err
    return folder, done.out


def train(folder: Path, *overrides: str) -> Command:
    return forked("train", *TINY, *overrides, "run_dir=run", cwd=folder)


def rows(folder: Path) -> list[TrainedLine]:
    files = sorted((folder / "run" / "trained").glob("step_*.jsonl"))
    return [row for path in files for row in read_trained(path)]


def metrics(folder: Path) -> list[dict[str, float]]:
    return list(read_metrics(folder / "run" / "metrics.jsonl"))


def test_a_reward_function_by_path_gives_reward_and_named_parts(folder: Path) -> None:
    done = train(folder, "env.reward_function=rewards.py:parts")
    assert done.code == 0, done.err
    for row in rows(folder):
        assert row["rewards"]["brevity"] == pytest.approx(-0.01 * len(row["response"]))
        assert row["reward"] == pytest.approx(sum(row["rewards"].values()))  # type: ignore[arg-type]
    for line in metrics(folder):
        total = line["reward/correct"] + line["reward/brevity"]
        assert line["train/reward_mean"] == pytest.approx(total)


def test_an_async_reward_function_by_module_name_serves_as_well(folder: Path) -> None:
    done = train(folder, "env.reward_function=rewards:waiting", "grpo.max_num_steps=1")
    assert done.code == 0, done.err
    assert all(row["reward"] == len(row["response"]) / 100 for row in rows(folder))


def test_rewards_that_draw_at_random_are_the_same_for_the_same_seed(folder: Path) -> None:
    override = "env.reward_function=rewards.py:noisy"
    overrides = (override, "env.num_threads=1", "grpo.max_num_steps=1")
    assert train(folder, *overrides).code == 0
    first = [row["reward"] for row in rows(folder)]
    (folder / "run").rename(folder / "first")
    assert train(folder, *overrides).code == 0
    assert [row["reward"] for row in rows(folder)] == first
    (folder / "run").rename(folder / "second")
    assert train(folder, *overrides, "grpo.seed=7").code == 0
    assert not set(first) & {row["reward"] for row in rows(folder)}


def test_an_environment_class_by_path_holds_a_dialogue_and_a_resume_its_state(folder: Path) -> None:
    done = train(
        folder,
        "env.environment=environments.py:AskAgain",
        "env.options.question='Are you sure?'",
        "grpo.max_rollout_turns=2",
        "policy.max_total_sequence_length=128",
        "grpo.max_num_steps=1",
    )
    assert done.code == 0, done.err
    done = forked("resume", "run", "grpo.max_num_steps=2", cwd=folder)
    assert done.code == 0, done.err
    scored = [row["rewards"]["scored"] for row in rows(folder) if "scored" in row["rewards"]]
    assert sorted(scored) == list(range(1, len(scored) + 1))
    finished = [row for row in rows(folder) if row["stop_reason"] == "stop"]
    assert len(finished) > 16
    for row in finished:
        first, _, _ = row["response"].partition("\nuser\nAre you sure?\nassistant\n")
        assert row["rewards"]["first"] == len(first)
        assert row["reward"] == len(first) % 2
        assert len(row["weight_versions"]) == 2
    assert audit(folder / "run").ok


def test_samples_that_cannot_be_scored_are_masked_counted_and_never_zero(
    fragile: tuple[Path, str],
) -> None:
    folder, said = fragile
    found = rows(folder)
    failed = [row for row in found if row["stop_reason"] == "error"]
    assert 0 < len(failed) < len(found)
    for row in found:
        unscorable = "Answer" not in row["response"] or len(row["response"]) % 3 == 0
        assert (row["stop_reason"] == "error") == unscorable
        assert row["sample_loss_mask"] == (not unscorable)
        assert (row["reward"] is None) == (row["unfiltered_reward"] is None) == unscorable
        assert row["reward"] in (None, 0.5, 1.0)
        if unscorable:
            assert not any(row["advantages"])
    assert sum(line["rollout/failed_samples"] for line in metrics(folder)) == len(failed)
    assert metrics(folder)[-1]["tokens/errored"] >= tokens(failed) > 0
    scored = [row["reward"] for row in found if row["step"] == 1 and row["reward"] is not None]
    assert metrics(folder)[0]["train/reward_mean"] == pytest.approx(sum(scored) / len(scored))
    assert "ValueError: there is no answer to judge" in said
    assert "rewards.py:" in said
    assert audit(folder / "run").ok


def test_failed_samples_do_not_move_the_baseline_of_the_others(
    fragile: tuple[Path, str],
) -> None:
    groups: defaultdict[str, list[TrainedLine]] = defaultdict(list)
    for row in rows(fragile[0]):
        if row["sample_loss_mask"]:
            groups[row["group_id"]].append(row)
    assert any(len(members) < 4 for members in groups.values())
    for members in groups.values():
        advantages = [row["advantages"][row["input_length"]] for row in members]
        assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-5)  # type: ignore[arg-type]


def tokens(of: list[TrainedLine]) -> int:
    return sum(sum(row["token_loss_mask"]) for row in of)


def test_a_function_that_always_fails_ends_the_run_with_its_own_error(folder: Path) -> None:
    done = train(folder, "env.reward_function=rewards.py:never", "grpo.max_generation_failures=5")
    assert done.code == 5
    assert done.err.count("\n") == 1
    assert "RuntimeError: the judge is out for lunch" in done.err
    assert f"{folder / 'rewards.py'}:" in done.err
    assert "max_generation_failures=5" in done.err
    status = json.loads((folder / "run" / "status.json").read_text())
    assert (status["state"], status["exit_code"], status["step"]) == ("failed", 5, 0)
    assert "out for lunch" in status["reason"]
    events = [json.loads(line) for line in (folder / "run" / "events.jsonl").open()]
    failed = [event for event in events if event["event"]["type"] == "GroupFailed"]
    (number,) = [n for n, e in enumerate(failed, 1) if e["decisions"][:1] and is_end(e)]
    assert number == 6
    assert audit(folder / "run").ok


def is_end(entry: dict[str, list[dict[str, str]]]) -> bool:
    return entry["decisions"][0]["type"] == "Fail"


def test_check_tries_the_function_before_anything_is_trained(folder: Path) -> None:
    done = forked("check", *TINY, "env.reward_function=rewards.py:never", cwd=folder)
    assert done.code == 4
    assert "the judge is out for lunch" in done.out


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("env.reward_function=rewards.py:part", "parts"),
        ("env.reward_function=reward.py:parts", "reward.py"),
        ("env.environment=rewards.py:parts", "Environment"),
        ("env.reward_function=rewards.py", "path/to/file.py:name"),
    ],
)
def test_a_path_that_leads_nowhere_is_a_configuration_error(
    folder: Path, override: str, said: str
) -> None:
    done = forked("check", *TINY, override, cwd=folder)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {override}: ")
    assert said in done.err
