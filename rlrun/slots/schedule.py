# SPDX-License-Identifier: Apache-2.0
"""The slot grpo: when rollouts and updates happen, and the rules that all schedules share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlrun.slots.registry import Checked, setting

if TYPE_CHECKING:
    from rlrun.grpo.trainer import Trainer


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
class Effort(Checked):
    """Rewards short responses where the prompt asks for little effort."""

    low_string: str | None
    low_weight: float = setting(ge=0)
    low_penalty: float = setting(ge=0)
    low_tokens: int = setting(ge=1)

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """An empty text would be in every prompt."""
        if self.low_string is not None and not self.low_string.strip():
            yield ("low_string",), "low_string is empty", "Give a text, or low_string=null"


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
