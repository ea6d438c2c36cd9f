# SPDX-License-Identifier: Apache-2.0
"""Requests as vLLM takes them, and completions from what it gives."""

from __future__ import annotations

import math

from vllm import SamplingParams
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput

from rlrun.errors import GenerationError
from rlrun.types import Completion, GenerationRequest, StopReason, VersionSpan

WHERE = "generation=vllm"


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


def completion_of(output: CompletionOutput, engine: str) -> Completion:
    """What vLLM answered, in the words of rlrun.

    Raises:
        GenerationError: vLLM gave up on the request, or its numbers are not finite.
    """
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
