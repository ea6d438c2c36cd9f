# SPDX-License-Identifier: Apache-2.0
"""The length filter: which rows, rendered as token ids, leave room for an answer.

All rows are judged before the run, since a stream with random access must know what is in it. A
row is only rendered where that can change the verdict: a plain ASCII conversation whose text is
far below the limit is kept unseen, because no tokenizer makes more tokens than characters of it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from rlrun.console.counted import counted
from rlrun.data.load import SHOWN_EXAMPLES, LoadedRows
from rlrun.errors import DataError
from rlrun.types import Message, Row

Render = Callable[[Sequence[Message]], tuple[int, ...]]
"""Conversation to token ids, generation prompt, chat template and tool schemas included."""

TOKENS_PER_CHARACTER = 2
"""What a character is taken to cost: at most 1 by any tokenizer, times 2 for a chat template that
repeats a message."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows that fit.

    Attributes:
        rows: In the order of the source.
        dropped: Rows left out because they are too long.
        examples: "FILE:LINE: N tokens" of the first few.
        checksum: Of the loaded rows and of which ones are kept.
        notices: What the user should know, those of loading included.
        name: What messages call the source.
    """

    rows: Sequence[Row]
    dropped: int
    examples: tuple[str, ...]
    checksum: str
    notices: tuple[str, ...]
    name: str


class KeptRows(Sequence[Row]):
    """Some rows of a sequence, by index.

    Args:
        rows: All rows.
        kept: Indices of those that are left, in order.
    """

    def __init__(self, rows: Sequence[Row], kept: NDArray[np.int64]) -> None:
        self._rows, self._kept = rows, kept

    def __len__(self) -> int:
        return len(self._kept)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self._rows[int(i)] for i in self._kept[index]]
        return self._rows[int(self._kept[index])]


def prepare(loaded: LoadedRows, render: Render, max_prompt_tokens: int) -> Prepared:
    """Leaves out the rows whose prompt has more than ``max_prompt_tokens`` tokens.

    Args:
        loaded: The rows.
        render: As the run renders prompts.
        max_prompt_tokens: At least 1; the caller keeps room for an answer beyond it.

    Raises:
        DataError: No row is left.
    """
    count = _Counter(render)
    keep = _surely_short(loaded, count, max_prompt_tokens)
    examples: list[str] = []
    for index in np.flatnonzero(~keep):
        row = loaded.rows[int(index)]
        tokens = count(row.messages, row.where)
        keep[index] = tokens <= max_prompt_tokens
        if not keep[index] and len(examples) < SHOWN_EXAMPLES:
            examples.append(f"{row.where}: {counted(tokens, 'token')}")
    kept = np.flatnonzero(keep)
    total, dropped = len(loaded.rows), len(loaded.rows) - len(kept)
    if not len(kept):
        raise DataError(
            loaded.name,
            f"0 of {counted(total, 'prompt')} left after the length filter (at most "
            f"{counted(max_prompt_tokens, 'token')}; {examples[0]})",
            "Raise data.max_prompt_tokens or policy.max_total_sequence_length",
        )
    notices = loaded.notices
    if dropped:
        notices += (
            f"{loaded.name}: {dropped} of {counted(total, 'prompt')} longer than "
            f"{counted(max_prompt_tokens, 'token')} and left out, e.g. {examples[0]}",
        )
    checksum = hashlib.sha256(loaded.checksum.encode() + kept.astype("<i8").tobytes()).hexdigest()
    _log.info("%s: %d of %d rows rendered for their length", loaded.name, count.calls, total)
    rows = KeptRows(loaded.rows, kept) if dropped else loaded.rows
    return Prepared(rows, dropped, tuple(examples), checksum, notices, loaded.name)


class _Counter:
    """Counts tokens, and how often it did."""

    def __init__(self, render: Render) -> None:
        self.calls = 0
        self._render = render

    def __call__(self, messages: Sequence[Message], where: str) -> int:
        self.calls += 1
        try:
            return len(self._render(messages))
        except DataError as error:
            raise DataError(where, error.what, error.remedy) from error


def _surely_short(loaded: LoadedRows, count: _Counter, max_prompt_tokens: int) -> NDArray[np.bool_]:
    """[N] whether a conversation's number of characters alone keeps it within the limit."""
    room = []
    for roles in loaded.extents.role_sets():
        bare = [{"role": role, "content": "x"} for role in roles]
        room.append(max_prompt_tokens - count(bare, loaded.name) if bare else 0)
    tokens = TOKENS_PER_CHARACTER * loaded.extents.sizes().astype(np.int64)
    return tokens <= np.array(room, dtype=np.int64)[loaded.extents.role_ids()]
