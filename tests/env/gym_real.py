# SPDX-License-Identifier: Apache-2.0
"""Real NeMo Gym servers with rlrun's own policy server behind them, in a thread of their own."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from rlrun.env.gym import GymEnv
from rlrun.env.gym_environment import GymEnvironment
from rlrun.gym.plan import Server
from rlrun.interfaces import AgentEnvironment, Generator
from rlrun.rendering.renderer import Renderer
from rlrun.rollout import Job, RolloutSettings
from rlrun.rollout.agents import AgentRollout
from rlrun.serve.server import PolicyServer
from rlrun.serve.start import new_api_key, start_server
from rlrun.types import (
    Completion,
    GenerationRequest,
    Prompt,
    Row,
    Sampling,
    StopReason,
    TrajectoryGroup,
    VersionSpan,
)
from tests.factories import ROOT, config

T = TypeVar("T")

VENV = Path(os.environ.get("RLRUN_GYM_VENV", ROOT / ".gym-venv"))
START_S = 400.0

AGENTS = {
    "mcqa": "mcqa_simple_agent",
    "example_single_tool_call": "example_single_tool_call_simple_agent",
    "example_tool_call_multireward": "example_tool_call_multireward_simple_agent",
    "example_session_state_mgmt": "example_session_state_mgmt_simple_agent",
    "example_multi_turn_gymnasium": "example_multi_turn_gymnasium_agent",
    "reasoning_gym": "reasoning_gym_simple_agent",
    "math_with_judge": "math_with_judge_simple_agent",
}
"""Agents by the resources server behind them."""

JUDGE = "{math_with_judge: {resources_servers: {math_with_judge: {judge_model_server: {name: policy_model}}}}}"  # noqa: E501
"""The file leaves the judge open; it is off, but must have a name."""

OVERRIDES = (
    "env=gym",
    f"env.venv={VENV}",
    "env.config_paths=["
    + ",".join(f"resources_servers/{name}/configs/{name}.yaml" for name in AGENTS)
    + "]",
    f"env.config_overrides={JUDGE}",
    f"env.start_timeout_s={START_S}",
    "generation.expose_http_server=true",
    "generation.http.tool_parser=hermes",
    "generation.http.reasoning_parser=qwen3",
    "policy.max_total_sequence_length=1024",
    "generation.max_new_tokens=256",
)

Reply = Callable[[str], str]
"""From the text of a prompt to what the policy says; cut where it ends with "..."."""


@dataclass(eq=False)
class Replying(Generator):
    """A policy that says what a function says; versions count its refits."""

    renderer: Renderer
    reply: Reply = lambda prompt: "?"
    lockstep: bool = False
    version: int = 0

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Tokens of the replies, within the limits."""
        return [self._completion(request) for request in requests]

    def _completion(self, request: GenerationRequest) -> Completion:
        text = self.reply(self.renderer.decode(request.token_ids, skip_special=False))
        cut = text.endswith("...")
        ids = self.renderer.tokenizer(text.removesuffix("..."), add_special_tokens=False)
        tokens = (*ids["input_ids"], *(() if cut else self.renderer.eos_ids[:1]))
        cut |= len(tokens) > request.max_new_tokens
        tokens = tokens[: request.max_new_tokens]
        reason = StopReason.LENGTH if cut else StopReason.STOP
        spans = (VersionSpan(self.version, 0, len(tokens)),)
        return Completion(tokens, tuple(-0.25 for _ in tokens), reason, spans)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Nothing asks for it."""
        return [-0.25] * (len(token_ids) - 1)

    async def refit(self, version: int) -> None:
        """Names the version."""
        self.version = version

    async def close(self) -> None:
        """Holds nothing."""


class RealGym:
    """Servers, policy server and environment, started once."""

    def __init__(self, renderer: Renderer, folder: Path) -> None:
        """Starts everything."""
        self.renderer = renderer
        self.generator = Replying(renderer)
        self.folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server: PolicyServer
        self.key = new_api_key()
        self.environment: AgentEnvironment
        self.run(self._open(), START_S + 60)

    async def _open(self) -> None:
        settings = config(*OVERRIDES)
        self.server = await start_server(
            settings,
            self.generator,
            self.renderer,
            api_key=self.key,
            shares_weights=False,
        )
        self.server.release()
        assert isinstance(settings.env, GymEnv)
        environment = settings.env.start()
        assert isinstance(environment, AgentEnvironment)
        self.environment = environment
        await environment.open(self.server.address(self.folder))

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 300) -> T:
        """Runs in the loop to the end."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def groups(
        self,
        rows: Sequence[Row],
        reply: Reply,
        samples: int = 1,
        environment: AgentEnvironment | None = None,
    ) -> list[TrajectoryGroup]:
        """Trajectory groups of rows, the policy answering as told."""
        self.generator.reply = reply
        rollout = AgentRollout(
            environment or self.environment, self.renderer, RolloutSettings(**LIMITS), "training"
        )
        jobs = [
            Job(Prompt(position, 0, row, self.renderer.prompt_ids(row.messages)), samples)
            for position, row in enumerate(rows)
        ]
        return self.run(rollout.run(jobs))

    def verifier(self, agent: str) -> str:
        """URL of the resources server behind an agent."""
        assert isinstance(self.environment, GymEnvironment)
        url = self.environment.verifier(agent)
        assert url is not None
        return url

    @property
    def servers(self) -> tuple[Server, ...]:
        """What was started."""
        assert isinstance(self.environment, GymEnvironment)
        servers = self.environment._directory._servers
        assert servers is not None
        return servers.plan.servers

    def close(self) -> None:
        """Ends everything."""
        self.run(self.environment.close())
        self.run(self.server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(120)


LIMITS: dict[str, Any] = {
    "sampling": Sampling(1.0),
    "max_new_tokens": 256,
    "max_total_tokens": 1024,
    "max_turns": 1,
    "env_timeout_s": 200.0,
    "seed": 1,
}


def row(content: str, server: str, tools: Sequence[Any] = (), **fields: Any) -> Row:
    """A row of NeMo Gym."""
    params: dict[str, Any] = {"input": [{"role": "user", "content": content}]}
    if tools:
        params["tools"] = list(tools)
    payload = {
        "responses_create_params": params,
        "agent_ref": {"type": "responses_api_agents", "name": AGENTS[server]},
        **fields,
    }
    return Row(f"rows:{server}", ({"role": "user", "content": content},), "", payload, "rows:1")


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A tool in the form of the Responses API."""
    return {
        "type": "function",
        "name": name,
        "description": "",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        },
    }


def call(name: str, **arguments: Any) -> str:
    """A call as the policy writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


DOUBLE = {
    "responses_create_params": {"input": "Double the number."},
    "verifier_metadata": {"unit_tests": {"inputs": ["2\n", "21\n"], "outputs": ["4\n", "42\n"]}},
}

DOUBLED = tuple(
    f"```python\n{code}\n```" for code in ("print(2 * int(input()))", "print(int(input()) + 2)")
)
"""A right answer and a wrong one."""

CODE_GEN = (
    "env=gym",
    f"env.venv={VENV}",
    "env.config_paths=[resources_servers/code_gen/configs/code_gen.yaml]",
    "env.default_agent=code_gen_simple_agent",
    "env.control_timeout_s=400",
    f"env.start_timeout_s={START_S}",
)
"""A verifier that runs code in tasks of Ray."""


MARK = "RLRUN_TEST_MARK"
"""A variable that processes inherit, by which a test knows its own among those of all tests."""


def ray_processes(mark: object) -> set[int]:
    """Ids of Ray's node processes that a test has started, by what they have in MARK."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_ray = b"raylet" in (folder / "cmdline").read_bytes().split(b"\0")[0]
            if is_ray and f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes():
                found.add(int(folder.name))
        except OSError:
            continue
    return found


def need_gym() -> None:
    """Skips where Gym's environment is not there."""
    if not (VENV / "bin" / "python").is_file():
        pytest.skip("make gym installs it")
