# SPDX-License-Identifier: Apache-2.0
"""Ranks and engines as Ray actors, driven from here: numbers, faults, cancelled calls."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import ray

from rlrun.cluster import ray_liveness
from rlrun.cluster.ray_generator import RayGenerator
from rlrun.cluster.ray_learner import RayLearner
from rlrun.cluster.ray_pool import Engine, EnginePool
from rlrun.cluster.ray_rank import RankActor
from rlrun.cluster.ray_roles import RayRoles
from rlrun.errors import GenerationError, StorageError, TrainingError
from rlrun.interfaces import Abandoned
from rlrun.refit.probe import Proof
from rlrun.rendering.renderer import Renderer
from rlrun.types import GenerationRequest, Sampling
from tests.cluster.conftest import SPREAD, ray_config, settings
from tests.factories import config
from tests.learner.conftest import new_learner, ragged_samples

T = TypeVar("T")

pytestmark = pytest.mark.timeout(900)

TRAINING = ("policy.train_micro_batch_tokens=64", "policy.max_grad_norm=0.5")


class Loop:
    """An event loop that goes on between calls, as that of a run does."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        # Six processes import their libraries at once, on a machine that may be busy.
        return self.start(work).result(timeout=600)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def roles(
    ray_address: str, loop: Loop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RayLearner, RayGenerator]]:
    """Two ranks and two engines of an asynchronous run, over two machines."""
    run = ray_config(ray_address, *TRAINING, "grpo=async", "generation.max_batch_size=16")
    said: list[str] = []
    started = RayRoles(settings(run), run, tmp_path_factory.mktemp("roles"))
    generator = loop.run(started.start_generator(Renderer.load(run.policy), said.append))
    assert isinstance(generator, RayGenerator)
    assert said == ["on Ray: 2 learner ranks and 2 engines"]
    loop.run(generator.refit(0))
    yield started.learner, generator
    loop.run(generator.close())
    started.close()
    assert not ray.is_initialized()


@pytest.fixture
def learner(roles: tuple[RayLearner, RayGenerator]) -> RayLearner:
    return roles[0]


@pytest.fixture
def generator(roles: tuple[RayLearner, RayGenerator]) -> RayGenerator:
    return roles[1]


def request(max_new_tokens: int = 8, seed: int = 0) -> GenerationRequest:
    return GenerationRequest(
        token_ids=(5, 6, 7),
        sampling=Sampling(1.0, 1.0, None, ()),
        max_new_tokens=max_new_tokens,
        seed=seed,
    )


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 500
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def all_scores(loop: Loop, generator: RayGenerator, ids: tuple[int, ...]) -> list[list[float]]:
    return list(loop.run(generator.engine_scores(ids)).values())


def test_a_step_of_two_ranks_is_that_of_one_process_and_every_engine_gets_its_weights(
    learner: RayLearner, generator: RayGenerator, loop: Loop
) -> None:
    samples, local = ragged_samples(), new_learner(*TRAINING)
    found, expected = learner.logprobs(samples), local.logprobs(samples)
    for ours, theirs in zip(found.logprobs, expected.logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    metrics, reference = learner.update([samples], 1), local.update([samples], 1)
    assert metrics.keys() == reference.keys()
    for name in ("train/loss", "train/grad_norm"):
        assert metrics[name] == pytest.approx(reference[name], rel=1e-5, abs=1e-7), name

    ids = tuple(range(5, 25))
    before = all_scores(loop, generator, ids)
    loop.run(generator.refit(1))
    after = all_scores(loop, generator, ids)
    assert after[0] == after[1] != before[0]
    np.testing.assert_allclose(after[0], learner.score(ids), atol=1e-5)
    assert [engine.version for engine in generator.pool.engines] == [1, 1]


def test_idle_engines_share_the_calls(generator: RayGenerator, loop: Loop) -> None:
    most = [0, 0]

    async def eight() -> None:
        calls = [asyncio.create_task(generator.generate([request(seed=i)])) for i in range(8)]
        await asyncio.sleep(0)
        most[:] = [engine.load for engine in generator.pool.engines]
        await asyncio.gather(*calls)

    loop.run(eight())
    assert most == [4, 4]
    assert [engine.load for engine in generator.pool.engines] == [0, 0]


def test_a_view_of_an_engine_asks_that_engine(generator: RayGenerator, loop: Loop) -> None:
    views = generator.engine_views()
    loads = []

    async def one() -> None:
        for view in views:
            call = asyncio.create_task(view.generate([request()]))
            await asyncio.sleep(0)
            loads.append([engine.load for engine in generator.pool.engines])
            await call

    loop.run(one())
    assert loads == [[1, 0], [0, 1]]


def test_a_cancelled_call_says_how_many_tokens_it_had(generator: RayGenerator, loop: Loop) -> None:
    async def cancelled_after(seconds: float) -> int:
        many = [request(60, seed=seed) for seed in range(1500)]
        call = asyncio.create_task(generator.generate(many))
        await asyncio.sleep(seconds)
        call.cancel()
        try:
            await call
        except Abandoned as error:
            return error.tokens
        raise AssertionError("the call was answered")

    # How long the first token takes depends on the machine.
    waits = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    assert any(loop.run(cancelled_after(seconds)) > 0 for seconds in waits)
    assert [engine.load for engine in generator.pool.engines] == [0, 0]


def test_a_killed_engine_comes_back_with_the_newest_weights_and_proves_it(
    generator: RayGenerator, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tuple(range(5, 25))
    expected = all_scores(loop, generator, ids)[0]
    checked: list[str] = []
    check = Proof.check

    async def noted(proof: Proof, name: str, score: Any) -> None:
        await check(proof, name, score)
        checked.append(name)

    monkeypatch.setattr(Proof, "check", noted)
    wait, failures = EnginePool.wait, ["its process died"]

    async def killed_once_as_it_starts(
        pool: EnginePool, engine: Engine, actor: Any, method: str, *arguments: Any
    ) -> Any:
        if method == "start" and failures:
            raise GenerationError(engine.name, failures.pop())
        return await wait(pool, engine, actor, method, *arguments)

    monkeypatch.setattr(EnginePool, "wait", killed_once_as_it_starts)
    first = generator.pool.engines[0]
    pid = ray.get(first.actor.whereabouts.remote()).pid
    call = loop.start(generator.generate([request(60, seed=seed) for seed in range(400)]))
    until(lambda: first.load > 0)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(GenerationError, match="engine 0 of 2: its process died"):
        call.result(timeout=300)
    # The other one takes work meanwhile.
    completions = loop.run(generator.generate([request()]))
    assert completions[0].weight_versions[0].version == 1
    until(lambda: first.actor is not None)
    assert first.version == 1
    assert ray.get(first.actor.whereabouts.remote()).pid != pid
    assert checked == ["engine 0 of 2"] and not failures
    assert all_scores(loop, generator, ids) == [expected, expected]


def test_an_engine_that_hangs_is_killed_and_comes_back(
    generator: RayGenerator, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = generator.pool.engines[0]
    until(lambda: first.actor is not None)
    actor, view = first.actor, generator.engine_views()[0]
    assert loop.run(ray_liveness.answers(actor))
    pid = ray.get(actor.whereabouts.remote()).pid
    call = loop.start(view.generate([request(60, seed=seed) for seed in range(400)]))
    until(lambda: first.load > 0)
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(ray_liveness, "ASK_EVERY_S", 0.5)
    # The other engine is looked after as well.
    monkeypatch.setattr(ray_liveness, "PATIENCE", 20)
    loop.run(generator.pool._watch(first, actor))
    monkeypatch.undo()
    with pytest.raises(GenerationError, match="engine 0 of 2: its process hung and was killed"):
        call.result(timeout=300)
    until(lambda: first.actor is not None)
    assert ray.get(first.actor.whereabouts.remote()).pid != pid
    assert len(loop.run(view.generate([request()]))) == 1


def test_what_the_engine_raises_arrives_as_it_is(generator: RayGenerator, loop: Loop) -> None:
    with pytest.raises(GenerationError, match="generation=transformers") as caught:
        loop.run(generator.score([5] * 100_000))
    assert caught.value.__cause__ is None


def test_what_a_rank_raises_arrives_once_and_as_it_is(learner: RayLearner) -> None:
    samples = ragged_samples()
    broken = [replace(samples[0], advantage=float("nan")), *samples[1:]]
    with pytest.raises(TrainingError, match="not finite") as caught:
        learner.update([broken], 2)
    assert caught.value.where == "step 2"
    assert "ray::" not in str(caught.value)


def test_a_run_directory_that_machines_do_not_share_is_an_error(
    learner: RayLearner, tmp_path: Path
) -> None:
    actor = RankActor(config(*SPREAD, "cluster.address=auto"), 0, tmp_path / "none", "")
    with pytest.raises(StorageError, match="does not see the run directory"):
        actor.load("tcp://127.0.0.1:1")
