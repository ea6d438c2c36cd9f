# SPDX-License-Identifier: Apache-2.0
"""What a simulated run comes to: speed, efficiency, ages, waste, idle time."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlrun.scheduler import Waiting
from rlrun.simulate.generators import Group
from rlrun.simulate.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A measured plan. Seconds are those of the virtual clock.

    Attributes:
        steps: Steps that were measured.
        step_s: Seconds per step.
        batch_tokens: Tokens per batch if nothing were expired or masked: of the first attempts at
            the prompts that were trained.
        trained_tokens_per_s: Trained tokens per second.
        ceiling_efficiency: Trained tokens per second over those without idle time, waste and
            stall (E); 0 .. 1.
        age_mean: Mean age of the trained tokens in steps.
        age_max: Age of the oldest trained token in steps.
        cancelled_share: Tokens of expired groups over all that ended as trained or lost.
        stale_share: Masked tokens, likewise.
        length_ratio: Trained tokens over those that the same prompts had at their first attempts:
            below 1, long answers are lost or cut.
        expired_groups: Groups that were expired, per step.
        waiting_share: Share of the time in which the trainer waits, by what it waits for.
        latency_mean: Mean seconds from a group's admission to its end.
        latency_max: The longest.
        held: Whether a step ever had to wait for groups at the age limit, warm-up included.
    """

    steps: int
    step_s: float
    batch_tokens: float
    trained_tokens_per_s: float
    ceiling_efficiency: float
    age_mean: float
    age_max: int
    cancelled_share: float
    stale_share: float
    length_ratio: float
    expired_groups: float
    waiting_share: Mapping[str, float]
    latency_mean: float
    latency_max: float
    held: bool

    @property
    def wasted_share(self) -> float:
        """Share of the tokens that were generated for nothing."""
        return self.cancelled_share + self.stale_share


class Versions:
    """Which weight version sampled which token: ``decoded`` at the publication of each."""

    def __init__(self) -> None:
        """Version 0 is there from the beginning."""
        self._published = [0.0]

    def publish(self, decoded: float) -> int:
        """The next version is in use from now on; its number."""
        self._published.append(decoded)
        return len(self._published) - 1

    def at(self, decoded: float) -> int:
        """The version in use at a value of ``decoded``."""
        return bisect_right(self._published, decoded) - 1

    def oldest(self, group: Group) -> int:
        """Version of the oldest token of a group that ended."""
        return self.at(min(begun for begun in group.begun if begun is not None))

    def older(self, begun: float, length: int, version: int) -> int:
        """How many tokens of a sample were begun before a version was published."""
        return min(length, max(0, math.ceil(self._published[version] - begun)))


class Measure:
    """Adds up what happens between ``begin`` and ``end``.

    Attributes:
        steps: Steps that are over since the beginning.
        held: Whether a Hold was ever decided.
    """

    def __init__(self, workload: Workload, versions: Versions) -> None:
        """Nothing is measured yet."""
        self._workload, self._versions = workload, versions
        self.held = False
        self.begin(0.0, {"cancelled": 0, "stale": 0, "trained": 0})

    def begin(self, now: float, ledger: Mapping[str, int]) -> None:
        """Starts to measure: what was before does not count."""
        self._begun, self._ledger = now, dict(ledger)
        self.steps = 0
        self._first_attempts = 0
        self._ages = 0
        self._age_max = 0
        self._expired = 0
        self._groups = 0
        self._latency_sum = self._latency_max = 0.0
        self._waiting = dict.fromkeys(Waiting, 0.0)

    def wait(self, waiting: Waiting, seconds: float) -> None:
        """So many seconds passed while the trainer waited for something, or for nothing."""
        self._waiting[waiting] += seconds

    def expired(self) -> None:
        """A group was expired."""
        self._expired += 1

    def finished(self, group: Group, now: float) -> None:
        """A group ended."""
        latency = now - group.admitted_at
        self._groups += 1
        self._latency_sum += latency
        self._latency_max = max(self._latency_max, latency)

    def trained(
        self, groups: Sequence[Group], version: int, mask_before: int | None
    ) -> tuple[int, int]:
        """A batch was trained from a version.

        Args:
            groups: The batch.
            version: Weights that were trained.
            mask_before: Tokens of older versions were masked; None if there are none.

        Returns:
            Trained tokens and masked ones.
        """
        trained = stale = 0
        for group in groups:
            first = self._workload.lengths.draw(group.position, 0)
            self._first_attempts += sum(first)
            for begun, length in zip(group.begun, group.lengths, strict=True):
                assert begun is not None
                masked = self._sample(begun, length, version, mask_before)
                stale += masked
                trained += length - masked
        return trained, stale

    def _sample(self, begun: float, length: int, version: int, mask_before: int | None) -> int:
        """Takes in the ages of a sample's trained tokens; the number of masked ones."""
        versions = self._versions
        first, masked = versions.at(begun), 0
        if mask_before is not None and first < mask_before:
            first, masked = mask_before, versions.older(begun, length, mask_before)
        if masked == length:
            return masked
        older = 0
        for later in range(first + 1, version + 1):
            # A token is older by one step for every version that was published after it was begun.
            older = versions.older(begun, length, later) - masked
            self._ages += older
            if older:
                self._age_max = max(self._age_max, version - later + 1)
            if older == length - masked:
                self._ages += older * (version - later)
                break
        return masked

    def end(self, now: float, ledger: Mapping[str, int]) -> Result:
        """The result."""
        seconds = now - self._begun
        tokens = {
            name: ledger[name] - self._ledger[name] for name in ("trained", "cancelled", "stale")
        }
        ended = sum(tokens.values())
        batch = self._first_attempts / self.steps
        rate = tokens["trained"] / seconds
        waits = {w.value: s / seconds for w, s in self._waiting.items() if w is not Waiting.NOTHING}
        return Result(
            steps=self.steps,
            step_s=seconds / self.steps,
            batch_tokens=batch,
            trained_tokens_per_s=rate,
            ceiling_efficiency=rate * self._workload.ceiling_s(batch) / batch,
            age_mean=self._ages / max(1, tokens["trained"]),
            age_max=self._age_max,
            cancelled_share=tokens["cancelled"] / ended,
            stale_share=tokens["stale"] / ended,
            length_ratio=tokens["trained"] / self._first_attempts,
            expired_groups=self._expired / self.steps,
            waiting_share={name: share for name, share in waits.items() if share},
            latency_mean=self._latency_sum / self._groups,
            latency_max=self._latency_max,
            held=self.held,
        )
