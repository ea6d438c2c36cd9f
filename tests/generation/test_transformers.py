# SPDX-License-Identifier: Apache-2.0
"""The live generator, with either way to batch: versions, errors, the event loop beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from transformers import PreTrainedModel

from rlrun.errors import GenerationError
from rlrun.generation.continuous_batch import ContinuousBatch
from rlrun.generation.transformers import TransformersGeneration
from rlrun.interfaces import Abandoned, Generator, GeneratorInputs
from rlrun.learner.model import saved_tensors
from rlrun.rendering.renderer import Renderer
from rlrun.types import Completion, GenerationRequest, Sampling
from tests.factories import config

Requests = Callable[..., list[GenerationRequest]]


@pytest.fixture(params=[True, False], ids=["static", "continuous"])
def ordered(request: pytest.FixtureRequest) -> bool:
    """Whether calls are batches; otherwise they join what is running."""
    return bool(request.param)


async def start(model: PreTrainedModel, renderer: Renderer, ordered: bool = True) -> Generator:
    settings = TransformersGeneration(
        temperature=1.0,
        top_p=1.0,
        top_k=None,
        max_new_tokens=28,
        stop=[],
        val_temperature=None,
        val_top_p=None,
        val_top_k=None,
        expose_http_server=False,
        http=config().generation.http,
        max_batch_size=None,
    )
    return await settings.start(
        GeneratorInputs(
            model=model,
            weights=lambda: iter(saved_tensors(model).items()),
            policy=config().policy,
            renderer=renderer,
            concurrent=False,
            ordered=ordered,
            recompute_kv_cache=False,
            deterministic=True,
            num_threads=1,
            folder=None,
        )
    )


def test_completions_carry_the_version_of_the_last_refit(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests, ordered: bool
) -> None:
    async def run() -> list[int]:
        generator = await start(model, renderer, ordered)
        versions = []
        for version in (None, 1, 5):
            if version is not None:
                await generator.refit(version)
            (completion,) = await generator.generate(requests_for(1))
            versions.append(completion.weight_versions[0].version)
        await generator.close()
        return versions

    assert asyncio.run(run()) == [0, 1, 5]


def test_no_requests_give_no_completions(
    model: PreTrainedModel, renderer: Renderer, ordered: bool
) -> None:
    async def run() -> list[Completion]:
        return await (await start(model, renderer, ordered)).generate([])

    assert asyncio.run(run()) == []


def test_calls_at_once_give_what_calls_in_turn_give(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests, ordered: bool
) -> None:
    batches = [requests_for(4, seed=seed) for seed in (0, 100, 200)]

    async def at_once() -> list[list[Completion]]:
        generator = await start(model, renderer, ordered)
        return list(await asyncio.gather(*(generator.generate(batch) for batch in batches)))

    async def in_turn() -> list[list[Completion]]:
        generator = await start(model, renderer, ordered)
        return [await generator.generate(batch) for batch in batches]

    found, expected = asyncio.run(at_once()), asyncio.run(in_turn())
    if ordered:
        assert found == expected
    for one, other in zip(sum(found, []), sum(expected, []), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_an_error_of_the_model_keeps_its_cause(model: PreTrainedModel, renderer: Renderer) -> None:
    unknown = GenerationRequest((10_000,), 1, 0, Sampling(1.0))

    async def run() -> None:
        await (await start(model, renderer)).generate([unknown])

    with pytest.raises(GenerationError, match="1 completions failed") as caught:
        asyncio.run(run())
    assert isinstance(caught.value.__cause__, IndexError)


def test_scores_are_the_log_probs_that_sampling_reports(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    async def run() -> tuple[Completion, list[float]]:
        generator = await start(model, renderer)
        (request,) = requests_for(1)
        (completion,) = await generator.generate([request])
        scores = await generator.score([*request.token_ids, *completion.token_ids])
        return completion, scores[len(request.token_ids) - 1 :]

    completion, scores = asyncio.run(run())
    assert scores == pytest.approx(completion.logprobs, abs=1e-5)


def test_a_sequence_that_does_not_fit_is_not_scored(
    model: PreTrainedModel, renderer: Renderer
) -> None:
    async def run() -> None:
        await (await start(model, renderer)).score([5] * 5000)

    with pytest.raises(GenerationError, match="context"):
        asyncio.run(run())


def long_requests(count: int) -> list[GenerationRequest]:
    return [GenerationRequest((5, 6, 7), 2000, seed, Sampling(1.0)) for seed in range(count)]


def test_the_event_loop_goes_on_and_a_cancelled_batch_ends_soon(
    model: PreTrainedModel, renderer: Renderer, ordered: bool
) -> None:
    # The embedded model pads nothing itself: no row ends before its 2,000 tokens.
    never_ends = Renderer(renderer.tokenizer, eos_ids=(renderer.pad_id,))

    passes: list[None] = []
    model.register_forward_hook(lambda *_: passes.append(None))

    async def run() -> tuple[int, int, bool]:
        generator = await start(model, never_ends, ordered)
        task = asyncio.create_task(generator.generate(long_requests(16)))
        ticks = 0
        while ticks < 10 or len(passes) < 3:
            await asyncio.sleep(0.01)
            ticks += 1
            assert not task.done()
        before = len(passes)
        task.cancel()
        with pytest.raises(Abandoned) as abandoned:
            await task
        assert 0 < abandoned.value.tokens < 16 * 2000
        more = len(passes) - before
        await generator.close()
        await generator.close()
        return ticks, more, model.training

    model.train(True)
    ticks, more, training = asyncio.run(run())
    assert ticks >= 10
    # What is being computed is computed to its end, of 2,000.
    assert more < 500
    assert training


def test_a_closed_generator_refuses(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests, ordered: bool
) -> None:
    async def run() -> None:
        generator = await start(model, renderer, ordered)
        await generator.close()
        await generator.generate(requests_for(1))

    with pytest.raises(GenerationError):
        asyncio.run(run())


# --- calls that join what is running --------------------------------------------------------------


def test_a_short_call_does_not_wait_for_a_long_one_before_it(
    model: PreTrainedModel, renderer: Renderer
) -> None:
    never_ends = Renderer(renderer.tokenizer, eos_ids=(renderer.pad_id,))

    async def run() -> None:
        generator = await start(model, never_ends, ordered=False)
        long = asyncio.create_task(generator.generate(long_requests(2)))
        await asyncio.sleep(0)
        (short,) = await generator.generate([GenerationRequest((5, 6), 3, 9, Sampling(1.0))])
        assert len(short.token_ids) == 3 and not long.done()
        # Whoever else computes gets a turn too.
        assert len(await generator.score([5, 6, 7])) == 2 and not long.done()
        long.cancel()
        with pytest.raises(Abandoned):
            await long
        await generator.close()

    asyncio.run(run())


def test_what_fails_fails_all_that_runs_and_nothing_later(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    unknown = GenerationRequest((10_000,), 1, 0, Sampling(1.0))
    too_long = GenerationRequest((5,) * 5000, 1, 0, Sampling(1.0))

    async def run() -> None:
        generator = await start(model, renderer, ordered=False)
        calls = ([unknown], requests_for(1), [too_long])
        errors = await asyncio.gather(*map(generator.generate, calls), return_exceptions=True)
        assert [type(error) for error in errors] == [GenerationError] * 3
        assert "sampling failed" in str(errors[1]) and "context" in str(errors[2])
        assert len(await generator.generate(requests_for(2))) == 2
        await generator.close()

    asyncio.run(run())


def test_a_mistake_of_ours_reaches_those_who_wait(
    model: PreTrainedModel,
    renderer: Renderer,
    requests_for: Requests,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        generator = await start(model, renderer, ordered=False)
        with monkeypatch.context() as patch:
            patch.setattr(ContinuousBatch, "step", lambda self: {}[0])
            with pytest.raises(GenerationError, match="KeyError: 0"):
                await generator.generate(requests_for(1))
        assert len(await generator.generate(requests_for(1))) == 1

    asyncio.run(run())
