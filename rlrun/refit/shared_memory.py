# SPDX-License-Identifier: Apache-2.0
"""Weights in memory that two processes of one machine see.

The learner's side writes all tensors into one block; the other side copies them into its model once
it is told to. Who tells and who waits for the answer is the generator's business: nothing may be
written before the reader has said that it is done. The block has no name in any file system, so
nothing is left behind, however the processes end.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import torch
from torch import Tensor

from rlrun.errors import GenerationError

ALIGNMENT = 64
"""Bytes; tensors begin at multiples of it, which suits every type and vector instruction."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies in the block.

    Attributes:
        name: Of the parameter.
        dtype: As torch writes it, such as "float32".
        shape: Sizes.
        offset: In bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def type(self) -> torch.dtype:
        """The torch type."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def num_bytes(self) -> int:
        """Size of the tensor."""
        return torch.Size(self.shape).numel() * self.type.itemsize


class WeightBlock:
    """A block of shared memory that holds a model's weights.

    Attributes:
        fd: File descriptor of the memory; a child process may inherit it.
        places: The tensors in it.
    """

    def __init__(self, fd: int, places: Sequence[Place]) -> None:
        """Maps an existing block; ``close`` closes the descriptor."""
        self.fd, self.places = fd, tuple(places)
        size = max((place.offset + place.num_bytes for place in self.places), default=1)
        self._map = mmap.mmap(fd, max(size, 1))
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    @classmethod
    def make(cls, weights: Iterable[tuple[str, Tensor]]) -> Self:
        """A new block with room for these tensors; their values are not yet in it."""
        places, offset = [], 0
        for name, tensor in weights:
            dtype = str(tensor.dtype).removeprefix("torch.")
            place = Place(name, dtype, tuple(tensor.shape), offset)
            places.append(place)
            offset += -(-place.num_bytes // ALIGNMENT) * ALIGNMENT
        fd = _anonymous_memory()
        os.ftruncate(fd, max(offset, 1))
        return cls(fd, places)

    @classmethod
    def attach(cls, fd: int, layout: Sequence[dict[str, Any]]) -> Self:
        """The block that another process made; ``layout`` is its ``layout()``."""
        return cls(fd, [Place(**{**p, "shape": tuple(p["shape"])}) for p in layout])

    def layout(self) -> list[dict[str, Any]]:
        """JSON-able places."""
        return [asdict(place) for place in self.places]

    def tensors(self) -> dict[str, Tensor]:
        """Views of the memory by name."""
        return {
            place.name: self._bytes[place.offset : place.offset + place.num_bytes]
            .view(place.type)
            .reshape(place.shape)
            for place in self.places
        }

    @torch.no_grad()
    def write(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copies the weights into the block.

        Raises:
            GenerationError: They are not the tensors that the block was made for.
        """
        views = self.tensors()
        for name, tensor in weights:
            view = views.pop(name, None)
            if view is None or view.shape != tensor.shape:
                raise _mismatch(f"{name} {tuple(tensor.shape)} has no place in the block")
            view.copy_(tensor)
        if views:
            raise _mismatch(f"the learner did not send {len(views)} tensors, such as {min(views)}")

    def close(self) -> None:
        """Closes the descriptor; the memory goes with its last mapping. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@torch.no_grad()
def load_weights(targets: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    """Copies values into a model's tensors of the same names, converting their type.

    Raises:
        GenerationError: A tensor is missing, unknown or of another shape; nothing was copied.
    """
    different = sorted(targets.keys() ^ values.keys())
    if different:
        raise _mismatch(f"{len(different)} tensors are on one side alone, such as {different[0]}")
    for name, target in targets.items():
        if target.shape != values[name].shape:
            shapes = f"{tuple(values[name].shape)} instead of {tuple(target.shape)}"
            raise _mismatch(f"{name} arrives as {shapes}")
    for name, target in targets.items():
        target.copy_(values[name])


def _anonymous_memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rlrun-weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _mismatch(what: str) -> GenerationError:
    return GenerationError("refit", what, "Learner and generator must load the same model")
