# SPDX-License-Identifier: Apache-2.0
"""Ragged batches of tokens for the loss tests, and their flat form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from rlrun.interfaces import LossInputs, LossOutput
from rlrun.loss.cispo import CISPOLoss
from rlrun.loss.core import KLType, Level, PolicyLoss
from rlrun.loss.dr_grpo import DrGRPOLoss
from rlrun.loss.grpo import ClippedLoss
from rlrun.loss.gspo import GSPOLoss
from rlrun.loss.reinforce import ReinforceLoss
from tests.reference_float64 import Batch, Options, Token


def make(options: Options) -> PolicyLoss:
    """The settings object for a reference's options."""
    shared: dict[str, Any] = {
        "reference_policy_kl_penalty": options.kl_penalty,
        "reference_policy_kl_type": KLType(options.kl_type),
        "kl_input_clamp": options.kl_input_clamp,
        "kl_output_clamp": options.kl_output_clamp,
        "use_on_policy_kl_approximation": options.on_policy_kl,
    }
    level: dict[str, Any] = {"level": Level(options.level)}
    clip: dict[str, Any] = {"ratio_clip_min": options.clip_min, "ratio_clip_max": options.clip_max}
    dual: dict[str, Any] = {"ratio_clip_c": options.clip_c}
    match options.kind:
        case "grpo":
            return ClippedLoss(**shared, **level, **clip, **dual)
        case "gspo":
            return GSPOLoss(**shared, **level, **clip)
        case "cispo":
            return CISPOLoss(**shared, **level, **clip)
        case "reinforce":
            return ReinforceLoss(**shared, **level)
        case "dr_grpo":
            return DrGRPOLoss(**shared, **clip, **dual, normalizer_tokens=options.normalizer)
    raise AssertionError(options.kind)


def random_batch(
    seed: int, lengths: Sequence[int], spread: float = 0.4, on_policy: bool = False
) -> Batch:
    """Tokens whose values are exact in float32; one advantage per trajectory, of any sign."""
    rng = np.random.default_rng(seed)

    def single(x: float) -> float:
        return float(np.float32(x))

    batch = []
    for length in lengths:
        advantage = single(rng.choice([-1.5, -0.3, 0.0, 0.4, 2.0]))
        tokens = []
        for _ in range(length):
            prev = -float(rng.exponential(2.0))
            logprob = prev + (0.0 if on_policy else float(rng.normal(0, spread)))
            tokens.append(
                Token(
                    logprob=single(logprob),
                    prev=single(prev),
                    generation=single(prev + (0.0 if on_policy else rng.normal(0, 0.2))),
                    ref=single(prev + rng.normal(0, 1.0)),
                    advantage=advantage,
                    weight=1.0 if on_policy else single(rng.uniform(0, 2)),
                )
            )
        batch.append(tokens)
    return batch


def flat(
    batch: Batch, dtype: torch.dtype = torch.float32, whole: Batch | None = None
) -> LossInputs:
    """A microbatch of ``whole`` (by default all of it)."""
    whole = batch if whole is None else whole
    tokens = [token for trajectory in batch for token in trajectory]

    def column(name: str) -> torch.Tensor:
        return torch.tensor([getattr(token, name) for token in tokens], dtype=dtype)

    return LossInputs(
        logprobs=column("logprob").requires_grad_(),
        prev_logprobs=column("prev"),
        generation_logprobs=column("generation"),
        ref_logprobs=column("ref"),
        advantages=column("advantage"),
        weights=column("weight"),
        trajectory=torch.tensor(
            [index for index, tokens in enumerate(batch) for _ in tokens], dtype=torch.int64
        ),
        num_trajectories=len(batch),
        total_tokens=sum(map(len, whole)),
        total_trajectories=sum(1 for trajectory in whole if trajectory),
    )


def run(options: Options, inputs: LossInputs) -> tuple[LossOutput, torch.Tensor]:
    """The output and the gradient of the log-probs."""
    output = make(options)(inputs)
    (gradient,) = torch.autograd.grad(output.loss, inputs.logprobs)
    return replace(output, loss=output.loss.detach()), gradient


def by_trajectory(batch: Batch, values: torch.Tensor) -> Iterator[tuple[list[Token], torch.Tensor]]:
    """The trajectories of a batch, each with its part of ``values`` [N]."""
    start = 0
    for tokens in batch:
        yield tokens, values[start : start + len(tokens)]
        start += len(tokens)


def with_tokens(batch: Batch, **changes: float) -> Batch:
    """The batch with fields of every token replaced."""
    return [[replace(token, **changes) for token in tokens] for tokens in batch]
