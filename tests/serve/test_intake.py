# SPDX-License-Identifier: Apache-2.0
"""What is sampled together, and who is forgotten when."""

from __future__ import annotations

import asyncio

import pytest

from rlrun.errors import GenerationError
from rlrun.rendering.renderer import Renderer
from rlrun.serve.intake import Intake
from rlrun.types import Completion, GenerationRequest, Sampling
from tests.loops import settled
from tests.serve.engines import Scripted

TEXTS = tuple(f"text {i}" for i in range(20))


def request(number: int) -> GenerationRequest:
    return GenerationRequest((number,), 5, number, Sampling(1.0))


def sizes(generator: Scripted) -> list[int]:
    return [len(call) for call in generator.calls]


async def started(
    intake: Intake, numbers: range, count: int = 1
) -> list[asyncio.Task[list[Completion]]]:
    tasks = [asyncio.create_task(intake.generate([request(n)] * count)) for n in numbers]
    await settled()
    return tasks


def text(renderer: Renderer, completions: list[Completion]) -> list[str]:
    return [renderer.decode(completion.token_ids) for completion in completions]


def test_a_lockstep_engine_gets_what_waits_as_one_batch(renderer: Renderer) -> None:
    async def run() -> None:
        generator = Scripted(renderer, TEXTS, lockstep=True)
        generator.gate.clear()
        intake = Intake(generator)
        intake.release()
        first = await started(intake, range(1))
        later = await started(intake, range(1, 5), count=2)
        assert sizes(generator) == [1]
        generator.gate.set()
        answers = await asyncio.gather(*first, *later)
        assert sizes(generator) == [1, 8]
        assert [r.seed for r in generator.calls[1]] == [1, 1, 2, 2, 3, 3, 4, 4]
        assert [text(renderer, a) for a in answers[1:3]] == [
            ["text 1", "text 2"],
            ["text 3", "text 4"],
        ]

    asyncio.run(run())


def test_another_engine_gets_each_at_once(renderer: Renderer) -> None:
    async def run() -> None:
        generator = Scripted(renderer, TEXTS)
        generator.gate.clear()
        intake = Intake(generator)
        intake.release()
        tasks = await started(intake, range(5))
        assert sizes(generator) == [1] * 5
        tasks[2].cancel()
        await settled()
        assert generator.cancelled == 1
        generator.gate.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[2], asyncio.CancelledError) and len(done[3]) == 1

    asyncio.run(run())


def test_a_batch_goes_on_until_nobody_wants_it(renderer: Renderer) -> None:
    async def run() -> None:
        generator = Scripted(renderer, TEXTS, lockstep=True)
        intake = Intake(generator)
        generator.gate.clear()
        together = await started(intake, range(3))
        intake.release()
        await settled()
        assert sizes(generator) == [3]
        waiting = await started(intake, range(3, 5))
        waiting[0].cancel()
        for task, cancelled in zip(together, (0, 0, 1), strict=True):
            task.cancel()
            await settled()
            assert generator.cancelled == cancelled
        # The one that still waits is asked alone.
        assert sizes(generator) == [3, 1]
        generator.gate.set()
        assert len(await waiting[1]) == 1

    asyncio.run(run())


def test_those_who_stay_get_their_own_answers(renderer: Renderer) -> None:
    async def run() -> None:
        generator = Scripted(renderer, TEXTS, lockstep=True)
        intake = Intake(generator)
        generator.gate.clear()
        tasks = await started(intake, range(3))
        intake.release()
        await settled()
        tasks[1].cancel()
        generator.gate.set()
        assert text(renderer, await tasks[0]) == ["text 0"]
        assert text(renderer, await tasks[2]) == ["text 2"]

    asyncio.run(run())


def test_an_error_reaches_everybody_in_the_batch_and_nobody_later(renderer: Renderer) -> None:
    async def run() -> None:
        generator = Scripted(renderer, TEXTS, lockstep=True)
        generator.error = GenerationError("x", "broken", "")
        intake = Intake(generator)
        tasks = await started(intake, range(3))
        intake.release()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, GenerationError) for error in done)
        generator.error = None
        assert len(await intake.generate([request(4)])) == 1

    asyncio.run(run())


def test_an_engine_that_gives_up_by_itself_is_an_error(renderer: Renderer) -> None:
    async def run() -> None:
        generator = Scripted(renderer, TEXTS)
        generator.error = asyncio.CancelledError()  # type: ignore[assignment] # what it raises
        intake = Intake(generator)
        intake.release()
        with pytest.raises(GenerationError, match="gave the request up"):
            await intake.generate([request(1)])

    asyncio.run(run())


def test_holding_waits_for_what_runs_and_keeps_what_comes(renderer: Renderer) -> None:
    async def run() -> None:
        generator = Scripted(renderer, TEXTS, lockstep=True)
        intake = Intake(generator)
        await intake.hold()
        tasks = await started(intake, range(2))
        assert generator.calls == []
        generator.gate.clear()
        intake.release()
        await settled()
        holding = asyncio.create_task(intake.hold())
        tasks += await started(intake, range(2, 4))
        assert not holding.done()
        generator.gate.set()
        await holding
        assert sizes(generator) == [2]
        intake.release()
        await asyncio.gather(*tasks)
        assert sizes(generator) == [2, 2]

    asyncio.run(run())


def test_a_hung_engine_is_replaced_and_its_requests_asked_again(renderer: Renderer) -> None:
    async def run() -> None:
        hung, fresh = (Scripted(renderer, TEXTS, lockstep=True) for _ in range(2))
        hung.gate.clear()
        intake = Intake(hung)
        intake.release()
        running = await started(intake, range(1))
        waiting = await started(intake, range(1, 3))
        intake.replace(fresh)
        await asyncio.gather(*running, *waiting)
        assert [[r.seed for r in call] for call in fresh.calls] == [[0, 1, 2]]

    asyncio.run(run())


def test_a_closed_intake_refuses_those_who_wait_and_those_who_come(renderer: Renderer) -> None:
    async def run() -> None:
        generator = Scripted(renderer, TEXTS, lockstep=True)
        generator.gate.clear()
        intake = Intake(generator)
        intake.release()
        tasks = await started(intake, range(2))
        await intake.close()
        await intake.close()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all("the run is ending" in str(error) for error in done)
        with pytest.raises(GenerationError, match="the run is ending"):
            await intake.generate([request(1)])
        assert generator.cancelled == 1

    asyncio.run(run())
