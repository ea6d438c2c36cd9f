# SPDX-License-Identifier: Apache-2.0
"""``env=math``: one turn, reward 1 if the final answer equals the reference answer, else 0."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.env.verifier import Verifier, VerifyingEnv, as_step
from rlrun.interfaces import Environment, Episode, component
from rlrun.types import EnvStep


@component("env/math")
@dataclass(kw_only=True, slots=True)
class MathEnv(VerifyingEnv):
    """Settings of answer verification."""

    def start(self) -> MathEnvironment:
        """A live environment; its child processes start when the first answer needs one."""
        return MathEnvironment(self.verifier())


class MathEnvironment(Environment):
    """Scores final answers.

    Args:
        verifier: Closed with the environment.
    """

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    async def step(self, episode: Episode) -> EnvStep:
        """Reward 1.0 or 0.0 in the part "correct"; a failure if the verifier itself failed."""
        verdict = await self._verifier.averify(episode.response, episode.prompt.row.answer)
        return as_step(verdict)

    async def close(self) -> None:
        """Ends the verifier's children. May be called twice."""
        self._verifier.close()
