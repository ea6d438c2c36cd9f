# SPDX-License-Identifier: Apache-2.0
"""What the HTTP server sampled for an episode that an agent runs, kept until the episode is over.

The agent's answer tells tokens and log-probs; which weights drew them, and what was drawn for an
episode that failed, is known only where it was sampled. An episode is told from all others by the
seed of its requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.types import Completion


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """One answer of the policy.

    Attributes:
        prompt: All tokens before it.
        completion: What was sampled.
    """

    prompt: tuple[int, ...]
    completion: Completion


class SampledLog:
    """Turns by seed, of the seeds that somebody waits for."""

    def __init__(self) -> None:
        self._turns: dict[int, list[SampledTurn]] = {}

    def expect(self, seed: int) -> None:
        """Keeps from now on what is sampled with this seed."""
        self._turns[seed] = []

    def record(self, seed: int, prompt: tuple[int, ...], completion: Completion) -> None:
        """Something was sampled; nothing is kept of a seed that is not expected."""
        turns = self._turns.get(seed)
        if turns is not None:
            turns.append(SampledTurn(prompt, completion))

    def take(self, seed: int) -> list[SampledTurn]:
        """What was sampled with this seed, in order; forgets it."""
        return self._turns.pop(seed, [])
