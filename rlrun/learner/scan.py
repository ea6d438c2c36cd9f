# SPDX-License-Identifier: Apache-2.0
"""Long sequences through state-space layers (Mamba-2), in segments that hand on their state.

torch's own form of the scan keeps scores of every pair of tokens within a chunk, for every head:
at 49,152 tokens 18 GiB a layer in Nemotron 3 Nano. A segment gives the state at its end to the next
one, and is computed again in the backward pass, so that only one segment's scores exist at a time.
The chunks are the same ones, hence the result is the same up to rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

SEGMENT_TOKENS = 4096
"""Tokens of a segment, rounded down to whole chunks. Shorter sequences are scanned as they are."""
SCAN = "mamba2_chunk_scan"
"""What transformers' modules call the scan of a whole sequence."""

Scan = Callable[..., Any]


class SegmentedScan:
    """Takes the place of a scan, with its arguments.

    Args:
        scan: The scan of a whole sequence.
        segment_tokens: Tokens of a segment.
    """

    def __init__(self, scan: Scan, segment_tokens: int = SEGMENT_TOKENS) -> None:
        self.scan, self.segment_tokens = scan, segment_tokens

    def __call__(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,  # noqa: N803 (transformers' names)
        B: Tensor,  # noqa: N803
        C: Tensor,  # noqa: N803
        chunk_size: int,
        *,
        initial_states: Tensor | None = None,
        return_final_states: bool = False,
        **others: Any,
    ) -> Any:
        """As the scan: [B, T, H, P], and the last state where it is asked for."""
        size = max(1, self.segment_tokens // chunk_size) * chunk_size
        if hidden_states.shape[1] <= size:
            return self.scan(
                hidden_states,
                dt,
                A,
                B,
                C,
                chunk_size,
                initial_states=initial_states,
                return_final_states=return_final_states,
                **others,
            )

        def segment(x: Tensor, step: Tensor, b: Tensor, c: Tensor, state: Tensor | None) -> Any:
            return self.scan(
                x, step, A, b, c, chunk_size, initial_states=state, return_final_states=True,
                **others,
            )  # fmt: skip

        state, outputs = initial_states, []
        parts = (tensor.split(size, 1) for tensor in (hidden_states, dt, B, C))
        for x, step, b, c in zip(*parts, strict=True):
            if torch.is_grad_enabled():
                # It draws nothing.
                output, state = checkpoint(
                    segment, x, step, b, c, state, use_reentrant=False, preserve_rng_state=False
                )
            else:
                output, state = segment(x, step, b, c, state)
            outputs.append(output)
        whole = torch.cat(outputs, 1)
        return (whole, state) if return_final_states else whole


def use_segments(model: PreTrainedModel) -> bool:
    """Makes the model's state-space layers scan long sequences in segments.

    Returns:
        Whether it has such layers. transformers finds the scan by its name in the module of the
        model's class, so all models of the class have it from now on.
    """
    module = sys.modules[type(model).__module__]
    scan = module.__dict__.get(SCAN)
    if scan is None:
        return False
    if not isinstance(scan, SegmentedScan):
        module.__dict__[SCAN] = SegmentedScan(scan)
    return True
