# SPDX-License-Identifier: Apache-2.0
"""One vLLM engine in a process of its own: requests in, completions out, pauses for a refit."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import signal
from collections.abc import Mapping, Sequence
from multiprocessing import resource_tracker
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from rlrun.errors import GenerationError
from rlrun.generation.vllm_log import EngineLog, environment
from rlrun.types import Completion, GenerationRequest, StopReason, VersionSpan

log = logging.getLogger(__name__)

WHERE = "generation=vllm"
SHUTDOWN_S = 10.0
CONTROL_TIMEOUT_S = 600.0
"""Seconds after which an engine that does not answer to a pause, a refit or a score is given up."""

_numbers = itertools.count()


class EngineLost(GenerationError):
    """An engine's process is gone; what was running on it is lost."""


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

    def lost(self) -> EngineLost:
        """The error of whatever needed this engine."""
        return EngineLost(
            WHERE,
            f"{self.name} is gone (its process ended)",
            f"What it printed is in {self._log.path}",
        )

    async def start(self) -> None:
        """Starts its process, in place of one that is gone.

        Raises:
            GenerationError: It does not start; the text is vLLM's own root cause.
        """
        await self.stop()
        logged = self._log.size()
        try:
            self._llm = await asyncio.to_thread(self._start)
        # Whatever is wrong with model, arguments or machine comes up as any kind of error.
        except Exception as error:  # noqa: BLE001
            cause = await asyncio.to_thread(self._log.root_cause, logged)
            raise GenerationError(
                WHERE,
                f"{self.name} does not start: {cause or _one_line(error)}",
                f"The whole story is in {self._log.path}; arguments of the engine are set by "
                "generation.vllm_kwargs",
            ) from error

    def _start(self) -> AsyncLLM:
        # Ctrl-C reaches every process of the terminal's group; the run ends after its step, for
        # which it needs the engine. Processes inherit what the thread that starts them blocks, and
        # starting multiprocessing's own helper would unblock it.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            with environment(self._variables):
                return AsyncLLM.from_engine_args(AsyncEngineArgs(**self._args))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    async def stop(self) -> None:
        """Ends its process, if there is one. May be called twice."""
        llm, self._llm, self.loaded = self._llm, None, False
        if llm is not None:
            await asyncio.to_thread(llm.shutdown, SHUTDOWN_S)

    async def generate(
        self, request: GenerationRequest, salt: str, timeout_s: float | None
    ) -> Completion:
        """Answers a request; cancelling it takes the request out of the engine.

        Args:
            request: Fits the engine's context.
            salt: Prefixes are shared among requests of equal salt only.
            timeout_s: Wall time that it may take, waiting included; None = no limit.

        Raises:
            EngineLost: The engine's process is gone.
            GenerationError: It took too long, or vLLM failed.
        """
        try:
            params = _sampling_params(request, self.eos_ids)
        except ValueError as error:
            raise GenerationError(WHERE, f"vLLM refuses a request: {_one_line(error)}") from error
        output = await self._run(request.token_ids, params, salt, timeout_s)
        return _completion(output.outputs[0], self.name)

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
        final: RequestOutput | None = None
        try:
            async with asyncio.timeout(timeout_s):
                async for output in self.llm.generate(prompt, params, str(next(_numbers))):
                    final = output
        except TimeoutError as error:
            raise GenerationError(
                WHERE,
                f"a request of {len(token_ids)} tokens took more than {timeout_s:g} s on "
                f"{self.name}",
                "Raise generation.request_timeout_s if answers are that long",
            ) from error
        except EngineDeadError as error:
            raise self.lost() from error
        except (EngineGenerateError, ValueError, RuntimeError) as error:
            if not self.alive:
                raise self.lost() from error
            raise GenerationError(
                WHERE, f"{self.name} failed: {_one_line(error.__cause__ or error)}"
            ) from error
        if final is None:
            raise self.lost()
        return final

    async def pause(self, *, wait: bool, recompute: bool) -> None:
        """Stops sampling; new requests queue.

        Args:
            wait: Let what is running come to its end first.
            recompute: Forget the cache of what is running, to be computed again when it goes on.
        """
        mode = "wait" if wait else "keep"
        await self.llm.pause_generation(mode=mode, clear_cache=wait or recompute)

    async def resume(self) -> None:
        """Goes on sampling."""
        await self.llm.resume_generation()


def _sampling_params(request: GenerationRequest, eos_ids: list[int]) -> SamplingParams:
    sampling = request.sampling
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k or 0,
        seed=request.seed,
        max_tokens=request.max_new_tokens,
        # The sampled token's alone, in lists instead of an object for each.
        logprobs=0,
        flat_logprobs=True,
        # Exactly the renderer's tokens end a completion, not what vLLM finds in the model's files.
        ignore_eos=True,
        stop_token_ids=eos_ids,
        stop=list(sampling.stop) or None,
        include_stop_str_in_output=True,
        # Stop strings may be special tokens; nobody else reads the text.
        detokenize=bool(sampling.stop),
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
    )


def _completion(output: CompletionOutput, engine: str) -> Completion:
    """Raises: GenerationError if vLLM gave up on the request or its numbers are not finite."""
    reasons = {"stop": StopReason.STOP, "length": StopReason.LENGTH}
    if output.finish_reason not in reasons:
        raise GenerationError(WHERE, f"{engine} ended a request with {output.finish_reason!r}")
    token_ids = tuple(output.token_ids)
    assert isinstance(output.logprobs, FlatLogprobs), "flat log-probs were asked for"
    logprobs = tuple(output.logprobs.logprobs[: len(token_ids)])
    if tuple(output.logprobs.token_ids[: len(token_ids)]) != token_ids:
        raise GenerationError(WHERE, f"{engine} gave log-probs of other tokens than it sampled")
    if not all(map(math.isfinite, logprobs)):
        raise GenerationError(
            WHERE,
            f"the model's output on {engine} is not finite",
            "The weights have diverged: lower policy.optimizer.lr, or resume from an earlier "
            "checkpoint",
        )
    spans = tuple(
        VersionSpan(int(span.version), span.start, min(span.end, len(token_ids)))
        for span in output.weight_versions or ()
        if span.start < len(token_ids)
    )
    return Completion(token_ids, logprobs, reasons[output.finish_reason], spans)


def _one_line(error: BaseException) -> str:
    lines = (str(error).strip() or type(error).__name__).splitlines()
    return f"{type(error).__name__}: {' '.join(line.strip() for line in lines[:3])}"
