# SPDX-License-Identifier: Apache-2.0
"""Token by token through a transformers model: rows, their shared cache, draws and ends.

Every request draws from random numbers of its own, so what it gets does not depend on the requests
beside it (up to the rounding of batched matrix products); the same requests in the same order give
the same bits. Who runs rows together, and until when, is static_batch.py's and
continuous_batch.py's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

from rlrun.errors import GenerationError, TrainingError
from rlrun.generation.cache import RoomyLayer, new_cache
from rlrun.renderer import Renderer
from rlrun.sampling import draw_tokens, process_logits, token_logprobs
from rlrun.types import Completion, GenerationRequest, Sampling, StopReason, VersionSpan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WHERE = "generation=transformers"

UNIFORMS = 64
"""Random numbers that a row draws at once."""

STOP_MARGIN = 8
"""Tokens decoded beyond a stop string's length in bytes: pieces of characters and of words at the
cut may decode to something else than inside the whole."""


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
        self.groups = _by_sampling(rows)
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
        self.groups = _by_sampling(self.rows)

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


class Sampler:
    """What a model does for a set of rows: read prompts, draw a token each, read the tokens.

    The model may be one that is being trained: its training mode is restored afterwards.

    Attributes:
        version: Weight version of the model; the caller sets it.
    """

    def __init__(
        self, model: PreTrainedModel, renderer: Renderer, autocast_dtype: torch.dtype | None
    ) -> None:
        """Takes the parts; ``autocast_dtype`` None computes in the parameters' own type."""
        self.version = 0
        self._model = model
        self._renderer = renderer
        self._eos_ids = frozenset(renderer.eos_ids)
        self._autocast_dtype = autocast_dtype
        self._takes_masks = "sdpa" in str(model.config._attn_implementation)
        # State-space models have no limit, and no such entry.
        text_config = model.config.get_text_config(decoder=True)
        self._context: int | None = getattr(text_config, "max_position_embeddings", None)

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs of every token but the first, at temperature 1.

        Raises:
            GenerationError: The sequence does not fit the model.
        """
        self.check(GenerationRequest(tuple(token_ids[:-1]), 1, 0, Sampling(1.0)))
        tokens = torch.tensor(token_ids, device=self._model.device)
        with self.evaluation():
            logits = self._model(input_ids=tokens[None, :-1], use_cache=False).logits[0]
        return token_logprobs(process_logits(logits, Sampling(1.0)), tokens[1:]).tolist()

    def check(self, request: GenerationRequest) -> None:
        """Makes sure that a request fits the model.

        Raises:
            GenerationError: It does not.
        """
        length = len(request.token_ids)
        if length == 0:
            raise GenerationError(WHERE, "a prompt without tokens", "Check the chat template")
        if self._context is not None and length + request.max_new_tokens > self._context:
            raise GenerationError(
                WHERE,
                f"a prompt of {length} tokens and max_new_tokens={request.max_new_tokens} exceed "
                f"the model's context of {self._context}",
                "Lower policy.max_total_sequence_length to the model's context",
            )

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Everything below must run within it."""
        training = self._model.training
        self._model.train(False)
        try:
            # Not inference_mode: a buffer that the model makes on the way could not be used in the
            # learner's backward pass.
            with (
                torch.no_grad(),
                torch.autocast(
                    self._model.device.type,
                    dtype=self._autocast_dtype,
                    enabled=self._autocast_dtype is not None,
                ),
            ):
                yield
        finally:
            self._model.train(training)

    def begin(self, rows: list[Row]) -> Rows:
        """Reads what the rows have so far, each distinct context once, and draws a token each."""
        contexts = [row.context for row in rows]
        index_of: dict[tuple[int, ...], int] = {}
        for context in contexts:
            index_of.setdefault(context, len(index_of))
        lengths = [len(context) for context in index_of]
        width = max(lengths)
        tokens = torch.full((len(index_of), width), self._renderer.pad_id)
        mask = torch.zeros(tokens.shape, dtype=torch.bool)
        for i, context in enumerate(index_of):
            tokens[i, width - len(context) :] = torch.tensor(context)
            mask[i, width - len(context) :] = True
        device = self._model.device
        cache = new_cache(self._model.config)
        padded = mask.to(device) if min(lengths) < width else None
        # At the padding any position would do, as nothing attends to it.
        positions = (mask.cumsum(-1) - 1).clamp(min=0).to(device)
        logits = self._forward(tokens.to(device), padded, positions, cache)
        last = tokens[:, -1].to(device)
        batch = Rows(rows, _by_sampling(rows), cache, padded, positions[:, -1], last)
        if len(index_of) < len(rows):
            index = [index_of[context] for context in contexts]
            batch.select(rows, index)
            logits = logits[torch.tensor(index, device=device)]
        self._draw(batch, logits)
        return batch

    def step(self, batch: Rows) -> None:
        """Reads the drawn tokens and draws the next; answered rows ride along, unread."""
        batch.positions = batch.positions + 1
        if batch.mask is not None:
            batch.mask = torch.cat([batch.mask, torch.ones_like(batch.mask[:, :1])], dim=-1)
        mask = batch.mask
        if mask is not None and self._takes_masks and batch.can_grow:
            # Of four dimensions it is used as it is; otherwise transformers makes one per token.
            mask = mask[:, None, None, :]
        positions = batch.positions.unsqueeze(-1)
        logits = self._forward(batch.tokens.unsqueeze(-1), mask, positions, batch.cache)
        self._draw(batch, logits)

    def _forward(
        self, tokens: Tensor, mask: Tensor | None, positions: Tensor, cache: DynamicCache
    ) -> Tensor:
        """Logits [B, V] after the last of ``tokens`` int64 [B, T]."""
        output = self._model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _draw(self, batch: Rows, logits: Tensor) -> None:
        """Draws the next token of every row from logits [B, V]; running ones keep it."""
        numbers = [0.0 if row.stop_reason else row.uniform() for row in batch.rows]
        uniforms = torch.tensor(numbers, dtype=torch.float64, device=logits.device)
        tokens = torch.empty(len(batch.rows), dtype=torch.int64, device=logits.device)
        logprobs = torch.empty(len(batch.rows), device=logits.device)
        for sampling, index in batch.groups.items():
            processed = process_logits(logits[index], sampling)
            if sampling.temperature == 0:
                tokens[index] = processed.argmax(dim=-1)
            else:
                tokens[index] = draw_tokens(processed, uniforms[index])
            logprobs[index] = token_logprobs(processed, tokens[index])
        batch.tokens = tokens
        for row, token, logprob in zip(batch.rows, tokens.tolist(), logprobs.tolist(), strict=True):
            if row.stop_reason is None:
                self._note(row, token, logprob)

    def _note(self, row: Row, token: int, logprob: float) -> None:
        if not math.isfinite(logprob):
            # Not a failure of generation, which would be tried again.
            raise TrainingError(
                WHERE,
                f"the model's output is not finite (log-prob {logprob} of token {token})",
                "The weights have diverged: lower policy.optimizer.lr, or resume from an earlier "
                "checkpoint",
            )
        tokens = row.tokens
        if not row.versions or row.versions[-1][0] != self.version:
            row.versions.append((self.version, len(tokens)))
        tokens.append(token)
        row.logprobs.append(logprob)
        if token in self._eos_ids or (row.request.sampling.stop and self._ends_in_stop_string(row)):
            row.stop_reason = StopReason.STOP
        elif len(tokens) == row.request.max_new_tokens:
            row.stop_reason = StopReason.LENGTH

    def _ends_in_stop_string(self, row: Row) -> bool:
        stop = row.request.sampling.stop
        # Every token is at least a byte, and what came before has been looked at already.
        window = max(len(text.encode()) for text in stop) + STOP_MARGIN
        tail = self._renderer.decode(row.tokens[-window:], skip_special=False)
        return any(text in tail for text in stop)


def _by_sampling(rows: Sequence[Row]) -> dict[Sampling, Tensor | slice]:
    indices: dict[Sampling, list[int]] = {}
    for i, row in enumerate(rows):
        indices.setdefault(row.request.sampling, []).append(i)
    if len(indices) == 1:
        return {rows[0].request.sampling: slice(None)}
    return {sampling: torch.tensor(group) for sampling, group in indices.items()}
