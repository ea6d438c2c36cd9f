# SPDX-License-Identifier: Apache-2.0
"""A generator in a process of its own: the same answers, new weights on the way, faults."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from transformers import PreTrainedModel

from rlrun.errors import GenerationError, TrainingError
from rlrun.generation import process_pipe
from rlrun.generation.process import NAME, ProcessGenerator
from rlrun.generation.process_pipe import Child, Reply
from rlrun.interfaces import Abandoned, GeneratorInputs
from rlrun.learner.attention import use_attention
from rlrun.learner.model import saved_tensors
from rlrun.rendering.renderer import Renderer
from rlrun.types import Completion, GenerationRequest, Sampling
from tests.factories import config

Requests = Callable[..., list[GenerationRequest]]
T = TypeVar("T")


def inputs(
    model: PreTrainedModel, renderer: Renderer, folder: Path, ordered: bool
) -> GeneratorInputs:
    return GeneratorInputs(
        model=model,
        weights=lambda: iter(saved_tensors(model).items()),
        policy=config().policy,
        renderer=renderer,
        concurrent=True,
        ordered=ordered,
        recompute_kv_cache=False,
        deterministic=True,
        num_threads=1,
        folder=folder,
    )


def with_generator(
    given: GeneratorInputs, use: Callable[[ProcessGenerator], Coroutine[Any, Any, T]]
) -> T:
    async def run() -> T:
        generator = await config().generation.start(given)
        assert isinstance(generator, ProcessGenerator)
        try:
            return await use(generator)
        finally:
            await generator.close()
            await generator.close()

    return asyncio.run(run())


@pytest.mark.parametrize("ordered", [False, True])
def test_it_answers_as_the_model_in_this_process(
    model: PreTrainedModel,
    renderer: Renderer,
    requests_for: Requests,
    tmp_path: Path,
    ordered: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And one that hangs over its answer is given up, however long an answer may take."""
    use_attention(model)  # as load_model does for the learner
    requests = requests_for(6, samples=2)

    async def use(generator: ProcessGenerator) -> tuple[list[Completion], list[float], Any]:
        await generator.refit(3)
        assert generator.lockstep is ordered
        ids = (*requests[0].token_ids, 7, 8)
        scores = await generator.engine_scores(ids)
        return await generator.generate(requests), await generator.score(ids), scores

    async def reference() -> tuple[list[Completion], list[float]]:
        local = await config().generation.start(
            replace(inputs(model, renderer, tmp_path, True), concurrent=False)
        )
        await local.refit(3)
        found = await local.generate(requests), await local.score((*requests[0].token_ids, 7, 8))
        await local.close()
        return found

    async def use_and_hang(generator: ProcessGenerator) -> Any:
        answers = await use(generator)
        child = generator._child
        assert child is not None
        os.kill(child.process.pid, signal.SIGSTOP)
        monkeypatch.setattr(process_pipe, "ANSWER_TIMEOUT_S", 0.05)
        # As in a validation: nothing but the completions themselves is waited for.
        with pytest.raises(GenerationError, match="the generator process hung and was killed"):
            await generator.generate(requests)
        assert not child.alive
        return answers

    found, scores, by_engine = with_generator(
        inputs(model, renderer, tmp_path, ordered), use_and_hang
    )
    expected, expected_scores = asyncio.run(reference())
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]
    assert [c.weight_versions for c in found] == [c.weight_versions for c in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=0 if ordered else 1e-5)
    assert scores == pytest.approx(expected_scores, abs=1e-6)
    assert list(by_engine.values()) == [scores]


def generator_processes() -> list[int]:
    """Children of this process that are generators."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # threads and processes come and go meanwhile
            for child in (thread / "children").read_text().split():
                if b"process_child" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def test_faults_and_new_weights(
    model: PreTrainedModel,
    renderer: Renderer,
    requests_for: Requests,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one process, as each takes seconds to start."""
    many = requests_for(60, samples=8)

    async def use(generator: ProcessGenerator) -> None:
        with pytest.raises(GenerationError, match="never refitted"):
            await generator.generate(many)

        # Killed while it starts, it is started once more.
        start = asyncio.create_task(generator.refit(0))
        while not (starting := generator_processes()):
            await asyncio.sleep(0.01)
        os.kill(starting[0], signal.SIGKILL)
        await start
        assert starting != generator_processes()

        assert generator._child is not None
        messages, output = [], generator._child.process.stdout
        assert output is not None
        read = output.readexactly

        async def note(size: int) -> bytes:
            messages.append(size)
            return await read(size)

        monkeypatch.setattr(output, "readexactly", note)

        # New weights arrive between two tokens of what is running.
        running = asyncio.create_task(generator.generate(many))
        newest = 0
        while not running.done():
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.0001)
            newest += 1
            await generator.refit(newest)
        versions = [[s.version for s in c.weight_versions] for c in await running]
        assert any(len(spans) > 1 for spans in versions)
        assert all(spans == sorted(set(spans)) and spans[-1] <= newest for spans in versions)
        assert 0 in messages, "no sign of life over an answer of many tokens"

        bad = GenerationRequest((5,) * 5000, 1, 0, Sampling(1.0))
        with pytest.raises(GenerationError, match="exceed"):
            await generator.generate([bad])

        # Part of the process's life is over; what it had sampled is counted.
        task = asyncio.create_task(generator.generate(many))
        await asyncio.sleep(0)
        await generator.refit(newest := newest + 1)  # answered after the call was taken in
        task.cancel()
        with pytest.raises(Abandoned) as abandoned:
            await task
        assert 0 <= abandoned.value.tokens < 28 * len(many)

        assert generator._child is not None
        task = asyncio.create_task(generator.generate(many))
        await asyncio.sleep(0)
        await generator.refit(newest := newest + 1)
        os.kill(generator._child.process.pid, signal.SIGKILL)
        with pytest.raises(GenerationError, match="ended with signal 9"):
            await task
        (again,) = await generator.generate(many[:1])
        assert again.weight_versions[0].version == newest

        # One that hangs is killed, and the probe after a refit asks whatever takes its place.
        hangs = generator._child
        os.kill(hangs.process.pid, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(process_pipe, "ANSWER_TIMEOUT_S", 0.05)
            scoring = asyncio.create_task(generator.engine_scores((5, 6, 7)))
            while hangs.alive:
                await asyncio.sleep(0.01)
        assert len((await scoring)[NAME]) == 2
        # One that comes back with other weights than its predecessor had is not asked for more.
        await generator.engine_scores(many[0].token_ids)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        generator._weights.publish()
        os.kill(generator._child.process.pid, signal.SIGKILL)
        await generator._child.reader
        with pytest.raises(TrainingError, match="the generator process: it was started again"):
            await generator.generate(many[:1])

    with_generator(inputs(model, renderer, tmp_path, False), use)


def test_a_sign_of_life_is_heard_and_a_reply_after_it_is_read(tmp_path: Path) -> None:
    program = (
        "import pickle, sys; from rlrun.generation.process_pipe import HEADER, Reply;"
        "out = sys.stdout.buffer; out.write(HEADER.pack(0)); out.flush(); sys.stdin.buffer.read(1);"
        "body = pickle.dumps(Reply(-1, 'done', 7)); out.write(HEADER.pack(len(body)) + body)"
    )

    async def run() -> Reply:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=PIPE, stdout=PIPE
        )
        (tmp_path / "log").touch()
        child = Child(process, tmp_path / "log")
        begun = child.heard
        while child.heard == begun:
            await asyncio.sleep(0.01)
        assert not child.started.done() and process.stdin is not None
        process.stdin.write(b"x")
        reply = await child.started
        await child.reader
        return reply

    assert asyncio.run(run()).content == 7


def test_a_model_that_cannot_be_loaded_is_an_error_with_its_cause(
    model: PreTrainedModel, renderer: Renderer, tmp_path: Path
) -> None:
    broken = replace(config().policy, model="/nowhere/at/all")

    async def use(generator: ProcessGenerator) -> None:
        await generator.refit(0)

    with pytest.raises(GenerationError, match="cannot start"):
        with_generator(replace(inputs(model, renderer, tmp_path, False), policy=broken), use)
