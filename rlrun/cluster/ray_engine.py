# SPDX-License-Identifier: Apache-2.0
"""An engine as a Ray actor: hosts what the generation slot starts, and takes new weights."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlrun.cluster.ray_runtime import Whereabouts, whereabouts
from rlrun.config.schema import RunConfig
from rlrun.derived import generator_inputs
from rlrun.generation.vllm import VLLMGeneration
from rlrun.interfaces import Abandoned, Generator, Precision
from rlrun.learner.model import read_weights, saved_tensors, without_dropout
from rlrun.models.resolve import resolve_model
from rlrun.process.machine import set_up_torch
from rlrun.refit.object_store import Packed, unpack
from rlrun.refit.shared_memory import load_weights
from rlrun.rendering.renderer import Renderer
from rlrun.types import Completion, GenerationRequest


@dataclass(frozen=True, slots=True)
class Dropped:
    """The answer to a call that was cancelled.

    Attributes:
        tokens: Sampled for it until then.
    """

    tokens: int


class EngineActor:
    """Runs as a Ray actor with an event loop.

    It holds a replica of the policy, in which new weights arrive. To the generator inside, the
    replica is what the learner's network is in one process.
    """

    def __init__(self, config: RunConfig, index: int, folder: Path, working_directory: str) -> None:
        """Loads nothing yet; relative paths are those of the process that started the run."""
        self.config, self.folder = config, folder / "engines" / f"engine_{index}"
        if os.path.isdir(working_directory):
            os.chdir(working_directory)
        self._running: dict[int, asyncio.Task[list[Completion]]] = {}
        self._cancelled: set[int] = set()

    async def whereabouts(self) -> Whereabouts:
        """Where this is."""
        return whereabouts()

    async def start(self) -> bool:
        """Loads the policy and starts the generator; returns its ``lockstep``."""
        cluster: Any = self.config.cluster
        set_up_torch(self.config, cluster.cpus_per_actor)
        policy = self.config.policy
        model = read_weights(resolve_model(policy.model), policy.model)
        without_dropout(model)
        on_gpu = cluster.gpus_per_node > 0
        apart = on_gpu and keeps_replica_in_memory(self.config)
        torch.nn.Module.to(model, torch.device("cuda" if on_gpu and not apart else "cpu"))
        if apart and policy.precision is Precision.BFLOAT16:
            for parameter in model.parameters():
                parameter.data = parameter.data.bfloat16()
        self.replica = saved_tensors(model)
        self.folder.mkdir(parents=True, exist_ok=True)
        inputs = generator_inputs(
            self.config,
            model=model,
            weights=lambda: iter(self.replica.items()),
            renderer=Renderer.load(policy),
            num_threads=cluster.cpus_per_actor,
            folder=self.folder,
            engines_on_gpu=apart,
        )
        self.generator: Generator = await self.config.generation.start(inputs)
        return self.generator.lockstep

    async def refit(self, version: int, weights: Mapping[str, Packed]) -> None:
        """Takes new weights, and is done when the next token is sampled from them."""
        load_weights(self.replica, unpack(weights))
        await self.generator.refit(version)

    async def generate(
        self, number: int, requests: Sequence[GenerationRequest]
    ) -> list[Completion] | Dropped:
        """See ``Generator.generate``; ``number`` is what ``cancel`` knows the call by."""
        if number in self._cancelled:
            self._cancelled.discard(number)
            return Dropped(0)
        task = asyncio.create_task(self.generator.generate(requests))
        self._running[number] = task
        try:
            return await task
        except Abandoned as error:
            return Dropped(error.tokens)
        except asyncio.CancelledError:
            return Dropped(0)
        finally:
            del self._running[number]

    async def cancel(self, number: int) -> None:
        """Gives a call up, which then answers at once; it may even arrive later than this."""
        task = self._running.get(number)
        if task is None:
            self._cancelled.add(number)
        else:
            task.cancel()

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """See ``Generator.score``."""
        return await self.generator.score(token_ids)

    async def prove(self, token_ids: Sequence[int]) -> dict[str, list[float]]:
        """Scores by every generator of this engine that has weights of its own, or by its one.

        The names are what is put behind that of the engine.
        """
        found = await self.generator.engine_scores(token_ids)
        if len(found) > 1:
            return {f", {name}": scores for name, scores in found.items()}
        scores = next(iter(found.values()), None)
        return {"": await self.score(token_ids) if scores is None else scores}

    async def release_memory(self) -> None:
        """See ``Generator.release_memory``."""
        await self.generator.release_memory()

    async def close(self) -> None:
        """Ends the generator and what it started."""
        await self.generator.close()


def keeps_replica_in_memory(config: RunConfig) -> bool:
    """Whether an engine's replica of the policy is in its machine's memory, not on its GPU.

    vLLM has weights of its own and reads new ones from wherever they are; twice on a GPU they
    would leave little room. Where it shares the GPU with a rank, they are there in any case.
    """
    cluster: Any = config.cluster
    return isinstance(config.generation, VLLMGeneration) and not cluster.colocated
