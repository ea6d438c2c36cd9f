# SPDX-License-Identifier: Apache-2.0
"""Rollouts against a generator that says what it is told to, so that every edge can be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import astuple

import pytest

from rlrun.config.schema import Policy
from rlrun.generation.together import run_together
from rlrun.interfaces import Abandoned, Environment, Episode, Generator, GroupEnvironment
from rlrun.rendering.renderer import Renderer
from rlrun.rollout import Job, Rollout, RolloutSettings
from rlrun.rollout.turns import checked, request_seed
from rlrun.types import (
    Completion,
    EnvStep,
    Failure,
    FailureKind,
    GenerationRequest,
    Prompt,
    Sampling,
    StopReason,
    Trajectory,
    VersionSpan,
)
from tests.factories import config, prompt
from tests.loops import settled

Answer = Callable[[Episode], EnvStep]


class Scripted(Generator):
    """Answers each request with the next text; a text without "<end>" was cut."""

    lockstep = True

    def __init__(self, renderer: Renderer, texts: Sequence[str]) -> None:
        self.renderer, self.texts = renderer, list(texts)
        self.requests: list[GenerationRequest] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        self.requests += requests
        return [self._complete(self.texts.pop(0)) for _ in requests]

    def _complete(self, text: str) -> Completion:
        ids = self.renderer.tokenizer(text.removesuffix("<end>"), add_special_tokens=False)[
            "input_ids"
        ]
        ended = text.endswith("<end>")
        ids += [self.renderer.eos_ids[0]] * ended
        reason = StopReason.STOP if ended else StopReason.LENGTH
        spans = (VersionSpan(3, 0, len(ids)),) if ids else ()
        return Completion(tuple(ids), (-0.5,) * len(ids), reason, spans)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        raise AssertionError("not used here")

    async def refit(self, version: int) -> None:
        raise AssertionError("not used here")

    async def close(self) -> None:
        pass


class Answering(Environment):
    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    async def step(self, episode: Episode) -> EnvStep:
        return self.answer(episode)

    async def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def policy() -> Policy:
    return config().policy


@pytest.fixture(scope="module")
def renderer(policy: Policy) -> Renderer:
    return Renderer.load(policy)


def roll(
    renderer: Renderer,
    texts: Sequence[str],
    answer: Answer,
    *,
    samples: int = 1,
    max_turns: int = 1,
    max_total_tokens: int = 200,
    env_timeout_s: float | None = None,
    environment: Environment | None = None,
) -> tuple[list[Trajectory], Scripted]:
    generator = Scripted(renderer, texts)
    settings = RolloutSettings(
        Sampling(1.0), 50, max_total_tokens, max_turns, env_timeout_s, seed=1
    )
    rollout = Rollout(generator, environment or Answering(answer), renderer, settings)
    ids = renderer.prompt_ids([{"role": "user", "content": "What is 1 + 1?"}])
    job = Job(prompt(token_ids=ids), samples)
    groups = asyncio.run(rollout.run([job]))
    return list(groups[0].trajectories), generator


def right(_: Episode) -> EnvStep:
    return EnvStep(reward=1.0)


def sampled_text(renderer: Renderer, one: Trajectory) -> str:
    ids = [t for t, trained in zip(one.token_ids, one.loss_mask, strict=True) if trained]
    return renderer.decode(ids, skip_special=False)


def test_the_loss_mask_covers_exactly_what_was_sampled_and_its_end(renderer: Renderer) -> None:
    (one,), _ = roll(renderer, ["Answer: 2<end>"], right)
    assert sampled_text(renderer, one) == "Answer: 2<|im_end|>"
    assert not any(one.loss_mask[: one.input_length])
    assert one.stop_reason is StopReason.STOP
    assert not one.truncated


def test_version_spans_point_into_the_whole_trajectory(renderer: Renderer) -> None:
    (one,), _ = roll(renderer, ["2<end>"], right)
    assert one.weight_versions == (VersionSpan(3, one.input_length, len(one.token_ids)),)


def test_a_cut_completion_is_truncated(renderer: Renderer) -> None:
    (one,), _ = roll(renderer, ["Answer:"], right)
    assert one.truncated
    assert one.stop_reason is StopReason.LENGTH


def test_an_empty_completion_is_a_trajectory_without_trained_tokens(renderer: Renderer) -> None:
    (one,), _ = roll(renderer, [""], lambda _: EnvStep(reward=0.0))
    assert one.num_sampled == 0
    assert one.weight_versions == ()


def test_requests_are_clamped_to_the_room_left(renderer: Renderer) -> None:
    length = len(renderer.prompt_ids([{"role": "user", "content": "What is 1 + 1?"}]))
    _, generator = roll(renderer, ["2<end>"], right, max_total_tokens=length + 3)
    assert generator.requests[0].max_new_tokens == 3


def tool(episode: Episode) -> EnvStep:
    """Two calls are answered, the third turn is scored."""
    if episode.turn < 3:
        return EnvStep(messages=({"role": "tool", "content": f"{episode.turn}0"},))
    return EnvStep(reward=1.0)


def test_tool_results_are_context_and_are_not_trained(renderer: Renderer) -> None:
    (one,), _ = roll(renderer, ["a<end>", "b<end>", "c<end>"], tool, max_turns=3)
    assert sampled_text(renderer, one) == "a<|im_end|>b<|im_end|>c<|im_end|>"
    assert "10" in one.response
    assert one.turns == 3


def test_each_turn_extends_all_tokens_before_it(renderer: Renderer) -> None:
    (one,), generator = roll(renderer, ["a<end>", "b<end>", "c<end>"], tool, max_turns=3)
    contexts = [request.token_ids for request in generator.requests] + [one.token_ids]
    for shorter, longer in zip(contexts, contexts[1:], strict=False):
        assert longer[: len(shorter)] == shorter


def test_running_out_of_turns_is_truncation_without_reward(renderer: Renderer) -> None:
    (one,), _ = roll(renderer, ["a<end>", "b<end>"], tool, max_turns=2)
    assert one.stop_reason is StopReason.MAX_TURNS
    assert one.reward == 0.0


def test_a_turn_that_was_cut_is_not_continued(renderer: Renderer) -> None:
    (one,), _ = roll(renderer, ["a"], tool, max_turns=3)
    assert one.turns == 1
    assert one.truncated


def test_a_conversation_that_fills_the_context_ends_as_truncated(renderer: Renderer) -> None:
    length = len(renderer.prompt_ids([{"role": "user", "content": "What is 1 + 1?"}]))
    (one,), _ = roll(renderer, ["a<end>"], tool, max_turns=3, max_total_tokens=length + 4)
    assert one.stop_reason is StopReason.LENGTH
    assert len(one.token_ids) <= length + 4


def test_samples_end_independently(renderer: Renderer) -> None:
    def by_sample(episode: Episode) -> EnvStep:
        if episode.sample_index == 0 and episode.turn == 1:
            return EnvStep(messages=({"role": "tool", "content": "5"},))
        return EnvStep(reward=float(episode.sample_index))

    trajectories, _ = roll(
        renderer, ["a<end>", "b<end>", "c<end>"], by_sample, samples=2, max_turns=2
    )
    assert [one.turns for one in trajectories] == [2, 1]
    assert [one.reward for one in trajectories] == [0.0, 1.0]


class Unhealthy(BaseException):
    """As some libraries' time-outs, no Exception."""


@pytest.mark.parametrize("error", [ValueError("no"), Unhealthy("no")])
def test_whatever_an_environment_raises_is_a_failure_and_no_reward(
    renderer: Renderer, error: BaseException
) -> None:
    def broken(episode: Episode) -> EnvStep:
        if episode.sample_index == 1:
            raise error
        return EnvStep(reward=1.0)

    trajectories, _ = roll(renderer, ["a<end>"] * 3, broken, samples=3)
    assert [one.reward for one in trajectories] == [1.0, None, 1.0]
    assert trajectories[1].failure is not None
    assert trajectories[1].failure.kind is FailureKind.ENV_ERROR
    assert "no" in trajectories[1].failure.message


def test_keyboard_interrupt_from_an_environment_still_stops_the_run(renderer: Renderer) -> None:
    def interrupted(_: Episode) -> EnvStep:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        roll(renderer, ["a<end>"], interrupted)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e308, -1e101])
def test_a_reward_beyond_reckoning_is_a_failure(renderer: Renderer, reward: float) -> None:
    (one,), _ = roll(renderer, ["a<end>"], lambda _: EnvStep(reward=reward))
    assert one.reward is None
    assert one.failure is not None
    assert one.failure.kind is FailureKind.REWARD_ERROR


def test_a_part_of_a_reward_that_no_sum_could_hold_is_a_failure(renderer: Renderer) -> None:
    step = EnvStep(reward=1.0, rewards={"length": 1e308})
    (one,), _ = roll(renderer, ["a<end>"], lambda _: step)
    assert one.failure is not None
    assert one.failure.message == "length is 1e+308, which is beyond 1e+100"


class Stuck(Environment):
    async def step(self, episode: Episode) -> EnvStep:
        if episode.sample_index == 0:
            await asyncio.Event().wait()
        return EnvStep(reward=1.0)

    async def close(self) -> None:
        pass


def test_an_environment_that_never_answers_costs_its_own_sample_alone(renderer: Renderer) -> None:
    trajectories, _ = roll(
        renderer, ["a<end>"] * 2, right, samples=2, env_timeout_s=0.05, environment=Stuck()
    )
    assert trajectories[0].failure is not None
    assert trajectories[0].failure.kind is FailureKind.TIMEOUT
    assert trajectories[1].reward == 1.0


def test_every_request_of_a_run_has_a_seed_of_its_own() -> None:
    def one(position: int, **changes: int) -> int:
        values = {"sample": 0, "turn": 0, "attempt": 0} | changes
        return request_seed(1, prompt(position), **values)

    seeds = [one(0), one(1), one(0, sample=1), one(0, turn=1), one(0, attempt=1)]
    other_epoch = Prompt(0, 1, prompt(0).row, (5,))
    seeds += [request_seed(1, other_epoch, 0, 0, 0), request_seed(2, prompt(0), 0, 0, 0)]
    assert len(set(seeds)) == len(seeds)
    assert one(0) == one(0)
    assert all(0 <= seed < 2**63 for seed in seeds)


async def part(tokens: int, fails_after: float | None = None) -> None:
    """Part of a call, which samples until it is cancelled."""
    try:
        await asyncio.wait_for(asyncio.Event().wait(), fails_after)
    except asyncio.CancelledError:
        raise Abandoned(tokens) from None
    except TimeoutError:
        raise ValueError(str(tokens)) from None


def test_a_checked_step_has_plain_numbers_and_everything_else_as_it_was() -> None:
    step = EnvStep(
        messages=({"role": "tool", "content": "82"},),
        reward=True,
        rewards={"correct": 1},
        extracted="82",
        verifier_timeout=True,
        failure=Failure(FailureKind.TIMEOUT, "late"),
    )
    assert all(
        given != usual for given, usual in zip(astuple(step), astuple(EnvStep()), strict=True)
    )
    found = checked(step)
    assert found == step
    assert type(found.reward) is float and type(found.rewards["correct"]) is float


def test_a_cancelled_call_has_the_tokens_of_all_its_parts() -> None:
    async def run() -> int:
        task = asyncio.create_task(run_together([part(1), part(20), part(300)]))
        await settled()
        task.cancel()
        with pytest.raises(Abandoned) as stopped:
            await task
        return stopped.value.tokens

    assert asyncio.run(run()) == 321


def test_the_first_error_of_a_part_ends_the_others() -> None:
    with pytest.raises(ValueError, match="7"):
        asyncio.run(run_together([part(1), part(7, fails_after=0.01), part(3)]))


# --- groups that are scored as a whole ------------------------------------------------------------


class Ranking(GroupEnvironment):
    """An answer is worth the number of worse ones beside it; remembers the groups."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []

    async def step_group(self, episodes: Sequence[Episode]) -> list[EnvStep]:
        self.groups.append([episode.response for episode in episodes])
        assert [episode.sample_index for episode in episodes] == list(range(len(episodes)))
        if any(episode.response == "hang" for episode in episodes):
            await asyncio.Event().wait()
        said = [int(episode.response) for episode in episodes]
        return [EnvStep(reward=float(sum(other < one for other in said))) for one in said]

    async def close(self) -> None:
        pass


class Apart(Scripted):
    """The same as an engine that batches by itself: its calls overlap."""

    lockstep = False

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        await asyncio.sleep(0)
        return await super().generate(requests)


@pytest.mark.parametrize("kind", [Scripted, Apart])
def test_samples_of_a_prompt_are_scored_together_and_apart_from_others(
    renderer: Renderer, kind: type[Scripted]
) -> None:
    ids = renderer.prompt_ids([{"role": "user", "content": "?"}])
    environment = Ranking()
    generator = kind(renderer, [f"{n}<end>" for n in (3, 1, 2, 7, 7)])
    rollout = Rollout(
        generator, environment, renderer, RolloutSettings(Sampling(1.0), 9, 99, 1, 20.0, seed=1)
    )
    jobs = [Job(prompt(0, token_ids=ids), 3), Job(prompt(1, token_ids=ids), 2)]
    groups = asyncio.run(rollout.run(jobs))
    assert [[t.reward for t in group.trajectories] for group in groups] == [[2, 0, 1], [0, 0]]
    assert environment.groups == [["3", "1", "2"], ["7", "7"]]


def test_what_goes_wrong_over_a_group_fails_all_of_it(renderer: Renderer) -> None:
    for texts, limit, kind in (
        (["1<end>", "x<end>"], None, FailureKind.ENV_ERROR),
        (["hang<end>", "1<end>"], 0.05, FailureKind.TIMEOUT),
    ):
        found, _ = roll(
            renderer, texts, right, samples=2, environment=Ranking(), env_timeout_s=limit
        )
        assert [t.failure and t.failure.kind for t in found] == [kind, kind]
        assert [t.reward for t in found] == [None, None]
