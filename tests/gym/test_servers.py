# SPDX-License-Identifier: Apache-2.0
"""What Gym's servers are told of a run's Ray cluster."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from rlrun.config import load_section
from rlrun.env.gym import GymEnv
from rlrun.env.gym_client import GymClient
from rlrun.env.gym_directory import Directory
from rlrun.gym import plan, supervisor
from rlrun.gym.plan import RAY_ADDRESS, Plan, Server, resolve_for_ray
from rlrun.gym.servers import Servers, variables_of

OURS = (metadata.version("ray"), platform.python_version())


@pytest.mark.parametrize(
    ("versions", "joins"),
    [(OURS, True), (("2.1.0", OURS[1]), False), ((OURS[0], "3.9.1"), False)],
)
def test_a_ray_of_another_version_is_not_joined_and_that_is_said(
    versions: tuple[str, str],
    joins: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[Mapping[str, Any]] = []

    async def resolve(venv: str, paths: Sequence[str], initial: Mapping[str, Any]) -> Plan:
        asked.append(initial)
        return Plan((), "", Path(), Path(), versions)

    monkeypatch.setattr(plan, "resolve", resolve)
    with caplog.at_level(logging.WARNING):
        asyncio.run(resolve_for_ray(".gym-venv", [], {RAY_ADDRESS: "10.0.0.1:6379", "a": 1}))
    assert (RAY_ADDRESS in asked[-1]) == joins
    assert asked[-1]["a"] == 1
    assert ("start their own" in caplog.text) != joins


def test_a_server_that_is_told_no_cluster_takes_none_that_is_on_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray itself would, and it may be that of another run."""
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    server = Server("a", "resources_servers", "x", "app.py", "127.0.0.1", 1, None)
    found = variables_of(
        server, Plan((server,), "", Path(), Path(), OURS), Path("place"), Path("ray")
    )
    assert (found["NEMO_GYM_CONFIG_PATH"], found["RAY_ADDRESS"]) == ("a", "local")


def test_a_long_log_is_cut_under_the_server_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "MAX_LOG_BYTES", 10)
    log, lost = tmp_path / "a.log", tmp_path / "lost.log"
    logs = [log, lost]
    with log.open("ab", buffering=0) as server:
        for text in (b"short", b" and long\n", b"new\n"):
            server.write(text)
            supervisor.bound(logs)
    assert (tmp_path / "a.log.1").read_bytes() == b"short and long\n"
    assert log.read_bytes() == b"new\n"
    assert logs == [log] and capsys.readouterr().err.count("lost.log") == 1


def test_a_failure_is_explained_by_the_servers_behind_its_agent(tmp_path: Path) -> None:
    kinds = {"agent_a": "responses_api_agents", "agent_b": "responses_api_agents",
             "a": "resources_servers", "b": "resources_servers",
             "model": "responses_api_models"}  # fmt: skip
    plan = Plan(
        tuple(
            Server(name, kind, "x", "app.py", "127.0.0.1", 1, name.removeprefix("agent_"))
            for name, kind in kinds.items()
        ),
        *("", Path(), Path(), OURS),
    )
    running = Servers(plan, tmp_path)
    assert running.explain_agent("agent_a") == ""
    (tmp_path / "a.log").write_text("Traceback\nKeyError: 'x'\n")
    running._ended = {"a": 1}
    told = "server a ended with 1: Traceback | KeyError: 'x'"
    assert running.explain_agent("agent_a") == told
    assert running.explain_agent("agent_b") == running.explain_agent("elsewhere") == ""
    running._ended = {"model": -9}
    assert "model ended with -9: it has no log" in running.explain_agent("agent_b")


def test_without_a_cluster_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(venv: str, paths: Sequence[str], initial: Mapping[str, Any]) -> Plan:
        return Plan((), "", Path(), Path(), ("0", "0"))

    def no_ray(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(plan, "resolve", resolve)
    monkeypatch.setattr(metadata, "version", no_ray)
    assert asyncio.run(resolve_for_ray(".gym-venv", [], {})).versions == ("0", "0")


@pytest.mark.parametrize("after", ["nothing failed", "an agent failed", "a server ended"])
def test_logs_of_servers_without_a_run_stay_only_where_they_may_explain_a_failure(
    after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    env = load_section("env", ["env=gym", "env.config_paths=[some.yaml]"])
    assert isinstance(env, GymEnv)
    directory = Directory(env)

    async def start(*_: object, folder: Path, **__: object) -> Servers:
        (folder / "a.log").write_text("ready\n")
        return Servers(Plan((), "", Path(), Path(), OURS), folder)

    monkeypatch.setattr(Servers, "start", start)

    async def work() -> None:
        client = GymClient(0, 0.01, 1)
        await directory.open(client, None)
        (log,) = tmp_path.glob("*/a.log")
        if after == "an agent failed":
            assert str(log.parent) in directory.explain("a")
        elif after == "a server ended":
            assert directory._servers is not None
            directory._servers._ended = {"a": 1}
        await directory.close()
        await client.close()
        assert log.exists() == (after != "nothing failed")

    asyncio.run(work())


SERVER = """
import atexit, pathlib, signal, sys, time
atexit.register(pathlib.Path(sys.argv[1], "cleaned").touch)
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
pathlib.Path(sys.argv[1], "ready").touch()
time.sleep(60)
"""


def test_servers_are_asked_to_end_such_that_they_clean_up(tmp_path: Path) -> None:
    jobs, names = [], ("polite", "deaf")
    for name in names:
        (tmp_path / name).mkdir()
        argv = [sys.executable, "-c", SERVER, str(tmp_path / name), name]
        log = str(tmp_path / f"{name}.log")
        jobs.append({"name": name, "argv": argv, "cwd": "/", "env": dict(os.environ), "log": log})
    program = [sys.executable, "-I", str(supervisor.__file__)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(jobs).encode() + b"\n")
        process.stdin.flush()
        while not all((tmp_path / name / "ready").exists() for name in names):
            assert process.poll() is None
            time.sleep(0.01)
        process.stdin.close()
        assert process.wait(10) == 0
    assert [(tmp_path / name / "cleaned").exists() for name in names] == [True, False]
