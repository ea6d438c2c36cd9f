# SPDX-License-Identifier: Apache-2.0
"""Engines that the contract of the HTTP server is tested with, and a server in front of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
from openai import AsyncOpenAI
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlrun.config.schema import RunConfig
from rlrun.interfaces import Generator, GeneratorInputs
from rlrun.learner.model import saved_tensors
from rlrun.models.resolve import resolve_model
from rlrun.rendering.renderer import Renderer
from rlrun.serve.server import PolicyServer
from rlrun.serve.start import new_api_key, start_server
from rlrun.types import Completion, GenerationRequest, StopReason, VersionSpan
from tests.factories import config

T = TypeVar("T")

WITH_TOOLS = """\
{%- if tools %}{{ '<|im_start|>system\\n<tools>\\n' }}
{%- for tool in tools %}{{ (tool | tojson) + '\\n' }}{% endfor %}{{ '</tools><|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking %}{{ '<think>\\n' }}{% endif %}{% endif %}
"""
"""A chat template in the manner of Hermes: it shows tools, and can begin the reasoning."""

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
}
QUESTION = [{"role": "user", "content": "What is 37 + 45?"}]


class Engine:
    """A generator in an event loop of its own, which lives as long as the engine."""

    def __init__(self, choice: str, concurrent: bool, ordered: bool = False) -> None:
        """Starts the variant ``choice`` of the slot on the embedded model.

        Args:
            choice: Name of the variant.
            concurrent: With weights of its own, as in an asynchronous run.
            ordered: What is asked at once is a batch of its own.
        """
        self.concurrent, self.ordered = concurrent, ordered
        self.overrides = (f"generation={choice}",)
        self.config = config(*self.overrides)
        self.renderer = Renderer.load(self.config.policy)
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            resolve_model(self.config.policy.model)
        )
        self._runner = asyncio.Runner()
        self.generator: Generator = self.run(
            self.config.generation.start(self.inputs(self.renderer))
        )
        self.run(self.generator.refit(3))

    def inputs(self, renderer: Renderer) -> GeneratorInputs:
        """What an engine is started with."""
        return GeneratorInputs(
            model=self.model,
            weights=lambda: iter(saved_tensors(self.model).items()),
            policy=self.config.policy,
            renderer=renderer,
            concurrent=self.concurrent,
            ordered=self.ordered,
            recompute_kv_cache=False,
            deterministic=True,
            num_threads=1,
            folder=None,
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs to the end in the engine's loop, within a time that only a hang takes."""

        async def bounded() -> T:
            async with asyncio.timeout(500):
                return await work

        return self._runner.run(bounded())

    def close(self) -> None:
        """Ends engine and loop."""
        self.run(self.generator.close())
        self._runner.close()


@dataclass(eq=False)
class Scripted(Generator):
    """Answers with given texts in turn, each after the gate is open; remembers what it was asked.

    A text ends with the end-of-sequence token unless it ends with ``...``, which is cut.
    """

    renderer: Renderer
    texts: Sequence[str] = ("Answer: 82",)
    lockstep: bool = False
    calls: list[list[GenerationRequest]] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: int = 0
    error: Exception | None = None
    version: int = 0

    def __post_init__(self) -> None:
        self.gate.set()
        self._next = 0

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """The next texts."""
        self.calls.append(list(requests))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return [self._completion() for _ in requests]

    def _completion(self) -> Completion:
        text = self.texts[self._next % len(self.texts)]
        self._next += 1
        cut = text.endswith("...")
        text = text.removesuffix("...")
        ids: tuple[int, ...] = tuple(
            self.renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
        )
        ids += () if cut else self.renderer.eos_ids[:1]
        return Completion(
            token_ids=ids,
            logprobs=tuple(-0.25 for _ in ids),
            stop_reason=StopReason.LENGTH if cut else StopReason.STOP,
            weight_versions=(VersionSpan(self.version, 0, len(ids)),) if ids else (),
        )

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Nothing tests this."""
        return [-0.25] * (len(token_ids) - 1)

    async def refit(self, version: int) -> None:
        """Names the version."""
        self.version = version

    async def close(self) -> None:
        """Holds nothing."""


@dataclass(frozen=True)
class Served:
    """A server and a client of it."""

    server: PolicyServer
    client: AsyncOpenAI
    http: aiohttp.ClientSession
    key: str

    @property
    def root(self) -> str:
        """URL without /v1."""
        return self.server.base_url.removesuffix("/v1")

    async def post(self, path: str, body: Any, key: str | None = None) -> tuple[int, Any]:
        """Status and JSON of a request below the root."""
        headers = {"Authorization": f"Bearer {self.key if key is None else key}"}
        data = body if isinstance(body, bytes) else None
        async with self.http.post(
            self.root + path, json=None if data else body, data=data, headers=headers
        ) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def serve(
    generator: Generator,
    renderer: Renderer,
    *overrides: str,
    settings: RunConfig | None = None,
    shares_weights: bool = False,
    released: bool = True,
) -> AsyncIterator[Served]:
    """A server with the settings of the quickstart and these changes."""
    key = new_api_key()
    server = await start_server(
        settings or config(*overrides),
        generator,
        renderer,
        api_key=key,
        shares_weights=shares_weights,
    )
    if released:
        server.release()
    try:
        async with (
            AsyncOpenAI(base_url=server.base_url, api_key=key, max_retries=0) as client,
            aiohttp.ClientSession() as session,
        ):
            yield Served(server, client, session, key)
    finally:
        await server.close()
        await server.close()
