# SPDX-License-Identifier: Apache-2.0
"""A trajectory in the making: tokens are appended as they come and never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rlrun.interfaces import Episode
from rlrun.rendering.renderer import Renderer
from rlrun.rollout.job import Job
from rlrun.types import Completion, EnvStep, Message, StopReason, Trajectory, VersionSpan


@dataclass(slots=True)
class OpenTrajectory:
    """A trajectory in the making.

    Attributes:
        job: Whose prompt it begins with.
        sample_index: Which sample of the group.
        token_ids: Prompt and all turns so far.
        loss_mask: Of each token, whether it was sampled.
        logprobs: Of each token; 0 where it was not sampled.
        spans: Which weights sampled what.
        messages: All since the prompt's.
        turns: Completions so far.
        env_seconds: Time that the environment took.
        stop_reason: Why the last turn ended.
        end: The environment's last step; None while the trajectory goes on.
    """

    job: Job
    sample_index: int
    token_ids: list[int]
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    env_seconds: float = 0.0
    stop_reason: StopReason = StopReason.LENGTH
    end: EnvStep | None = None

    @classmethod
    def begin(cls, job: Job, sample_index: int) -> OpenTrajectory:
        """A trajectory that has its prompt and nothing else."""
        length = len(job.prompt.token_ids)
        return cls(job, sample_index, list(job.prompt.token_ids), [False] * length, [0.0] * length)

    @property
    def num_sampled(self) -> int:
        """Tokens that were sampled so far."""
        return sum(self.loss_mask)

    def extend(self, token_ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        """Appends tokens; those with log-probs were sampled and will be trained."""
        self.token_ids += token_ids
        self.loss_mask += [logprobs is not None] * len(token_ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(token_ids)

    def add_turn(self, completion: Completion, text: str) -> None:
        """Appends what the policy sampled; ``text`` is what it says."""
        start = len(self.token_ids)
        self.extend(completion.token_ids, completion.logprobs)
        self.spans += [
            VersionSpan(span.version, span.start + start, span.end + start)
            for span in completion.weight_versions
        ]
        self.turns += 1
        self.stop_reason = completion.stop_reason
        self.messages.append({"role": "assistant", "content": text})

    def close(self, end: EnvStep, stop_reason: StopReason | None = None) -> None:
        """Ends it; ``stop_reason`` None leaves that of the last turn, unless it has failed."""
        self.end = end
        if end.failure is not None:
            self.stop_reason = StopReason.ERROR
        elif stop_reason is not None:
            self.stop_reason = stop_reason

    def episode(self) -> Episode:
        """What the environment sees of it after a turn."""
        return Episode(
            prompt=self.job.prompt,
            sample_index=self.sample_index,
            messages=tuple(self.messages),
            response=str(self.messages[-1]["content"]),
            turn=self.turns,
            stop_reason=self.stop_reason,
        )

    def finished(self, renderer: Renderer) -> Trajectory:
        """The record that is kept of it, once it has ended."""
        end = self.end
        assert end is not None, "only ended trajectories are finished"
        input_length = len(self.job.prompt.token_ids)
        if self.turns == 1:
            response = str(self.messages[0]["content"])
        else:
            response = renderer.decode(self.token_ids[input_length:])
        return Trajectory(
            sample_index=self.sample_index,
            token_ids=tuple(self.token_ids),
            loss_mask=tuple(self.loss_mask),
            generation_logprobs=tuple(self.logprobs),
            weight_versions=tuple(self.spans),
            input_length=input_length,
            response=response,
            reward=end.reward,
            rewards=end.rewards,
            extracted=end.extracted,
            stop_reason=self.stop_reason,
            failure=end.failure,
            verifier_timeout=end.verifier_timeout,
            turns=self.turns,
        )
