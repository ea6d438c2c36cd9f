# SPDX-License-Identifier: Apache-2.0
"""Which servers NeMo Gym configuration files ask for: Gym's own parser resolves the files.

The parser is a program of its own (resolve.py), which runs in Gym's virtual environment.
"""

from __future__ import annotations

import asyncio
import json
import logging
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rlrun.errors import EnvironmentDown

log = logging.getLogger(__name__)

PARSER = Path(__file__).parent / "resolve.py"
RESOLVE_S = 120.0
RAY_ADDRESS = "ray_head_node_address"
"""Gym's name for the cluster that its servers are to join."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server as Gym's parser described it.

    Attributes:
        name: Its key in the configuration; of an agent, what rows call it.
        kind: resources_servers, responses_api_agents or responses_api_models.
        implementation: Folder below the kind.
        entrypoint: Python file in that folder.
        host: That it listens on.
        port: That it listens on.
        resources_server: Of an agent, what verifies for it; None without one.
    """

    name: str
    kind: str
    implementation: str
    entrypoint: str
    host: str
    port: int
    resources_server: str | None

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be started.

    Attributes:
        servers: In the order of the configuration.
        config: The resolved configuration, as YAML.
        site: Folder of the packages.
        python: Interpreter of Gym's environment.
        versions: Of Ray and Python in it.
    """

    servers: tuple[Server, ...]
    config: str
    site: Path
    python: Path
    versions: tuple[str, str]

    def agents(self) -> dict[str, Server]:
        """Agents by name."""
        return {s.name: s for s in self.servers if s.kind == "responses_api_agents"}

    def verifiers(self) -> dict[str, str]:
        """URL of the resources server by the agent's name."""
        urls = {server.name: server.url for server in self.servers}
        return {
            name: urls[agent.resources_server]
            for name, agent in self.agents().items()
            if agent.resources_server in urls
        }


async def resolve(venv: str, config_paths: Sequence[str], initial: Mapping[str, Any]) -> Plan:
    """What Gym's parser makes of configuration files.

    Args:
        venv: Gym's virtual environment.
        config_paths: Files; those that exist here are taken from here, others from the package.
        initial: Keys that win over the files.

    Raises:
        EnvironmentDown: There is no such environment, or the parser refuses the files.
    """
    python = Path(venv).expanduser().absolute() / "bin" / "python"
    if not python.is_file():
        raise EnvironmentDown(
            "env.venv", f"{venv} has no nemo-gym (no {python})", f"rlrun gym setup --venv {venv}"
        )
    paths = [str(Path(p).absolute()) if Path(p).is_file() else p for p in config_paths]
    process = await asyncio.create_subprocess_exec(
        str(python),
        "-P",
        str(PARSER),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    asked = json.dumps({"config_paths": paths, "initial": dict(initial)}).encode()
    try:
        async with asyncio.timeout(RESOLVE_S):
            out, told = await process.communicate(asked)
    except TimeoutError:
        process.kill()
        await process.wait()
        what = f"Gym's parser did not end within {RESOLVE_S:g} s"
        raise EnvironmentDown("env.config_paths", what) from None
    if process.returncode != 0:
        last = "\n".join(told.decode(errors="replace").strip().splitlines()[-4:])
        raise EnvironmentDown(
            "env.config_paths",
            f"Gym's parser refuses {list(config_paths)}: {last}",
            "Correct the files, env.config_overrides, or the environment in env.venv",
        )
    found = json.loads(out.decode().strip().splitlines()[-1])
    servers = tuple(Server(**fields) for fields in found["servers"])
    ray, own_python = found["versions"]
    return Plan(servers, found["config"], Path(found["site"]), python, (ray, own_python))


async def resolve_for_ray(
    venv: str, config_paths: Sequence[str], initial: Mapping[str, Any]
) -> Plan:
    """As ``resolve``, without the run's Ray cluster where Gym's Ray could not join it.

    Servers that use Ray (code_gen) then start one of their own, which ends with them.
    """
    plan = await resolve(venv, config_paths, initial)
    if RAY_ADDRESS not in initial:
        return plan
    ours = (metadata.version("ray"), platform.python_version())
    if plan.versions == ours:
        return plan
    log.warning(
        "%s has Ray %s and Python %s, the run's cluster has %s and %s: Gym servers that use Ray "
        "start their own",
        venv,
        *plan.versions,
        *ours,
    )
    without = {key: value for key, value in initial.items() if key != RAY_ADDRESS}
    return await resolve(venv, config_paths, without)
