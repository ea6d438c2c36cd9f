# SPDX-License-Identifier: Apache-2.0
"""Memory of a learner rank and of an engine, by part. The formulas are in docs/planning.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.planning.kept import Kept
from rlrun.planning.shape import Shape

FLOAT, HALF = 4, 2
"""Bytes of a float32 and of a bfloat16."""
LOGIT_COPIES = 5
"""Float32 arrays of the size of a chunk's logits that live at once: the logits, after temperature,
their log-softmax, a gradient."""
FRAGMENTS = 0.1
"""Share of everything that an allocator holds and cannot use."""
ENGINE_OVERHEAD = 4 * 2**30
"""Bytes that an engine needs on a GPU beside weights and caches: CUDA context, graphs, activations
of a prefill."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes that one thing takes."""

    name: str
    bytes: float


@dataclass(frozen=True, slots=True)
class Learner:
    """How the policy is trained, as far as memory depends on it.

    Attributes:
        ranks: Ranks that parameters, gradients and optimizer are spread over.
        offloaded: These are in the machine's memory, not the GPU's.
        half: Matrix products are computed in bfloat16.
        checkpointing: Activations are computed again in the backward pass.
        reference: There is a second copy of the weights for a KL penalty.
        microbatch_tokens: Tokens of a microbatch, padding included.
        chunk_tokens: Positions whose logits exist at once.
    """

    ranks: int
    offloaded: bool
    half: bool
    checkpointing: bool
    reference: bool
    microbatch_tokens: int
    chunk_tokens: int


def state_parts(shape: Shape, learner: Learner) -> list[Part]:
    """What a rank holds all the time, wherever it is."""
    held = shape.parameters + shape.adapters
    copies = 2 if learner.reference else 1
    return [
        Part("weights", FLOAT * held * copies / learner.ranks),
        Part("gradients", FLOAT * shape.trained / learner.ranks),
        Part("optimizer", 2 * FLOAT * shape.trained / learner.ranks),
    ]


def learner_parts(shape: Shape, learner: Learner, kept: Kept) -> list[Part]:
    """What a rank needs at the worst moment of a step, by part."""
    parts = [] if learner.offloaded else state_parts(shape, learner)
    if learner.ranks > 1:
        parts.append(Part("gathered layers", _gathered(shape, learner)))
    elif learner.half:
        parts.append(Part("weights in bfloat16", HALF * (shape.parameters + shape.adapters)))
    if learner.checkpointing:
        parts.append(Part("layer inputs", sum(kept.inputs)))
        layer = Part("one layer again", _largest_difference(kept.peaks, kept.inputs))
    else:
        parts.append(Part("activations", sum(kept.layers)))
        layer = Part("one layer backward", _largest_difference(kept.peaks, kept.layers))
    chunk = min(learner.chunk_tokens, learner.microbatch_tokens)
    logits = Part("logits", LOGIT_COPIES * FLOAT * chunk * shape.vocabulary)
    # Logits are gone when the layers go backward.
    parts.append(max(layer, logits, key=lambda part: part.bytes))
    fragments = FRAGMENTS * sum(part.bytes for part in parts)
    return [*parts, Part("fragments", fragments)]


def _largest_difference(peaks: Sequence[int], there: Sequence[int]) -> int:
    """What any layer needs at its worst moment beside what is there of it anyway."""
    return max((peak - part for peak, part in zip(peaks, there, strict=True)), default=0)


def _gathered(shape: Shape, learner: Learner) -> float:
    """Whole parameters that exist while they are used, and gradients before they are spread.

    The layer in use and the next one, the gradient of one and its copy that is reduced in float32;
    what is outside of the layers stays whole from forward to backward.
    """
    width = HALF if learner.half else FLOAT
    layers = (2 * width + width + FLOAT) * shape.largest_layer
    root = (width + width + FLOAT) * shape.root
    return layers + root


@dataclass(frozen=True, slots=True)
class Engine:
    """How completions are sampled, as far as memory depends on it.

    Attributes:
        gpus: GPUs that the model is split over.
        half: Weights and cache are bfloat16.
        share: Of each GPU, that the engine may take.
        longest: Tokens of the longest sequence.
        sequences: Sequences that are to run at once on the engine.
    """

    gpus: int
    half: bool
    share: float
    longest: int
    sequences: int


def sequence_bytes(shape: Shape, engine: Engine) -> float:
    """Cache of one sequence at its longest, over the engine's GPUs."""
    width = HALF if engine.half else FLOAT
    return width * shape.kv_per_token * engine.longest + FLOAT * shape.state_per_sequence


def engine_parts(shape: Shape, engine: Engine) -> list[Part]:
    """What one GPU of an engine needs for as many longest sequences as there are to be."""
    width = HALF if engine.half else FLOAT
    return [
        Part("weights", width * shape.parameters / engine.gpus),
        Part("caches", engine.sequences * sequence_bytes(shape, engine) / engine.gpus),
        Part("engine itself", ENGINE_OVERHEAD),
    ]


def sequences_that_fit(shape: Shape, engine: Engine, gpu_bytes: float) -> int:
    """Longest sequences that an engine has room for at once; 0 if the weights do not fit."""
    weights, _, itself = engine_parts(shape, engine)
    room = engine.share * gpu_bytes - weights.bytes - itself.bytes
    return max(0, int(room * engine.gpus / sequence_bytes(shape, engine)))
