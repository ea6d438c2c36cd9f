# SPDX-License-Identifier: Apache-2.0
"""Requests while a transformers model answers them: the rows of a batch and their shared cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

from rlrun.generation.cache import RoomyLayer
from rlrun.types import Completion, GenerationRequest, Sampling, StopReason, VersionSpan

UNIFORMS = 64
"""Random numbers that a row draws at once."""


class _Layer(Protocol):
    """A layer of a cache that holds all keys and values, [B, H, T, D]."""

    keys: Tensor
    values: Tensor


@dataclass(slots=True)
class Row:
    """A request while it is being answered.

    Attributes:
        request: What is asked.
        random: Its own random numbers.
        tokens: Sampled so far.
        logprobs: Of the tokens, under what they were drawn from.
        versions: (weight version, index of its first token), ascending.
        stop_reason: Once it is answered.
    """

    request: GenerationRequest
    random: np.random.Generator
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    stop_reason: StopReason | None = None
    _uniforms: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, request: GenerationRequest) -> Row:
        """A row before its first token."""
        # Keys of Philox need no mixing: neighbouring seeds give unrelated streams.
        return cls(request, np.random.Generator(np.random.Philox(key=request.seed)))

    def uniform(self) -> float:
        """The next of its random numbers in [0, 1)."""
        if not self._uniforms:
            # As many as single calls would give, at a fraction of their cost.
            self._uniforms = self.random.random(UNIFORMS).tolist()[::-1]
        return self._uniforms.pop()

    @property
    def context(self) -> tuple[int, ...]:
        """The prompt and what was sampled."""
        return (*self.request.token_ids, *self.tokens) if self.tokens else self.request.token_ids

    def completion(self) -> Completion:
        """The answer; the row must be answered."""
        assert self.stop_reason is not None
        ends = [start for _, start in self.versions[1:]] + [len(self.tokens)]
        return Completion(
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            stop_reason=self.stop_reason,
            weight_versions=tuple(
                VersionSpan(version, start, end)
                for (version, start), end in zip(self.versions, ends, strict=True)
            ),
        )


@dataclass(slots=True)
class Rows:
    """Rows that go through the model together, and what the next forward pass needs.

    Between two steps no logits are left over, so that weights may change there: the next token is
    drawn from what the new ones say.

    Attributes:
        rows: B rows, answered ones among them until the next selection.
        groups: Indices of the rows by how they are sampled; a slice where that is all of them.
        cache: Keys, values and states of all tokens so far.
        mask: bool [B, T], false at the left padding; None if no row is padded.
        positions: int64 [B], the position in its sequence of the last token in the cache.
        tokens: int64 [B], drawn and not yet in the cache.
    """

    rows: list[Row]
    groups: dict[Sampling, Tensor | slice]
    cache: DynamicCache
    mask: Tensor | None
    positions: Tensor
    tokens: Tensor

    def select(self, rows: list[Row], indices: Sequence[int]) -> None:
        """Makes ``rows`` the batch; their states are those at ``indices`` of the old rows."""
        index = torch.tensor(indices, device=self.positions.device)
        self.rows = rows
        self.groups = by_sampling(rows)
        # The one selection that attention and state-space layers have in common.
        self.cache.reorder_cache(cast("torch.LongTensor", index))
        self.mask = None if self.mask is None else self.mask[index]
        self.positions = self.positions[index]
        self.tokens = self.tokens[index]

    @property
    def can_grow(self) -> bool:
        """Whether ``trim`` and ``add`` are possible: all layers keep all keys and values."""
        return all(isinstance(layer, RoomyLayer) for layer in self.cache.layers)

    def trim(self) -> None:
        """Drops the columns at the left that are padding in every row."""
        if self.mask is None:
            return
        unused = int(self.mask.any(dim=0).to(torch.int8).argmax())
        self.mask = self.mask[:, unused:]
        if bool(self.mask.all()):
            self.mask = None
        if unused:
            for layer in self._layers:
                layer.keys, layer.values = layer.keys[:, :, unused:], layer.values[:, :, unused:]

    def add(self, other: Rows) -> None:
        """Takes in rows that come after these; ``other`` must not be used any more."""
        own, its = self.cache.get_seq_length(), other.cache.get_seq_length()
        width = max(own, its)
        if own != its or self.mask is not None or other.mask is not None:
            self.mask = torch.cat([self._padded_mask(width), other._padded_mask(width)])
        for layer, more in zip(self._layers, other._layers, strict=True):
            layer.keys = _joined(layer.keys, more.keys, width)
            layer.values = _joined(layer.values, more.values, width)
        self.positions = torch.cat([self.positions, other.positions])
        self.tokens = torch.cat([self.tokens, other.tokens])
        self.rows = [*self.rows, *other.rows]
        self.groups = by_sampling(self.rows)

    @property
    def _layers(self) -> list[_Layer]:
        assert self.can_grow
        return cast("list[_Layer]", self.cache.layers)

    def _padded_mask(self, width: int) -> Tensor:
        length = self.cache.get_seq_length()
        mask = self.mask
        if mask is None:
            mask = torch.ones(len(self.rows), length, dtype=torch.bool, device=self.tokens.device)
        return pad(mask, (width - length, 0))


def _joined(first: Tensor, second: Tensor, width: int) -> Tensor:
    """[B1 + B2, H, width, D] of keys or values [B, H, T, D], padded on the left."""
    return torch.cat([pad(part, (0, 0, width - part.shape[2], 0)) for part in (first, second)])


def by_sampling(rows: Sequence[Row]) -> dict[Sampling, Tensor | slice]:
    """Indices of the rows by how they are sampled; a slice where that is all of them."""
    indices: dict[Sampling, list[int]] = {}
    for i, row in enumerate(rows):
        indices.setdefault(row.request.sampling, []).append(i)
    if len(indices) == 1:
        return {rows[0].request.sampling: slice(None)}
    return {sampling: torch.tensor(group) for sampling, group in indices.items()}
