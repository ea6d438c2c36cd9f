# SPDX-License-Identifier: Apache-2.0
"""Samples from a transformers model token by token: reads prompts, draws tokens, notices ends.

Every request draws from random numbers of its own, so what it gets does not depend on the requests
beside it (up to the rounding of batched matrix products); the same requests in the same order give
the same bits. Who runs rows together, and until when, is static_batch.py's and
continuous_batch.py's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import DynamicCache

from rlrun.errors import GenerationError, TrainingError
from rlrun.generation.cache import new_cache
from rlrun.generation.rows import Row, Rows, by_sampling
from rlrun.rendering.renderer import Renderer
from rlrun.sampling import draw_tokens, process_logits, token_logprobs
from rlrun.types import GenerationRequest, Sampling, StopReason

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WHERE = "generation=transformers"

STOP_MARGIN = 8
"""Tokens decoded beyond a stop string's length in bytes: pieces of characters and of words at the
cut may decode to something else than inside the whole."""


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
        batch = Rows(rows, by_sampling(rows), cache, padded, positions[:, -1], last)
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
