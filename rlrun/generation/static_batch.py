# SPDX-License-Identifier: Apache-2.0
"""Sampling from a transformers model: the rows of a batch start together and leave one by one.

Every request draws from random numbers of its own, so what it gets does not depend on the requests
beside it (up to the rounding of batched matrix products); the same requests in the same order give
the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from rlrun.errors import GenerationError
from rlrun.renderer import Renderer
from rlrun.sampling import draw_tokens, process_logits, token_logprobs
from rlrun.types import Completion, GenerationRequest, Sampling, StopReason, VersionSpan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WHERE = "generation=transformers"

COMPACT_BELOW = 0.75
"""Finished rows leave the batch once at most this share of it is still running: a copy of the
cache each time, against a part of every forward pass for each row that stays."""

STOP_MARGIN = 8
"""Tokens decoded beyond a stop string's length in bytes: pieces of characters and of words at the
cut may decode to something else than inside the whole."""


@dataclass(slots=True)
class _Row:
    """A request while it is being answered."""

    request: GenerationRequest
    random: np.random.Generator
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop_reason: StopReason | None = None

    def completion(self, version: int) -> Completion:
        assert self.stop_reason is not None
        return Completion(
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            stop_reason=self.stop_reason,
            weight_versions=(VersionSpan(version, 0, len(self.tokens)),),
        )


@dataclass(slots=True)
class _Batch:
    """The rows in the cache and what the next forward pass needs.

    Attributes:
        rows: B rows, finished ones among them until the next compaction.
        groups: Indices of the rows by how they are sampled; a slice where that is all of them.
        cache: Keys, values and states of all tokens so far.
        mask: int64 [B, T], 0 at the left padding; None if no row is padded.
        positions: int64 [B], the position of each row's last token in the cache.
        logits: [B, V], for the next token.
    """

    rows: list[_Row]
    groups: dict[Sampling, Tensor | slice]
    cache: DynamicCache
    mask: Tensor | None
    positions: Tensor
    logits: Tensor

    def select(self, rows: list[_Row], indices: Sequence[int]) -> None:
        """Makes ``rows`` the batch; their states are those at ``indices`` of the old one."""
        index = torch.tensor(indices, device=self.positions.device)
        self.rows = rows
        self.groups = _by_sampling(rows)
        # The one selection that attention and state-space layers have in common.
        self.cache.reorder_cache(cast("torch.LongTensor", index))
        self.mask = None if self.mask is None else self.mask[index]
        self.positions = self.positions[index]
        self.logits = self.logits[index]


class StaticBatchSampler:
    """Answers requests in batches of at most ``max_batch_size`` (None: all at once).

    The model may be one that is being trained: its training mode is restored afterwards.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        renderer: Renderer,
        max_batch_size: int | None,
        autocast_dtype: torch.dtype | None,
    ) -> None:
        """Takes the parts; ``autocast_dtype`` None computes in the parameters' own type."""
        self._model = model
        self._renderer = renderer
        self._eos_ids = frozenset(renderer.eos_ids)
        self._max_batch_size = max_batch_size
        self._autocast_dtype = autocast_dtype
        # State-space models have no limit, and no such entry.
        text_config = model.config.get_text_config(decoder=True)
        self._context: int | None = getattr(text_config, "max_position_embeddings", None)

    def __call__(
        self, requests: Sequence[GenerationRequest], version: int, cancelled: Event
    ) -> list[Completion]:
        """Completions in the order of the requests; none at all once ``cancelled`` is set.

        Raises:
            GenerationError: A request does not fit the model, or the model's output is not finite.
        """
        for request in requests:
            self._check(request)
        # Keys of Philox need no mixing: neighbouring seeds give unrelated streams.
        rows = [
            _Row(request, np.random.Generator(np.random.Philox(key=request.seed)))
            for request in requests
        ]
        size = self._max_batch_size or len(rows)
        with self._evaluation():
            for start in range(0, len(rows), size):
                if cancelled.is_set():
                    return []
                self._answer(rows[start : start + size], cancelled)
        return [] if cancelled.is_set() else [row.completion(version) for row in rows]

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs of every token but the first, at temperature 1.

        Raises:
            GenerationError: The sequence does not fit the model.
        """
        self._check(GenerationRequest(tuple(token_ids[:-1]), 1, 0, Sampling(1.0)))
        tokens = torch.tensor(token_ids, device=self._model.device)
        with self._evaluation():
            logits = self._model(input_ids=tokens[None, :-1], use_cache=False).logits[0]
        return token_logprobs(process_logits(logits, Sampling(1.0)), tokens[1:]).tolist()

    def _check(self, request: GenerationRequest) -> None:
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
    def _evaluation(self) -> Iterator[None]:
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

    def _answer(self, rows: list[_Row], cancelled: Event) -> None:
        """Completes the rows of one batch."""
        batch = self._prefill(rows)
        while not cancelled.is_set():
            tokens = self._draw(batch)
            running = [i for i, row in enumerate(batch.rows) if row.stop_reason is None]
            if not running:
                return
            if len(running) <= COMPACT_BELOW * len(batch.rows):
                batch.select([batch.rows[i] for i in running], running)
                tokens = tokens[running]
            self._advance(batch, tokens)

    def _prefill(self, rows: list[_Row]) -> _Batch:
        """Reads the prompts, each distinct one once however many samples it has."""
        index_of: dict[tuple[int, ...], int] = {}
        for row in rows:
            index_of.setdefault(row.request.token_ids, len(index_of))
        lengths = [len(prompt) for prompt in index_of]
        width = max(lengths)
        tokens = torch.full((len(index_of), width), self._renderer.pad_id)
        mask = torch.zeros_like(tokens)
        for i, prompt in enumerate(index_of):
            tokens[i, width - len(prompt) :] = torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        device = self._model.device
        cache = DynamicCache(config=self._model.config)
        padded = mask.to(device) if min(lengths) < width else None
        # At the padding any position would do, as nothing attends to it.
        positions = (mask.cumsum(-1) - 1).clamp(min=0).to(device)
        logits = self._forward(tokens.to(device), padded, positions, cache)
        batch = _Batch(rows, _by_sampling(rows), cache, padded, positions[:, -1], logits)
        if len(index_of) < len(rows):
            batch.select(rows, [index_of[row.request.token_ids] for row in rows])
        return batch

    def _advance(self, batch: _Batch, tokens: Tensor) -> None:
        """Appends one token per row, int64 [B]; finished rows ride along, their output unread."""
        batch.positions = batch.positions + 1
        if batch.mask is not None:
            batch.mask = torch.cat([batch.mask, torch.ones_like(batch.mask[:, :1])], dim=-1)
        batch.logits = self._forward(
            tokens.unsqueeze(-1), batch.mask, batch.positions.unsqueeze(-1), batch.cache
        )

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

    def _draw(self, batch: _Batch) -> Tensor:
        """Draws the next token of every row, int64 [B], and notes it in the running ones."""
        numbers = [0.0 if row.stop_reason else row.random.random() for row in batch.rows]
        uniforms = torch.tensor(numbers, dtype=torch.float64, device=batch.logits.device)
        tokens = torch.empty(len(batch.rows), dtype=torch.int64, device=batch.logits.device)
        logprobs = torch.empty(len(batch.rows), device=batch.logits.device)
        for sampling, index in batch.groups.items():
            processed = process_logits(batch.logits[index], sampling)
            if sampling.temperature == 0:
                tokens[index] = processed.argmax(dim=-1)
            else:
                tokens[index] = draw_tokens(processed, uniforms[index])
            logprobs[index] = token_logprobs(processed, tokens[index])
        for row, token, logprob in zip(batch.rows, tokens.tolist(), logprobs.tolist(), strict=True):
            if row.stop_reason is None:
                self._note(row, token, logprob)
        return tokens

    def _note(self, row: _Row, token: int, logprob: float) -> None:
        if not math.isfinite(logprob):
            raise GenerationError(
                WHERE,
                f"the model's output is not finite (log-prob {logprob} of token {token})",
                "The weights have diverged: lower policy.optimizer.lr, or resume from an earlier "
                "checkpoint",
            )
        row.tokens.append(token)
        row.logprobs.append(logprob)
        if token in self._eos_ids or self._ends_in_stop_string(row):
            row.stop_reason = StopReason.STOP
        elif len(row.tokens) == row.request.max_new_tokens:
            row.stop_reason = StopReason.LENGTH

    def _ends_in_stop_string(self, row: _Row) -> bool:
        stop = row.request.sampling.stop
        if not stop:
            return False
        # Every token is at least a byte, and what came before has been looked at already.
        window = max(len(text.encode()) for text in stop) + STOP_MARGIN
        tail = self._renderer.decode(row.tokens[-window:], skip_special=False)
        return any(text in tail for text in stop)


def _by_sampling(rows: Sequence[_Row]) -> dict[Sampling, Tensor | slice]:
    indices: dict[Sampling, list[int]] = {}
    for i, row in enumerate(rows):
        indices.setdefault(row.request.sampling, []).append(i)
    if len(indices) == 1:
        return {rows[0].request.sampling: slice(None)}
    return {sampling: torch.tensor(group) for sampling, group in indices.items()}
