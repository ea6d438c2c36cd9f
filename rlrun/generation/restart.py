# SPDX-License-Identifier: Apache-2.0
"""Brings back what generates, after its process was lost in the middle of a run."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from rlrun.errors import GenerationError

log = logging.getLogger(__name__)

MAX_STARTS = 3
"""Tries one after the other: whatever ended an engine may end the next one while it starts."""


async def start_again(start: Callable[[], Awaitable[None]]) -> None:
    """Calls what starts an engine that has run before, and again if it fails.

    Raises:
        GenerationError: The last of MAX_STARTS failed; this is its error.
    """
    for left in reversed(range(MAX_STARTS)):
        try:
            return await start()
        except GenerationError as error:
            if not left:
                raise
            log.warning("%s; it is tried again", error)
