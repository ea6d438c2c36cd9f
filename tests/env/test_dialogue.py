# SPDX-License-Identifier: Apache-2.0
"""Environments of several turns as a user writes them: the documented one, and the game."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from rlrun.config import load_section
from rlrun.data.generators.guess_number import games, records
from rlrun.env.guess_number import GuessNumber
from rlrun.errors import ConfigError
from rlrun.interfaces import Environment
from rlrun.models.resolve import resolve_model
from rlrun.rendering.renderer import Renderer
from rlrun.rollout import Job, Rollout, RolloutSettings
from rlrun.types import FailureKind, Prompt, Row, Sampling, StopReason, Trajectory
from tests.env.gym_real import Reply, Replying
from tests.factories import ROOT


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny")))


def environment(path: str, **options: object) -> Environment:
    given = json.dumps(options).replace('"', "")
    started = load_section(
        "env", ["env=python", f"env.environment={path}", f"env.options={given}"]
    ).start()
    assert isinstance(started, Environment)
    return started


def play(
    env: Environment,
    renderer: Renderer,
    reply: Reply,
    rows: Sequence[tuple[str, dict[str, object]]],
    samples: int = 1,
) -> list[Trajectory]:
    """Trajectories of rows (answer, further fields)."""
    settings = RolloutSettings(Sampling(1.0), 128, 1024, 6, 20.0, seed=1)
    rollout = Rollout(Replying(renderer, reply), env, renderer, settings)
    messages = ({"role": "user", "content": "Guess."},)
    jobs = [
        Job(
            Prompt(i, 0, Row(f"r:{i}", messages, answer, fields, "r:1"),
                   renderer.prompt_ids(messages)),
            samples,
        )
        for i, (answer, fields) in enumerate(rows)
    ]  # fmt: skip

    async def go() -> list[Trajectory]:
        try:
            return [t for group in await rollout.run(jobs) for t in group.trajectories]
        finally:
            await env.close()

    return asyncio.run(go())


def documented() -> str:
    """The class of docs/extend.md."""
    page = (ROOT / "docs/extend.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (block,) = [block for block in blocks if "class Riddle" in block]
    assert len(block.splitlines()) < 40
    return block


def test_the_documented_class_answers_tools_and_scores(tmp_path: Path, renderer: Renderer) -> None:
    path = tmp_path / "riddle.py"
    path.write_text(documented())
    call = '<tool_call>{"name": "look_up", "arguments": {"word": "sum"}}</tool_call>'

    def reply(prompt: str) -> str:
        if "tool\n" not in prompt:
            return call
        return "perhaps 12" if "Try again" in prompt else "11"

    (trajectory,) = play(
        environment(f"{path}:Riddle"), renderer, reply, [("12", {"words": {"sum": "of two"}})]
    )
    assert trajectory.failure is None and trajectory.reward == 0.5 and trajectory.turns == 3
    text = renderer.decode(trajectory.token_ids)
    assert "tool\nof two" in text and "No. Try again." in text


def test_calls_that_a_tool_does_not_take_are_told_to_the_policy(
    tmp_path: Path, renderer: Renderer
) -> None:
    path = tmp_path / "riddle.py"
    path.write_text(documented())
    wrong = [
        '<tool_call>{"name": "act", "arguments": {"said": "12"}}</tool_call>',
        '<tool_call>{"name": "look_up", "arguments": {"words": "sum"}}</tool_call>',
    ]

    def reply(prompt: str) -> str:
        return [*wrong, "12"][prompt.count("<tool_call>")]

    (trajectory,) = play(environment(f"{path}:Riddle"), renderer, reply, [("12", {})])
    assert trajectory.reward == 1.0
    text = renderer.decode(trajectory.token_ids)
    assert "error: there is no tool act" in text and "error: " in text.partition("look_up")[2]


def test_what_the_class_raises_is_a_failure(tmp_path: Path, renderer: Renderer) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "from rlrun.env.dialogue import Dialogue\n"
        "class Bad(Dialogue):\n"
        "    def act(self, said):\n"
        "        return None if said == 'none' else 1 / 0\n"
    )
    for said, text in (("raise", "ZeroDivisionError"), ("none", "act returned")):
        (trajectory,) = play(
            environment(f"{path}:Bad"), renderer, lambda prompt, s=said: s, [("1", {})]
        )
        assert trajectory.failure is not None
        assert trajectory.failure.kind is FailureKind.ENV_ERROR
        assert text in trajectory.failure.message


def test_a_class_without_act_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "open.py"
    path.write_text("from rlrun.env.dialogue import Dialogue\nclass Open(Dialogue):\n    pass\n")
    with pytest.raises(ConfigError, match="Define act"):
        environment(f"{path}:Open")


# --- the game -------------------------------------------------------------------------------------

GAME = "rlrun.env.guess_number:GuessNumber"


def halving(prompt: str) -> str:
    """Always the middle of what is left of 1 to 9."""
    low, high = 1, 9
    for turn in prompt.split("<|im_start|>assistant\n")[1:]:
        guess, _, said = turn.partition("<|im_end|>")
        if "higher" in said:
            low = int(guess) + 1
        elif "lower" in said:
            high = int(guess) - 1
    return str((low + high) // 2)


def test_games_of_many_samples_are_kept_apart_and_won_by_halving(renderer: Renderer) -> None:
    rows: list[tuple[str, dict[str, object]]] = [(str(n), {}) for n in range(1, 10)]
    trajectories = play(environment(GAME, max_guesses=4, cost=0.25), renderer, halving, rows, 3)
    assert len(trajectories) == 27
    for trajectory in trajectories:
        assert trajectory.reward == 1.0 - 0.25 * (trajectory.turns - 1)
        assert trajectory.rewards == {"correct": 1.0} and trajectory.turns <= 4
    # Five needs one guess, and some number four.
    assert {trajectory.turns for trajectory in trajectories} == {1, 2, 3, 4}


def test_a_validation_and_a_rollout_of_the_same_row_are_two_games(renderer: Renderer) -> None:
    """Files of one name in two folders have rows of the same names; with async both run at once."""
    env = environment(GAME, max_guesses=4, cost=0.25)
    settings = RolloutSettings(Sampling(1.0), 128, 1024, 6, 20.0, seed=1)
    messages = ({"role": "user", "content": "Guess."},)
    ids = renderer.prompt_ids(messages)

    async def game(answer: str) -> Trajectory:
        rollout = Rollout(Replying(renderer, halving), env, renderer, settings)
        prompt = Prompt(0, 0, Row("rows.jsonl:1", messages, answer, {}, "rows.jsonl:1"), ids)
        (group,) = await rollout.run([Job(prompt, 1)])
        return group.trajectories[0]

    async def both() -> list[Trajectory]:
        try:
            return await asyncio.gather(game("1"), game("9"))
        finally:
            await env.close()

    trained, validated = asyncio.run(both())
    assert (trained.failure, validated.failure) == (None, None)
    assert (trained.turns, trained.reward) == (3, 0.5)
    assert (validated.turns, validated.reward) == (4, 0.25)


def test_a_game_is_lost_after_its_guesses(renderer: Renderer) -> None:
    (trajectory,) = play(environment(GAME, max_guesses=2), renderer, lambda p: "5", [("9", {})])
    assert (trajectory.reward, trajectory.turns) == (0.0, 2)
    assert trajectory.stop_reason is StopReason.STOP


def test_a_text_without_a_number_is_asked_for_one() -> None:
    game = GuessNumber()
    game.start({}, "3")
    assert game.act("hm") == "Say a number."
    assert game.act("9" * 10_000) == "lower"


def test_splits_of_the_games_share_none() -> None:
    train, validation = set(games("train")), set(games("validation"))
    assert len(validation) == 30 and not train & validation
    assert all(low <= number <= high for low, high, number in train | validation)
    assert records("validation")[0]["problem"].startswith("Guess my number from ")
