# SPDX-License-Identifier: Apache-2.0
"""Penalties for the form of a response: each off by default, each for what it says and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlrun.batch import Sample, collect_samples, without_stale
from rlrun.errors import ConfigError
from rlrun.penalties import Penalties, Turn, effort_bonus, has_invalid_call, is_malformed, turns_of
from rlrun.serve.parsers import Qwen3CoderTools
from rlrun.types import StopReason, Trajectory, TrajectoryGroup, VersionSpan
from tests.factories import config, prompt, sample, trajectory

HTTP = ("generation.expose_http_server=true", "generation.http.tool_parser=qwen3_coder")
CALL = "<tool_call>\n<function=f>\n</function>\n</tool_call>"


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def decode(token_ids: Sequence[int]) -> str:
    return bytes(token_ids).decode()


def penalties(*overrides: str) -> Penalties:
    return Penalties(config(*overrides).grpo, decode, Qwen3CoderTools())


def said(text: str, **fields: Any) -> Trajectory:
    return trajectory(ids(text), before=ids("asked"), **fields)


def two_turns(first: str, second: str) -> Trajectory:
    """An episode with a tool's answer between its turns."""
    tool = ids("result")
    one = said(first)
    n = len(ids(second))
    return replace(
        one,
        token_ids=(*one.token_ids, *tool, *ids(second)),
        loss_mask=(*one.loss_mask, *(False,) * len(tool), *(True,) * n),
        generation_logprobs=(*one.generation_logprobs, *(0.0,) * len(tool), *(-0.5,) * n),
    )


def turn(text: str, *, cut: bool = False) -> Turn:
    return Turn(0, len(text), text, cut)


# --- rewards --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "bad", "good"),
    [
        ("duplicated_reasoning=true", "it is 4</think> it is 4", "2+2</think>it is 4"),
        ("empty_final_answer=true", "2+2</think> \n", "2+2</think>4"),
        ("malformed_thinking=true", "a</think>b</think>c", "a</think>c"),
        ("unwanted_tokens=[90]", "aZb", "azb"),
    ],
)
def test_a_penalty_takes_the_reward_of_what_it_names(key: str, bad: str, good: str) -> None:
    asked = penalties(f"grpo.reward_penalties.{key}")
    assert asked.reward(prompt(), said(bad)) == 0.0
    assert asked.reward(prompt(), said(good)) == 1.0
    assert asked.take_counts() == {f"penalty/{key.partition('=')[0]}": 1.0}
    assert asked.take_counts() == {}
    assert penalties().reward(prompt(), said(bad)) == 1.0


def test_what_has_no_reward_gets_none() -> None:
    asked = penalties("grpo.reward_penalties.empty_final_answer=true")
    assert asked.reward(prompt(), said("", reward=None)) is None


def test_what_was_cut_off_has_no_empty_answer() -> None:
    asked = penalties("grpo.reward_penalties.empty_final_answer=true")
    cut = said("thinking</think>", stop_reason=StopReason.LENGTH)
    assert asked.reward(prompt(), cut) == 1.0


def test_the_reward_is_taken_before_it_is_scaled() -> None:
    settings = config(
        "grpo.reward_penalties.empty_final_answer=true",
        "grpo.reward_scaling.enabled=true",
        "grpo.reward_scaling.target_min=-1",
    ).grpo
    asked = Penalties(settings, decode, None)
    group = TrajectoryGroup(prompt(), (said("a</think>"), said("a</think>b")))
    rewards = [s.reward for s in collect_samples([group], settings, 28, None, asked.reward)]
    assert rewards == [-1.0, 1.0]
    assert group.trajectories[0].reward == 1.0


@pytest.mark.parametrize(
    ("text", "cut", "malformed"),
    [
        ("a</think>b", False, False),
        ("<think>a</think>b", False, False),
        ("no tags", False, False),
        ("<think>a<think>b</think>c", False, True),
        ("a</think>b<think>c", False, True),
        ("<think>never closed", False, True),
        ("<think>never closed", True, False),
    ],
)
def test_reasoning_is_malformed_when_its_tags_are_not_a_pair(
    text: str, cut: bool, malformed: bool
) -> None:
    assert is_malformed(turn(text, cut=cut), "<think>", "</think>") == malformed


def test_a_call_is_invalid_when_it_is_meant_and_cannot_be_read() -> None:
    parser = Qwen3CoderTools()
    assert not has_invalid_call(turn(CALL), parser)
    assert not has_invalid_call(turn("no call"), parser)
    assert has_invalid_call(turn("<tool_call>f()</tool_call>"), parser)
    assert not has_invalid_call(turn("<tool_call>\n<function=f>", cut=True), parser)


def test_tags_must_differ() -> None:
    with pytest.raises(ConfigError, match="set reasoning apart"):
        config('grpo.reward_penalties.think_open="</think>"')


# --- effort ---------------------------------------------------------------------------------------

LOW = ("grpo.effort.low_string=quickly", "grpo.effort.low_weight=2", "grpo.effort.low_tokens=100")


@pytest.mark.parametrize(
    ("tokens", "reward", "bonus"),
    [
        (0, 1.0, 1.0),  # 2 (1 - 0) = 2, bounded by 1
        (75, 1.0, 0.5),
        (75, 0.0, 0.0),
        (100, 1.0, 0.0),
        (150, 1.0, -1.0),
        (150, 0.0, -1.0),
    ],
)
def test_low_effort_pays_for_short_answers_that_are_right(
    tokens: int, reward: float, bonus: float
) -> None:
    effort = config(*LOW).grpo.effort
    assert effort_bonus("Answer quickly.", tokens, reward, effort) == pytest.approx(bonus)
    assert effort_bonus("Answer.", tokens, reward, effort) == 0.0


def test_the_bonus_is_added_to_the_reward() -> None:
    asked = penalties(*LOW)
    hurried = prompt(token_ids=ids("quickly"))
    assert asked.reward(hurried, said("x" * 75)) == pytest.approx(1.5)
    assert asked.reward(prompt(token_ids=ids("slowly")), said("x" * 75)) == 1.0


# --- advantages of turns --------------------------------------------------------------------------


def test_turns_are_the_stretches_of_sampled_tokens() -> None:
    first, second = turns_of(two_turns("one", "three"), decode)
    assert (first.start, first.end, first.text) == (0, 3, "one")
    assert (second.start, second.end, second.text) == (3, 8, "three")


def prepared(of: Trajectory, *overrides: str, **fields: Any) -> Sample:
    asked = penalties(*overrides)
    (one,) = asked.with_turn_advantages([sample(of, advantage=0.5, **fields)], [of])
    return one


def test_only_the_turn_that_is_at_fault_gets_the_other_advantage() -> None:
    of = two_turns("<tool_call>oops", "fine")
    one = prepared(of, *HTTP, "grpo.invalid_tool_call_advantage=-1")
    first = len("<tool_call>oops")
    np.testing.assert_array_equal(one.token_advantages, [-1.0] * first + [0.5] * 4)
    assert one.advantage == 0.5
    assert prepared(of).turn_advantages == ()


def test_malformed_reasoning_gets_its_advantage() -> None:
    one = prepared(said("a</think>b</think>"), "grpo.malformed_thinking_advantage=-2")
    assert set(one.token_advantages.tolist()) == {-2.0}


def test_a_group_without_spread_learns_from_a_penalized_turn() -> None:
    of = said("a</think>b</think>")
    (one,) = penalties("grpo.malformed_thinking_advantage=-2").with_turn_advantages(
        [sample(of, advantage=0.0)], [of]
    )
    assert one.has_advantage


def test_a_penalized_turn_that_is_partly_too_old_is_penalized_in_what_is_trained() -> None:
    """What makes the turn malformed, its second closing tag, is in the tokens that are stale."""
    first, second = "a</think>b</think>c", "fine"
    of = two_turns(first, second)
    start, n, asked = of.input_length, len(first), penalties("grpo.malformed_thinking_advantage=-2")
    end = len(of.token_ids)
    for stale, fresh in ((n - 1, 1), (n, 0)):
        spans = (VersionSpan(0, start, start + stale), VersionSpan(1, start + stale, end))
        whole = replace(of, weight_versions=spans)
        trained = without_stale(whole, 1)
        (one,) = asked.with_turn_advantages([sample(trained, advantage=0.5)], [whole])
        assert one.token_advantages.tolist() == [-2.0] * fresh + [0.5] * len(second)


def test_without_a_parser_the_advantage_of_invalid_calls_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing parses calls"):
        config("grpo.invalid_tool_call_advantage=-1")
