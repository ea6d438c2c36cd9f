# SPDX-License-Identifier: Apache-2.0
"""What the forward pass keeps for the backward pass, by running it on tensors that hold nothing.

torch's fake tensors have shapes and types but no memory, so the model's own code says what it keeps
at any length. Attention and experts are replaced by what their fused forms keep: their inputs and
outputs. A Mamba layer is counted as torch's own scan, in the learner's segments; the kernels of
mamba-ssm need less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 (the customary name)
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from rlrun.learner.model import body, without_dropout
from rlrun.learner.scan import SEGMENT_TOKENS, use_segments
from rlrun.learner.sharding import decoder_layers

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

NAME = "rlrun_plan"
"""What a model's configuration calls attention and experts that only have shapes."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of one microbatch.

    Attributes:
        layers: By layer, what it keeps, its input among it.
        inputs: By layer, the hidden state that goes in: all that is kept of it if it is computed
            again in the backward pass.
    """

    layers: tuple[int, ...]
    inputs: tuple[int, ...]


def kept_bytes(
    config: PretrainedConfig, rows: int, length: int, *, half: bool, cast_weights: bool
) -> Kept:
    """What one microbatch keeps.

    Args:
        config: Of the model.
        rows: Sequences.
        length: Tokens of each.
        half: Matrix products are computed in bfloat16.
        cast_weights: The weights themselves are bfloat16 while they are used, rather than cast for
            each product.
    """
    from transformers import AutoModelForCausalLM

    _register()
    with FakeTensorMode():
        dtype = torch.bfloat16 if half and cast_weights else torch.float32
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
        model.eval()
        without_dropout(model)
        model.set_attn_implementation(NAME)
        model.set_experts_implementation(NAME)
        kinds = [_kind(block) for block in decoder_layers(model)]
        segmented = use_segments(model) and length > SEGMENT_TOKENS
        kept, width = _run(model, rows, length, autocast=half)
        if segmented:
            # One segment at a time is computed again.
            again, _ = _run(model, rows, SEGMENT_TOKENS, autocast=half)
            kept = {kind: kept[kind] + again[kind] for kind in kept}
    entered = rows * length * width
    return Kept(tuple(kept[kind] for kind in kinds), (entered,) * len(kinds))


def _run(
    model: PreTrainedModel, rows: int, length: int, *, autocast: bool
) -> tuple[dict[Any, int], int]:
    """Bytes kept by each kind of layer, and bytes per token of the hidden state.

    Layers of a kind keep the same, so one of each is run.
    """
    _keep_one_of_each_kind(model)
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    seen: dict[int, object] = {}
    kept: dict[Any, int] = {None: 0}
    current: list[Any] = [None]

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own and storage._cdata not in seen:
            seen[storage._cdata] = storage
            kept[current[0]] = kept.get(current[0], 0) + storage.nbytes()
        return tensor

    def enter(block: nn.Module, inputs: tuple[Any, ...]) -> None:
        current[0] = _kind(block)

    hooks = [block.register_forward_pre_hook(enter) for block in decoder_layers(model)]
    ids = torch.zeros(rows, length, dtype=torch.long)
    casts = torch.autocast("cpu", torch.bfloat16, enabled=autocast, cache_enabled=False)
    with saved_tensors_hooks(pack, lambda tensor: tensor), casts:
        state = body(model)(input_ids=ids, use_cache=False).last_hidden_state
    for hook in hooks:
        hook.remove()
    return kept, state.shape[-1] * state.element_size()


def _kind(block: nn.Module) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(one.shape)) for name, one in block.named_parameters())


def _keep_one_of_each_kind(model: PreTrainedModel) -> None:
    blocks = {id(block) for block in decoder_layers(model)}
    for stack in model.modules():
        if isinstance(stack, nn.ModuleList) and any(id(block) in blocks for block in stack):
            found: dict[Any, nn.Module] = {}
            for block in stack:
                found.setdefault(_kind(block), block)
            del stack[:]
            stack.extend(found.values())


class _FusedAttention(torch.autograd.Function):
    """Keeps query, key, value and output, as fused attention does."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        query, key, value, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **others: Any,
) -> tuple[Tensor, None]:
    output: Tensor = _FusedAttention.apply(query, key, value)  # type: ignore[no-untyped-call]
    return output.transpose(1, 2), None


def _no_mask(*arguments: Any, **others: Any) -> None:
    return None


def _experts(experts: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """As transformers' grouped_mm: every token once for each of its experts, no weights copied."""
    count = chosen.shape[-1]
    with torch.autocast("cpu", enabled=False):
        inputs = hidden.repeat_interleave(count, 0)
        first = (experts.gate_up_proj if experts.has_gate else experts.up_proj)[0]
        second = experts.down_proj[0]
        if experts.is_transposed:
            first, second = first.T, second.T
        inner = F.linear(inputs, first.to(inputs.dtype))
        inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
        output = F.linear(inner, second.to(inputs.dtype))
        output = output * weights.reshape(-1, 1).to(inputs.dtype)
        return output.view(-1, count, output.shape[-1]).sum(1)


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.moe import ExpertsInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _no_mask)
    ExpertsInterface.register(NAME, _experts)
