# SPDX-License-Identifier: Apache-2.0
"""The prompt stream: which row is at which position, over all epochs, by computation alone.

A position is an index over all epochs. The stream has no state that moves: whoever schedules keeps
the positions that are out, done or to be done again, and a resumed run asks for the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from rlrun.console.counted import counted
from rlrun.data.prepare import Render
from rlrun.errors import DataError
from rlrun.types import Prompt, Row

CACHED_EPOCHS = 2
"""Permutations kept; prompts of two epochs are asked for in turn around an epoch's end."""

_STATE_MEANING = {
    "checksum": "the content of the rows, or the settings that shape them",
    "num_rows": "the number of rows",
    "seed": "the seed",
    "shuffle": "data.train.shuffle",
}


class PromptStream:
    """Random access to the prompts of all epochs.

    Args:
        rows: The rows of an epoch; not empty.
        render: Conversation to token ids.
        checksum: Of the rows, as loading or preparing them gave it.
        seed: Decides the order of every epoch.
        epochs: How many epochs there are; None for no end.
        shuffle: Whether each epoch has an order of its own; otherwise that of the rows.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        render: Render,
        *,
        checksum: str,
        seed: int,
        epochs: int | None,
        shuffle: bool,
    ) -> None:
        if not rows:
            raise DataError("prompts", "there are no rows", "Give a data source that has some")
        self.len_per_epoch = len(rows)
        self.total = None if epochs is None else epochs * len(rows)
        self._rows, self._render = rows, render
        self._checksum, self._seed, self._shuffle = checksum, seed, shuffle
        self._orders: dict[int, NDArray[np.int64]] = {}

    def prompt_at(self, position: int) -> Prompt:
        """The prompt at a position, the same one whenever it is asked for.

        Raises:
            IndexError: The position is negative or beyond the last epoch.
        """
        if position < 0 or (self.total is not None and position >= self.total):
            raise IndexError(f"position {position} is outside the stream of {self.total} prompts")
        epoch, place = divmod(position, self.len_per_epoch)
        row = self._rows[int(self._order(epoch)[place])]
        return Prompt(position, epoch, row, self._render(row.messages))

    def _order(self, epoch: int) -> NDArray[np.int64]:
        order = self._orders.get(epoch)
        if order is None:
            if self._shuffle:
                order = permutation(self.len_per_epoch, self._seed, epoch)
            else:
                order = np.arange(self.len_per_epoch, dtype=np.int64)
            while len(self._orders) >= CACHED_EPOCHS:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = order
        return order

    def notices(self, num_prompts_per_step: int) -> list[str]:
        """What the user should know about the size of the data set, a sentence each."""
        if self.len_per_epoch >= num_prompts_per_step:
            return []
        what = "a step then trains on a prompt repeatedly, as trajectory groups of different epochs"
        if self.total is not None and self.total <= num_prompts_per_step:
            what = f"the run is one step of {self.total}; grpo.max_num_epochs makes it longer"
        return [
            f"the data set has {counted(self.len_per_epoch, 'prompt')}, fewer than "
            f"grpo.num_prompts_per_step={num_prompts_per_step}: {what}"
        ]

    def state(self) -> dict[str, Any]:
        """What decides which prompt is where; JSON values. The number of epochs does not."""
        return {
            "checksum": self._checksum,
            "num_rows": self.len_per_epoch,
            "seed": self._seed,
            "shuffle": self._shuffle,
        }

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Refuses to continue a stream that had other prompts at the same positions.

        Raises:
            DataError: Rows, seed or shuffling differ from those of ``state``.
        """
        now = self.state()
        changed = [
            f"{meaning} (was {state.get(name)}, is {now[name]})"
            for name, meaning in _STATE_MEANING.items()
            if state.get(name) != now[name]
        ]
        if changed:
            raise DataError(
                "prompts",
                f"the data set is not the one that the run was started with: {'; '.join(changed)}",
                "Restore the data and its settings, or start a new run",
            )


class ValidationPrompts(Sequence[Prompt]):
    """The first ``max_val_samples`` rows (None: all), each exactly once, in their order.

    Prompts are rendered at each access.
    """

    def __init__(self, rows: Sequence[Row], render: Render, max_val_samples: int | None) -> None:
        self._rows, self._render = rows, render
        self._count = len(rows) if max_val_samples is None else min(max_val_samples, len(rows))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Prompt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...
    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        position = range(self._count)[index]
        row = self._rows[position]
        return Prompt(position, 0, row, self._render(row.messages))


def permutation(size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """A shuffled order of range(size), the same under every version of every library.

    Rows are sorted by SplitMix64 (Steele, Lea, Flood, OOPSLA 2014) of their index, started at a
    digest of seed and epoch; integer arithmetic and a stable sort leave nothing open.
    """
    start = hashlib.sha256(f"{seed}/{epoch}".encode()).digest()[:8]
    step = np.uint64(0x9E3779B97F4A7C15)
    state = np.arange(1, size + 1, dtype=np.uint64) * step + np.uint64(int.from_bytes(start))
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(state ^ (state >> np.uint64(31)), kind="stable")
