# SPDX-License-Identifier: Apache-2.0
"""``+recipe=gym_quickstart`` as a user runs it: it learns, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.audit import audit
from rlrun.logs import read_metrics
from rlrun.records import read_trained
from tests.conftest import environment, rlrun
from tests.env.gym_real import VENV, need_gym

pytestmark = pytest.mark.timeout(360)

AGENT = "string_match_simple_agent"
SMALL = (
    "+recipe=gym_quickstart",
    f"env.venv={VENV}",
    "env.start_timeout_s=240",
    "grpo.num_prompts_per_step=8",
    "grpo.num_generations_per_prompt=8",
    "grpo.max_val_samples=32",
    "num_threads=1",
)


def processes_of(run: Path) -> list[int]:
    """Processes that write a log in the run's gym folder, by what they have open."""
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            opened = [os.readlink(fd) for fd in (process / "fd").iterdir()]
        except OSError:
            continue
        if any(name.startswith(str(run / "gym")) for name in opened):
            found.append(int(process.name))
    return found


def wait_for_none(run: Path) -> None:
    deadline = time.monotonic() + 60
    while processes_of(run):
        assert time.monotonic() < deadline, f"left behind: {processes_of(run)}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def sync_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_gym()
    run = tmp_path_factory.mktemp("gym") / "run"
    done = rlrun("train", *SMALL, "grpo.max_num_steps=8", f"run_dir={run}", timeout=330)
    assert done.code == 0, done.err
    return run


def test_the_reward_of_real_servers_rises(sync_run: Path) -> None:
    lines = read_metrics(sync_run / "metrics.jsonl")
    accuracy = [line["validation/accuracy"] for line in lines if "validation/accuracy" in line]
    assert accuracy[-1] - accuracy[0] > 0.1
    for line in lines[1:]:
        assert line["rollout/failed_samples"] == 0 and line["age/max"] == 0
        assert line[f"agent/{AGENT}/samples"] == 64
        assert line[f"agent/{AGENT}/turns_mean"] == 1
        tokens = {name: count for name, count in line.items() if name.startswith("tokens/")}
        assert tokens.pop("tokens/generated") == sum(tokens.values())
    assert audit(sync_run).ok


def test_rows_say_agent_text_and_log_probs_of_the_learner(sync_run: Path) -> None:
    rows = list(read_trained(sync_run / "trained/step_000001.jsonl"))
    assert len(rows) == 64
    for row in rows:
        assert row["agent_ref"]["name"] == AGENT
        assert row["response"] and "What is" in row["prompt"]
        for ours, theirs in zip(row["generation_logprobs"], row["prev_logprobs"], strict=True):
            assert ours is not None and theirs is not None and abs(ours - theirs) < 1e-3


def test_nothing_is_left_behind(sync_run: Path) -> None:
    wait_for_none(sync_run)
    assert len(list((sync_run / "gym").glob("*.log"))) == 3


def test_a_killed_async_run_leaves_no_server_and_goes_on(tmp_path: Path) -> None:
    need_gym()
    run = tmp_path / "run"
    flags = ("grpo=async", "grpo.max_num_steps=4", "checkpointing.save_period=1")
    process = subprocess.Popen(
        [sys.executable, "-m", "rlrun", "train", *SMALL, *flags, f"run_dir={run}"],
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    status = run / "status.json"
    while not (status.exists() and json.loads(status.read_text())["step"] >= 1):
        assert process.poll() is None, "the run ended before it was killed"
        time.sleep(0.05)
    assert len(processes_of(run)) == 3
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for_none(run)
    done = rlrun("resume", str(run), timeout=330)
    assert done.code == 0, done.err
    lines = read_metrics(run / "metrics.jsonl")
    assert lines[-1]["step"] == 4
    assert all(line["age/max"] <= 4 for line in lines[1:])
    assert audit(run).ok
    wait_for_none(run)
