# SPDX-License-Identifier: Apache-2.0
"""Whole commands with generation=vllm: training learns, and nothing is left running."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.generation.vllm_args import is_installed
from rlrun.process.temporary import ELSEWHERE, SCRATCH, remove_abandoned
from tests.conftest import environment, rlrun
from tests.factories import ROOT

pytestmark = pytest.mark.skipif(not is_installed(), reason="make vllm installs it")

RUN = (
    "+recipe=quickstart",
    "generation=vllm",
    "grpo.val_at_start=false",
    "grpo.val_at_end=false",
    "grpo.val_period=0",
    "checkpointing.metric=null",
)


def processes_of(run: Path) -> list[int]:
    """Ids of processes that write to the run's log of the engines."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"RLRUN_ENGINE_LOG={run / 'vllm.log'}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def folder_of(run: Path) -> Path:
    """Where the processes of a run's one engine meet."""
    named = b"VLLM_RPC_BASE_PATH="
    (found,) = {
        line.removeprefix(named)
        for process in processes_of(run)
        for line in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        if line.startswith(named)
    }
    return Path(os.fsdecode(found))


def kept_elsewhere(folder: Path) -> list[Path]:
    """What an engine keeps outside of its folder."""
    lines = (folder / ELSEWHERE).read_text().splitlines()
    return [Path(line.split(maxsplit=1)[1]) for line in lines]


def gone(run: Path, within: float = 120) -> bool:
    deadline = time.monotonic() + within
    while processes_of(run) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not processes_of(run)


def test_training_on_two_engines_learns_and_its_model_can_be_evaluated(tmp_path: Path) -> None:
    run = tmp_path / "run"
    steps = ("grpo.max_num_steps=14", "generation.num_engines=2", f"run_dir={run}")
    done = rlrun("train", *RUN, *steps)
    assert done.code == 0, done.err
    assert "by 2 vLLM engines (tensor parallel 1) on cpu, weights by shared_memory" in done.out
    assert done.err == ""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["train/reward_mean"] for line in lines]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.1
    assert all(line["refit/probe_max_abs_diff"] < 2e-4 for line in lines)
    assert all(line["correction/token_mult_prob_error"] < 1.001 for line in lines)
    assert all(line["age/max"] == 0 for line in lines)
    assert gone(run)
    check = runpy.run_path(str(ROOT / "scripts/gpu_check.py"))
    finding = check["engine_steps"](run)
    assert finding.passed and finding.detail.startswith("14 steps, refits of ")
    sampled = [json.loads(line) for line in (run / "trained/step_000003.jsonl").open()]
    assert all(span[0] == 2 for line in sampled for span in line["weight_versions"])

    evaluated = rlrun("eval", str(run), "grpo.max_val_samples=64", "generation.num_engines=1")
    assert evaluated.code == 0, evaluated.err


STUCK = """
import pathlib, time

def stuck(response, answer):
    pathlib.Path({marker!r}).touch()
    time.sleep(1000)
"""


@pytest.mark.parametrize("times", [1, 2])
def test_a_terminated_run_leaves_no_process_and_no_socket_behind(
    tmp_path: Path, times: int
) -> None:
    run, marker, rewards = tmp_path / "run", tmp_path / "stuck", tmp_path / "rewards.py"
    rewards.write_text(STUCK.format(marker=str(marker)))
    # What comes twice comes within one step.
    stuck = (f"env.reward_function={rewards}:stuck", "env=python", "env.timeout_s=2000")
    arguments = [sys.executable, "-m", "rlrun", "train", *RUN, *stuck[: 3 * (times - 1)]]
    driver = subprocess.Popen(
        [*arguments, "grpo.max_num_steps=500", f"run_dir={run}"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        wait_for((marker if times == 2 else run / "metrics.jsonl").exists, driver)
        folder = folder_of(run)
        assert any(path.is_socket() for path in folder.iterdir())
        elsewhere = kept_elsewhere(folder)
        assert elsewhere and all(path.exists() for path in elsewhere)
        # A terminal sends Ctrl-C to every process of the group: the engine must live on for the
        # step.
        os.killpg(driver.pid, signal.SIGINT)
        if times == 2:
            log = run / "log.txt"
            wait_for(lambda: "again to end at once" in log.read_text(), driver)
            os.killpg(driver.pid, signal.SIGINT)
        assert driver.wait(300) == 130
    finally:
        driver.kill()
        driver.wait()
    assert gone(run)
    if times == 2:
        # Nobody was there to remove it; the next engine's start does, of another test perhaps.
        remove_abandoned(folder.parent, SCRATCH, 0)
    deadline = time.monotonic() + 60
    while any(path.exists() for path in (folder, *elsewhere)):
        assert time.monotonic() < deadline, f"left behind: {folder}, {elsewhere}"
        time.sleep(0.05)
    state = json.loads((run / "status.json").read_text())["state"]
    assert state == ("interrupted" if times == 1 else "running")


def wait_for(true: Callable[[], bool], driver: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while not true():
        assert driver.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
