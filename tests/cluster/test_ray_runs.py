# SPDX-License-Identifier: Apache-2.0
"""Whole runs on Ray, as a user starts them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rlrun.config import load_section
from rlrun.env.gym_environment import GymEnvironment
from rlrun.interfaces import Episode, PolicyAddress
from rlrun.metrics.logs import read_metrics
from rlrun.models.resolve import resolve_model
from rlrun.serve.sampled import SampledLog
from rlrun.types import Prompt, Row, StopReason
from tests.cluster.conftest import SPREAD
from tests.e2e.forked import Started
from tests.e2e.forked import forked as rlrun
from tests.e2e.test_resume import start, wait_for_step
from tests.env.gym_real import CODE_GEN, DOUBLE, DOUBLED, MARK, need_gym, ray_processes
from tests.learner.mixtures import qwen3_moe, saved

pytestmark = pytest.mark.timeout(900)

STEPS = 12
"""Of the quickstart: by then the reward has risen."""

PLAIN = (
    "+recipe=quickstart",
    "grpo.val_period=0",
    "grpo.val_at_start=false",
    "grpo.val_at_end=false",
    "checkpointing.metric=null",
)
"""The quickstart without validation."""


def column(run_dir: Path, name: str) -> list[float]:
    """A metric by step, from the first one."""
    return [line[name] for line in read_metrics(run_dir / "metrics.jsonl") if line["step"] > 0]


def pids(run_dir: Path, name: str) -> list[int]:
    """Of all processes that had a role so far, the newest last."""
    return [
        int(pid) for pid in re.findall(rf"{name}: pid (\d+)", (run_dir / "log.txt").read_text())
    ]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and any(map(is_alive, processes)):
        time.sleep(0.1)
    assert not [pid for pid in processes if is_alive(pid)]


@dataclass(frozen=True)
class Broken:
    """A run of two ranks and two engines, of which one engine and then one rank were killed."""

    run_dir: Path
    code: int | None
    out: str


@pytest.fixture(scope="module")
def broken(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Broken:
    run_dir = tmp_path_factory.mktemp("broken") / "run"
    placed = (*SPREAD, f"cluster.address={ray_address}", "cluster.colocated=true")
    more = (
        "checkpointing.save_period=4",
        "grpo.max_num_steps=1000",
        "checkpointing.layout=sharded",
    )
    process = Started("train", *PLAIN, *placed, *more, f"run_dir={run_dir}")
    wait_for_step(run_dir, STEPS, process)
    os.kill(pids(run_dir, "engine 1 of 2")[-1], signal.SIGKILL)
    step = STEPS + 1
    while len(pids(run_dir, "engine 1 of 2")) < 2:
        wait_for_step(run_dir, step, process)
        step += 1
    wait_for_step(run_dir, step, process)
    os.kill(pids(run_dir, "learner rank 1 of 2")[-1], signal.SIGKILL)
    out, _ = process.communicate(timeout=300)
    return Broken(run_dir, process.returncode, out)


def test_two_ranks_and_two_engines_learn_what_one_process_learns(
    broken: Broken, tmp_path: Path
) -> None:
    local = tmp_path / "local"
    plain = rlrun("train", *PLAIN, f"grpo.max_num_steps={STEPS}", f"run_dir={local}")
    assert plain.code == 0, plain.err
    for name in ("train/loss", "train/grad_norm", "train/reward_mean"):
        ours, theirs = column(broken.run_dir, name), column(local, name)
        assert ours[0] == pytest.approx(theirs[0], rel=1e-5, abs=1e-7), name
    ours = column(broken.run_dir, "train/reward_mean")[:STEPS]
    theirs = column(local, "train/reward_mean")
    assert sum(ours[-5:]) / 5 == pytest.approx(sum(theirs[-5:]) / 5, abs=0.05)
    assert sum(ours[-5:]) / 5 - sum(ours[:5]) / 5 >= 0.15


def test_a_killed_rank_ends_the_run_with_one_line_that_names_it(broken: Broken) -> None:
    assert broken.code == 6, broken.out
    errors = [line for line in broken.out.splitlines() if line.startswith("error:")]
    assert len(errors) == 1
    assert "learner rank 1 of 2: its process (pid" in errors[0]
    assert "rlrun resume" in errors[0]
    assert "Traceback" not in broken.out
    assert "ray::" not in broken.out
    wait_until_gone(pids(broken.run_dir, "of 2"))


def test_a_run_goes_on_after_that_and_on_fewer_ranks(broken: Broken) -> None:
    last = int(read_metrics(broken.run_dir / "metrics.jsonl")[-1]["step"])
    saved = sorted((broken.run_dir / "checkpoints").glob("step_*"))
    assert len(list((saved[-1] / "shards").iterdir())) == 2, "a file of each rank"
    smaller = ("cluster.num_nodes=1", "cluster.num_learner_ranks=1", "cluster.num_engines=1")
    done = rlrun("resume", str(broken.run_dir), *smaller, f"grpo.max_num_steps={last + 2}")
    assert done.code == 0, done.err
    assert column(broken.run_dir, "step")[-1] == last + 2
    assert rlrun("audit", str(broken.run_dir)).code == 0


def test_ray_of_this_machine_asks_for_a_token_and_ends_with_the_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    process = start(run_dir, "cluster=ray", "grpo=async", "grpo.max_num_steps=1000")
    wait_for_step(run_dir, 2, process)
    started = descendants(process.pid)
    assert any("raylet" in command_of(pid) for pid in started)
    (gcs,) = [pid for pid in started if "gcs_server" in command_of(pid)]
    told = re.search(r"/[^\0]*/session_[0-9_-]+", command_of(gcs))
    assert told is not None and Path(told[0]).is_dir()
    assert b"RAY_AUTH_MODE=token\0" in Path(f"/proc/{gcs}/environ").read_bytes()
    assert stat.S_IMODE((Path.home() / ".ray" / "auth_token").stat().st_mode) == 0o600
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 143, out
    wait_until_gone(started)
    assert not Path(told[0]).exists()


def command_of(pid: int) -> str:
    """Of a process that may have ended since it was found."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
        except OSError:
            continue
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def test_servers_of_gym_that_use_ray_join_the_cluster_of_the_run(
    ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a run opens its environment, and with what it tells it."""
    need_gym()
    monkeypatch.setenv(MARK, str(tmp_path))
    settings = load_section("env", list(CODE_GEN))
    environment = settings.start()
    assert isinstance(environment, GymEnvironment)
    here = "http://127.0.0.1:9/v1"
    policy = PolicyAddress((here,), "key", "m", False, SampledLog(), tmp_path, ray_address)

    async def work() -> list[float | None]:
        await environment.open(policy)
        try:
            steps = await asyncio.gather(*(environment.step(answered(text)) for text in DOUBLED))
            assert not ray_processes(tmp_path)
            return [step.reward for step in steps]
        finally:
            await environment.close()

    assert asyncio.run(work()) == [1.0, 0.0]
    said = (tmp_path / "code_gen.log").read_text()
    assert f"Connecting to Ray cluster at specified address: {ray_address}" in said


def answered(text: str) -> Episode:
    """An episode whose answer is to be verified."""
    row = Row("rows:0", (), "", dict(DOUBLE), "rows.jsonl:1")
    messages = ({"role": "assistant", "content": text},)
    return Episode(Prompt(0, 0, row, ()), 0, messages, text, 1, StopReason.STOP)


@pytest.mark.skipif(find_spec("vllm") is None, reason="make vllm was not run")
def test_a_vllm_engine_on_ray_has_the_learners_weights_after_every_step_of_a_mixture(
    ray_address: str, tmp_path: Path
) -> None:
    run_dir, model = tmp_path / "run", tmp_path / "mixture"
    # vLLM's attention on a CPU wants heads of a multiple of 32.
    saved(qwen3_moe(head_dim=32), model)
    AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny")).save_pretrained(model)
    reward = tmp_path / "reward.py"
    reward.write_text("def score(response, answer):\n    return float(len(set(response)))\n")
    one_each = ("cluster.num_nodes=2", f"cluster.address={ray_address}")
    done = rlrun(
        "train",
        *PLAIN,
        "grpo=async",
        "generation=vllm",
        "cluster=ray",
        *one_each,
        f"policy.model={model}",
        "env=python",
        f"env.reward_function={reward}:score",
        "grpo.max_num_steps=4",
        f"run_dir={run_dir}",
        timeout=600,
    )
    assert done.code == 0, done.err
    assert min(column(run_dir, "train/grad_norm")) > 0
    assert max(column(run_dir, "refit/probe_max_abs_diff")) < 2e-4
    ages = column(run_dir, "age/max")
    assert len(ages) == 4 and max(ages) <= 4
    assert max(column(run_dir, "correction/token_mult_prob_error")) < 1.5
    assert rlrun("audit", str(run_dir)).code == 0
