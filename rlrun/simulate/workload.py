# SPDX-License-Identifier: Apache-2.0
"""What is simulated: how many tokens each answer has and what generating and training cost."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Lengths(Protocol):
    """How many tokens the samples of an attempt at a prompt get; the same whenever it is asked."""

    @property
    def samples(self) -> int:
        """Samples per prompt."""

    def draw(self, position: int, attempt: int) -> tuple[int, ...]:
        """Tokens of each sample of an attempt, at least 1 each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLengths:
    """Log-normal lengths, cut at a cap.

    The logarithm of a length has standard deviation ``log_sd``; of its variance the share
    ``prompt_correlation`` is common to all samples and attempts of a prompt. At 1 a prompt takes
    its time again whenever it is tried again, at 0 every attempt is drawn anew.

    Attributes:
        mean: Mean length in tokens before the cap.
        log_sd: Standard deviation of the logarithm; 0 for constant lengths.
        cap: Longest length in tokens, or None.
        samples: Samples per prompt.
        prompt_correlation: 0 .. 1.
        seed: Of all draws.
    """

    mean: float
    log_sd: float
    cap: int | None
    samples: int
    prompt_correlation: float
    seed: int
    _drawn: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict, repr=False)

    def draw(self, position: int, attempt: int) -> tuple[int, ...]:
        """Tokens of each sample of an attempt."""
        key = position, attempt
        if key not in self._drawn:
            self._drawn[key] = self._draw(position, attempt)
        return self._drawn[key]

    def _draw(self, position: int, attempt: int) -> tuple[int, ...]:
        common = random.Random(f"{self.seed} {position}").gauss() * math.sqrt(
            self.prompt_correlation
        )
        own = random.Random(f"{self.seed} {position} {attempt}")
        share = math.sqrt(1 - self.prompt_correlation)
        middle = math.log(self.mean) - self.log_sd**2 / 2
        cap = math.inf if self.cap is None else self.cap
        return tuple(
            max(1, round(min(cap, math.exp(middle + self.log_sd * (common + share * own.gauss())))))
            for _ in range(self.samples)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLengths:
    """Lengths that a run had: each prompt of the simulation is one of its groups, by lot.

    The first attempt takes the group's lengths as they were, a later one draws from them with
    replacement, so that slow prompts stay about as slow as they were.

    Attributes:
        groups: Tokens of each sample of each group; all groups have equally many samples.
        seed: Of all draws.
    """

    groups: Sequence[tuple[int, ...]]
    seed: int

    @property
    def samples(self) -> int:
        """Samples per prompt."""
        return len(self.groups[0])

    def draw(self, position: int, attempt: int) -> tuple[int, ...]:
        """Tokens of each sample of an attempt."""
        group = random.Random(f"{self.seed} {position}").choice(self.groups)
        if attempt == 0:
            return group
        return tuple(
            random.Random(f"{self.seed} {position} {attempt}").choices(group, k=len(group))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What things cost.

    A sequence among c on its generator takes sequence_s + saturated_s * c seconds for a token: the
    speed r1 / (1 + c / c0) with r1 = 1 / sequence_s and c0 = sequence_s / saturated_s.

    Attributes:
        sequence_s: Seconds per token of a sequence alone on a generator.
        saturated_s: Seconds per token of a generator with very many sequences; 0 if its speed does
            not depend on their number.
        max_sequences: Sequences that a generator decodes at once, others wait; None for no limit.
        train_step_s: Seconds of training per step that do not depend on its tokens.
        train_token_s: Seconds of training per token, all forward passes included.
        refit_s: Seconds of a refit, in which generators and trainer stand still.
        validation_s: Seconds of a validation, in which nothing is admitted and nothing trained.
        validation_period: Steps between validations; None for none.
    """

    sequence_s: float
    saturated_s: float
    max_sequences: int | None
    train_step_s: float
    train_token_s: float
    refit_s: float
    validation_s: float
    validation_period: int | None

    @property
    def least_token_s(self) -> float:
        """Seconds per token of one generator that is as busy as it can be."""
        if self.max_sequences is None:
            return self.saturated_s
        return self.saturated_s + self.sequence_s / self.max_sequences

    @property
    def stall_s(self) -> float:
        """Seconds per step that stop everything: the refit and the step's share of validations."""
        if self.validation_period is None:
            return self.refit_s
        return self.refit_s + self.validation_s / self.validation_period

    def train_s(self, tokens: float, gpus: int) -> float:
        """Seconds in which a step of so many tokens is trained on so many GPUs."""
        return (self.train_step_s + self.train_token_s * tokens) / gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything about the simulated run that is not a choice of the schedule.

    Attributes:
        prompts_per_step: Trajectory groups in a batch.
        lengths: Of the answers.
        costs: Of generating and training, on one GPU each.
        gpus: GPUs that are shared out between generation and training, and which a synchronous run
            uses for both in turn. None if each of the two has its own machine, of the given speed.
        max_expiries: Expiries of a prompt after which it is waited for.
    """

    prompts_per_step: int
    lengths: Lengths
    costs: Costs
    gpus: int | None
    max_expiries: int

    def ceiling_s(self, tokens: float) -> float:
        """Seconds per step of so many tokens without idle time, waste or stall.

        With GPUs to share out: the work of both parts over all GPUs, whatever splits exist. With a
        machine for each part: the work of the busier one.
        """
        work = self.costs.least_token_s * tokens
        train = self.costs.train_s(tokens, 1)
        return max(work, train) if self.gpus is None else (work + train) / self.gpus
