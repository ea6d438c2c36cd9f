# SPDX-License-Identifier: Apache-2.0
"""Whole nightlies: they pass, fail, go on after being killed, and leave no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

from rlrun.nightly.supervisor import TIMED_OUT
from tests.conftest import environment
from tests.e2e.forked import Started
from tests.e2e.forked import forked as rlrun
from tests.nightly.conftest import WriteNightly

TWO_RUNS = """\
runs:
  grpo-tiny-1n0g-short:
    version: 1
    minutes: 5
    assertions:
      ledger: {kind: ledger}
      audit: {kind: audit}
      step_time: {kind: step_time}
  grpo-tiny-1n0g-long:
    version: 3
    minutes: 5
    overrides: [grpo.max_num_steps=5, checkpointing.save_period=1OVERRIDES]
    assertions:
      impossible: {kind: bound, metric: train/reward_mean, statistic: max, at_least: 2}
      audit: {kind: audit}
"""

LEAVES_A_CHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid} ")
time.sleep(float(sys.argv[2]))
sys.exit(3)
"""
"""A command that leaves a process in a session of its own, and takes a while."""


GATE = """
import pathlib, time

def gated(response, answer):
    metrics, go_on = pathlib.Path({metrics!r}), pathlib.Path({go_on!r})
    while metrics.exists() and '"step": 2,' in metrics.read_text() and not go_on.exists():
        time.sleep(0.01)
    return float(answer in response)
"""
"""A reward that lets a run come to its second step and no further, until it may."""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def supervisor(parent: int, seconds: float, pids: Path, naps: float) -> list[str]:
    limits = [str(parent), str(seconds), "300"]
    command = [sys.executable, "-c", LEAVES_A_CHILD, str(pids), str(naps)]
    return [sys.executable, "-m", "rlrun.nightly.supervisor", *limits, *command]


def gone(pids: Path) -> bool:
    return not any(is_alive(int(pid)) for pid in pids.read_text().split())


def test_nothing_is_left_of_a_command_that_ends_or_is_out_of_time(tmp_path: Path) -> None:
    for seconds, naps, code in ((300.0, 0.0, 3), (1.0, 600.0, TIMED_OUT)):
        pids = tmp_path / str(code)
        command = supervisor(os.getpid(), seconds, pids, naps)
        done = subprocess.run(command, env=environment(), check=False)
        assert done.returncode == code
        if pids.exists():  # a slow machine may have ended it before it began
            assert gone(pids)


def test_nothing_is_left_when_the_nightly_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = supervisor(0, 600.0, pids, 600.0)
    starts = f"import os, subprocess, time; c = {command!r}; c[3] = str(os.getpid()); "
    starts += "subprocess.Popen(c, start_new_session=True); time.sleep(600)"
    nightly = subprocess.Popen([sys.executable, "-c", starts], env=environment())
    wait_for(lambda: pids.exists() and pids.read_text().endswith(" "), "it never began")
    nightly.kill()
    nightly.wait()
    wait_for(lambda: gone(pids), "processes were left")


def processes_of(folder: Path) -> list[int]:
    """All processes whose command line names the folder, other than this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            named = str(folder).encode() in path.read_bytes()
        except OSError:
            continue
        if named and int(path.parent.name) != os.getpid() and is_alive(int(path.parent.name)):
            found.append(int(path.parent.name))
    return found


def test_a_killed_nightly_goes_on_and_tells_what_failed(
    write_nightly: WriteNightly, tmp_path: Path
) -> None:
    rewards, go_on = tmp_path / "rewards.py", tmp_path / "go_on"
    out = tmp_path / "out"
    metrics = out / "runs/grpo-tiny-1n0g-long.v3/seed-42/metrics.jsonl"
    rewards.write_text(GATE.format(metrics=str(metrics), go_on=str(go_on)))
    gated = ("env=python", f"env.reward_function={rewards}:gated", "env.timeout_s=2000")
    config = write_nightly(TWO_RUNS.replace("OVERRIDES", "".join(f", '{one}'" for one in gated)))
    options = ("nightly", "--recipes", "own", "--config-dir", str(config), "--out", str(out))
    nightly = Started(*options)
    wait_for(lambda: metrics.exists() and '{"step": 2,' in metrics.read_text(), nightly.output())
    nightly.send_signal(signal.SIGKILL)
    nightly.communicate()
    finished = (out / "finished.jsonl").read_text()
    assert [json.loads(line)["name"] for line in finished.splitlines()] == [
        "grpo-tiny-1n0g-short.v1"
    ]
    wait_for(lambda: not processes_of(out), "a process outlived its nightly")
    go_on.touch()
    again = rlrun(*options)
    assert again.code == 1
    assert "error: nightly of 2: 1 failed: grpo-tiny-1n0g-long.v3" in again.err
    after = [json.loads(line) for line in (out / "finished.jsonl").read_text().splitlines()]
    assert json.dumps(after[0]) == finished.strip(), "what was finished was not run again"
    assert (after[1]["resumed"], after[1]["reason"]) == (1, "")
    suites = {s.get("name"): s for s in ElementTree.parse(out / "junit.xml").getroot()}
    assert suites["grpo-tiny-1n0g-short.v1"].get("failures") == "0"
    failed = suites["grpo-tiny-1n0g-long.v3"].findall("testcase/failure/..")
    assert [case.get("name") for case in failed] == ["impossible"]
    trend = [json.loads(line) for line in (tmp_path / "trend.jsonl").read_text().splitlines()]
    assert [(one["name"], one["passed"]) for one in trend] == [
        ("grpo-tiny-1n0g-short.v1", True),
        ("grpo-tiny-1n0g-long.v3", False),
    ]
    assert not (out / "runs/grpo-tiny-1n0g-short.v1/seed-42/checkpoints").exists()
    assert "| impossible | FAILED |" in (out / "summary.md").read_text()
    other = rlrun(*options[:-2], "--out", str(out), "--recipes", "quickstart")
    assert other.code == 2 and "holds a nightly of other runs" in other.err


def test_a_run_that_cannot_start_or_has_no_time_is_a_failure_with_its_reason(
    write_nightly: WriteNightly, tmp_path: Path
) -> None:
    text = TWO_RUNS.replace("minutes: 5", "minutes: 5\n    overrides: [policy.model=no/such]", 1)
    text = text.replace("version: 3\n    minutes: 5", "version: 3\n    minutes: 0.01")
    options = (
        "--recipes",
        "own",
        "--config-dir",
        str(write_nightly(text.replace("OVERRIDES", ""))),
    )
    done = rlrun("nightly", *options, "--out", str(tmp_path / "out"))
    assert done.code == 1
    reasons = []
    suites = ElementTree.parse(tmp_path / "out/junit.xml").getroot()
    for suite, skipped in zip(suites, ("3", "2"), strict=True):
        assert (suite.get("failures"), suite.get("skipped")) == ("1", skipped)
        failure = suite.find("testcase[@name='completes']/failure")
        assert failure is not None
        reasons.append(str(failure.text))
    assert "no/such" in reasons[0]
    assert reasons[1] == "seed 42: not done within 0.01 minutes"
