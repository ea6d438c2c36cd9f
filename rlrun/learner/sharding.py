# SPDX-License-Identifier: Apache-2.0
"""Several ranks: which microbatches each computes, and how parameters are sharded (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from rlrun.config.schema import Policy
from rlrun.interfaces import Precision
from rlrun.learner.mixture import experts, routers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """The data-parallel ranks of the learner, this process being one of them.

    Attributes:
        mesh: One-dimensional; None for a single process without torch.distributed.
        saving: What checkpoints are coordinated by while the mesh's own group trains; None for a
            single process. Made with the object, by all ranks together.
    """

    mesh: DeviceMesh | None = None
    saving: ProcessGroup | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.mesh is not None:
            object.__setattr__(self, "saving", torch.distributed.new_group(backend="gloo"))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return 1 if self.mesh is None else self.mesh.size()

    @property
    def rank(self) -> int:
        """This process among them, from 0."""
        return 0 if self.mesh is None else self.mesh.get_local_rank()

    def share(self, items: list[T]) -> list[T | None]:
        """This rank's part, in order. All parts are equally long; None fills up the shorter ones.

        Each rank must take part in every collective operation, so one with nothing left to do
        still runs a microbatch that weighs nothing.
        """
        rounds = -(-len(items) // self.size)
        own: list[T | None] = list(items[self.rank :: self.size])
        return own + [None] * (rounds - len(own))

    def sum(self, values: Mapping[str, Tensor]) -> dict[str, float]:
        """Adds scalars over the ranks; all ranks have the same names."""
        names = sorted(values)
        if not names:
            return {}
        stacked = torch.stack([values[name].double() for name in names])
        if self.mesh is not None:
            torch.distributed.all_reduce(stacked, group=self.mesh.get_group())
        return dict(zip(names, stacked.tolist(), strict=True))

    def merge(self, part: Mapping[int, T]) -> dict[int, T]:
        """The union of what every rank computed, by index."""
        if self.mesh is None:
            return dict(part)
        parts: list[dict[int, T]] = [{} for _ in range(self.size)]
        torch.distributed.all_gather_object(parts, dict(part), group=self.mesh.get_group())
        return {index: value for one in parts for index, value in one.items()}


def shard(module: nn.Module, model: PreTrainedModel, ranks: Ranks, policy: Policy) -> None:
    """Spreads the parameters of ``module``, which holds ``model``, over the ranks.

    A model in the memory of the machine goes to the ranks' devices layer by layer, so that it need
    not fit on one of them. With bfloat16, parameters are gathered as that and gradients summed as
    float32; what each rank keeps is float32 as ever.

    Each decoder layer is gathered on its own while it is used, and in it the experts of a mixture
    on their own: they are most of its parameters. Embeddings, head and what is left belong to the
    root and stay gathered from forward to backward, as the head is used at its end.
    """
    if ranks.mesh is None:
        return
    mesh, low = ranks.mesh, None
    if policy.precision is Precision.BFLOAT16:
        low = torch.bfloat16
    # Autocast, which is on meanwhile, chooses the types of the inputs.
    kinds = MixedPrecisionPolicy(low, torch.float32, cast_forward_inputs=False)
    exact = MixedPrecisionPolicy(cast_forward_inputs=False)
    offload = OffloadPolicy()
    if policy.fsdp.cpu_offload:
        offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    if policy.moe_router_fp32:
        for router in routers(model):
            fully_shard(router, mesh=mesh, mp_policy=exact, offload_policy=offload)
    for layer in [*experts(model), *decoder_layers(model)]:
        fully_shard(layer, mesh=mesh, mp_policy=kinds, offload_policy=offload)
    fully_shard(
        module, mesh=mesh, mp_policy=kinds, offload_policy=offload, reshard_after_forward=False
    )


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The repeated blocks of a model: those that transformers never splits over devices."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def full_tensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Gathers sharded tensors, one after the other; every rank must ask for all of them."""
    for name, tensor in tensors.items():
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def collect(tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Whole tensors in the first rank's memory of the machine; nothing on the others.

    Without ranks they stay where they are.
    """
    if ranks.mesh is None:
        return dict(tensors)
    found = {}
    for name, tensor in full_tensors(tensors):
        if ranks.rank == 0:
            found[name] = tensor.cpu()
    return found


@torch.no_grad()
def load_full(targets: Mapping[str, Tensor], values: Iterable[tuple[str, Tensor]]) -> None:
    """Copies whole tensors into parameters, sharded or not, by name; others are passed over."""
    for name, value in values:
        target = targets.get(name)
        if target is not None:
            target.copy_(like(target, value))


def is_finite(tensor: Tensor) -> bool:
    """Whether this rank's part of a tensor has neither infinities nor NaNs."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return bool(local.isfinite().all())


def like(target: Tensor, value: Tensor) -> Tensor:
    """A whole tensor in the layout of ``target``."""
    value = value.to(target.device, target.dtype)
    if isinstance(target, DTensor):
        return distribute_tensor(value, target.device_mesh, target.placements)
    return value
