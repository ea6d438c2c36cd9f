# SPDX-License-Identifier: Apache-2.0
"""The engines behind the generation slot: routing, refits while requests run, lost engines.

What waits for what: a request goes to the engine with the fewest; if none is alive it waits for the
one that is being started again. Refits and starts wait for each other. A refit pauses each engine,
replaces its weights and lets it go on; it is not left half done if its caller is cancelled.

What an engine had sampled when it was lost is here, token by token, and its requests go on from
there on whichever engine takes them. An engine that is started again proves that it has the
weights, as all do after a refit, before it takes any.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rlrun.errors import GenerationError, TrainingError
from rlrun.generation.abandoned import Abandoned
from rlrun.generation.engine_view import EngineView
from rlrun.generation.restart import start_again
from rlrun.generation.together import run_together
from rlrun.generation.vllm_engine import CONTROL_TIMEOUT_S, Engine, EngineLost
from rlrun.generation.vllm_requests import WHERE, Sampled, rest_of
from rlrun.interfaces import Generator
from rlrun.refit.probe import Proof
from rlrun.refit.transfer import Transfer
from rlrun.types import Completion, GenerationRequest

log = logging.getLogger(__name__)

MAX_ENGINES = 3
"""That a request is tried on: one that ends each of them may be what ends them."""


class VLLMGenerator(Generator):
    """vLLM engines, one or more, with the weights of the last refit.

    Args:
        engines: Started by ``open``.
        transfer: Brings weights to them.
        context: Tokens that prompt and completion may have together.
        request_timeout_s: Wall time of one request; None = no limit.
        recompute_kv_cache: After a refit, running requests compute their cache again.
        restart_at_once: A lost engine may read the learner's weights at any time; otherwise it is
            started again by the next refit.
        proof: What an engine that is started again is compared with.
        on_close: Called when all has ended well.
    """

    lockstep = False

    def __init__(
        self,
        engines: Sequence[Engine],
        transfer: Transfer,
        *,
        context: int,
        request_timeout_s: float | None,
        recompute_kv_cache: bool,
        restart_at_once: bool,
        proof: Proof,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.engines, self.transfer = tuple(engines), transfer
        self._context, self._timeout_s = context, request_timeout_s
        self._recompute = recompute_kv_cache
        self._restart_at_once, self._on_close = restart_at_once, on_close
        self._proof = proof
        self._disproved: TrainingError | None = None
        self._version = 0
        # Prefixes are shared among requests of one refit: what older weights computed is not found,
        # even while requests that keep it from being dropped are still running.
        self._refits = 0
        self._weights_lock = asyncio.Lock()
        self._starting: dict[Engine, asyncio.Task[None]] = {}
        self._asleep = self._opened = self._closed = False

    async def open(self) -> None:
        """Starts all engines.

        Raises:
            GenerationError: One does not start; none is left running.
        """
        try:
            # One after the other: together they would be timed out on a small machine.
            for engine in self.engines:
                await self._start(engine)
        except BaseException:
            await self.close()
            raise
        self._opened = True

    @property
    def salt(self) -> str:
        """What separates prefixes of one refit from those of others."""
        return f"refit {self._refits}"

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """See ``Generator.generate``. Cancelling it takes the requests out of the engines.

        Raises:
            GenerationError: A request does not fit, took too long or was lost with its engine.
            TrainingError: An engine that was started again has other weights.
            Abandoned: It was cancelled; says how many tokens had been sampled.
        """
        return await self._generate(None, requests)

    def engine_views(self) -> tuple[Generator, ...]:
        """See ``Generator.engine_views``."""
        if len(self.engines) == 1:
            return (self,)
        return tuple(EngineView(self, partial(self._generate, engine)) for engine in self.engines)

    async def _generate(
        self, preferred: Engine | None, requests: Sequence[GenerationRequest]
    ) -> list[Completion]:
        for request in requests:
            self._check(request)
        if self._asleep:
            await self._wake()
        return await run_together(
            [self._answer(request, preferred) for request in requests],
            lambda completion: len(completion.token_ids),
        )

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """See ``Generator.score``; of the first engine that is alive."""
        self._check_scored(token_ids)
        engine = await self._choose()
        return await engine.control(engine.score(token_ids, self.salt))

    async def engine_scores(self, token_ids: Sequence[int]) -> Mapping[str, list[float]]:
        """See ``Generator.engine_scores``."""
        self._check_scored(token_ids)
        scores = await asyncio.gather(*(self._score(e, token_ids) for e in self.engines))
        self._proof.note(token_ids, scores[0])
        return {e.name: one for e, one in zip(self.engines, scores, strict=True)}

    async def refit(self, version: int) -> None:
        """See ``Generator.refit``; a caller that is cancelled waits for its end all the same."""
        await _to_the_end(self._refit(version))

    async def release_memory(self) -> None:
        """See ``Generator.release_memory``: engines on the learner's GPU sleep."""
        if self.transfer.colocated and not self._asleep:
            async with self._weights_lock:
                for engine in self.engines:
                    # One that is gone takes no memory; the refit starts it again.
                    with suppress(EngineLost):
                        await engine.control(engine.llm.sleep(level=1, mode="keep"))
                self._asleep = True

    async def close(self) -> None:
        """Ends all engines and their processes. May be called twice."""
        self._closed = True
        starting = list(self._starting.values())
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        await asyncio.gather(*(engine.stop() for engine in self.engines))
        self.transfer.close()
        if self._opened:
            self._on_close()

    # --- requests ---------------------------------------------------------------------------------

    def _check(self, request: GenerationRequest) -> None:
        length = len(request.token_ids)
        if length == 0:
            raise GenerationError(WHERE, "a prompt without tokens", "Check the chat template")
        if length + request.max_new_tokens > self._context:
            raise GenerationError(
                WHERE,
                f"a prompt of {length} tokens and max_new_tokens={request.max_new_tokens} exceed "
                f"the engine's context of {self._context}",
                "Raise policy.max_total_sequence_length, or shorten prompts",
            )

    def _check_scored(self, token_ids: Sequence[int]) -> None:
        if not 2 <= len(token_ids) <= self._context:
            raise GenerationError(
                WHERE,
                f"a sequence of {len(token_ids)} tokens cannot be scored",
                f"Give 2 to {self._context}, the engine's context",
            )

    async def _answer(self, request: GenerationRequest, preferred: Engine | None) -> Completion:
        """A completion, by several engines one after the other if they are lost over it."""
        had = Sampled()
        for attempt in range(1, MAX_ENGINES + 1):
            try:
                engine = await self._choose(preferred)
                return had.begins(await self._ask(engine, rest_of(request, had)))
            except EngineLost as error:
                had = had.before(error.sampled)
                error.tokens = len(had.token_ids)
                # A stop string may have begun in what is there, where vLLM would not look for it.
                ends = request.sampling.stop and had.token_ids
                if ends or attempt == MAX_ENGINES:
                    raise
                log.info("a request goes on with the %d tokens that it had", error.tokens)
            except (Abandoned, GenerationError) as error:
                error.tokens += len(had.token_ids)
                raise
        raise AssertionError("the loss of the last engine is raised")

    async def _ask(self, engine: Engine, request: GenerationRequest) -> Completion:
        engine.outstanding += 1
        try:
            with self.at_work(engine.name):
                return await engine.generate(request, self.salt, self._timeout_s)
        except EngineLost:
            if self._restart_at_once and not self._closed:
                self._start_again(engine)
            raise
        finally:
            engine.outstanding -= 1

    async def _choose(self, preferred: Engine | None = None) -> Engine:
        """The preferred engine, else that with the fewest; waits for a start if none is alive."""
        if self._disproved is not None:
            raise self._disproved
        if preferred is not None and preferred.ready:
            return preferred
        if preferred is not None and not self._closed and self._restart_at_once:
            self._start_again(preferred)
        while not (usable := [engine for engine in self.engines if engine.ready]):
            if self._closed:
                raise GenerationError(WHERE, "the generator is closed")
            if not self._restart_at_once:
                raise self.engines[0].lost()
            tasks = [self._start_again(engine) for engine in self.engines]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ended = [task.exception() for task in tasks if task.done() and not task.cancelled()]
            errors = [error for error in ended if error is not None]
            if errors and len(errors) == len(ended):
                raise _own(errors[0])
        return min(usable, key=lambda engine: engine.outstanding)

    async def _score(self, engine: Engine, token_ids: Sequence[int]) -> list[float]:
        """Scores by a certain engine, which may have to be started for it, and again if it dies."""
        if not engine.ready and self._restart_at_once:
            await self._start_again(engine)
        try:
            return await engine.control(engine.score(token_ids, self.salt))
        except EngineLost:
            if not self._restart_at_once:
                raise
        await self._start_again(engine)
        return await engine.control(engine.score(token_ids, self.salt))

    # --- weights ----------------------------------------------------------------------------------

    async def _refit(self, version: int) -> None:
        if self._disproved is not None:
            raise self._disproved
        async with self._weights_lock:
            self._proof.forget()
            self.transfer.publish()
            self._refits += 1
            self._version = version
            await asyncio.gather(*(self._bring(engine) for engine in self.engines))
            self._asleep = False

    async def _bring(self, engine: Engine) -> None:
        """Brings the published weights to an engine that may have requests, or be gone."""
        try:
            if engine.alive:
                await self._replace_weights(engine)
                return
        except EngineLost as error:
            log.warning("%s; it is started again", error.what)
        await start_again(partial(self._start, engine))

    async def _replace_weights(self, engine: Engine) -> None:
        if self._asleep:
            await engine.control(engine.llm.wake_up())
        await engine.control(engine.pause(recompute=self._recompute), CONTROL_TIMEOUT_S)
        try:
            await self._load(engine)
        finally:
            # Also after an error, which ends the run: what waits would never end otherwise.
            if engine.alive:
                await engine.control(engine.resume())

    async def _load(self, engine: Engine) -> None:
        try:
            await engine.control(self.transfer.load(engine, self._version))
        except GenerationError:
            raise
        # Errors of the engine's process arrive as bare exceptions with its text.
        except Exception as error:
            text = str(error).strip() or type(error).__name__
            raise GenerationError(
                "refit", f"{engine.name} did not take the weights: {text.splitlines()[0]}"
            ) from error

    async def _wake(self) -> None:
        async with self._weights_lock:
            if self._asleep:
                for engine in self.engines:
                    # One that is gone is started again by whoever needs it.
                    with suppress(EngineLost):
                        await engine.control(engine.llm.wake_up())
                self._asleep = False

    # --- lost engines -----------------------------------------------------------------------------

    def _start_again(self, engine: Engine) -> asyncio.Task[None]:
        """The task that starts an engine anew, with the weights of the last refit."""
        task = self._starting.get(engine)
        if task is None:
            log.warning("%s is gone; it is started again", engine.name)
            task = asyncio.create_task(self._start_if_gone(engine))
            self._starting[engine] = task
            task.add_done_callback(lambda done: self._started(engine, done))
        return task

    def _started(self, engine: Engine, task: asyncio.Task[None]) -> None:
        del self._starting[engine]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("%s", error)

    async def _start_if_gone(self, engine: Engine) -> None:
        async with self._weights_lock:
            # A refit that held the lock may have started it.
            if not engine.alive:
                await start_again(partial(self._start, engine))

    async def _start(self, engine: Engine) -> None:
        """Starts an engine and gives it the published weights before it is sent any request.

        Raises:
            TrainingError: It has others all the same; the run cannot go on.
        """
        await engine.start()
        await engine.control(self.transfer.connect(engine))
        if self._refits:
            await self._load(engine)
            await self._prove(engine)
        else:
            await engine.control(engine.llm.update_weight_version(str(self._version)))
        engine.loaded = True

    async def _prove(self, engine: Engine) -> None:
        async def score(token_ids: Sequence[int]) -> list[float]:
            return await engine.control(engine.score(token_ids, self.salt))

        try:
            await self._proof.check(engine.name, score)
        except TrainingError as error:
            self._disproved = error
            await engine.stop()
            raise


def _own(error: BaseException) -> BaseException:
    """An error for one of those who wait for the same start: each counts its own tokens."""
    if isinstance(error, GenerationError):
        return GenerationError(error.where, error.what, error.remedy)
    return error


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits work that must not be left half done; cancellation takes effect behind it."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise
