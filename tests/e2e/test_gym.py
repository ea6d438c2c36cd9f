# SPDX-License-Identifier: Apache-2.0
"""``+recipe=gym_quickstart`` as a user runs it: it learns, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from rlrun.audit import audit
from rlrun.generation.vllm_args import is_installed
from rlrun.metrics.logs import read_metrics
from rlrun.run_dir.records import read_trained, read_validation
from tests.conftest import rlrun
from tests.e2e.counter_policy import SERVER, save_policy, write_rows
from tests.e2e.forked import Started, forked
from tests.e2e.test_resume import wait_for_step, wait_until
from tests.env.gym_real import AGENTS, VENV, need_gym
from tests.ports import free_port

pytestmark = pytest.mark.timeout(900)

AGENT = "string_match_simple_agent"
SMALL = (
    "+recipe=gym_quickstart",
    f"env.venv={VENV}",
    "env.start_timeout_s=400",
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
    deadline = time.monotonic() + 120
    while processes_of(run):
        assert time.monotonic() < deadline, f"left behind: {processes_of(run)}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def sync_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_gym()
    run = tmp_path_factory.mktemp("gym") / "run"
    done = rlrun("train", *SMALL, "grpo.max_num_steps=6", f"run_dir={run}", timeout=600)
    assert done.code == 0, done.err
    return run


def test_the_reward_of_real_servers_rises(sync_run: Path) -> None:
    lines = read_metrics(sync_run / "metrics.jsonl")
    accuracy = [line["validation/accuracy"] for line in lines if "validation/accuracy" in line]
    rewards = [line["train/reward_mean"] for line in lines[1:]]
    assert accuracy[-1] > accuracy[0]
    assert sum(rewards[-2:]) / 2 - sum(rewards[:2]) / 2 > 0.05
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


def test_a_checkpoint_is_evaluated_by_the_same_servers_as_in_its_validation(
    sync_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "rows.jsonl"
    done = forked("eval", str(sync_run), "--json", "--out", str(out))
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["step"], found["samples"], found["failed_samples"]) == (6, 32, 0)
    last = read_metrics(sync_run / "metrics.jsonl")[-1]
    ours = {row["prompt_id"]: row["response"] for row in read_validation(out)}
    stored = read_validation(sync_run / "validation/step_000006.jsonl")
    same = [ours[row["prompt_id"]] == row["response"] for row in stored]
    # Draws are those of the validation; requests come in batches of another size.
    assert sum(same) >= 31
    assert found["accuracy"] == pytest.approx(last["validation/accuracy"], abs=1.5 / 32)


# --- servers of somebody else ---------------------------------------------------------------------


def test_a_run_lives_and_ends_with_servers_that_somebody_else_runs(tmp_path: Path) -> None:
    """rlrun gym serve beside the run; when it ends, no agent is left."""
    need_gym()
    run, port = tmp_path / "run", free_port()
    where = f"{{{AGENT}: {{responses_api_agents: {{simple_agent: {{port: {port}}}}}}}}}"
    serving = Started(
        *("gym", "serve", "+recipe=gym_quickstart", "--run", str(run)),
        *(f"env.venv={VENV}", "env.start_timeout_s=400", f"env.config_overrides={where}"),
    )
    training = Started(
        "train",
        *(*SMALL, "env.config_paths=[]", f"env.agents={{{AGENT}: 'http://127.0.0.1:{port}'}}"),
        *("env.max_retries=0", "env.max_agent_failures=8", "env.max_sample_attempts=1"),
        *("grpo.val_period=0", "grpo.val_at_start=false", "grpo.val_at_end=false"),
        *("checkpointing.metric=null", "grpo.max_num_steps=1000", f"run_dir={run}"),
    )
    try:
        wait_for_step(run, 2, training)
        assert len(processes_of(run)) == 3
        serving.send_signal(signal.SIGTERM)
        said, _ = serving.communicate(300)
        assert serving.returncode == 0, said
        wait_for_none(run)
        out, _ = training.communicate(300)
    finally:
        for process in (serving, training):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
    assert training.returncode == 4, out
    errors = [line for line in out.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and "no agent works any more" in errors[0]
    # The agent itself may answer once more, while the server behind it is gone.
    assert f"{AGENT}: env_" in errors[0] and f"127.0.0.1:{port}" in errors[0]


# --- tools, in-flight refits, and a run that is killed --------------------------------------------

COUNTER = "resources_servers/example_session_state_mgmt/configs/example_session_state_mgmt.yaml"


@pytest.fixture(scope="module")
def counter_flags(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A run over several turns: the policy calls a tool of a server that keeps a state."""
    need_gym()
    folder = tmp_path_factory.mktemp("counter")
    save_policy(folder / "policy")
    rows = write_rows(folder / "rows.jsonl", 40)
    return (
        *SMALL,
        "grpo.num_generations_per_prompt=4",
        f"env.config_paths=[{COUNTER}]",
        "data=default",
        f"data.train.source={rows}",
        f"policy.model={folder / 'policy'}",
        "policy.max_total_sequence_length=256",
        "generation.max_new_tokens=100",
        "generation.http.tool_parser=hermes",
        "grpo=async",
        *("grpo.val_period=0", "grpo.val_at_start=false", "grpo.val_at_end=false"),
        *("checkpointing.metric=null", "checkpointing.save_period=1"),
    )


def check_tool_run(run: Path, steps: int) -> None:
    """What holds for every run over the counter, however it went."""
    lines = read_metrics(run / "metrics.jsonl")
    assert lines[-1]["step"] == steps
    assert all(line["age/max"] <= 4 for line in lines)
    assert all(line[f"agent/{AGENTS[SERVER]}/turns_mean"] > 1.5 for line in lines)
    for line in lines:
        tokens = {name: count for name, count in line.items() if name.startswith("tokens/")}
        assert tokens.pop("tokens/generated") == sum(tokens.values())
    versions = set()
    for step in range(1, steps + 1):
        for row in read_trained(run / f"trained/step_{step:06d}.jsonl"):
            covered = {i for _, a, b in row["weight_versions"] for i in range(a, b)}
            assert covered == {i for i, own in enumerate(row["token_loss_mask"]) if own}
            versions |= {version for version, _, _ in row["weight_versions"]}
            for ours, theirs in zip(row["generation_logprobs"], row["prev_logprobs"], strict=True):
                # The learner has moved on by a few steps at most.
                assert ours is not None and theirs is not None and abs(ours - theirs) < 5
    assert len(versions) > 1
    assert audit(run).ok


def test_a_killed_async_run_leaves_no_server_and_goes_on(
    counter_flags: tuple[str, ...], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    # At this age the third step cannot be all of the first weights.
    small = ("grpo.max_num_steps=3", "grpo.max_trajectory_age_steps=1")
    process = Started("train", *counter_flags, *small, f"run_dir={run}", held_after=[1])
    try:
        wait_until(lambda: process.is_held(1), process)
        assert len(processes_of(run)) == 3
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    wait_for_none(run)
    done = rlrun("resume", str(run), timeout=600)
    assert done.code == 0, done.err
    check_tool_run(run, 3)
    wait_for_none(run)


def engines_of(run: Path) -> list[int]:
    """Processes of the Ray actors that hold an engine, as the run has told so far."""
    told = (run / "log.txt").read_text()
    return [int(pid) for pid in re.findall(r"engine \d+ of \d+: pid (\d+)", told)]


@pytest.mark.skipif(
    not (is_installed() and importlib.util.find_spec("ray")), reason="needs vLLM and Ray"
)
def test_the_whole_combination_survives_a_killed_engine(
    counter_flags: tuple[str, ...], tmp_path: Path
) -> None:
    """grpo=async generation=vllm cluster=ray: tools, in-flight refits, an engine that dies."""
    run = tmp_path / "run"
    # At this age the fourth step cannot be all of the first weights.
    small = ("grpo.num_prompts_per_step=4", "grpo.max_num_steps=4")
    aged = ("grpo.max_trajectory_age_steps=2",)
    flags = ("generation=vllm", "cluster=ray", *small, *aged, f"run_dir={run}")
    process = Started("train", *counter_flags, *flags, held_after=[1])
    try:
        wait_until(lambda: process.is_held(1), process)
        (victim,) = engines_of(run)
        os.kill(victim, signal.SIGKILL)
        process.go_on(1)
        out, _ = process.communicate(600)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == 0, out
    check_tool_run(run, 4)
    assert len(engines_of(run)) == 2, "another engine took its place"
    wait_for_none(run)
