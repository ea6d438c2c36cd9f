# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine in a process of its own: requests in, completions out, pauses for a refit."""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.logprobs import FlatLogprobs
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import RequestOutputCollector

from rlrun.errors import ConfigError, GenerationError, GenerationTimeout
from rlrun.generation.abandoned import Abandoned
from rlrun.generation.vllm_folder import EngineFolder
from rlrun.generation.vllm_log import EngineLog, environment
from rlrun.generation.vllm_requests import (
    WHERE,
    Sampled,
    completion_of,
    sampled_of,
    sampling_params,
)
from rlrun.types import Completion, GenerationRequest

log = logging.getLogger(__name__)

SHUTDOWN_S = 10.0
CONTROL_TIMEOUT_S = 600.0
"""Seconds after which an engine that does not answer to a pause, a refit or a score is given up."""

LIVENESS_POLL_S = 0.5

T = TypeVar("T")

_numbers = itertools.count()


class EngineLost(GenerationError):
    """An engine's process is gone.

    Attributes:
        sampled: What the request that needed it had until then.
    """

    sampled = Sampled()


class Engine:
    """A live engine, or one that can be started.

    Attributes:
        name: For messages.
        outstanding: Requests that wait for it or run on it.
        loaded: It has the weights that requests are to be answered with.
        eos_ids: Tokens that end a completion.
    """

    def __init__(
        self,
        name: str,
        args: Mapping[str, Any],
        variables: Mapping[str, str],
        engine_log: EngineLog,
        eos_ids: Sequence[int],
    ) -> None:
        """Keeps what an engine is started with.

        Args:
            name: For messages.
            args: Of ``AsyncEngineArgs``.
            variables: Environment of its processes.
            engine_log: Where they log.
            eos_ids: Tokens that end a completion.
        """
        self.name, self.outstanding, self.loaded = name, 0, False
        self._args, self._variables, self._log = dict(args), dict(variables), engine_log
        self.eos_ids = list(eos_ids)
        self._llm: AsyncLLM | None = None
        self._folder: EngineFolder | None = None

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return self._llm is not None and not self._llm.errored

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.alive and self.loaded

    @property
    def llm(self) -> AsyncLLM:
        """The engine of vLLM.

        Raises:
            EngineLost: There is none.
        """
        if self._llm is None or self._llm.errored:
            raise self.lost()
        return self._llm

    def lost(self, sampled: Sampled | None = None) -> EngineLost:
        """The error of whatever needed this engine; ``sampled`` is what it had until then."""
        error = EngineLost(
            WHERE,
            f"{self.name} is gone (its process ended)",
            f"What it printed is in {self._log.path}",
        )
        if sampled is not None:
            error.sampled, error.tokens = sampled, len(sampled.token_ids)
        return error

    async def start(self) -> None:
        """Starts its process, in place of one that is gone.

        Raises:
            GenerationError: It does not start; the text is vLLM's own root cause.
            ConfigError: The folder that a user wants its sockets in will not do.
        """
        await self.stop()
        logged = self._log.size()
        try:
            self._llm = await asyncio.to_thread(self._start)
        except ConfigError:
            raise
        # Whatever is wrong with model, arguments or machine comes up as any kind of error.
        except Exception as error:
            cause = await asyncio.to_thread(self._log.root_cause, logged)
            raise GenerationError(
                WHERE,
                f"{self.name} does not start: {cause or _one_line(error)}",
                f"The whole story is in {self._log.path}; arguments of the engine are set by "
                "generation.vllm_kwargs",
            ) from error
        found = await self.control(self.llm.collective_rpc("rlrun_kept_elsewhere"))
        assert self._folder is not None, "it was made before anything was started"
        self._folder.note(itertools.chain(*found))

    def _start(self) -> AsyncLLM:
        # Ctrl-C reaches every process of the terminal's group; the run ends after its step, for
        # which it needs the engine. Processes inherit what the thread that starts them blocks, and
        # starting multiprocessing's own helper would unblock it.
        resource_tracker.ensure_running()
        self._folder = EngineFolder()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with environment(self._variables | self._folder.variables):
                return AsyncLLM.from_engine_args(AsyncEngineArgs(**self._args))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    async def stop(self) -> None:
        """Ends its process, if there is one. May be called twice."""
        llm, self._llm, self.loaded = self._llm, None, False
        folder, self._folder = self._folder, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown, SHUTDOWN_S)
        if folder is not None:
            await asyncio.to_thread(folder.remove)

    async def generate(
        self, request: GenerationRequest, salt: str, timeout_s: float | None
    ) -> Completion:
        """Answers a request; cancelling it takes the request out of the engine.

        Args:
            request: Fits the engine's context.
            salt: Prefixes are shared among requests of equal salt only.
            timeout_s: Wall time that it may take, waiting included; None = no limit.

        Raises:
            EngineLost: The engine's process is gone; says what was sampled until then.
            GenerationTimeout: It took too long.
            GenerationError: vLLM failed.
            Abandoned: It was cancelled; says how many tokens had been sampled.
        """
        try:
            params = sampling_params(request, self.eos_ids)
        except ValueError as error:
            raise GenerationError(WHERE, f"vLLM refuses a request: {_one_line(error)}") from error
        output = await self._run(request.token_ids, params, salt, timeout_s)
        return completion_of(output.outputs[0], self.name)

    async def score(self, token_ids: Sequence[int], salt: str) -> list[float]:
        """Log-probs of every token but the first at temperature 1.

        The last one comes from a request that shares prefixes with those before it, as generation
        does: a prefix that was computed from other weights shows in it.

        Raises:
            GenerationError: As ``generate``.
        """
        context, last = tuple(token_ids[:-1]), token_ids[-1]
        plain = {"temperature": 1.0, "max_tokens": 1, "detokenize": False, "ignore_eos": True}
        whole = SamplingParams(**plain, prompt_logprobs=0)
        final = SamplingParams(**plain, logprob_token_ids=[last])
        first, second = await asyncio.gather(
            self._run(context, whole, salt, CONTROL_TIMEOUT_S),
            self._run(context, final, salt, CONTROL_TIMEOUT_S),
        )
        assert first.prompt_logprobs is not None, "they were asked for"
        assert second.outputs[0].logprobs is not None, "they were asked for"
        scores = [
            position[token].logprob
            for position, token in zip(first.prompt_logprobs[1:], context[1:], strict=True)
            if position is not None
        ]
        return [*scores, second.outputs[0].logprobs[0][last].logprob]

    async def _run(
        self, token_ids: Sequence[int], params: SamplingParams, salt: str, timeout_s: float | None
    ) -> RequestOutput:
        params.output_kind = RequestOutputKind.FINAL_ONLY
        prompt = TokensPrompt(prompt_token_ids=list(token_ids), cache_salt=salt)
        llm, number = self.llm, str(next(_numbers))
        answer: RequestOutputCollector | None = None
        try:
            async with asyncio.timeout(timeout_s):
                answer = await llm.add_request(number, prompt, params)
                return await answer.get()
        except asyncio.CancelledError:
            sampled = await self._take_out(llm, number, answer)
            raise Abandoned(len(sampled.token_ids)) from None
        except TimeoutError as error:
            sampled = await self._take_out(llm, number, answer)
            late = GenerationTimeout(
                WHERE,
                f"a request of {len(token_ids)} tokens took more than {timeout_s:g} s on "
                f"{self.name}; {len(sampled.token_ids)} had been sampled",
                "Raise generation.request_timeout_s if answers are that long",
            )
            late.tokens = len(sampled.token_ids)
            raise late from error
        # Whatever ended vLLM's front end comes to every request that was running.
        except Exception as error:
            sampled = await self._take_out(llm, number, answer)
            if llm.errored:
                raise self.lost(sampled) from error
            failed = GenerationError(WHERE, f"{self.name} failed: {_one_line(error)}")
            failed.tokens = len(sampled.token_ids)
            raise failed from error

    async def _take_out(
        self, llm: AsyncLLM, number: str, answer: RequestOutputCollector | None
    ) -> Sampled:
        """Takes a request out of an engine, which may be gone; what it had sampled until then.

        vLLM's front end in this process has every token as soon as it is there, and gives what it
        has when the request is aborted.
        """
        if answer is None:
            with suppress(EngineDeadError):
                await llm.abort(number)
            return Sampled()
        output: RequestOutput | None = None
        # It may have ended, or the engine may, since this was decided.
        with suppress(EngineDeadError, RuntimeError):
            output = answer.get_nowait()
        if output is None:
            with suppress(EngineDeadError):
                await llm.abort(answer.request_id, internal=True)
            output = answer.get_nowait()
        if output is None or not isinstance(output.outputs[0].logprobs, FlatLogprobs):
            return Sampled()
        return sampled_of(output.outputs[0], self.name)

    async def pause(self, *, recompute: bool) -> None:
        """Stops sampling; new requests queue.

        Args:
            recompute: Forget the cache of what is running, to be computed again when it goes on.
        """
        await self.llm.pause_generation(mode="keep", clear_cache=recompute)

    async def resume(self) -> None:
        """Goes on sampling."""
        await self.llm.resume_generation()

    async def control(self, call: Awaitable[T], timeout_s: float = CONTROL_TIMEOUT_S) -> T:
        """Awaits a call to this engine, which never returns if its process ends meanwhile.

        Raises:
            EngineLost: The process is gone.
            GenerationError: There was no answer in ``timeout_s``.
        """
        task = asyncio.ensure_future(call)
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            while not (await asyncio.wait([task], timeout=LIVENESS_POLL_S))[0]:
                if not self.alive:
                    raise self.lost()
                if asyncio.get_running_loop().time() > deadline:
                    raise GenerationError(
                        WHERE, f"{self.name} has not answered for {timeout_s:g} s"
                    )
            return task.result()
        finally:
            task.cancel()


def _one_line(error: BaseException) -> str:
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return f"{type(error).__name__}: {' '.join(line.strip() for line in lines[:3])}"
