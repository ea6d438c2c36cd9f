# SPDX-License-Identifier: Apache-2.0
"""What layers keep for the backward pass, and need during it, by running them on empty tensors.

torch's fake tensors have shapes and types but no memory, so the model's own code says what exists
at once at any length, gradients and what is computed again among it. Attention and experts are
replaced by what their fused forms keep: their inputs and outputs. A Mamba layer is counted as
torch's own scan, in the learner's segments; the kernels of mamba-ssm need less.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 (the customary name)
from torch import Tensor, UntypedStorage, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlrun.learner.model import body, without_dropout
from rlrun.learner.scan import use_segments
from rlrun.learner.sharding import decoder_layers

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

NAME = "rlrun_plan"
"""What a model's configuration calls attention and experts that only have shapes."""

Kind = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of a layer's parameters; layers of a kind need the same memory."""


class Unforeseen(Exception):  # no error: a run of the model shows what it needs
    """What a model needs cannot be told without running it."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes of one microbatch, by layer.

    Attributes:
        layers: What a layer keeps for its backward pass, its input among it.
        inputs: The hidden state that goes in: all that is kept of it if it is computed again in
            the backward pass.
        peaks: The most that exists at once of a layer while it is computed and goes backward, its
            input and what it keeps among it; without gradients of weights.
    """

    layers: tuple[int, ...]
    inputs: tuple[int, ...]
    peaks: tuple[int, ...]


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

    Raises:
        Unforeseen: The model cannot be run on empty tensors.
    """
    from transformers import AutoModelForCausalLM

    _register()
    with FakeTensorMode():
        dtype = torch.bfloat16 if half and cast_weights else torch.float32
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
        model.eval()
        without_dropout(model)
        use_segments(model)
        model.set_attn_implementation(NAME)
        model.set_experts_implementation(NAME)
        kinds = [_kind(block) for block in decoder_layers(model)]
        _keep_one_of_each_kind(model)
        try:
            with _no_notices():
                found = _run(model, rows, length, autocast=half)
        # The model's own code runs here, which may take its layers another way than ours.
        except Exception as error:
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise Unforeseen(
                f"{type(model).__name__} does not run on empty tensors: {why}"
            ) from error
    layers = [found[kind] for kind in kinds]
    return Kept(*(tuple(layer[part] for layer in layers) for part in range(3)))


@contextmanager
def _no_notices() -> Iterator[None]:
    """Silences what transformers says of kernels that it lacks: another machine may train."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _run(
    model: PreTrainedModel, rows: int, length: int, *, autocast: bool
) -> dict[Kind, tuple[int, int, int]]:
    """By kind of layer, bytes that it keeps, of its input, and that it needs at most.

    Each layer goes backward as soon as it has gone forward; the next one gets its output alone.
    """
    found: dict[Kind, tuple[int, int, int]] = {}
    alive = _Alive(model.parameters())
    before = entered = 0

    def enter(block: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        nonlocal before, entered
        before = alive.now
        hidden = torch.empty_like(inputs[0]).requires_grad_()
        alive.most, entered = alive.now, alive.now - before
        return (hidden, *inputs[1:]), named

    def leave(block: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        state = output[0] if isinstance(output, tuple) else output
        # The output is the next layer's input, and counts there.
        kept = alive.now - before - state.untyped_storage().nbytes()
        passed = state.detach()
        with torch.autocast("cpu", enabled=False):
            # Its memory stands for that of its gradient. Those of weights are counted elsewhere.
            torch.autograd.grad(state, inputs[0], passed)
        found[_kind(block)] = kept, entered, alive.most - before
        return (passed, *output[1:]) if isinstance(output, tuple) else passed

    for block in decoder_layers(model):
        block.register_forward_pre_hook(enter, with_kwargs=True)
        block.register_forward_hook(leave)
    ids = torch.zeros(rows, length, dtype=torch.long)
    casts = torch.autocast("cpu", torch.bfloat16, enabled=autocast, cache_enabled=False)
    with alive, casts:
        body(model)(input_ids=ids, use_cache=False)
    return found


class _Alive(TorchDispatchMode):
    """Bytes of the tensors that were made since, and are still held by anyone.

    Args:
        weights: Neither they nor casts of them count.

    Attributes:
        now: At present.
        most: At most so far.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self.now = self.most = 0
        self._held: dict[int, weakref.ref[UntypedStorage]] = {}
        self._weights = {weight.untyped_storage()._cdata for weight in weights}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Runs the operation and counts what is new in its result."""
        result = func(*args, **(kwargs or {}))
        of_weights = func is torch.ops.aten._to_copy.default and self._is_weight(args[0])
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage(), counts=not of_weights)
        return result

    def _is_weight(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._weights

    def _see(self, storage: UntypedStorage, *, counts: bool) -> None:
        key = storage._cdata
        if key in self._held or key in self._weights:
            return
        size = storage.nbytes() if counts else 0

        def gone(_: object) -> None:
            del self._held[key]
            self.now -= size

        self._held[key] = weakref.ref(storage, gone)
        self.now += size
        self.most = max(self.most, self.now)


def _kind(block: nn.Module) -> Kind:
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
    output: Tensor = _FusedAttention.apply(query, key, value)  # type: ignore[no-untyped-call]  # as above
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
