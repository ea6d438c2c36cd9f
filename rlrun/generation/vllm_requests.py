# SPDX-License-Identifier: Apache-2.0
"""Translates requests into those of vLLM, and its answers into completions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from vllm import SamplingParams
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput

from rlrun.errors import GenerationError
from rlrun.types import Completion, GenerationRequest, StopReason, VersionSpan

WHERE = "generation=vllm"

SEED_STEP = 0x9E3779B97F4A7C15
"""Odd, and far from the differences of seeds that a run gives: what goes on elsewhere gets a seed
that no other request has."""


def sampling_params(request: GenerationRequest, eos_ids: list[int]) -> SamplingParams:
    """A request in the words of vLLM.

    Raises:
        ValueError: vLLM refuses it.
    """
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


@dataclass(frozen=True, slots=True)
class Sampled:
    """The beginning of a completion: what was sampled before something came between.

    Attributes:
        token_ids: The tokens.
        logprobs: Theirs.
        weight_versions: Theirs, as in ``Completion``.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    weight_versions: tuple[VersionSpan, ...] = ()

    def before(self, rest: Sampled) -> Sampled:
        """This, with what was sampled after it."""
        return Sampled(
            self.token_ids + rest.token_ids,
            self.logprobs + rest.logprobs,
            _joined(self.weight_versions, rest.weight_versions, len(self.token_ids)),
        )

    def begins(self, rest: Completion) -> Completion:
        """The whole completion of which ``rest`` is what was sampled after this."""
        if not self.token_ids:
            return rest
        spans = _joined(self.weight_versions, rest.weight_versions, len(self.token_ids))
        token_ids, logprobs = self.token_ids + rest.token_ids, self.logprobs + rest.logprobs
        return Completion(token_ids, logprobs, rest.stop_reason, spans)


def _joined(
    first: tuple[VersionSpan, ...], rest: tuple[VersionSpan, ...], start: int
) -> tuple[VersionSpan, ...]:
    """Spans of two parts, of which the second begins at ``start``."""
    moved = [replace(span, start=span.start + start, end=span.end + start) for span in rest]
    if first and moved and first[-1].version == moved[0].version:
        moved[0] = replace(moved[0], start=first[-1].start)
        first = first[:-1]
    return (*first, *moved)


def rest_of(request: GenerationRequest, sampled: Sampled) -> GenerationRequest:
    """What is left of a request; its draws are not those that made the beginning."""
    count = len(sampled.token_ids)
    if not count:
        return request
    return replace(
        request,
        token_ids=request.token_ids + sampled.token_ids,
        max_new_tokens=request.max_new_tokens - count,
        seed=(request.seed + count * SEED_STEP) % 2**63,
    )


def completion_of(output: CompletionOutput, engine: str) -> Completion:
    """What vLLM answered, in the words of rlrun.

    Raises:
        GenerationError: vLLM gave up on the request, or its numbers are not finite.
    """
    reasons = {"stop": StopReason.STOP, "length": StopReason.LENGTH}
    if output.finish_reason not in reasons:
        raise GenerationError(WHERE, f"{engine} ended a request with {output.finish_reason!r}")
    found = sampled_of(output, engine)
    reason = reasons[output.finish_reason]
    return Completion(found.token_ids, found.logprobs, reason, found.weight_versions)


def sampled_of(output: CompletionOutput, engine: str) -> Sampled:
    """The tokens of an answer, or of as much of it as there is.

    Raises:
        GenerationError: Its numbers are not finite.
    """
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
    return Sampled(token_ids, logprobs, spans)
