# SPDX-License-Identifier: Apache-2.0
"""Calls that are cancelled, and the tokens that were sampled for them: the ledger counts all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from rlrun.errors import GenerationError
from rlrun.types import Completion

T = TypeVar("T")


class Abandoned(asyncio.CancelledError):
    """A cancelled call, with the number of tokens that were sampled for it.

    Args:
        tokens: Counted for the books; the tokens themselves are gone.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__(tokens)
        self.tokens = tokens


def tokens_in(completions: Sequence[Completion]) -> int:
    """Tokens that were sampled for answers."""
    return sum(len(completion.token_ids) for completion in completions)


def tokens_of(task: asyncio.Future[T], tokens_of_result: Callable[[T], int]) -> int:
    """Tokens that were sampled for a call that is over, however it ended, as far as that is known.

    A task that was cancelled says so once: asyncio gives its exception away, and a new one, that
    knows nothing, to whoever asks again. ``gather`` is among those who ask.
    """
    try:
        return tokens_of_result(task.result())
    except (Abandoned, GenerationError) as error:
        return error.tokens
    # Any other end says nothing about tokens; it is for the caller to raise it.
    except BaseException:  # noqa: BLE001
        return 0
