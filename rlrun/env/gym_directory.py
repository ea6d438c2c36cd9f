# SPDX-License-Identifier: Apache-2.0
"""Where each agent is: started by the run, given by URL, or named by a head server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from difflib import get_close_matches
from typing import Any

from rlrun.console.counted import counted
from rlrun.env.gym import GymEnv
from rlrun.env.gym_client import GymClient, RequestFailed
from rlrun.errors import EnvironmentDown
from rlrun.gym.plan import RAY_ADDRESS
from rlrun.gym.servers import Servers
from rlrun.interfaces import PolicyAddress
from rlrun.process.temporary import LOGS, TemporaryFolder
from rlrun.types import FailureKind

log = logging.getLogger(__name__)

NOWHERE = "http://127.0.0.1:9/v1"
"""Where servers that only score are told that the policy is: nothing listens there."""

POLL_S, PING_S = 0.2, 2.0


class Directory:
    """Agents and their verifiers by name."""

    def __init__(self, settings: GymEnv) -> None:
        """Knows nothing yet."""
        self._settings = settings
        self._agents: dict[str, str] = {}
        self._verifiers: dict[str, str] = {}
        self._servers: Servers | None = None
        self._temporary: TemporaryFolder | None = None
        self._keep_logs = False

    async def open(self, client: GymClient, policy: PolicyAddress | None) -> None:
        """Starts or finds all servers.

        Raises:
            EnvironmentDown: They are not there in time, or not as expected.
        """
        settings = self._settings
        if settings.config_paths:
            await self._start(client, policy)
        given = {name: url.rstrip("/") for name, url in settings.agents.items()}
        if settings.head_server is not None:
            head = settings.head_server.rstrip("/")
            await self._wait_for(client, "env.head_server", {"the head server": head})
            named = await self._ask_head(client, head)
            await self._wait_for(client, "env.head_server", _as_agents(named))
            self._agents |= named
        await self._wait_for(client, "env.agents", _as_agents(given))
        self._agents |= given
        self._verifiers |= {name: url.rstrip("/") for name, url in settings.verifiers.items()}

    async def _start(self, client: GymClient, policy: PolicyAddress | None) -> None:
        settings = self._settings
        folder = None if policy is None else policy.folder
        if folder is None:
            self._temporary = TemporaryFolder(LOGS)
            folder = self._temporary.path
        self._servers = await Servers.start(
            settings.venv,
            settings.config_paths,
            initial_config(settings.config_overrides, policy),
            client=client,
            folder=folder,
            timeout_s=settings.start_timeout_s,
        )
        plan = self._servers.plan
        self._agents = {name: server.url for name, server in plan.agents().items()}
        self._verifiers = plan.verifiers()
        log.info("gym: %d servers are ready, logs in %s", len(plan.servers), folder)

    async def _ask_head(self, client: GymClient, url: str) -> dict[str, str]:
        """The agents that a head server names."""
        try:
            found = await client.get(f"{url}/server_instances", self._settings.control_timeout_s)
        except RequestFailed as error:
            remedy = "Start Gym's servers, or correct env.head_server"
            raise EnvironmentDown("env.head_server", error.message, remedy) from error
        found = found if isinstance(found, list) else []
        instances = [one for one in found if isinstance(one, Mapping)]
        agents: dict[str, str] = {}
        for one in instances:
            name, address = one.get("process_name") or one.get("name"), one.get("url")
            if one.get("server_type") == "responses_api_agents" and name and address:
                agents[str(name)] = str(address).rstrip("/")
        if not agents:
            what = f"{url} names no agent among {counted(len(instances), 'server')}"
            raise EnvironmentDown("env.head_server", what, "Give agents by env.agents")
        return agents

    async def _wait_for(self, client: GymClient, key: str, urls: Mapping[str, str]) -> None:
        """Waits until servers that somebody else starts are ready."""
        waiting, limit = dict(urls), self._settings.start_timeout_s
        try:
            async with asyncio.timeout(limit):
                while waiting:
                    for name, url in list(waiting.items()):
                        if await client.is_ready(url, PING_S):
                            del waiting[name]
                    await asyncio.sleep(POLL_S if waiting else 0)
        except TimeoutError:
            name, url = next(iter(waiting.items()))
            what = f"{name} at {url} is not ready within {limit:g} s"
            remedy = f"Start it, correct {key}, or raise env.start_timeout_s"
            raise EnvironmentDown(key, what, remedy) from None

    def agent(self, name: str) -> str:
        """URL of an agent.

        Raises:
            EnvironmentDown: There is none of this name.
        """
        url = self._agents.get(name)
        if url is None:
            near = get_close_matches(name, self._agents, n=1, cutoff=0)
            raise EnvironmentDown(
                "agent_ref.name",
                f"a row is for agent {name!r}, and there is none of that name among "
                f"{', '.join(sorted(self._agents))}",
                f"Did you mean {near[0]}?" if near else "",
            )
        return url

    def verifier(self, name: str) -> str | None:
        """URL of the resources server behind an agent, where it is known."""
        return self._verifiers.get(name)

    async def unless_down(self, name: str, request: Coroutine[Any, Any, Any]) -> Any:
        """The result of a request to an agent, called off once a server behind the agent has ended.

        An agent whose verifier is gone may ask for it again and again, and answers nothing.

        Raises:
            RequestFailed: The request failed, or was called off.
        """
        if self._servers is None:
            return await request
        asking = asyncio.ensure_future(request)
        ending = asyncio.ensure_future(self._servers.wait_for_end(name))
        try:
            await asyncio.wait((asking, ending), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            raise RequestFailed(FailureKind.ENV_DOWN, f"agent {name} has lost a server")
        finally:
            ending.cancel()
            asking.cancel()
            await asyncio.gather(asking, ending, return_exceptions=True)

    def explain(self, name: str) -> str:
        """What is known of servers of ours, to somebody whom an agent failed; "" for nothing."""
        if self._servers is None:
            return ""
        told = self._servers.explain_agent(name)
        if self._temporary is None:
            return told
        self._keep_logs = True
        where = f"the logs of the servers are in {self._temporary.path}"
        return f"{told}; {where}" if told else where

    async def close(self) -> None:
        """Ends the servers that were started. May be called twice.

        Logs in a temporary folder go with them, unless something failed that they may explain.
        """
        if self._servers is not None:
            self._keep_logs |= self._servers.any_ended
            await self._servers.close()
            if self._temporary is not None and not self._keep_logs:
                self._temporary.remove()


def _as_agents(urls: Mapping[str, str]) -> dict[str, str]:
    return {f"agent {name}": url for name, url in urls.items()}


def initial_config(overrides: Mapping[str, Any], policy: PolicyAddress | None) -> dict[str, Any]:
    """What Gym is told beside its configuration files: the policy, and the user's own keys."""
    config: dict[str, Any] = {
        "policy_base_url": NOWHERE if policy is None else list(policy.base_urls),
        "policy_api_key": "none" if policy is None else policy.api_key,
        "policy_model_name": "none" if policy is None else policy.model,
        "policy_model": {
            "responses_api_models": {
                "vllm_model": {
                    "uses_reasoning_parser": policy is not None and policy.parses_reasoning
                }
            }
        },
    }
    if policy is not None and policy.ray_address is not None:
        config[RAY_ADDRESS] = policy.ray_address
    return _merged(config, overrides)


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(old, value)
        else:
            merged[key] = value
    return merged
