# SPDX-License-Identifier: Apache-2.0
"""What the collector tells the scheduler about groups that finish, fail or are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from rlrun.batch import lacks_signal
from rlrun.collector import Collector
from rlrun.errors import GenerationError, GenerationTimeout
from rlrun.interfaces import Abandoned, Environment, Episode, Generator
from rlrun.prompts import PromptStream
from rlrun.rendering.renderer import Renderer
from rlrun.replay_buffer import ReplayBuffer
from rlrun.rollout import Rollout, RolloutSettings
from rlrun.rollout.deadlines import Deadline
from rlrun.scheduler.decisions import Admit, Cancel, CancelReason
from rlrun.scheduler.events import (
    EnginesLost,
    Event,
    GroupCancelled,
    GroupFailed,
    GroupFinished,
    TokensGenerated,
    Verdict,
)
from rlrun.types import (
    Completion,
    EnvStep,
    Failure,
    FailureKind,
    GenerationRequest,
    Row,
    Sampling,
    StopReason,
    VersionSpan,
)
from tests.factories import config
from tests.loops import settled

Score = Callable[[int, int], float | None]
"""Reward by position and sample; None for a failure."""


class Counting(Generator):
    """Answers every request with two tokens; fails where it is told to."""

    def __init__(
        self,
        lockstep: bool,
        broken: Sequence[int] = (),
        kind: type[GenerationError] = GenerationError,
    ) -> None:
        self.lockstep, self.broken, self.kind = lockstep, broken, kind
        self.calls: list[list[GenerationRequest]] = []

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        self.calls.append(list(requests))
        if len(self.calls) - 1 in self.broken:
            error = self.kind("engine", f"call {len(self.calls) - 1} ran out of memory")
            error.tokens = 3
            raise error
        spans = (VersionSpan(5, 0, 2),)
        return [Completion((7, 2), (-0.5, -0.1), StopReason.STOP, spans) for _ in requests]

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        raise AssertionError("not used here")

    async def refit(self, version: int) -> None:
        raise AssertionError("not used here")

    async def close(self) -> None:
        pass


class Scoring(Environment):
    def __init__(self, score: Score) -> None:
        self.score = score

    async def step(self, episode: Episode) -> EnvStep:
        # Those admitted first end last, so that the order of events is not that of endings.
        for _ in range(100 * (9 - episode.prompt.position)):
            await asyncio.sleep(0)
        reward = self.score(episode.prompt.position, episode.sample_index)
        if reward is None:
            message = f"sample {episode.sample_index} of {episode.prompt.position}"
            return EnvStep(failure=Failure(FailureKind.ENV_DOWN, message))
        return EnvStep(reward=reward)

    async def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.load(config().policy)


@pytest.fixture(scope="module")
def stream(renderer: Renderer) -> PromptStream:
    rows = [
        Row(f"rows:{n}", ({"role": "user", "content": f"What is {n} + 1?"},), str(n + 1), {}, "")
        for n in range(10)
    ]
    return PromptStream(rows, renderer.prompt_ids, checksum="", seed=0, epochs=None, shuffle=False)


def collector(
    renderer: Renderer,
    stream: PromptStream,
    score: Score,
    *,
    samples: int = 4,
    needed: int | None = None,
    drop: bool = False,
    generator: Counting | None = None,
    deadline: Deadline | None = None,
) -> Collector:
    settings = RolloutSettings(Sampling(1.0), 8, 64, 1, None, seed=1)
    rollout = Rollout(generator or Counting(True), Scoring(score), renderer, settings)
    return Collector(
        rollout,
        stream,
        ReplayBuffer(),
        scored_needed=min(2, samples) if needed is None else needed,
        num_samples=samples,
        lacks_signal=partial(lacks_signal, grpo=config().grpo) if drop else None,
        deadline=deadline or Deadline(None, None),
    )


def run(one: Collector, *positions: int, attempt: int = 0) -> list[Event]:
    """What becomes of groups that begin together, in the order in which it is reported."""

    async def collect() -> list[Event]:
        events: list[Event] = []
        one.start([Admit(position, attempt) for position in positions])
        while one.oldest is not None or not events:
            events += await one.events()
        return events

    return asyncio.run(collect())


def mixed(position: int, sample: int) -> float | None:
    return float(sample % 2)


def test_finished_groups_are_reported_in_the_order_of_admission_and_handed_out_once(
    renderer: Renderer, stream: PromptStream
) -> None:
    one = collector(renderer, stream, mixed)
    events = run(one, 3, 0, 7)
    assert events == [
        GroupFinished(position, 0, oldest_version=5, tokens=8, verdict=Verdict.KEEP)
        for position in (3, 0, 7)
    ]
    assert [group.prompt.position for group in one.buffer.take([0, 3])] == [0, 3]
    assert len(one.buffer) == 1
    with pytest.raises(KeyError):
        one.buffer.take([0])


def test_a_lockstep_generator_gets_one_ordered_batch_and_any_other_a_call_per_trajectory(
    renderer: Renderer, stream: PromptStream
) -> None:
    together, apart = Counting(lockstep=True), Counting(lockstep=False)
    run(collector(renderer, stream, mixed, generator=together), 0, 1, 2)
    run(collector(renderer, stream, mixed, generator=apart), 0, 1, 2)
    assert [len(call) for call in together.calls] == [12]
    assert [len(call) for call in apart.calls] == [1] * 12
    assert together.calls[0] == [request for call in apart.calls for request in call]


def test_another_attempt_samples_anew(renderer: Renderer, stream: PromptStream) -> None:
    generator = Counting(lockstep=True)
    for attempt in (0, 1, 0):
        run(collector(renderer, stream, mixed, generator=generator), 0, attempt=attempt)
    seeds = [[request.seed for request in call] for call in generator.calls]
    assert seeds[0] == seeds[2]
    assert not set(seeds[0]) & set(seeds[1])


def failing(*failed: int) -> Score:
    """Rewards of which these samples have none."""
    return lambda position, sample: None if sample in failed else mixed(position, sample)


def test_a_group_with_two_scored_samples_is_kept_with_its_failures(
    renderer: Renderer, stream: PromptStream
) -> None:
    one = collector(renderer, stream, failing(0, 3))
    (event,) = run(one, 0)
    assert isinstance(event, GroupFinished) and event.verdict is Verdict.KEEP
    (group,) = one.buffer.take([0])
    assert [t.reward for t in group.trajectories] == [None, 1.0, 0.0, None]


def test_a_group_with_one_scored_sample_has_failed_with_the_first_error(
    renderer: Renderer, stream: PromptStream, caplog: pytest.LogCaptureFixture
) -> None:
    one = collector(renderer, stream, failing(1, 2, 3))
    assert run(one, 6) == [GroupFailed(6, 0, "env_down: sample 1 of 6", tokens=8)]
    assert len(one.buffer) == 0
    (record,) = caplog.records
    assert record.getMessage() == (
        "prompt rows:6: 3 of 4 samples failed, the first by env_down: sample 1 of 6"
    )


def test_a_group_of_which_all_are_needed_fails_with_one(
    renderer: Renderer, stream: PromptStream
) -> None:
    whole = [type(run(collector(renderer, stream, failing(*failed), needed=4), 0)[0])
             for failed in ((), (2,))]  # fmt: skip
    assert whole == [GroupFinished, GroupFailed]


@pytest.mark.parametrize(("failed", "kind"), [((), GroupFinished), ((0,), GroupFailed)])
def test_a_group_of_one_needs_its_one_sample(
    renderer: Renderer, stream: PromptStream, failed: tuple[int, ...], kind: type[Event]
) -> None:
    (event,) = run(collector(renderer, stream, failing(*failed), samples=1), 0)
    assert isinstance(event, kind)


def test_an_engine_error_loses_the_groups_of_its_call_without_blaming_their_prompts(
    renderer: Renderer, stream: PromptStream
) -> None:
    together = collector(renderer, stream, mixed, generator=Counting(True, broken=[0]))
    error = "engine: call 0 ran out of memory."
    assert run(together, 2, 4) == [TokensGenerated(2, 0, 3), EnginesLost((2, 4), error)]
    assert len(together.buffer) == 0


def test_an_engine_error_of_one_call_leaves_the_other_groups_alone(
    renderer: Renderer, stream: PromptStream
) -> None:
    one = collector(renderer, stream, mixed, generator=Counting(False, broken=[1]))
    # Each of a group's trajectories is a call: the first to break takes its group with it.
    events = run(one, 2, 4, 6)
    finished = [event for event in events if isinstance(event, GroupFinished)]
    lost = [event for event in events if event not in finished]
    # Two tokens of each of the group's other three samples, and what the engine says.
    had = TokensGenerated(2, 0, 3 * 2 + 3)
    assert lost == [had, EnginesLost((2,), "engine: call 1 ran out of memory.")]
    assert [event.position for event in finished] == [6, 4]
    assert len(one.buffer.take([4, 6])) == 2


def test_a_request_that_takes_too_long_is_a_failure_of_its_prompt(
    renderer: Renderer, stream: PromptStream
) -> None:
    generator = Counting(False, broken=[1], kind=GenerationTimeout)
    failed, finished = sorted(
        run(collector(renderer, stream, mixed, generator=generator), 2, 4),
        key=lambda event: type(event).__name__,
    )
    error = "timeout: engine: call 1 ran out of memory."
    assert failed == GroupFailed(2, 0, error, 3 * 2 + 3)
    assert isinstance(finished, GroupFinished) and finished.position == 4


@pytest.mark.parametrize("lockstep", [True, False])
def test_groups_that_are_in_flight_at_the_end_say_how_many_tokens_they_had(
    renderer: Renderer, stream: PromptStream, lockstep: bool
) -> None:
    class Endless(Counting):
        async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                raise Abandoned(5 * len(requests)) from None
            raise AssertionError("it is cancelled before")

    async def close() -> list[Event]:
        one = collector(renderer, stream, mixed, generator=Endless(lockstep))
        one.start([Admit(2, 0), Admit(4, 1)])
        await settled()
        assert not one.settled
        await one.close()
        events = one.take_events()
        assert one.settled
        return events

    events = asyncio.run(close())
    assert {type(event) for event in events} == {GroupCancelled}
    assert sum(event.tokens for event in events if isinstance(event, GroupCancelled)) == 40


class Hanging(Counting):
    """Never answers the first prompt that it is given."""

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        completions = await super().generate(requests)
        if requests[0].token_ids == self.calls[0][0].token_ids:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise Abandoned(5 * len(requests)) from None
        return completions


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_group_that_hangs_fails_at_its_deadline_with_what_it_had(
    renderer: Renderer, stream: PromptStream, lockstep: bool
) -> None:
    one = collector(
        renderer, stream, mixed, generator=Hanging(lockstep), deadline=Deadline(0.5, None)
    )
    assert run(one, 3) == [GroupFailed(3, 0, "timeout: no result within 0.5 s", 20)]
    assert one.settled


@pytest.mark.parametrize("reason", list(CancelReason))
def test_what_a_group_had_that_was_given_up_for_its_age_is_kept(
    renderer: Renderer, stream: PromptStream, reason: CancelReason
) -> None:
    one = collector(renderer, stream, mixed, generator=Hanging(False))

    async def give_up() -> list[Event]:
        # The first to be admitted hangs; the other finishes and is given up as well.
        one.start([Admit(3, 0), Admit(4, 2)])
        events = await one.events()
        one.cancel(Cancel(4, 2, reason))
        one.cancel(Cancel(3, 0, reason))
        return [*events, *await one.events()]

    finished, cancelled = asyncio.run(give_up())
    assert isinstance(finished, GroupFinished)
    # Each of the group's samples hangs, with five tokens that it had.
    assert cancelled == GroupCancelled(3, 0, 20)
    assert one.take_expired() == ([8, 20] if reason is CancelReason.EXPIRED else [])
    assert one.take_expired() == [] and len(one.buffer) == 0


def test_a_group_that_hangs_from_the_start_fails_by_a_limit_that_was_found_later(
    renderer: Renderer, stream: PromptStream
) -> None:
    deadline = Deadline(None, 3600.0)
    one = collector(renderer, stream, mixed, generator=Hanging(False), deadline=deadline)

    async def collect() -> list[Event]:
        events: list[Event] = []
        one.start([Admit(position, 0) for position in range(9)])
        while len(events) < 8:
            events += await one.events()
        assert deadline.limit_s is None and one.running == 1
        # Two more groups make it known how long a group may take.
        one.start([Admit(position, 1) for position in (1, 2)])
        while len(events) < 10:
            events += await one.events()
        assert deadline.limit_s == 3600.0 and one.running == 1
        deadline.least_s = 0.0
        return await one.events()

    (failed,) = asyncio.run(collect())
    assert isinstance(failed, GroupFailed) and failed.position == 0
    assert failed.error.startswith("timeout")


def test_what_is_no_engine_error_is_not_taken_for_one(
    renderer: Renderer, stream: PromptStream
) -> None:
    with pytest.raises(IndexError):
        run(collector(renderer, stream, mixed), -1)


# --- dynamic sampling -----------------------------------------------------------------------------


def constant(position: int, sample: int) -> float | None:
    return 0.5


@pytest.mark.parametrize(
    ("score", "verdict"),
    [
        (mixed, Verdict.KEEP),
        (constant, Verdict.NO_SIGNAL),
        (failing(0, 2), Verdict.NO_SIGNAL),
        (failing(0, 3), Verdict.KEEP),
    ],
)
def test_dynamic_sampling_drops_groups_whose_scored_samples_are_all_alike(
    renderer: Renderer, stream: PromptStream, score: Score, verdict: Verdict
) -> None:
    one = collector(renderer, stream, score, drop=True)
    (event,) = run(one, 0)
    assert isinstance(event, GroupFinished)
    assert event.verdict is verdict
    assert event.tokens == 8
    assert one.buffer.discard(0) == (verdict is Verdict.KEEP)


def test_without_dynamic_sampling_groups_that_are_all_alike_are_kept(
    renderer: Renderer, stream: PromptStream
) -> None:
    one = collector(renderer, stream, constant)
    (event,) = run(one, 0)
    assert isinstance(event, GroupFinished) and event.verdict is Verdict.KEEP
    assert one.buffer.discard(0)
