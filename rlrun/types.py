# SPDX-License-Identifier: Apache-2.0
"""The nouns: frozen records that flow from prompt to batch. No behaviour beyond small views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Message = Mapping[str, Any]
"""A chat message: {"role": str, "content": str | None, "tool_calls": [...] (optional)}."""


class StopReason(StrEnum):
    """Why a completion or a trajectory ended."""

    STOP = "stop"
    """The model sampled an end-of-sequence token or a stop string."""
    LENGTH = "length"
    """``max_new_tokens`` or the context was used up."""
    MAX_TURNS = "max_turns"
    """The environment wanted another turn but ``max_rollout_turns`` was reached."""
    ERROR = "error"
    """Generation or the environment failed; there is no reward."""


class FailureKind(StrEnum):
    """Why a trajectory has no reward. A failure is never a reward of 0."""

    ENV_DOWN = "env_down"
    ENV_ERROR = "env_error"
    TIMEOUT = "timeout"
    ENGINE_LOST = "engine_lost"
    REWARD_ERROR = "reward_error"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Failure:
    """What failed, and the text of the original error."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Row:
    """One checked row of a data set.

    Attributes:
        row_id: Stable identity within the data set ("<source>:<line or index>").
        messages: The conversation that the policy continues.
        answer: The reference answer that the environment scores against ("" if it needs none).
        payload: All further fields of the row, as an environment may want them.
        where: "FILE:LINE" (or the generator and index), for error messages.
    """

    row_id: str
    messages: tuple[Message, ...]
    answer: str
    payload: Mapping[str, Any]
    where: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A row at a position of the training or validation stream.

    Attributes:
        position: Index in the stream over all epochs, from 0; orders a batch.
        epoch: The epoch, from 0.
        row: The data row.
        token_ids: The rendered conversation with the generation prompt, unpadded.
    """

    position: int
    epoch: int
    row: Row
    token_ids: tuple[int, ...]

    @property
    def prompt_id(self) -> str:
        """Identity of the prompt within its epoch."""
        return self.row.row_id

    @property
    def group_id(self) -> str:
        """Identity of the trajectory group; groups are never told apart by text."""
        return f"{self.epoch}/{self.row.row_id}"


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens [start, end) were sampled from weight version ``version``."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a generator is asked for: token ids in, token ids out.

    Attributes:
        token_ids: The whole context so far, unpadded.
        max_new_tokens: At least 1; already clamped to the room left in the context.
        seed: Seeds this request's sampling alone, so batching cannot change the draw.
        sampling: Temperature and filters of training or validation.
    """

    token_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: At least 0; 0 means greedy (log-probs are then those at temperature 1).
        top_p: In (0, 1]; 1 keeps everything.
        top_k: At least 1, or None for no limit.
        stop: Strings that end a completion (the text up to and including it is kept).
    """

    temperature: float
    top_p: float = 1.0
    top_k: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """What a generator returns for one request.

    Attributes:
        token_ids: The sampled tokens, the end-of-sequence token included; may be empty.
        logprobs: Natural-log probability of each sampled token under the distribution it was
            drawn from (temperature and filters applied); same length.
        stop_reason: STOP or LENGTH.
        weight_versions: Which weights sampled which tokens; covers token_ids without gaps.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: StopReason
    weight_versions: tuple[VersionSpan, ...]


LARGEST_REWARD = 1e100
"""Squares and sums of rewards beyond would leave float64."""


@dataclass(frozen=True, slots=True)
class EnvStep:
    """What an environment says to the policy's last message.

    Exactly one of ``messages`` (another turn follows), ``reward`` (the end) and ``failure`` is
    given.

    Attributes:
        messages: Messages appended to the conversation before the next turn, e.g. tool results.
        reward: The total reward; finite, within LARGEST_REWARD.
        rewards: Named parts, for the record; likewise.
        extracted: The answer as the verifier read it, for the record.
        verifier_timeout: The answer itself made the verifier hit its limit (and scored 0).
        failure: The environment failed; the trajectory is masked, not punished.
    """

    messages: tuple[Message, ...] = ()
    reward: float | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    extracted: str | None = None
    verifier_timeout: bool = False
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One sample of a group: every token that the policy saw or produced, over all turns.

    The four token-aligned fields have the length of ``token_ids``. ``generation_logprobs`` is 0
    where ``loss_mask`` is false.

    Attributes:
        sample_index: 0 .. num_generations_per_prompt - 1.
        token_ids: Prompt and all turns, unpadded.
        loss_mask: True exactly at sampled tokens, the end-of-sequence token included.
        generation_logprobs: From the generator, at sampling temperature and filters.
        weight_versions: Spans over token_ids that cover the sampled tokens.
        input_length: Number of tokens of the first prompt.
        response: Text of everything after the prompt.
        reward: None after a failure.
        rewards: Named parts of the reward.
        extracted: The answer as the verifier read it.
        stop_reason: Of the last turn.
        failure: Why there is no reward.
        verifier_timeout: See EnvStep.
        turns: Number of completions.
        agent: Name of the agent that ran the episode; None where rlrun itself did.
        flagged: The environment says that the reward measures nothing: not to be trained.
        measures: Further finite numbers that the environment told of the episode.
        lost_tokens: Sampled for it and not among its tokens: in earlier attempts, which failed, or
            when it was called off.
    """

    sample_index: int
    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    generation_logprobs: tuple[float, ...]
    weight_versions: tuple[VersionSpan, ...]
    input_length: int
    response: str
    reward: float | None
    rewards: Mapping[str, float]
    extracted: str | None
    stop_reason: StopReason
    failure: Failure | None = None
    verifier_timeout: bool = False
    turns: int = 1
    agent: str | None = None
    flagged: bool = False
    measures: Mapping[str, float] = field(default_factory=dict)
    lost_tokens: int = 0

    @property
    def truncated(self) -> bool:
        """Whether generation was cut rather than ended by the model."""
        return self.stop_reason in (StopReason.LENGTH, StopReason.MAX_TURNS)

    @property
    def num_sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return self.loss_mask.count(True)


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """All samples of one prompt: the unit of scheduling and of the advantage baseline.

    Attributes:
        prompt: What they answer.
        trajectories: The samples.
        env_seconds: Time that the environment took over the one it took longest over. It depends
            on the clock, hence counts for nothing in a comparison and is in no checkpoint.
    """

    prompt: Prompt
    trajectories: tuple[Trajectory, ...]
    env_seconds: float = field(default=0.0, compare=False)

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest sampled token; None if nothing was sampled."""
        versions = [s.version for t in self.trajectories for s in t.weight_versions]
        return min(versions, default=None)

    @property
    def num_sampled(self) -> int:
        """Sampled tokens over all trajectories, those of failed attempts included."""
        return sum(t.num_sampled + t.lost_tokens for t in self.trajectories)
