# SPDX-License-Identifier: Apache-2.0
"""Asynchronous runs: the age bound, parity with the synchronous schedule, faults, resume."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from rlrun.metrics.logs import read_metrics
from rlrun.models.embedded import embedded_folder
from rlrun.run_dir.records import TrainedLine, read_trained
from tests.conftest import SMALL
from tests.e2e.forked import forked as rlrun
from tests.e2e.test_quickstart import untimed
from tests.e2e.test_resume import assert_equal_trained, start, wait_for_step

ASYNC = "grpo=async"


def trained(run_dir: Path) -> list[TrainedLine]:
    files = sorted((run_dir / "trained").glob("step_*.jsonl"))
    return [line for file in files for line in read_trained(file)]


def ages(run_dir: Path) -> list[int]:
    """Of every trained token span."""
    return [
        line["step"] - 1 - version
        for line in trained(run_dir)
        if line["sample_loss_mask"]
        for version, _, _ in line["weight_versions"]
    ]


@pytest.fixture(scope="session")
def async_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a whole asynchronous quickstart."""
    path = tmp_path_factory.mktemp("async") / "run"
    done = rlrun("train", "+recipe=quickstart", ASYNC, f"run_dir={path}", own_python=True)
    assert done.code == 0, done.err
    (path.parent / "out.txt").write_text(done.out)
    return path


def test_reward_rises(async_run: Path) -> None:
    lines = read_metrics(async_run / "metrics.jsonl")
    rewards = [line["train/reward_mean"] for line in lines[1:]]
    assert sum(rewards[-5:]) / 5 >= 0.8
    assert sum(rewards[-5:]) / 5 - sum(rewards[:5]) / 5 >= 0.3
    assert lines[-1]["validation/accuracy"] > 0.85


def test_generation_and_learning_overlap_within_the_age_bound(async_run: Path) -> None:
    found = ages(async_run)
    assert 0 <= min(found) and 1 <= max(found) <= 4
    lines = read_metrics(async_run / "metrics.jsonl")[1:]
    assert max(line["age/max"] for line in lines) == max(found)
    # Rollouts run while the learner trains: the generator is busy for longer than it is waited for.
    busy = sum(line["perf/generation_s"] for line in lines)
    beside = busy - sum(line["perf/exposed_generation_s"] for line in lines)
    learning = sum(line["perf/logprobs_s"] + line["perf/update_s"] for line in lines)
    # Whichever of the two is the slower one on this machine goes on alone for a part of its time.
    assert beside > 0.5 * min(busy, learning)


def test_running_generations_go_on_with_new_weights(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = rlrun("train", *SMALL, *long_answers(tmp_path), f"run_dir={run_dir}")
    assert done.code == 0, done.err
    spans = [[version for version, _, _ in line["weight_versions"]] for line in trained(run_dir)]
    assert len(spans) == 16
    assert sum(len(set(versions)) > 1 for versions in spans) >= 4
    assert all(versions == sorted(versions) for versions in spans)


def long_answers(folder: Path) -> tuple[str, ...]:
    """Flags with which generating a batch takes several times as long as learning from one."""
    write_endless_model(folder / "model")
    return (
        *(ASYNC, f"policy.model={folder / 'model'}"),
        *("grpo.num_prompts_per_step=1", "grpo.num_generations_per_prompt=2"),
        *("policy.max_total_sequence_length=400", "generation.max_new_tokens=360"),
    )


def write_endless_model(folder: Path) -> None:
    """The embedded model with an end of sequence that it hardly ever samples."""
    shutil.copytree(embedded_folder("rlrun:tiny"), folder)
    never = {"tokenizer_config": ("eos_token", "<|endoftext|>")}
    never |= dict.fromkeys(("generation_config", "config"), ("eos_token_id", 0))
    for name, (key, value) in never.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


def test_every_token_has_one_place_at_every_step(async_run: Path) -> None:
    for line in read_metrics(async_run / "metrics.jsonl")[1:]:
        parts = {name: count for name, count in line.items() if name.startswith("tokens/")}
        assert parts.pop("tokens/generated") == sum(parts.values())


def test_no_answer_is_favoured_for_being_short(async_run: Path) -> None:
    lines = read_metrics(async_run / "metrics.jsonl")[1:]
    mean = sum(line["rollout/length_bias"] for line in lines) / len(lines)
    assert mean == pytest.approx(1.0, abs=0.01)


def test_the_audit_agrees(async_run: Path) -> None:
    done = rlrun("audit", str(async_run))
    assert done.code == 0, done.out + done.err


def test_the_first_lines_say_what_the_age_means(async_run: Path) -> None:
    out = (async_run.parent / "out.txt").read_text()
    assert "trained tokens are at most 4 steps old" in out
    assert "importance-sampling correction is on" in out


def test_at_age_0_it_is_the_synchronous_run_bit_for_bit(small_run: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = rlrun(*("train", *SMALL, ASYNC, "grpo.max_trajectory_age_steps=0", f"run_dir={run_dir}"))
    assert done.code == 0, done.err
    # Weights of its own are probed, the learner's own need no probe: the one metric more.
    probe = "refit/probe_max_abs_diff"
    ours = [{k: v for k, v in line.items() if k != probe} for line in untimed(run_dir)]
    assert ours == untimed(small_run)
    assert_equal_trained(run_dir, small_run)


Variant = Callable[..., Path]
"""The directory of a small asynchronous run with overrides."""

NOT_IN_FLIGHT = "grpo.in_flight_weight_updates=false"


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    @cache
    def made(*overrides: str) -> Path:
        run_dir = tmp_path_factory.mktemp("variant") / "run"
        done = rlrun("train", *SMALL, ASYNC, f"run_dir={run_dir}", *overrides)
        assert done.code == 0, done.err
        return run_dir

    return made


@pytest.mark.parametrize(
    "overrides",
    [
        (NOT_IN_FLIGHT,),
        ("grpo.recompute_kv_cache_after_weight_updates=true",),
        ("grpo.on_age_limit=mask", "grpo.max_trajectory_age_steps=1"),
        ("grpo.on_age_limit=expire", "grpo.max_trajectory_age_steps=1"),
        ("batching=in_order",),
        ("batching=freshest", "grpo.max_trajectory_age_steps=8"),
        ("grpo.use_dynamic_sampling=true", "grpo.overlong_filtering=true"),
        ("correction.enabled=false", "correction.allow_stale_without=true"),
    ],
    ids=lambda overrides: overrides[0],
)
def test_every_variant_trains_within_its_bound(
    variant: Variant, overrides: tuple[str, ...]
) -> None:
    run_dir = variant(*overrides)
    bound = next((int(o[-1]) for o in overrides if "max_trajectory_age_steps" in o), 4)
    assert max(ages(run_dir)) <= bound
    assert len(read_metrics(run_dir / "metrics.jsonl")) == 9
    assert rlrun("audit", str(run_dir)).code == 0
    targets = {line["target_step"] for line in trained(run_dir)}
    assert (targets == set(range(1, 9))) == (overrides[0] == "batching=in_order")


def test_without_updates_in_flight_no_trajectory_spans_two_versions(variant: Variant) -> None:
    assert all(len(line["weight_versions"]) <= 1 for line in trained(variant(NOT_IN_FLIGHT)))


def generator_pid(parent: int) -> int | None:
    """The process that a run generates with."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and b"process_child" in command:
            return int(folder.name)
    return None


def is_alive(pid: int) -> bool:
    """One that has ended may wait to be told to whoever took its parent's place."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_generator_that_dies_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, *long_answers(tmp_path), own_python=True)
    wait_for_step(run_dir, 2, process)
    pid = generator_pid(process.pid)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert "ended with signal 9" in (run_dir / "log.txt").read_text()
    assert len(read_metrics(run_dir / "metrics.jsonl")) == 9
    assert rlrun("audit", str(run_dir)).code == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_generator_outlives_its_run(tmp_path: Path, number: int) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, ASYNC, "grpo.max_num_steps=1000", own_python=True)
    wait_for_step(run_dir, 1, process)
    pid = generator_pid(process.pid)
    assert pid is not None
    process.send_signal(number)
    process.communicate(timeout=300)
    deadline = time.monotonic() + 120
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(pid)
    if number == signal.SIGTERM:
        assert not unanswered(run_dir)


def unanswered(run_dir: Path) -> set[tuple[int, int]]:
    """Attempts that were called off and never said how many tokens they had."""
    lines = list(map(json.loads, (run_dir / "events.jsonl").read_text().splitlines()))
    given_up = {
        (decision["position"], decision["attempt"])
        for line in lines
        for decision in line["decisions"]
        if decision["type"] == "Cancel"
    }
    ends = ("GroupFinished", "GroupFailed", "GroupCancelled")
    events = [line["event"] for line in lines if line["event"]["type"] in ends]
    return given_up - {(event["position"], event["attempt"]) for event in events}


EPOCHS = (
    ASYNC,
    "grpo.max_num_steps=null",
    "grpo.max_num_epochs=2",
    "checkpointing.save_period=1",
    "data.train.limit=18",
)


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How often an uninterrupted run of two epochs trains each prompt's group."""
    run_dir = tmp_path_factory.mktemp("epochs") / "run"
    done = rlrun("train", *SMALL, *EPOCHS, f"run_dir={run_dir}")
    assert done.code == 0, done.err
    return Counter(line["group_id"] for line in trained(run_dir))


@pytest.mark.parametrize("point", range(10))
def test_a_killed_run_trains_each_prompt_as_often_as_an_uninterrupted_one(
    tmp_path: Path, two_epochs: Counter[str], point: int
) -> None:
    run_dir = tmp_path / "run"
    chance = random.Random(point)
    process = start(run_dir, *EPOCHS)
    wait_for_step(run_dir, chance.randint(0, 7), process)
    time.sleep(chance.uniform(0.0, 0.4))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = rlrun("resume", str(run_dir))
    assert done.code == 0, done.err
    assert Counter(line["group_id"] for line in trained(run_dir)) == two_epochs
    assert set(two_epochs.values()) == {4} and len(two_epochs) == 36
    assert max(ages(run_dir)) <= 4
    assert rlrun("audit", str(run_dir)).code == 0


def test_the_checkpoint_holds_finished_groups_and_a_resume_does_not_make_them_again(
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, ASYNC, "checkpointing.save_period=1", "grpo.max_num_steps=1000")
    wait_for_step(run_dir, 5, process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 143
    status = json.loads((run_dir / "status.json").read_text())
    folder = run_dir / f"checkpoints/step_{status['step']:06d}"
    held = [json.loads(line) for line in (folder / "buffer.jsonl").read_text().splitlines()]
    # Groups of the newest weights are trained at the latest when they are four steps old.
    done = rlrun("resume", str(run_dir), f"grpo.max_num_steps={status['step'] + 8}")
    assert done.code == 0, done.err
    tokens = {
        (line["group_id"].partition("/")[2], line["sample_index"]): line["token_ids"]
        for line in trained(run_dir)
    }
    rows = {tuple(ids) for ids in tokens.values()}
    for group in held:
        assert all(tuple(t["token_ids"]) in rows for t in group["trajectories"])


def test_a_rollout_that_hangs_ends_the_run_with_what_it_waited_for(tmp_path: Path) -> None:
    reward = tmp_path / "reward.py"
    reward.write_text(
        "import asyncio\nasync def hangs(response, answer, **row):\n    await asyncio.sleep(1000)\n"
    )
    run_dir = tmp_path / "run"
    done = rlrun(
        "train",
        *SMALL,
        ASYNC,
        "env=python",
        f"env.reward_function={reward}:hangs",
        "grpo.no_progress_timeout_s=3",
        "grpo.val_at_start=false",
        "grpo.rollout_timeout_s=null",
        "env.timeout_s=500",
        f"run_dir={run_dir}",
    )
    assert done.code == 5, done.out + done.err
    assert "no rollout has ended for 3 s" in done.err
    assert "the oldest running one is prompt" in done.err
    text = (run_dir / "log.txt").read_text()
    assert "scheduler state" in text and "thread " in text
