# SPDX-License-Identifier: Apache-2.0
"""The seams: each slot's settings class (what conf/ fills) and the live handle that it makes.

A variant is one Python file in the slot's package that registers a subclass of the slot with
``@component("slot/name")``, and one ``conf/slot/name.yaml``. Settings classes have no defaults of
their own: values come from conf/ alone. Files with settings classes import no torch at the top, so
that reading and checking a configuration stays quick.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.sampled import Abandoned as Abandoned
from rlrun.sampled import SampledLog
from rlrun.slots.batching import Batching, ReadyGroup
from rlrun.slots.cluster import Cluster, Device, Precision, RunningCluster
from rlrun.slots.objective import (
    Advantage,
    Correction,
    CorrectionInputs,
    CorrectionOutput,
    Loss,
    LossInputs,
    LossOutput,
    MismatchVerdict,
)
from rlrun.slots.registry import REGISTRY, SLOTS, Checked, component, setting, variant_of
from rlrun.slots.schedule import GRPO, Effort, OverlongShaping, RewardPenalties, RewardScaling
from rlrun.types import (
    Completion,
    EnvStep,
    GenerationRequest,
    Message,
    Prompt,
    Row,
    Sampling,
    StopReason,
    Trajectory,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from rlrun.config.schema import Policy
    from rlrun.renderer import Renderer

__all__ = [
    "GRPO",
    "REGISTRY",
    "SLOTS",
    "Advantage",
    "AgentEnvironment",
    "Batching",
    "Checked",
    "Cluster",
    "Correction",
    "CorrectionInputs",
    "CorrectionOutput",
    "Device",
    "Effort",
    "Env",
    "Environment",
    "Episode",
    "EpisodeOrder",
    "Generation",
    "Generator",
    "GeneratorInputs",
    "GroupEnvironment",
    "Http",
    "Loss",
    "LossInputs",
    "LossOutput",
    "MismatchVerdict",
    "OverlongShaping",
    "PolicyAddress",
    "Precision",
    "ReadyGroup",
    "RewardPenalties",
    "RewardScaling",
    "RunningCluster",
    "Weights",
    "component",
    "setting",
    "variant_of",
]

# --- generation -----------------------------------------------------------------------------------


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
    """Within it an engine, by its name, has requests: a run learns from it which one was idle."""

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
        """Called before every update: the learner may need memory that both have a part in."""
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


# --- environments ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Episode:
    """A conversation as the environment sees it after a turn of the policy.

    Attributes:
        prompt: Where it started; ``prompt.row.answer`` and ``.payload`` are the ground truth.
        sample_index: Which sample of the group.
        messages: All messages since (and without) the prompt's, the policy's last one included.
        response: Text of the policy's last turn, special tokens removed.
        turn: Completed turns, from 1.
        stop_reason: Why the last completion ended.
    """

    prompt: Prompt
    sample_index: int
    messages: tuple[Message, ...]
    response: str
    turn: int
    stop_reason: StopReason


@dataclass(kw_only=True, slots=True)
class Env(Checked, ABC):
    """What scores and answers the policy."""

    @abstractmethod
    def check_row(self, row: Row) -> str | None:
        """Why this environment cannot use a row (such as an unreadable reference answer), or None.

        Called for every row at load, before any model exists; must be quick.
        """

    @property
    def announcement(self) -> str:
        """What is said before ``open``, if that may take a while; "" for nothing."""
        return ""

    @property
    def agents_ask(self) -> bool:
        """Whether agents ask the policy over HTTP, each when it comes to it."""
        return False

    @property
    def peer(self) -> str | None:
        """Another machine from where the policy is asked over HTTP; None if all is on this one."""
        return None

    def scored_needed(self, num_samples: int) -> int:
        """Samples of a group that must have a reward for it to be of use: two, or the only one."""
        return min(2, num_samples)

    @abstractmethod
    def start(self) -> Environment:
        """Starts what is needed (processes, connections)."""


@dataclass(frozen=True, slots=True)
class PolicyAddress:
    """Where agents find the policy of a run.

    Attributes:
        base_urls: One per engine, each ending in /v1. A conversation that stays with one of them
            finds its prefix in that engine's cache.
        api_key: What the servers want to be told.
        model: The name to ask for.
        parses_reasoning: Whether the servers set reasoning apart from the answer.
        sampled: What the servers sampled for requests with a seed.
        folder: Where logs go.
        ray_address: Of the Ray cluster that the run is on; None without one.
    """

    base_urls: tuple[str, ...]
    api_key: str
    model: str
    parses_reasoning: bool
    sampled: SampledLog
    folder: Path
    ray_address: str | None = None


class Environment(ABC):
    """A live environment; safe to call for many episodes at once from one event loop."""

    async def open(self, policy: PolicyAddress | None) -> None:
        """Called once before the first episode.

        Args:
            policy: Where the policy answers over HTTP; None where it does not.

        Raises:
            EnvironmentDown: What is needed cannot be started or reached.
        """
        return

    def metrics(self) -> dict[str, float]:
        """Declared metrics of what happened since the environment was started."""
        return {}

    @abstractmethod
    async def step(self, episode: Episode) -> EnvStep:
        """Scores the episode or answers with the next messages. Faults are returned, not raised."""

    @abstractmethod
    async def close(self) -> None:
        """Ends all processes and connections. May be called twice."""


class GroupEnvironment(Environment):
    """An environment that scores the samples of a prompt together, each in sight of the others."""

    @abstractmethod
    async def step_group(self, episodes: Sequence[Episode]) -> list[EnvStep]:
        """As ``step``, for all samples of a group that took this turn, in their order."""

    async def step(self, episode: Episode) -> EnvStep:
        """Of a group of one."""
        (step,) = await self.step_group([episode])
        return step


@dataclass(frozen=True, slots=True)
class EpisodeOrder:
    """A whole episode to be run by an agent.

    Attributes:
        prompt: Its row says which agent, and what it is told.
        sample_index: Which sample of the group.
        sampling: Temperature and filters of the run.
        max_new_tokens: Per turn.
        max_total_tokens: Prompt and all turns.
        seed: Of all draws of the episode; no other one of the run has it.
        timeout_s: For the whole episode; None is no limit.
    """

    prompt: Prompt
    sample_index: int
    sampling: Sampling
    max_new_tokens: int
    max_total_tokens: int
    seed: int
    timeout_s: float | None


class AgentEnvironment(Environment):
    """An environment whose agents run whole episodes and ask the policy by themselves, over HTTP.

    Attributes:
        max_sample_attempts: How often a sample that fails is tried, at least once.
    """

    max_sample_attempts: int

    @abstractmethod
    async def run_episode(self, order: EpisodeOrder) -> Trajectory:
        """The episode. Faults are returned in the trajectory, not raised.

        Raises:
            EnvironmentDown: No agent is left that could run any.
            Abandoned: The call was cancelled.
        """

    @abstractmethod
    def paused(self, prompt: Prompt) -> str | None:
        """Why the agent of a prompt takes no episodes at present; None if it does."""
