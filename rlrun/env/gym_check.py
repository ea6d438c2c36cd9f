# SPDX-License-Identifier: Apache-2.0
"""What can be known of Gym's servers before a run: do they answer, is their configuration whole."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.env.gym import GymEnv
from rlrun.env.gym_client import GymClient
from rlrun.env.gym_directory import PING_S, initial_config
from rlrun.gym.plan import resolve


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What.
        ok: Whether it is as it should be; None where that cannot be told before the run.
        detail: What was found.
        remedy: What to do; "" for nothing.
    """

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""


async def look_at(env: GymEnv) -> list[Finding]:
    """Pings servers that run, and resolves the configuration of those that are to be started.

    Raises:
        EnvironmentDown: The configuration of the servers does not resolve.
    """
    findings = []
    client = GymClient(env.max_retries, env.retry_wait_s, env.max_body_mib)
    try:
        urls = dict(env.agents)
        if env.head_server is not None:
            urls["head server"] = env.head_server
        for name, url in sorted(urls.items()):
            ok = await client.is_ready(url.rstrip("/"), PING_S)
            said = "answers" if ok else f"does not answer within {PING_S:g} s"
            remedy = "" if ok else "Start it, or correct its address"
            findings.append(Finding("environment", ok, f"{name} at {url} {said}", remedy))
    finally:
        await client.close()
    if env.config_paths:
        plan = await resolve(env.venv, env.config_paths, initial_config(env.config_overrides, None))
        agents = ", ".join(sorted(plan.agents())) or "no agent"
        text = f"{len(plan.servers)} Gym servers will be started, for {agents}"
        findings.append(Finding("environment", bool(plan.agents()), text))
    rewards = "rewards are the servers', which the policy's answers decide"
    return [*findings, Finding("reward", None, rewards)]
