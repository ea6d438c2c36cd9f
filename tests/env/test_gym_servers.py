# SPDX-License-Identifier: Apache-2.0
"""Real NeMo Gym servers: their rewards, and tokens that are exactly what the policy sampled."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from subprocess import PIPE

import pytest

from rlrun.config import load_section
from rlrun.env.gym import GymEnv
from rlrun.env.gym_check import look_at
from rlrun.env.gym_environment import GymEnvironment
from rlrun.types import StopReason, Trajectory
from tests.env.gym_real import AGENTS, VENV, RealGym, call, row, tool

pytestmark = pytest.mark.timeout(900)

CITY = {"type": "string", "description": ""}
COUNT = {"type": "integer", "description": ""}
WEATHER = row("weather in sf?", "example_single_tool_call", [tool("get_weather", city=CITY)])


def sampled_texts(gym: RealGym, trajectory: Trajectory) -> list[str]:
    """What the policy said, turn by turn, from the tokens that would be trained."""
    pairs = zip(trajectory.token_ids, trajectory.loss_mask, strict=True)
    return [
        gym.renderer.decode([token for token, _ in turn])
        for own, turn in groupby(pairs, key=lambda pair: pair[1])
        if own
    ]


def only(gym: RealGym, *arguments: object) -> Trajectory:
    (group,) = gym.groups(*arguments)  # type: ignore[arg-type]
    (trajectory,) = group.trajectories
    assert trajectory.failure is None, trajectory.failure
    return trajectory


def test_a_tool_is_called_and_only_sampled_tokens_are_trained(real_gym: RealGym) -> None:
    said = [call("get_weather", city="SF"), "It is cold."]
    trajectory = only(
        real_gym, [WEATHER], lambda prompt: said["<tool_call>" in prompt and "tool\n" in prompt]
    )
    assert trajectory.reward == 1.0 and trajectory.turns == 2
    assert sampled_texts(real_gym, trajectory) == said
    assert trajectory.stop_reason is StopReason.STOP
    text = real_gym.renderer.decode(trajectory.token_ids, skip_special=False)
    # The context goes on behind the sampled tokens; the template closes and opens turns.
    assert f"{said[0]}<|im_end|>\n<|im_start|>tool\n" in text
    assert trajectory.token_ids[: trajectory.input_length] == real_gym.renderer.prompt_ids(
        WEATHER.messages
    )


def test_a_session_keeps_its_state_over_turns_and_apart_from_others(real_gym: RealGym) -> None:
    tools = [tool("increment_counter", count=COUNT), tool("get_counter_value")]
    rows = [
        row(f"count up from {n}", "example_session_state_mgmt", tools, initial_count=n,
            expected_count=n + 3)
        for n in range(4)
    ]  # fmt: skip

    def reply(prompt: str) -> str:
        done = prompt.count("<tool_call>")
        steps = [call("increment_counter", count=1), call("increment_counter", count=2)]
        return [*steps, call("get_counter_value"), "done"][done]

    groups = real_gym.groups(rows, reply, 2)
    trajectories = [t for group in groups for t in group.trajectories]
    assert [t.reward for t in trajectories] == [1.0] * 8, [t.failure for t in trajectories]
    assert {t.turns for t in trajectories} == {4}


def test_text_with_two_calls_is_one_turn(real_gym: RealGym) -> None:
    """Ids are on the last item of a turn and cover all of it."""
    both = "Let me see. " + call("get_weather", city="SF") + call("get_weather", city="LA")
    trajectory = only(real_gym, [WEATHER], lambda prompt: "ok" if "tool\n" in prompt else both)
    assert trajectory.turns == 2
    assert sampled_texts(real_gym, trajectory) == [both, "ok"]


def test_reasoning_of_two_turns_is_trained_as_it_was_sampled(real_gym: RealGym) -> None:
    """Gym takes it apart and puts it together again; a template would space it differently."""
    said = [
        "<think>\n  Far away,\n\n I ask. </think>\n \n" + call("get_weather", city="SF"),
        "<think>so cold </think>  It is cold.",
    ]
    trajectory = only(real_gym, [WEATHER], lambda prompt: said["tool\n" in prompt])
    assert trajectory.reward == 1.0 and trajectory.turns == 2
    assert sampled_texts(real_gym, trajectory) == said
    text = real_gym.renderer.decode(trajectory.token_ids, skip_special=False)
    assert f"{said[0]}<|im_end|>\n<|im_start|>tool\n" in text and said[1] in text


def test_reasoning_that_is_all_of_an_answer_is_a_turn(real_gym: RealGym) -> None:
    trajectory = only(real_gym, [WEATHER], lambda prompt: "<think>hm")
    assert sampled_texts(real_gym, trajectory) == ["<think>hm"] and trajectory.turns == 1
    assert trajectory.stop_reason is StopReason.STOP


def test_parts_of_a_reward_are_told_by_name(
    real_gym: RealGym, caplog: pytest.LogCaptureFixture
) -> None:
    expected = {"name": "get_weather", "arguments": {"city": "SF"}}
    asked = row("weather in sf?", "example_tool_call_multireward", [tool("get_weather", city=CITY)],
                expected_call=expected)  # fmt: skip
    said = [call("get_weather", city="LA"), "It is cold."]
    with caplog.at_level(logging.WARNING):
        trajectory = only(real_gym, [asked], lambda prompt: said["tool\n" in prompt])
    assert trajectory.rewards == {"correctness": 0.0, "schema_valid": 1.0, "format": 0.0}
    assert trajectory.reward == 1.0
    assert "therefore no metric: predicted_calls" in caplog.text


def test_a_multiple_choice_answer_is_verified(real_gym: RealGym) -> None:
    options = [{"A": "no"}, {"B": "yes"}]
    asked = row("B?", "mcqa", options=options, expected_answer="B",
                grading_mode="strict_single_letter_boxed")  # fmt: skip
    right = only(real_gym, [asked], lambda prompt: r"\boxed{B}")
    assert (right.reward, right.extracted) == (1.0, "B")
    assert only(real_gym, [asked], lambda prompt: r"\boxed{A}").reward == 0.0


def test_a_scripted_user_goes_on_for_three_turns(real_gym: RealGym) -> None:
    asked = row("Capital?", "example_multi_turn_gymnasium", follow_ups=["How many?", "Landmark?"],
                expected_answer="Eiffel")  # fmt: skip

    def reply(prompt: str) -> str:
        return {0: "Paris", 1: "2 million", 2: "The Eiffel tower"}[prompt.count("<|im_end|>") // 2]

    trajectory = only(real_gym, [asked], reply)
    assert trajectory.reward == 1.0 and trajectory.turns == 3
    assert sampled_texts(real_gym, trajectory) == ["Paris", "2 million", "The Eiffel tower"]


def test_mathematics_is_verified_without_a_judge(real_gym: RealGym) -> None:
    asked = row("1/2 + 1/4?", "math_with_judge", question="1/2 + 1/4?", expected_answer="3/4")
    trajectory = only(real_gym, [asked], lambda prompt: r"So \boxed{0.75}.")
    assert trajectory.reward == 1.0
    assert trajectory.measures["library_reward"] == 1.0


def test_a_task_of_reasoning_gym_is_scored_by_its_own_scorer(real_gym: RealGym) -> None:
    asked = row("2 + 2 =", "reasoning_gym", question="2 + 2 =", answer="4",
                metadata={"source_dataset": "chain_sum"})  # fmt: skip
    assert only(real_gym, [asked], lambda prompt: "<answer>4</answer>").reward == 1.0
    assert only(real_gym, [asked], lambda prompt: "<answer>5</answer>").reward < 1.0


def test_a_cut_answer_ends_the_episode_as_cut(real_gym: RealGym) -> None:
    asked = row("B?", "mcqa", options=[{"A": "no"}], expected_answer="A")
    trajectory = only(real_gym, [asked], lambda prompt: "and so on...")
    assert trajectory.stop_reason is StopReason.LENGTH and trajectory.truncated
    assert trajectory.reward == 0.0 and trajectory.num_sampled > 0


def test_an_empty_answer_is_a_turn(real_gym: RealGym) -> None:
    trajectory = only(real_gym, [WEATHER], lambda prompt: "")
    assert trajectory.num_sampled == 1 and trajectory.turns == 1


def test_a_full_context_after_a_turn_keeps_what_was_sampled(real_gym: RealGym) -> None:
    """The tool's answer leaves no room for another turn."""
    city = "x" * 90

    def reply(prompt: str) -> str:
        # Long calls until the context is full.
        return call("get_weather", city=city)

    (group,) = real_gym.groups([WEATHER], reply)
    (trajectory,) = group.trajectories
    assert trajectory.failure is None and trajectory.stop_reason is StopReason.LENGTH
    assert 700 < len(trajectory.token_ids) <= 1024 and trajectory.turns > 2


def test_a_row_that_leaves_no_room_for_a_turn_has_no_reward(
    real_gym: RealGym,
) -> None:
    asked = row("x" * 3000, "mcqa", options=[{"A": "no"}], expected_answer="A")
    (group,) = real_gym.groups([asked], lambda prompt: "?")
    (trajectory,) = group.trajectories
    assert trajectory.reward is None and trajectory.failure is not None
    assert "no sampled tokens" in trajectory.failure.message


def test_equal_episodes_have_equal_draws(real_gym: RealGym) -> None:
    """The seed of the episode reaches the server, and ids of other episodes do not."""
    groups = real_gym.groups([WEATHER], lambda prompt: "hello", 3)
    assert [t.sample_index for t in groups[0].trajectories] == [0, 1, 2]
    assert all(t.weight_versions for t in groups[0].trajectories)


def test_a_key_is_in_no_log(real_gym: RealGym) -> None:
    key = real_gym.key
    logs = list(real_gym.folder.glob("*.log"))
    assert len(logs) == 15
    assert not any(key in log.read_text(errors="replace") for log in logs)


@pytest.fixture
def head_server(real_gym: RealGym) -> Iterator[str]:
    """URL of Gym's own, which names the servers that run."""
    instances = [
        {
            "process_name": server.name,
            "server_type": server.kind,
            "name": server.implementation,
            "entrypoint": server.entrypoint,
            "host": server.host,
            "port": server.port,
            "url": server.url,
        }
        for server in real_gym.servers
    ]
    command = [str(VENV / "bin/python"), str(Path(__file__).parent / "gym_head.py")]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(instances) + "\n")
            process.stdin.flush()
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def test_agents_are_found_at_gyms_own_head_server(real_gym: RealGym, head_server: str) -> None:
    settings = load_section("env", ["env=gym", f"env.head_server={head_server}"])
    assert isinstance(settings, GymEnv)
    environment = GymEnvironment(settings)
    real_gym.run(environment.open(real_gym.server.address(real_gym.folder)))
    try:
        (group,) = real_gym.groups([WEATHER], lambda prompt: "hello", 2, environment)
        assert [t.failure for t in group.trajectories] == [None, None]
        assert {t.agent for t in group.trajectories} == {AGENTS["example_single_tool_call"]}
        (found, *_) = real_gym.run(look_at(settings))
        assert found.ok, found.detail
    finally:
        real_gym.run(environment.close())
