# SPDX-License-Identifier: Apache-2.0
"""Weights on their way through Ray's object store: both ends of the wire.

The store keeps arrays outside of the pickle and maps them into every process of a machine without
a copy; torch tensors it would copy into the pickle. Hence each tensor travels as its bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor's bytes.

    Attributes:
        data: uint8 [bytes].
        dtype: As torch writes it, such as "float32".
        shape: Sizes.
    """

    data: np.ndarray[tuple[int], np.dtype[np.uint8]]
    dtype: str
    shape: tuple[int, ...]


def pack(weights: Iterable[tuple[str, Tensor]]) -> dict[str, Packed]:
    """Whole tensors, on whatever device, by name; those of a CPU are not copied."""
    packed = {}
    for name, tensor in weights:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        dtype = str(tensor.dtype).removeprefix("torch.")
        packed[name] = Packed(flat.view(torch.uint8).numpy(), dtype, tuple(tensor.shape))
    return packed


def unpack(packed: Mapping[str, Packed]) -> dict[str, Tensor]:
    """Views of the bytes, only to be read: the memory belongs to the store."""
    with warnings.catch_warnings():
        # torch warns of arrays that cannot be written to, as those of the store must not be.
        warnings.simplefilter("ignore", UserWarning)
        return {name: _tensor(one) for name, one in packed.items()}


def _tensor(packed: Packed) -> Tensor:
    dtype: torch.dtype = getattr(torch, packed.dtype)
    return torch.from_numpy(packed.data).view(dtype).reshape(packed.shape)
