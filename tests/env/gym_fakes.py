# SPDX-License-Identifier: Apache-2.0
"""A small agent of our own that works, or fails in every way that a server can fail."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from rlrun.config import load_section
from rlrun.env.gym import ROW_FIELD, GymEnv
from rlrun.env.gym_environment import GymEnvironment
from rlrun.generation.abandoned import Abandoned
from rlrun.interfaces import EpisodeOrder, PolicyAddress
from rlrun.serve.sampled import SampledLog
from rlrun.types import Completion, Prompt, Row, Sampling, StopReason, Trajectory, VersionSpan

AGENT = "fake_agent"
TURNS = (((5, 6, 7), (8, 9)), ((5, 6, 7, 8, 9, 1, 2), (3, 4)))
"""Two turns: the prompt of each, and what is sampled for it."""


def completion(ids: Sequence[int], version: int = 0) -> Completion:
    """Sampled tokens of log-prob -0.5."""
    spans = (VersionSpan(version, 0, len(ids)),)
    return Completion(tuple(ids), tuple(-0.5 for _ in ids), StopReason.STOP, spans)


async def answers(ids: Sequence[int]) -> list[Completion]:
    """What an engine gives."""
    return [completion(ids)]


async def endless() -> list[Completion]:
    """What an engine does that samples until it is cancelled, when it has 5 tokens."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise Abandoned(5) from None
    return []


def order_seed(row: Mapping[str, Any]) -> int:
    """The seed of a row's episode, as it is sent."""
    seed: int = json.loads(row["responses_create_params"]["metadata"]["extra_body"])["seed"]
    return seed


def item(prompt: Sequence[int], generation: Sequence[int], **fields: Any) -> dict[str, Any]:
    """An output item with token ids."""
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "said"}],
        "prompt_token_ids": list(prompt),
        "generation_token_ids": list(generation),
        "generation_log_probs": [-0.5] * len(generation),
    } | fields


def result(row: Mapping[str, Any], items: Sequence[Any], **fields: Any) -> dict[str, Any]:
    """An agent's answer to a row."""
    response = {"output": list(items), "incomplete_details": None}
    return {**row, "response": response, "reward": 1.0, "mask_sample": False} | fields


@dataclass
class FakeAgent:
    """Answers /run as the row's "mode" says; remembers how often each was asked.

    The modes are methods below whose name begins with the mode.
    """

    sampled: SampledLog = field(default_factory=SampledLog)
    asked: Counter[str] = field(default_factory=Counter)
    rows: list[dict[str, Any]] = field(default_factory=list)
    swapped: list[web.Response] = field(default_factory=list)
    broken: bool = False
    instances: list[dict[str, Any]] = field(default_factory=list)
    crowd: int = 0
    gathered: asyncio.Event = field(default_factory=asyncio.Event)

    async def named(self, request: web.Request) -> web.StreamResponse:
        """What a head server knows."""
        return web.json_response(self.instances)

    async def ready(self, request: web.Request) -> web.StreamResponse:
        """Always."""
        return web.json_response({})

    async def verify(self, request: web.Request) -> web.StreamResponse:
        """As the row's "verdict" says."""
        row = await request.json()
        return web.Response(text=row[ROW_FIELD]["verdict"], content_type="application/json")

    async def run(self, request: web.Request) -> web.StreamResponse:
        """One episode."""
        row = await request.json()
        self.rows.append(row)
        mode = "down" if self.broken else row.get("mode", "good")
        self.asked[mode] += 1
        for prompt, generation in TURNS:
            await self.sampled.watch(order_seed(row), prompt, answers(generation))
        good = result(row, [item(*turn) for turn in TURNS])
        answer: web.StreamResponse = await getattr(self, f"_{mode}")(request, row, good)
        return answer

    async def _good(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        return web.json_response(good)

    async def _down(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        return web.json_response({"detail": "boom"}, status=500)

    async def _unavailable(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        return web.json_response({"detail": "later"}, status=503)

    async def _flaky(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        if self.asked["flaky"] == 1:
            return web.json_response({}, status=503)
        return web.json_response(good)

    async def _busy(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        """Too many requests, at first."""
        if self.asked["busy"] == 1:
            return web.json_response({}, status=429, headers={"Retry-After": "7"})
        return web.json_response(good)

    async def _moved(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        """A gateway that passes requests on by telling the client where to."""
        if self.asked["moved"] == 1:
            return web.Response(status=307, headers={"Location": "/run"})
        return web.json_response(good)

    async def _packed(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        """Compressed, in pieces of unknown size."""
        answer = web.json_response(good)
        answer.enable_chunked_encoding()
        answer.enable_compression(web.ContentCoding.gzip)
        return answer

    async def _untyped(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        """What it is, is not said."""
        return web.Response(text=json.dumps(good), content_type="text/plain")

    async def _page(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        """A gateway's own page, with a status that says that all is well."""
        return web.Response(text="<html>Please log in</html>", content_type="text/html")

    async def _closing(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        """A connection that the client may think is kept, and is closed behind the answer."""
        answer = web.json_response(good)
        await answer.prepare(request)
        await answer.write_eof()
        assert request.transport is not None
        request.transport.close()
        return answer

    async def _together(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        """No answer before all of ``crowd`` have asked."""
        if self.asked["together"] == self.crowd:
            self.gathered.set()
        await self.gathered.wait()
        return web.json_response(good)

    async def _engine(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        text = 'inner server: {"error": {"code": "generation_failed"}}'
        return web.json_response({"detail": text}, status=500)

    async def _refused(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        return web.json_response({"detail": "unknown key"}, status=422)

    async def _reset(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def _half(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"reward": 1.0')
        assert request.transport is not None
        request.transport.abort()
        return response

    async def _hang(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        await asyncio.Event().wait()
        return web.Response()

    async def _sampling(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        """The policy is in the middle of a third turn, and stays there."""
        await self.sampled.watch(order_seed(row), (5,), endless())
        return web.json_response(good)

    async def _telling(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        """Beyond the reward a number, and what is none."""
        return web.json_response(good | {"steps": 3, "transcript": ["a"], "verdict": "fine"})

    async def _malformed(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        return web.Response(text='{"reward": 1.0,', content_type="application/json")

    async def _twice(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        text = json.dumps(good).removesuffix("}") + ', "reward": 0.0}'
        return web.Response(text=text, content_type="application/json")

    async def _count(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        return web.json_response([good, good])

    async def _swap(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        """The answers to two rows the wrong way round."""
        self.swapped.append(web.json_response(good))
        while len(self.swapped) < 2:
            await asyncio.sleep(0.01)
        return self.swapped[1 if self.swapped[0].body == web.json_response(good).body else 0]

    async def _nan(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        text = json.dumps(good | {"reward": float("nan")})
        return web.Response(text=text, content_type="application/json")

    async def _huge(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(4):
            await response.write(b" " * 2**19)
        return response

    async def _silent(self, request: web.Request, row: Any, good: Any) -> web.StreamResponse:
        """The agent never asked the policy."""
        return web.json_response(result(row, [], reward=0.0))


@dataclass(frozen=True)
class Running:
    """A fake agent and the environment that asks it."""

    agent: FakeAgent
    environment: GymEnvironment
    url: str

    async def episode(
        self, mode: str = "good", *, timeout_s: float | None = 200.0, number: int = 0
    ) -> Trajectory:
        """Runs one of the given mode."""
        return await self.environment.run_episode(order(mode, timeout_s=timeout_s, number=number))


def order(
    mode: str = "good",
    *,
    agent: str = AGENT,
    timeout_s: float | None = 200.0,
    number: int = 0,
    **params: Any,
) -> EpisodeOrder:
    """An episode of a row with this mode."""
    payload = {
        "responses_create_params": {"input": [{"role": "user", "content": "?"}], **params},
        "agent_ref": {"name": agent},
        "mode": mode,
    }
    row = Row(f"rows:{number}", ({"role": "user", "content": "?"},), "", payload, "rows.jsonl:1")
    return EpisodeOrder(
        prompt=Prompt(number, 0, row, (5, 6, 7)),
        sample_index=number,
        sampling=Sampling(0.75, 0.5),
        max_new_tokens=16,
        max_total_tokens=64,
        seed=1000 + number,
        timeout_s=timeout_s,
    )


def settings(*overrides: str) -> GymEnv:
    """A patient environment that loses no time."""
    env = load_section("env", ["env=gym", "env.retry_wait_s=0.01", "env.max_retries=2", *overrides])
    assert isinstance(env, GymEnv)
    return env


@asynccontextmanager
async def running(*overrides: str, names: Sequence[str] = (AGENT,)) -> AsyncIterator[Running]:
    """An environment in front of a fake agent, under several names if wanted."""
    agent = FakeAgent()
    app = web.Application()
    app.router.add_get("/readyz", agent.ready)
    app.router.add_get("/server_instances", agent.named)
    app.router.add_post("/run", agent.run)
    app.router.add_post("/verify", agent.verify)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    agents = ",".join(f"{name}: '{url}'" for name in names)
    where = (f"env.agents={{{agents}}}", f"env.verifiers={{{agents}}}")
    environment = GymEnvironment(settings(*where, *overrides))
    policy = PolicyAddress(("http://127.0.0.1:9/v1",), "key", "m", False, agent.sampled, None)  # type: ignore[arg-type]
    try:
        await environment.open(policy)
        yield Running(agent, environment, url)
    finally:
        await environment.close()
        await environment.close()
        await runner.cleanup()
