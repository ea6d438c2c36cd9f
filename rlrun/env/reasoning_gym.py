# SPDX-License-Identifier: Apache-2.0
"""Scores answers by the verifier that comes with a reasoning-gym data set.

The answer is extracted first and only a full score counts, because the verifiers give part of
the score to any text that contains the reference. They run in processes of their own: several of
them evaluate the answer as Python or sympy code, which may take for ever.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rlrun.data.reasoning_gym import PAYLOAD_FIELD
from rlrun.env.reasoning_gym_pool import ScorerPool, Verdict
from rlrun.errors import EnvironmentDown
from rlrun.interfaces import Env, Environment, Episode, component, setting
from rlrun.types import EnvStep, Failure, FailureKind, Row

_MARKER = "Answer:"


@component("env/reasoning_gym")
@dataclass(kw_only=True, slots=True)
class ReasoningGymEnv(Env):
    """Settings of the reasoning-gym verifier."""

    max_reward: ClassVar[float | None] = 1.0

    partial_credit: bool
    timeout_s: float = setting(gt=0)
    max_memory_mb: int = setting(ge=64)
    num_workers: int = setting(ge=1)

    def check_row(self, row: Row) -> str | None:
        """Only rows of a reasoning_gym source carry what their verifier needs."""
        match row.payload.get(PAYLOAD_FIELD):
            case {"name": str(), "config": Mapping(), "entry": Mapping()}:
                return None
        return "not a row of reasoning-gym; use data.*.source=reasoning_gym:NAME or another env"

    def start(self) -> ReasoningGymEnvironment:
        """Worker processes start with the first answers."""
        return ReasoningGymEnvironment(self)


class ReasoningGymEnvironment(Environment):
    """A pool of verifier processes."""

    def __init__(self, settings: ReasoningGymEnv) -> None:
        self._partial_credit = settings.partial_credit
        self._pool = ScorerPool(
            num_workers=settings.num_workers,
            timeout_s=settings.timeout_s,
            max_memory_mb=settings.max_memory_mb,
        )

    async def step(self, episode: Episode) -> EnvStep:
        """Reward 1 for a full score and 0 otherwise, or the score itself with partial credit.

        A verifier that raises, hangs or runs out of memory over an answer makes it wrong as long
        as the verifier can score the reference; otherwise the verifier is broken, which is a
        failure.
        """
        answer = extract_answer(episode.response)
        task: Mapping[str, Any] = episode.prompt.row.payload[PAYLOAD_FIELD]
        try:
            scored = await self._pool.score(task, answer)
        except EnvironmentDown as error:
            return EnvStep(extracted=answer, failure=Failure(FailureKind.ENV_DOWN, str(error)))
        message = scored.message
        if not math.isfinite(scored.score):
            message = f"the verifier of {task['name']} gave the score {scored.score}"
        if scored.verdict is Verdict.BROKEN or not math.isfinite(scored.score):
            return EnvStep(extracted=answer, failure=Failure(FailureKind.REWARD_ERROR, message))
        return EnvStep(
            reward=self._reward(scored.score),
            rewards={"score": scored.score},
            extracted=answer,
            verifier_timeout=scored.verdict is Verdict.LIMIT,
        )

    def _reward(self, score: float) -> float:
        if self._partial_credit:
            return min(max(score, 0.0), 1.0)
        return 1.0 if score == 1.0 else 0.0

    async def close(self) -> None:
        """Ends the processes."""
        await self._pool.close()


def extract_answer(response: str) -> str:
    """The answer in a response, surrounding white space removed.

    What is between the last </answer> and the <answer> before it; without them, the text after the
    last "Answer:"; without that, the whole response.
    """
    end = response.rfind("</answer>")
    start = response.rfind("<answer>", 0, max(end, 0))
    if start >= 0:
        return response[start + len("<answer>") : end].strip()
    return response.rpartition(_MARKER)[2].strip()
