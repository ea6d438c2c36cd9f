# SPDX-License-Identifier: Apache-2.0
"""Whatever ends a run, it goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rlrun.checkpoint.training_state import load_tensors
from tests.conftest import SMALL
from tests.e2e.forked import Started
from tests.e2e.forked import forked as rlrun
from tests.e2e.test_quickstart import untimed
from tests.ports import free_port

FINAL = "checkpoints/step_000008/policy/model.safetensors"


def start(
    run_dir: Path, *overrides: str, own_python: bool = False, held_after: Sequence[int] = ()
) -> Started:
    words = ("train", *SMALL, f"run_dir={run_dir}", *overrides)
    return Started(*words, own_python=own_python, held_after=held_after)


def wait_for_step(run_dir: Path, step: int, process: Started) -> None:
    """Returns once metrics.jsonl has the line of a step."""
    path = run_dir / "metrics.jsonl"
    wait_until(lambda: path.exists() and f'{{"step": {step},' in path.read_text(), process)


def wait_until(true: Callable[[], bool], process: Started) -> None:
    """Returns once something holds that a command brings about."""
    deadline = time.monotonic() + 300
    while True:
        # In this order: what it does last it may have done between the two.
        ended = process.poll() is not None
        if true():
            return
        assert not ended, process.output()
        assert time.monotonic() < deadline, process.output()
        time.sleep(0.01)


def assert_equal_runs(run_dir: Path, reference: Path) -> None:
    """The same metrics and the same final weights, bit for bit."""
    assert untimed(run_dir) == untimed(reference)
    assert_equal_trained(run_dir, reference)


def assert_equal_trained(run_dir: Path, reference: Path) -> None:
    """The same final weights and trained rows, bit for bit."""
    ours, theirs = load_tensors(run_dir / FINAL), load_tensors(reference / FINAL)
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)
    for step in range(1, 9):
        name = f"trained/step_{step:06d}.jsonl"
        assert (run_dir / name).read_bytes() == (reference / name).read_bytes()


@pytest.mark.parametrize("point", range(5))
def test_a_killed_run_ends_as_the_uninterrupted_one(
    small_run: Path, tmp_path: Path, point: int
) -> None:
    run_dir = tmp_path / "run"
    rng = random.Random(point)
    process = start(run_dir)
    wait_for_step(run_dir, rng.randint(0, 7), process)
    time.sleep(rng.uniform(0.0, 0.4))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = rlrun("resume", str(run_dir))
    assert done.code == 0, done.err
    assert_equal_runs(run_dir, small_run)
    assert rlrun("audit", str(run_dir)).code == 0


def test_a_resume_that_cannot_start_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    port = free_port()
    served = ("generation.expose_http_server=true", f"generation.http.port={port}")
    process = start(run_dir, "checkpointing.save_period=2", *served, held_after=[3])
    wait_until(lambda: process.is_held(3), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    history = [*run_dir.glob("*.jsonl"), *run_dir.glob("trained/*"), *run_dir.glob("checkpoints/*")]
    before = {path: path.read_bytes() for path in history if path.is_file()}
    with socket.create_server(("", port)):
        done = rlrun("resume", str(run_dir))
    assert (done.code, "address already in use" in done.err.lower()) == (2, True), done.err
    assert {path: path.read_bytes() for path in before} == before
    assert not (run_dir / "superseded").exists()
    assert rlrun("audit", str(run_dir)).code == 0
    assert rlrun("resume", str(run_dir)).code == 0
    assert rlrun("audit", str(run_dir)).code == 0


def test_the_events_of_another_run_are_not_gone_on_with(small_run: Path, tmp_path: Path) -> None:
    run_dir, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(small_run, run_dir)
    done = rlrun("train", *SMALL, "grpo.seed=43", f"run_dir={other}")
    assert done.code == 0, done.err
    shutil.copy(other / "events.jsonl", run_dir)
    before = {path: path.read_bytes() for path in run_dir.glob("*/*") if path.is_file()}
    done = rlrun("resume", str(run_dir), "grpo.max_num_steps=9")
    assert (done.code, "events.jsonl: is not of this run" in done.err) == (7, True), done.err
    assert {path: path.read_bytes() for path in before} == before
    done = rlrun("audit", str(run_dir))
    assert (done.code, "they are not of one run" in done.out) == (1, True), done.out


def test_a_renamed_checkpoint_is_damaged_and_not_the_steps_of_its_name(
    small_run: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(small_run, run_dir)
    *others, newest = sorted((run_dir / "checkpoints").iterdir())
    for folder in others:
        shutil.rmtree(folder)
    newest.rename(newest.with_name("step_000099"))
    done = rlrun("resume", str(run_dir), "grpo.max_num_steps=9")
    assert (done.code, "step 99: it was saved as step 8" in done.err) == (7, True), done.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_after_the_step_and_the_run_goes_on(
    small_run: Path, tmp_path: Path, number: int, code: int
) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, held_after=[4])
    wait_until(lambda: process.is_held(4), process)
    process.send_signal(number)
    process.go_on(4)
    process.communicate(timeout=300)
    assert process.returncode == code
    status = json.loads((run_dir / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("interrupted", code)
    assert status["step"] == 5
    assert (run_dir / "checkpoints/step_000005/manifest.json").exists()
    done = rlrun("resume", str(run_dir))
    assert done.code == 0, done.err
    assert_equal_runs(run_dir, small_run)


def test_a_signal_during_validation_saves_what_was_trained(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(
        run_dir,
        "checkpointing.save_period=100",
        "grpo.val_period=1",
        "grpo.max_val_samples=null",
        "grpo.val_num_generations_per_prompt=4",
    )
    wait_for_step(run_dir, 1, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 143
    status = json.loads((run_dir / "status.json").read_text())
    assert (run_dir / f"checkpoints/step_{status['step']:06d}/manifest.json").exists()


def test_data_that_ends_without_signal_still_saves_and_validates(tmp_path: Path) -> None:
    rewards = tmp_path / "rewards.py"
    rewards.write_text(
        "def some(response, answer, **row):\n"
        "    return float(len(response) % 2) if int(answer) < 60 else 1.0\n"
    )
    rows = [{"problem": f"What is {n} + 1?", "answer": n + 1} for n in range(40, 80, 5)]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    run_dir = tmp_path / "run"
    done = rlrun(
        "train",
        *SMALL,
        "env=python",
        f"env.reward_function={rewards}:some",
        f"data.train={{source: {data}, split: null, shuffle: false}}",
        "grpo.use_dynamic_sampling=true",
        "grpo.max_num_steps=null",
        "checkpointing.save_period=100",
        "checkpointing.metric=null",
        f"run_dir={run_dir}",
    )
    assert done.code == 0, done.err
    status = json.loads((run_dir / "status.json").read_text())
    assert (status["state"], status["reason"]) == ("done", "data_end")
    step = status["step"]
    assert (run_dir / f"checkpoints/step_{step:06d}/manifest.json").exists()
    assert (run_dir / f"validation/step_{step:06d}.jsonl").exists()
    assert rlrun("audit", str(run_dir)).code == 0


def test_a_second_signal_ends_the_run_at_once(tmp_path: Path) -> None:
    rewards, in_step = tmp_path / "rewards.py", tmp_path / "in_step"
    rewards.write_text(
        "import pathlib, time\n"
        "def slow(response, answer):\n"
        f"    pathlib.Path({str(in_step)!r}).touch()\n"
        "    time.sleep(1000)\n"
        "    return 1.0\n"
    )
    process = start(
        tmp_path / "run",
        *("env=python", f"env.reward_function={rewards}:slow"),
        *("grpo.val_at_start=false", "env.timeout_s=2000"),
    )
    wait_until(in_step.exists, process)
    os.kill(process.pid, signal.SIGINT)
    wait_until(lambda: "again to end at once" in process.output(), process)
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130


def test_the_time_limit_saves_and_is_a_success(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = rlrun(
        *("train", *SMALL, "grpo.max_num_steps=1000", f"run_dir={run_dir}"),
        "checkpointing.checkpoint_must_save_by=00:00:00:01",
    )
    assert done.code == 0, done.err
    status = json.loads((run_dir / "status.json").read_text())
    assert status["state"] == "time_limit"
    assert f"go on: rlrun resume {run_dir}\n" in done.out
    assert 1 <= status["step"] < 1000
    assert (run_dir / f"checkpoints/step_{status['step']:06d}/manifest.json").exists()


def test_a_finished_run_can_be_made_longer_wherever_it_lies_now(
    small_run: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    vain = "policy.lora.rank=4"
    done = rlrun("train", *SMALL, "grpo.max_num_steps=5", vain, f"run_dir={run_dir}")
    assert done.code == 0, done.err
    assert f"warning: {vain} has no effect: policy.lora.enabled=false." in done.out
    assert (run_dir / "checkpoints/step_000005").exists()
    run_dir = run_dir.rename(tmp_path / "moved")
    done = rlrun("resume", str(run_dir), "grpo.max_num_steps=8")
    assert done.code == 0, done.err
    assert untimed(run_dir)[-1]["step"] == 8
    ours, theirs = load_tensors(run_dir / FINAL), load_tensors(small_run / FINAL)
    assert all(ours[name].equal(theirs[name]) for name in ours)


def test_a_damaged_checkpoint_is_said_aloud_and_passed_over(
    tmp_path: Path, small_run: Path
) -> None:
    run_dir = tmp_path / "run"
    assert rlrun("train", *SMALL, "grpo.max_num_steps=6", f"run_dir={run_dir}").code == 0
    weights = run_dir / "checkpoints/step_000006/policy/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    done = rlrun("resume", str(run_dir), "grpo.max_num_steps=8")
    assert done.code == 0, done.err
    assert "damaged" in done.out
    ours, theirs = load_tensors(run_dir / FINAL), load_tensors(small_run / FINAL)
    assert all(ours[name].equal(theirs[name]) for name in ours)


def test_a_resume_refuses_what_would_make_it_another_run(small_run: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(small_run, tmp_path / "run")
    done = rlrun("resume", str(run_dir), "policy.optimizer.lr=1", "grpo.seed=7")
    assert done.code == 2
    assert done.err.count("error: ") == 2
    assert "grpo.max_num_steps" in done.err


def test_a_resume_refuses_to_end_before_what_is_done(small_run: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(small_run, tmp_path / "run")
    names = ("config.yaml", "status.json", "metrics.jsonl")
    before = [(run_dir / name).read_bytes() for name in names]
    done = rlrun("resume", str(run_dir), "grpo.max_num_steps=2")
    assert done.code == 2
    assert done.err.startswith("error: grpo.max_num_steps=2: the run has made 8 steps already")
    assert [(run_dir / name).read_bytes() for name in names] == before


def test_resuming_nothing_is_a_storage_error(tmp_path: Path) -> None:
    done = rlrun("resume", str(tmp_path))
    assert done.code == 7
    assert done.err.startswith("error: ")
