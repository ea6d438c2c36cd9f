# SPDX-License-Identifier: Apache-2.0
"""Runs on two GPUs, as a user starts them: engines apart and colocated, agents, checkpoints."""

from __future__ import annotations

import importlib.util
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from rlrun.metrics.logs import read_metrics
from tests.conftest import environment, rlrun
from tests.factories import ROOT
from tests.gpu.runs import FEWER, RUNS

TIMEOUT_S = 1200
"""Of a command: vLLM compiles the model first."""

pytestmark = pytest.mark.timeout(3 * TIMEOUT_S)


def train(name: str, run_dir: Path) -> list[dict[str, float]]:
    """The metrics of a finished run, from its first step on."""
    done = rlrun("train", *RUNS[name], f"run_dir={run_dir}", timeout=TIMEOUT_S)
    assert done.code == 0, done.err
    return [line for line in read_metrics(run_dir / "metrics.jsonl") if line["step"] > 0]


def column(lines: list[dict[str, float]], name: str) -> list[float]:
    return [line[name] for line in lines]


def assert_on_policy(lines: list[dict[str, float]]) -> None:
    assert max(column(lines, "correction/mismatch_kl")) < 0.002
    assert max(column(lines, "correction/token_mult_prob_error")) < 1.05
    assert max(column(lines, "age/max")) == 0


def test_an_engine_on_the_second_gpu_is_refitted_by_nccl(tmp_path: Path) -> None:
    lines = train("sync", tmp_path / "run")
    assert_on_policy(lines)
    assert "weights by nccl" in (tmp_path / "run/log.txt").read_text()


def test_async_runs_beside_the_learner_and_learns(tmp_path: Path) -> None:
    lines = train("async", tmp_path / "run")
    assert statistics.median(column(lines, "correction/token_mult_prob_error")) < 1.1
    assert 1 <= max(column(lines, "age/max")) <= 4
    rewards = column(lines, "train/reward_mean")
    assert statistics.fmean(rewards[-8:]) > statistics.fmean(rewards[:4])


def test_a_colocated_engine_maps_the_weights_and_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert_on_policy(train("colocated", tmp_path / "run"))
    assert "weights by ipc" in (tmp_path / "run/log.txt").read_text()


@pytest.mark.skipif(not (ROOT / ".gym-venv").is_dir(), reason="rlrun gym setup makes .gym-venv")
def test_agents_of_the_gym_ask_vllm(tmp_path: Path) -> None:
    lines = train("gym", tmp_path / "run")
    assert max(column(lines, "correction/token_mult_prob_error")) < 1.05
    assert max(column(lines, "rollout/failed_samples")) == 0


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs rlrun[ray]")
def test_two_ranks_are_killed_and_one_goes_on_from_their_shards(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "rlrun", "train", *RUNS["checkpoint"], f"run_dir={run_dir}"]
    with subprocess.Popen(command, env=environment()) as process:
        deadline = time.monotonic() + TIMEOUT_S
        while not list(run_dir.glob("checkpoints/step_*")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    resumed = rlrun("resume", str(run_dir), *FEWER, timeout=TIMEOUT_S)
    assert resumed.code == 0, resumed.err
    assert rlrun("audit", str(run_dir)).code == 0
    exported = rlrun("export", str(run_dir), str(tmp_path / "model"))
    assert exported.code == 0, exported.err
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "model").num_parameters() > 0
