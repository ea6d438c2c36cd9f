# SPDX-License-Identifier: Apache-2.0
"""Asks the environment for the reward of a right and of a wrong answer, with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from pathlib import Path

from rlrun.config.schema import RunConfig
from rlrun.env.gym import GymEnv
from rlrun.errors import EnvironmentDown
from rlrun.interfaces import Environment, Episode, GroupEnvironment
from rlrun.preflight.lines import STRICT_EXIT_CODE, CheckLine, Verdict
from rlrun.types import EnvStep, Failure, FailureKind, Prompt, StopReason

ENV_TIMEOUT_S = 30.0
WRONG_ANSWER = "rlrun check: surely not the answer"


async def look_at_environment(config: RunConfig, prompt: Prompt | None) -> list[CheckLine]:
    """Starts or reaches the environment, and asks it about a real prompt (None: there is none).

    Raises:
        EnvironmentDown: It cannot be started or reached.
    """
    if isinstance(config.env, GymEnv):
        return await _gym(config.env)
    if prompt is None:
        what = "there is no row to ask it about"
        return [CheckLine("environment", Verdict.UNVERIFIED, what, "", STRICT_EXIT_CODE)]
    environment = config.env.start()
    try:
        await _open(environment)
        answer = prompt.row.answer
        right, wrong = await _scores(
            environment,
            prompt,
            [f"\\boxed{{{answer}}}\nAnswer: {answer}", f"\\boxed{{{WRONG_ANSWER}}}"],
        )
    finally:
        await environment.close()
    return [_judge(right, wrong, answer, config.grpo.max_rollout_turns)]


async def _open(environment: Environment) -> None:
    """What a run does first; where the policy will answer over HTTP is not known yet.

    Raises:
        EnvironmentDown: It cannot be opened, or not in time.
    """
    try:
        async with asyncio.timeout(ENV_TIMEOUT_S):
            await environment.open(None)
    except TimeoutError:
        what = f"the environment did not open within {ENV_TIMEOUT_S:g} s"
        raise EnvironmentDown("env", what, "Check what its open() waits for") from None


async def _gym(env: GymEnv) -> list[CheckLine]:
    """Whether agents answer, or could be started."""
    from rlrun.env.gym_check import look_at

    if env.config_paths and not (Path(env.venv).expanduser() / "bin" / "python").is_file():
        what = f"NeMo Gym is not set up here: there is no {env.venv}"
        remedy = f"rlrun gym setup --venv {env.venv}"
        return [CheckLine("environment", Verdict.UNVERIFIED, what, remedy, STRICT_EXIT_CODE)]
    verdicts = {True: Verdict.PASS, False: Verdict.FAIL, None: Verdict.UNVERIFIED}
    codes = {True: 0, False: 4, None: STRICT_EXIT_CODE}
    return [
        CheckLine(one.name, verdicts[one.ok], one.detail, one.remedy, codes[one.ok])
        for one in await look_at(env)
    ]


async def _scores(
    environment: Environment, prompt: Prompt, responses: Sequence[str]
) -> list[EnvStep]:
    """What is said to answers, which are a group where groups are scored as a whole."""
    episodes = [
        Episode(
            prompt=prompt,
            sample_index=index,
            messages=({"role": "assistant", "content": response},),
            response=response,
            turn=1,
            stop_reason=StopReason.STOP,
        )
        for index, response in enumerate(responses)
    ]
    if isinstance(environment, GroupEnvironment):
        return await _bounded(environment.step_group(episodes), len(episodes))
    steps = []
    for episode in episodes:
        steps += await _bounded(_alone(environment, episode), 1)
    return steps


async def _alone(environment: Environment, episode: Episode) -> list[EnvStep]:
    return [await environment.step(episode)]


async def _bounded(asked: Awaitable[list[EnvStep]], count: int) -> list[EnvStep]:
    try:
        async with asyncio.timeout(ENV_TIMEOUT_S):
            return await asked
    except TimeoutError:
        message = f"no answer within {ENV_TIMEOUT_S:g} s"
        return [EnvStep(failure=Failure(FailureKind.TIMEOUT, message))] * count


def _judge(right: EnvStep, wrong: EnvStep, answer: str, max_turns: int) -> CheckLine:
    for step in (right, wrong):
        if step.failure is not None:
            return CheckLine(
                "environment",
                Verdict.FAIL,
                f"scoring failed ({step.failure.kind}): {step.failure.message}",
                "Correct the environment or reward function",
                exit_code=4,
            )
    if right.reward is None or wrong.reward is None:
        detail = "it answers with another turn instead of a reward"
        remedy = "A short run shows its rewards: scale=smoke"
        if max_turns == 1:
            detail += ", and grpo.max_rollout_turns=1 leaves room for none: that ends with reward 0"
            remedy = "Set grpo.max_rollout_turns to the turns of the longest dialogue"
        return CheckLine("environment", Verdict.UNVERIFIED, detail, remedy, STRICT_EXIT_CODE)
    detail = f"answer {answer!r} scores {right.reward}, a wrong one scores {wrong.reward}"
    if right.reward > wrong.reward:
        return CheckLine("environment", Verdict.PASS, detail)
    return CheckLine(
        "environment",
        Verdict.UNVERIFIED,
        detail + ", so the reference answer alone earns nothing",
        "Expected where rewards depend on format or more than the answer; otherwise check env",
        STRICT_EXIT_CODE,
    )
