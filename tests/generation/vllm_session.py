# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine for all tests of a session, with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlrun.generation.vllm import VLLMGeneration
from rlrun.interfaces import GeneratorInputs, Precision
from rlrun.learner.model import saved_tensors
from rlrun.models.resolve import resolve_model
from rlrun.refit.probe import Proof
from rlrun.rendering.renderer import Renderer
from tests.factories import config

if TYPE_CHECKING:
    from rlrun.generation.vllm_generator import VLLMGenerator

T = TypeVar("T")

CONTEXT = 256


@dataclass
class VLLMSession:
    """A live generator and the model whose weights it is given.

    Attributes:
        model: Stands for the learner's network; tests change it and refit.
        generator: With one engine.
        settings: What it was started from.
        inputs: Likewise.
    """

    model: PreTrainedModel
    generator: VLLMGenerator
    settings: VLLMGeneration
    inputs: GeneratorInputs
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread

    @property
    def folder(self) -> Path:
        """Where the engine's processes meet."""
        folder = self.generator.engines[0]._folder
        assert folder is not None
        return folder.path

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 300) -> T:
        """The result of a coroutine on the engine's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def refit(self, version: int) -> None:
        self.run(self.generator.refit(version))

    def with_settings(self, **changes: Any) -> VLLMGenerator:
        """A generator on the same engine with other settings; not to be closed."""
        return self.of_class(type(self.generator), **changes)

    def of_class(self, kind: type[VLLMGenerator], **changes: Any) -> VLLMGenerator:
        """Likewise, of a class that a test derived."""
        arguments = {
            "context": CONTEXT,
            "request_timeout_s": None,
            "recompute_kv_cache": False,
            "restart_at_once": True,
            "proof": Proof(Precision.FLOAT32),
        }
        own = self.generator
        return kind(own.engines, own.transfer, **(arguments | changes))

    async def sampling(self, requests: int) -> None:
        """Waits until so many requests run and each of them has a token."""
        while len(counts := self._sampled()) < requests or not all(counts):
            await asyncio.sleep(0.005)

    async def begun(self) -> None:
        """Waits until one of all requests, which need not run at once, has a token."""
        while not any(self._sampled()):
            await asyncio.sleep(0.005)

    def _sampled(self) -> list[int]:
        """Tokens of each request so far."""
        states = self.generator.engines[0].llm.output_processor.request_states.values()
        return [state.detokenizer.num_output_tokens() for state in states]

    @contextmanager
    def endless(self) -> Iterator[None]:
        """Completions of forced lengths: they end with a token that is hardly ever sampled."""
        before = [engine.eos_ids for engine in self.generator.engines]
        for engine in self.generator.engines:
            engine.eos_ids = [self.inputs.renderer.pad_id]
        try:
            yield
        finally:
            for engine, eos_ids in zip(self.generator.engines, before, strict=True):
                engine.eos_ids = eos_ids

    def stop(self) -> None:
        folder = self.folder
        self.run(self.generator.close())
        assert not folder.exists()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def inputs_for(model: PreTrainedModel, renderer: Renderer, folder: Path) -> GeneratorInputs:
    policy = replace(config().policy, max_total_sequence_length=CONTEXT)
    return GeneratorInputs(
        model=model,
        weights=lambda: iter(saved_tensors(model).items()),
        policy=policy,
        renderer=renderer,
        concurrent=True,
        ordered=False,
        recompute_kv_cache=False,
        deterministic=True,
        num_threads=1,
        folder=folder,
    )


def start(renderer: Renderer, folder: Path) -> VLLMSession:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(resolve_model("rlrun:tiny"))
    settings = config("generation=vllm").generation
    assert isinstance(settings, VLLMGeneration)
    inputs = inputs_for(model, renderer, folder)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    generator = asyncio.run_coroutine_threadsafe(settings.start(inputs), loop).result(500)
    session = VLLMSession(model, generator, settings, inputs, loop, thread)
    session.refit(0)
    return session
