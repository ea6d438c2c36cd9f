# SPDX-License-Identifier: Apache-2.0
"""Starts the servers of NeMo Gym configuration files, waits for them, and ends them.

A supervisor process starts one process per server of the plan (plan.py), without Gym's command
line, which would leave them behind when it is killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.env.gym_client import GymClient
from rlrun.errors import EnvironmentDown
from rlrun.gym.plan import Plan, Server, resolve_for_ray
from rlrun.process.temporary import SCRATCH, TemporaryFolder, socket_parent

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
POLL_S = 0.1
PING_S = 2.0
END_S = 15.0
LOG_TAIL = 600

RAY_FOLDER = "RAY_TMPDIR"
_RAY_SOCKET = len("ray/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")

ATTEMPTS = 2
"""Ports are chosen before they are used; somebody else may take one in between."""


class Servers:
    """Running servers; made by ``start``.

    Attributes:
        plan: What was started.
    """

    def __init__(self, plan: Plan, folder: Path) -> None:
        """Names the parts; ``start`` starts them."""
        self.plan, self._folder = plan, folder
        self._supervisor: asyncio.subprocess.Process | None = None
        self._ended: dict[str, int] = {}
        self._one_ended = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self._ray_folder: TemporaryFolder | None = None

    @classmethod
    async def start(
        cls,
        venv: str,
        config_paths: Sequence[str],
        initial: Mapping[str, Any],
        *,
        client: GymClient,
        folder: Path,
        timeout_s: float,
    ) -> Servers:
        """Starts all servers and waits until each is ready.

        Args:
            venv: Gym's virtual environment.
            config_paths: See ``resolve``.
            initial: See ``resolve``.
            client: Asks whether they are ready.
            folder: Of the logs.
            timeout_s: Until all are ready.

        Raises:
            EnvironmentDown: One does not start, with the end of its log.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(ATTEMPTS):
            servers = cls(await resolve_for_ray(venv, config_paths, initial), folder)
            try:
                await servers._begin()
                await servers._wait_until_ready(client, timeout_s)
            except BaseException as error:
                await servers.close()
                taken = isinstance(error, EnvironmentDown) and "address already in use" in str(
                    error
                )
                if not taken or attempt + 1 == ATTEMPTS:
                    raise
                log.info("%s; started again with other ports", error)
            else:
                return servers
        raise AssertionError("the last attempt returns or raises")

    async def _begin(self) -> None:
        plan = self.plan
        parent = socket_parent(RAY_FOLDER, _RAY_SOCKET)
        self._ray_folder = TemporaryFolder(SCRATCH, parent=parent)
        jobs = []
        for server in plan.servers:
            place = plan.site / server.kind / server.implementation
            jobs.append(
                {
                    "name": server.name,
                    "argv": [str(plan.python), server.entrypoint],
                    "cwd": str(place),
                    "env": variables_of(server, plan, place, self._ray_folder.path),
                    "log": str(self._log(server.name)),
                }
            )
            self._log(server.name).write_bytes(b"")
        # In the thread of the event loop, which lives as long as the run: the supervisor is told
        # to die with the thread that started it.
        self._supervisor = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(HERE / "supervisor.py"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
        )
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.write(json.dumps(jobs).encode() + b"\n")
        await self._supervisor.stdin.drain()
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self._supervisor is not None and self._supervisor.stdout is not None
        while line := await self._supervisor.stdout.readline():
            ended = json.loads(line)
            self._ended[ended["name"]] = ended["code"]
            log.warning("%s", self.explain(ended["name"]))
            news, self._one_ended = self._one_ended, asyncio.Event()
            news.set()

    async def _wait_until_ready(self, client: GymClient, timeout_s: float) -> None:
        waiting = list(self.plan.servers)
        try:
            async with asyncio.timeout(timeout_s):
                while waiting:
                    for name in self._ended:
                        remedy = f"Its log in {self._folder} says why"
                        raise EnvironmentDown("env=gym", self.explain(name), remedy)
                    ready = await asyncio.gather(*(client.is_ready(s.url, PING_S) for s in waiting))
                    waiting = [
                        s for s, is_ready in zip(waiting, ready, strict=True) if not is_ready
                    ]
                    await asyncio.sleep(POLL_S if waiting else 0)
        except TimeoutError:
            names = ", ".join(server.name for server in waiting)
            raise EnvironmentDown(
                "env.start_timeout_s",
                f"{names} not ready within {timeout_s:g} s: {self._tail(waiting[0].name)}",
                f"Look at the logs in {self._folder}, or raise the limit",
            ) from None

    @property
    def any_ended(self) -> bool:
        """Whether a server ended by itself."""
        return bool(self._ended)

    def explain(self, name: str) -> str:
        """What is known of the end of a server; "" while it lives."""
        if name not in self._ended:
            return ""
        return f"server {name} ended with {self._ended[name]}: {self._tail(name)}"

    def explain_agent(self, name: str) -> str:
        """Which servers behind an agent ended; "" while all live, or if it is none of them."""
        agent = self.plan.agents().get(name)
        if agent is None:
            return ""
        behind = [
            server.name
            for server in self.plan.servers
            if server.name in (name, agent.resources_server)
            or server.kind == "responses_api_models"
        ]
        return "; ".join(filter(None, map(self.explain, behind)))

    async def wait_for_end(self, agent: str) -> None:
        """Returns as soon as a server behind an agent has ended."""
        while not self.explain_agent(agent):
            await self._one_ended.wait()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _tail(self, name: str) -> str:
        try:
            text = self._log(name).read_text(errors="replace")
        except OSError:
            return "it has no log"
        return " | ".join(text[-LOG_TAIL:].strip().splitlines()[-4:]) or "its log is empty"

    async def close(self) -> None:
        """Ends all servers and what they started. May be called twice."""
        supervisor, self._supervisor = self._supervisor, None
        if self._listening is not None:
            self._listening.cancel()
        if supervisor is None:
            return
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await supervisor.wait()
        except TimeoutError:
            log.warning("the supervisor of the Gym servers does not end; it is killed")
            supervisor.kill()
            await supervisor.wait()
        if self._ray_folder is not None:
            self._ray_folder.remove()


def variables_of(server: Server, plan: Plan, place: Path, ray_folder: Path) -> dict[str, str]:
    """The environment variables that a server is started with, in the folder of its program."""
    return {
        **os.environ,
        "NEMO_GYM_CONFIG_DICT": plan.config,
        "NEMO_GYM_CONFIG_PATH": server.name,
        "PYTHONPATH": f"{place}{os.pathsep}{plan.site}",
        # Ray's dashboard agents and usage reports are not wanted here.
        "RAY_USAGE_STATS_ENABLED": "0",
        # A server that its configuration names no cluster starts one of its own. Otherwise Ray
        # would take any that is on this machine, of another run or another version.
        "RAY_ADDRESS": "local",
        # It removes nothing of what it writes.
        RAY_FOLDER: str(ray_folder),
    }
