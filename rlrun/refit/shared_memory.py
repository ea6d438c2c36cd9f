# SPDX-License-Identifier: Apache-2.0
"""Weights in memory that two processes of one machine see: both ends of the wire.

The sender copies named tensors into one block; a handle of plain JSON says where the block is and
what lies where in it; the receiver maps the block and reads the tensors in place. Nothing is
pickled. The block has no name in the file system, so that nothing is left behind whatever ends the
processes, and no size limit but the machine's memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlrun.console.counted import counted
from rlrun.errors import GenerationError
from rlrun.interfaces import Weights

WHERE = "refit=shared_memory"
SAME_MODEL = "Learner and generator must load the same model"
ALIGNMENT = 64
"""Bytes; tensors begin at multiples of it, as the widest instructions like it."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a tensor lies in the block.

    Attributes:
        name: Of the tensor.
        dtype: Name of its torch type, such as "float32".
        shape: Its dimensions.
        offset: First byte.
        size: Number of bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int


class SharedWeights:
    """The sender's end: a block that holds one version of the weights at a time.

    Args:
        weights: Read at every ``publish``; names, shapes and types must stay the same.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._fd: int | None = None
        self._layout: tuple[Extent, ...] = ()
        self._views: tuple[Tensor, ...] = ()

    def publish(self) -> None:
        """Copies the present weights into the block. No receiver may be reading it.

        Raises:
            GenerationError: The weights are not those of the first time, or there is no memory.
        """
        tensors = [(name, tensor.detach()) for name, tensor in self._weights()]
        layout = lay_out(tensors)
        if self._fd is None:
            self._allocate(layout)
        elif layout != self._layout:
            changed = sorted({*layout} ^ {*self._layout}, key=lambda extent: extent.name)
            raise GenerationError(
                WHERE,
                f"the learner's weights changed their layout, at {changed[0].name}",
                "Names, shapes and types of a policy's weights must stay as they are",
            )
        for view, (_, tensor) in zip(self._views, tensors, strict=True):
            view.copy_(tensor)

    def handle(self) -> str:
        """What the receiver needs to find the weights, as JSON; valid while this object lives."""
        assert self._fd is not None, "weights are published before they are read"
        layout = [
            [extent.name, extent.dtype, list(extent.shape), extent.offset, extent.size]
            for extent in self._layout
        ]
        return json.dumps({"path": _path(self._fd), "bytes": self._bytes, "layout": layout})

    def close(self) -> None:
        """Gives up the block; receivers keep what they have mapped. May be called twice."""
        self._views = ()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @property
    def _bytes(self) -> int:
        return max((extent.offset + extent.size for extent in self._layout), default=0)

    def _allocate(self, layout: tuple[Extent, ...]) -> None:
        self._layout = layout
        try:
            self._fd = os.memfd_create("rlrun-weights")
            os.ftruncate(self._fd, self._bytes)
            # Reserved now: a page that is missing later would end the process without a word.
            os.posix_fallocate(self._fd, 0, max(1, self._bytes))
        except OSError as error:
            self.close()
            raise GenerationError(
                WHERE,
                f"{self._bytes / 2**20:.0f} MiB of shared memory cannot be had: {error.strerror}",
                "Free memory, or raise the memory limit of the container",
            ) from error
        block = _map(_path(self._fd), self._bytes)
        self._views = tuple(_view(block, extent) for extent in layout)


def read_weights(handle: str) -> Iterator[tuple[str, Tensor]]:
    """The receiver's end: name and tensor, which lies in the block itself and must not be kept.

    Raises:
        OSError: The sender is gone.
        ValueError: The handle is not one.
    """
    fields: dict[str, Any] = json.loads(handle)
    block = _map(str(fields["path"]), int(fields["bytes"]))
    for name, dtype, shape, offset, size in fields["layout"]:
        yield name, _view(block, Extent(name, dtype, tuple(shape), offset, size))


def lay_out(tensors: list[tuple[str, Tensor]]) -> tuple[Extent, ...]:
    """Places tensors one behind the other, in their order."""
    layout, offset = [], 0
    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        dtype = str(tensor.dtype).removeprefix("torch.")
        layout.append(Extent(name, dtype, tuple(tensor.shape), offset, size))
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return tuple(layout)


def _path(fd: int) -> str:
    return f"/proc/{os.getpid()}/fd/{fd}"


def _map(path: str, size: int) -> Tensor:
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


def _view(block: Tensor, extent: Extent) -> Tensor:
    dtype = getattr(torch, extent.dtype)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{extent.dtype!r} is no type of torch")
    data = block[extent.offset : extent.offset + extent.size]
    return data.view(dtype).view(extent.shape)


@torch.no_grad()
def load_weights(targets: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """Copies values into a model's tensors of the same names, converting their type.

    Raises:
        GenerationError: A tensor is missing, unknown or of another shape; nothing was copied.
    """
    different = sorted(targets.keys() ^ values.keys())
    if different:
        what = f"{counted(len(different), 'tensor')} on one side alone, such as {different[0]}"
        raise GenerationError(WHERE, what, SAME_MODEL)
    for name, target in targets.items():
        if target.shape != values[name].shape:
            shapes = f"{tuple(values[name].shape)} instead of {tuple(target.shape)}"
            raise GenerationError(WHERE, f"{name} arrives as {shapes}", SAME_MODEL)
    for name, target in targets.items():
        target.copy_(values[name])
