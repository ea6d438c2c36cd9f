# SPDX-License-Identifier: Apache-2.0
"""``env=calculator``: a small multi-turn environment in which the policy may use a calculator.

A turn that ends with ``<calc>12*3</calc>`` gets the result as a message of the role "tool" and the
policy goes on; any other turn is the end and is scored like ``env=math``. Rows are those of
``env=math``; give ``generation.stop=["</calc>"]`` so that a call ends its turn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rlrun.env.arithmetic import ArithmeticProblem, calculate, show
from rlrun.env.verifier import Verifier, VerifyingEnv, as_step
from rlrun.interfaces import Environment, Episode, component
from rlrun.types import EnvStep

_CALL = re.compile(r"<calc>([^<>]*)</calc>\s*\Z")


@component("env/calculator")
@dataclass(kw_only=True, slots=True)
class CalculatorEnv(VerifyingEnv):
    """Settings of the calculator environment: those of its answer verification."""

    def start(self) -> CalculatorEnvironment:
        """A live environment."""
        return CalculatorEnvironment(self.verifier())


class CalculatorEnvironment(Environment):
    """Answers calculator calls and scores final answers.

    Args:
        verifier: Closed with the environment.
    """

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    async def step(self, episode: Episode) -> EnvStep:
        """The calculator's result, or the reward with its part "correct"."""
        call = _CALL.search(episode.response)
        if call is not None:
            return EnvStep(messages=({"role": "tool", "content": _result(call.group(1))},))
        verdict = await self._verifier.averify(episode.response, episode.prompt.row.answer)
        return as_step(verdict)

    async def close(self) -> None:
        """Ends the verifier's children. May be called twice."""
        self._verifier.close()


def _result(expression: str) -> str:
    try:
        return show(calculate(expression))
    except ArithmeticProblem as problem:
        return f"error: {problem}"
