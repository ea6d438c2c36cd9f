# SPDX-License-Identifier: Apache-2.0
"""The slot generation: what samples, from token ids to token ids."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.slots.registry import Checked, setting
from rlrun.types import Completion, GenerationRequest

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from rlrun.config.schema import Policy
    from rlrun.rendering.renderer import Renderer


@dataclass(kw_only=True, slots=True)
class Http(Checked):
    """The OpenAI-compatible server in front of a generator: docs/serving.md."""

    host: str | None
    port: int = setting(ge=0, le=65535)
    served_model_name: str | None
    tool_parser: str | None
    reasoning_parser: str | None

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """A name is a text or null."""
        for name, text in (
            ("host", self.host),
            ("served_model_name", self.served_model_name),
            ("tool_parser", self.tool_parser),
            ("reasoning_parser", self.reasoning_parser),
        ):
            if text is not None and not text.strip():
                yield (name,), f"{name} is empty", f"Give a name, or {name}=null"


@dataclass(kw_only=True, slots=True)
class Generation(Checked, ABC):
    """How completions are sampled; the variant says by which engine."""

    temperature: float = setting(ge=1e-3, le=100)
    top_p: float = setting(gt=0, le=1)
    top_k: int | None = setting(ge=1)
    max_new_tokens: int = setting(ge=1)
    stop: list[str]
    val_temperature: float | None = setting(ge=0, le=100)
    val_top_p: float | None = setting(gt=0, le=1)
    val_top_k: int | None = setting(ge=1)
    expose_http_server: bool
    http: Http

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Logits divided by nearly nothing overflow; an empty stop text would end every turn."""
        if self.val_temperature is not None and 0 < self.val_temperature < 1e-3:
            yield (
                ("val_temperature",),
                f"val_temperature={self.val_temperature} is neither 0 nor at least 0.001",
                "Write 0 to take the most likely token",
            )
        if "" in self.stop:
            yield ("stop",), "stop holds an empty text", "Take it out; [] is for none"
        for text in self.stop:
            if re.fullmatch(r"(?:\\[nrt])+", text):
                # A flag knows no escapes: such a text would hardly ever be sampled.
                yield (
                    ("stop",),
                    f"stop holds {text}, the characters and not what they stand for",
                    "Write it in a recipe, in double quotes, or in bash as "
                    f"$'generation.stop=[\"{text}\"]'",
                )

    def check_installed(self) -> None:
        """Called before a model is loaded.

        Raises:
            ConfigError: A package is missing that the variant needs.
        """

    def announcement(self, inputs: GeneratorInputs) -> str:
        """What is said before ``start``: what will be started, and how; "" for nothing."""
        return ""

    @abstractmethod
    async def start(self, inputs: GeneratorInputs) -> Generator:
        """The live generator, ready for requests once it has had its first refit.

        Raises:
            GenerationError: The engine does not start; the text is the engine's own root cause.
        """


Weights = Callable[[], "Iterator[tuple[str, Tensor]]"]
"""Reads the learner's present weights: name and whole tensor of every parameter and buffer that is
saved with the model, under the names that transformers gives them in a checkpoint; adapters merged,
tied tensors once. The tensors may be the learner's own: to be copied before it goes on."""


@dataclass(frozen=True, slots=True)
class GeneratorInputs:
    """What a generator is started with.

    Attributes:
        model: The learner's network, on its device.
        weights: Its weights as they are when called; what a refit transfers.
        policy: Names the model and its limits.
        renderer: Knows the tokens that end a completion.
        concurrent: The learner changes its weights while the generator samples, which therefore
            needs weights of its own.
        ordered: What is sampled must not depend on timing: requests of one call make one batch.
            False where agents ask one by one, whenever they come to it.
        recompute_kv_cache: Running requests have their caches computed anew after a refit.
        deterministic: Only reproducible operations are allowed.
        num_threads: CPU threads for a generator in a process of its own.
        folder: Where logs of child processes go; None for a temporary folder.
        engines_on_gpu: Engines with weights of their own run on a GPU although ``model`` is in the
            machine's memory.
    """

    model: PreTrainedModel
    weights: Weights
    policy: Policy
    renderer: Renderer
    concurrent: bool
    ordered: bool
    recompute_kv_cache: bool
    deterministic: bool
    num_threads: int
    folder: Path | None
    engines_on_gpu: bool = False


class Generator(ABC):
    """A live generator. It samples; it does not know about prompts, rewards or groups."""

    lockstep: bool
    """True if a step's requests should come as one ordered batch (static batching, and what makes
    results independent of timing); false if the engine batches by itself."""

    at_work: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Entered while the engine of a name has requests, so that a run learns when it was idle."""

    @abstractmethod
    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Completions in the order of the requests.

        Raises:
            GenerationError: The engine failed; nothing of the batch can be used.
            Abandoned: The call was cancelled; says how many tokens had been sampled.
        """

    @abstractmethod
    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs of every token but the first under the present weights, at temperature 1.

        Raises:
            GenerationError: The engine failed, or the sequence does not fit the model.
        """

    async def engine_scores(self, token_ids: Sequence[int]) -> Mapping[str, list[float]]:
        """As ``score``, by every engine that has weights of its own, under its name.

        Empty where sampling uses the learner's weights themselves, which need no proof.

        Raises:
            GenerationError: As ``score``.
        """
        return {}

    def engine_views(self) -> tuple[Generator, ...]:
        """A generator for each engine, which that engine answers as long as it is there.

        A conversation that stays with one of them finds its prefix in the engine's cache. They are
        refitted, and closed, with this one.
        """
        return (self,)

    async def release_memory(self) -> None:
        """Called before every update: the learner may need memory that both share."""
        return

    @abstractmethod
    async def refit(self, version: int) -> None:
        """Makes the learner's present weights those that the next token is sampled from.

        Running requests go on with the new weights; their completions say which token came from
        which version.

        Raises:
            GenerationError: The weights did not arrive.
        """

    @abstractmethod
    async def close(self) -> None:
        """Frees everything. May be called twice."""
