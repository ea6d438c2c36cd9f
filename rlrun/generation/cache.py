# SPDX-License-Identifier: Apache-2.0
"""A key-value cache with spare room: a new token does not copy all tokens before it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

ROOM = 64
"""Tokens for which a buffer that is full is enlarged."""


class RoomyLayer(DynamicLayer):
    """A layer that writes a token where transformers' own copies all tokens before it.

    ``keys`` and ``values`` may be assigned at any time, as selections and joins of rows do; the
    next token then begins a new buffer.
    """

    def __init__(self) -> None:
        """Empty, and without a buffer."""
        super().__init__()  # type: ignore[no-untyped-call]  # transformers has no types here
        self._rooms = (_Room(), _Room())

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Appends [B, H, T, D] to what is held; see transformers' DynamicLayer."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states, value_states
        else:
            assert self.keys is not None and self.values is not None
            self.keys = self._rooms[0].append(self.keys, key_states)
            self.values = self._rooms[1].append(self.values, value_states)
        return self.keys, self.values


class _Room:
    """A buffer [B, H, T + room, D], and the part of it that was last handed out."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None
        self._held: Tensor | None = None

    def append(self, held: Tensor, more: Tensor) -> Tensor:
        """``held`` [B, H, T, D] followed by ``more``, as a view; ``held`` stays as it is."""
        length = held.shape[2]
        end = length + more.shape[2]
        buffer = self._buffer
        if buffer is None or held is not self._held or buffer.shape[2] < end:
            batch, heads, _, width = held.shape
            buffer = held.new_empty(batch, heads, end + ROOM, width)
            buffer[:, :, :length] = held
            self._buffer = buffer
        buffer[:, :, length:end] = more
        self._held = buffer[:, :, :end]
        return self._held


def new_cache(config: PretrainedConfig) -> DynamicCache:
    """An empty cache of a model; layers that do not hold all tokens are transformers' own."""
    cache = DynamicCache(config=config)
    cache.layers = [
        RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache
