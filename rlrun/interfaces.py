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
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rlrun.sampled import Abandoned as Abandoned
from rlrun.sampled import SampledLog
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

    from rlrun.config.schema import Policy, RunConfig
    from rlrun.grpo.trainer import Trainer
    from rlrun.learner.handle import LearnerHandle
    from rlrun.renderer import Renderer

SLOTS = ("grpo", "env", "generation", "loss", "advantage", "correction", "batching", "cluster")
"""Packages of variants, scanned when a configuration is read."""

REGISTRY: dict[str, type] = {}
"""Settings classes by "slot/name"."""

T = TypeVar("T", bound=type)


def component(name: str) -> Callable[[T], T]:
    """Registers a settings class as the variant ``name`` = "slot/variant"."""

    def register(cls: T) -> T:
        REGISTRY[name] = cls
        return cls

    return register


def variant_of(settings: object) -> str:
    """The name of a variant by its settings: "math" for those of "env/math"."""
    names = (name for name, cls in REGISTRY.items() if cls is type(settings))
    return next(names, "").rpartition("/")[2]


def setting(
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """Declares the legal range of a numeric setting, checked when the configuration is read.

    Each bound is optional; null is always legal where the type allows it.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    return field(metadata={name: bound for name, bound in bounds.items() if bound is not None})


class Checked:
    """A settings class may check what its own fields say together."""

    __slots__ = ()

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Yields (field names, what is wrong with their values, remedy)."""
        yield from ()


# --- grpo -----------------------------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class RewardScaling(Checked):
    """Linear map of rewards from [source_min, source_max] (clamped) to [target_min, target_max]."""

    enabled: bool
    source_min: float
    source_max: float
    target_min: float
    target_max: float

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """The source interval must not be empty."""
        if self.enabled and self.source_min >= self.source_max:
            yield (
                ("source_min", "source_max"),
                f"source_min={self.source_min} is not below source_max={self.source_max}",
                "Give the interval that the rewards lie in",
            )


@dataclass(kw_only=True, slots=True)
class OverlongShaping(Checked):
    """Soft penalty for long responses (DAPO, arXiv 2503.14476, eq. 13)."""

    enabled: bool
    buffer_tokens: int = setting(ge=1)
    penalty: float = setting(ge=0)
    max_response_tokens: int | None = setting(ge=1)

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """The buffer lies within the response."""
        limit = self.max_response_tokens
        if self.enabled and limit is not None and self.buffer_tokens > limit:
            yield (
                ("buffer_tokens", "max_response_tokens"),
                f"buffer_tokens={self.buffer_tokens} is above max_response_tokens={limit}",
                "Give the number of last tokens over which the penalty grows",
            )


@dataclass(kw_only=True, slots=True)
class RewardPenalties(Checked):
    """What makes the environment's reward of a response 0."""

    duplicated_reasoning: bool
    empty_final_answer: bool
    malformed_thinking: bool
    unwanted_tokens: list[int]
    think_open: str
    think_close: str

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Tags are texts, and two of them."""
        if not self.think_open or not self.think_close or self.think_open == self.think_close:
            yield (
                ("think_open", "think_close"),
                f"think_open={self.think_open!r} and think_close={self.think_close!r} do not set "
                "reasoning apart",
                "Give the two tags of the model, such as <think> and </think>",
            )


@dataclass(kw_only=True, slots=True)
class Effort:
    """Rewards short responses where the prompt asks for little effort."""

    low_string: str | None
    low_weight: float = setting(ge=0)
    low_penalty: float = setting(ge=0)
    low_tokens: int = setting(ge=1)


@dataclass(kw_only=True, slots=True)
class GRPO(Checked, ABC):
    """A schedule, with the sizes and rules that all schedules share."""

    concurrent: ClassVar[bool]
    """Whether rollouts go on while the learner trains."""

    num_prompts_per_step: int = setting(ge=1)
    num_generations_per_prompt: int = setting(ge=1)
    max_num_steps: int | None = setting(ge=1)
    max_num_epochs: int | None = setting(ge=1)
    seed: int = setting(ge=0, lt=2**63)
    max_rollout_turns: int = setting(ge=1)
    rollout_timeout_s: float | None = setting(gt=0)
    group_timeout_s: float | None = setting(gt=0)
    no_progress_timeout_s: float | None = setting(gt=0)
    max_generation_failures: int = setting(ge=0)
    max_group_attempts: int = setting(ge=1)
    overlong_filtering: bool
    use_dynamic_sampling: bool
    dynamic_sampling_max_gen_batches: int = setting(ge=1)
    seq_logprob_error_threshold: float | None = setting(gt=1)
    skip_reference_policy_logprobs_calculation: bool
    reward_scaling: RewardScaling
    overlong_shaping: OverlongShaping
    reward_penalties: RewardPenalties
    effort: Effort
    invalid_tool_call_advantage: float | None
    malformed_thinking_advantage: float | None
    val_period: int = setting(ge=0)
    val_start_at: int
    val_at_start: bool
    val_at_end: bool
    val_batch_size: int = setting(ge=1)
    max_val_samples: int | None = setting(ge=1)
    val_num_generations_per_prompt: int = setting(ge=1)
    stop_at_validation_metric: str | None
    stop_at_validation_threshold: float | None

    @abstractmethod
    async def train(self, trainer: Trainer) -> None:
        """Runs the trainer's verbs until its scheduler ends the run."""


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


# --- advantage, correction, loss ------------------------------------------------------------------


@dataclass(kw_only=True, slots=True)
class Advantage(Checked, ABC):
    """How good a sample was, relative to its group."""

    @abstractmethod
    def __call__(self, groups: Sequence[Sequence[float | None]]) -> list[list[float]]:
        """Advantages in float64 for the rewards of a batch, one list per trajectory group.

        A reward of None marks a sample that is out (failed or filtered): it gets 0 and does not
        enter the statistics of the others.
        """


@dataclass(frozen=True, slots=True)
class CorrectionInputs:
    """Log-probs of the trained tokens of a whole batch, flat over trajectories.

    Attributes:
        prev_logprobs: float32 [N], the learner's before the update.
        generation_logprobs: float32 [N], the generator's.
        trajectory: int64 [N], in 0 .. num_trajectories - 1, ascending.
        num_trajectories: Number of trajectories, those without a trained token included.
    """

    prev_logprobs: Tensor
    generation_logprobs: Tensor
    trajectory: Tensor
    num_trajectories: int


@dataclass(frozen=True, slots=True)
class CorrectionOutput:
    """Constant importance weights and what they say about the mismatch.

    Attributes:
        weights: float32 [N], finite and at least 0.
        metrics: Values of the declared ``correction/*`` metrics.
    """

    weights: Tensor
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MismatchVerdict:
    """What is to be said of a batch.

    Attributes:
        warning: For the user, or None.
        bad: Whether the batch counts towards the end of the run.
    """

    warning: str | None
    bad: bool


@dataclass(kw_only=True, slots=True)
class Correction(Checked, ABC):
    """Importance-sampling correction between the learner's and the generator's probabilities."""

    @abstractmethod
    def __call__(self, inputs: CorrectionInputs, *, asynchronous: bool) -> CorrectionOutput:
        """Weights for every trained token of the batch: 1 unless active in such a schedule.

        The metrics are those of the configured treatment either way.
        """

    @abstractmethod
    def active(self, asynchronous: bool) -> bool:
        """Whether weights other than 1 are applied in a run of this schedule."""

    @abstractmethod
    def check(self, metrics: Mapping[str, float], bad_steps: int) -> MismatchVerdict:
        """Whether generator and learner agree well enough to learn from the batch.

        Args:
            metrics: Of the batch.
            bad_steps: Steps in a row before this one that were bad.

        Raises:
            TrainingError: Too many steps in a row are bad.
        """


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Trained tokens of one microbatch, flat: masked tokens and samples are simply not there.

    All tensors are [N] over the trained tokens; N may be 0. A trajectory is never split over
    microbatches.

    Attributes:
        logprobs: float32, current policy, requires grad; at sampling temperature and filters.
        prev_logprobs: float32, the learner's before the update.
        generation_logprobs: float32, the generator's.
        ref_logprobs: float32, the reference policy's at sampling temperature, unfiltered; None
            without a KL penalty.
        advantages: float32.
        weights: float32, importance-sampling correction (1 where there is none).
        trajectory: int64 in 0 .. num_trajectories - 1, ascending.
        num_trajectories: Trajectories in this microbatch.
        total_tokens: Trained tokens of the whole minibatch over all microbatches and ranks.
        total_trajectories: Trajectories with a trained token in the whole minibatch.
        unfiltered_logprobs: float32, current policy, requires grad; at sampling temperature
            without top-k and top-p, to be compared with the reference. None: as ``logprobs``.
    """

    logprobs: Tensor
    prev_logprobs: Tensor
    generation_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    weights: Tensor
    trajectory: Tensor
    num_trajectories: int
    total_tokens: int
    total_trajectories: int
    unfiltered_logprobs: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossOutput:
    """A microbatch's share of the minibatch's loss.

    Attributes:
        loss: float32 scalar; shares add up to the minibatch's loss whatever the split.
        metrics: Shares of the minibatch's value of each declared metric; they add up as well.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor]


@dataclass(kw_only=True, slots=True)
class Loss(Checked, ABC):
    """The objective of an optimizer step.

    Attributes:
        needs_advantage: Whether a trajectory with advantage 0 never has a gradient, but for that of
            the KL penalty; such trajectories are then spared the backward pass.
    """

    needs_advantage: ClassVar[bool] = False

    reference_policy_kl_penalty: float = setting(ge=0)

    @abstractmethod
    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The share of the loss that this microbatch contributes."""


# --- batching -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadyGroup:
    """A finished trajectory group as a batching policy sees it.

    Attributes:
        position: Place in the prompt stream.
        oldest_version: Weight version of its oldest token.
        admitted_version: Weight version when it was admitted.
        finish_order: 0 for the first group that finished in this run, and so on.
        target_step: The step it was admitted for, if the policy assigns one.
    """

    position: int
    oldest_version: int
    admitted_version: int
    finish_order: int
    target_step: int | None = None


@dataclass(kw_only=True, slots=True)
class Batching(Checked, ABC):
    """Which finished groups make the next batch: a ranking, bounded by the scheduler."""

    assigns_targets: ClassVar[bool] = False
    """True if a group is admitted for one certain step: the scheduler then fills ``target_step``,
    earliest open step first, and trains a step on exactly the groups that have it."""

    @abstractmethod
    def rank(self, ready: Sequence[ReadyGroup]) -> list[ReadyGroup]:
        """The groups in the order in which they should be trained; each exactly once."""


# --- cluster --------------------------------------------------------------------------------------


class Precision(StrEnum):
    """Arithmetic of the learner's forward and backward pass; master weights are float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Device(StrEnum):
    """What tensors live on."""

    AUTO = "auto"
    """A GPU if there is one, the CPU otherwise."""
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(kw_only=True, slots=True)
class Cluster(Checked, ABC):
    """Where the learner and the generators run."""

    device: Device

    def check_installed(self) -> None:
        """Called before data or a model is read.

        Raises:
            ConfigError: A package is missing that the variant needs.
        """

    @abstractmethod
    def start(self, config: RunConfig, folder: Path) -> RunningCluster:
        """Loads the policy where it is to be trained; may take a while.

        Args:
            config: The run, this being its cluster.
            folder: The run directory.

        Raises:
            ConfigError: There is less than the configuration asks for.
            EnvironmentDown: What is there cannot be had.
        """


class RunningCluster(ABC):
    """The roles of a run, wherever they are.

    Attributes:
        learner: Ready to compute.
        generator_share: Of the machines, that generates where learner and generator work at once.
        ray_address: Of the Ray cluster that they are on; None without one.
    """

    learner: LearnerHandle
    generator_share: float
    ray_address: str | None = None

    @abstractmethod
    async def start_generator(self, renderer: Renderer, say: Callable[[str], None]) -> Generator:
        """Starts what samples; to be closed before the cluster is.

        Args:
            renderer: Of the policy.
            say: Told before the start what will be started, if it takes a while.

        Raises:
            GenerationError: It does not start.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees everything that was started. May be called twice."""
