# SPDX-License-Identifier: Apache-2.0
"""Tells a Ray actor that hangs from one that works: its event loop answers, whatever it computes.

Ray itself sees only that the process is there. A call may take as long as it needs, so its length
says nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any

ASK_EVERY_S = 30.0
"""How often a process is asked for a sign of life."""

PATIENCE = 20
"""Times ASK_EVERY_S without an answer after which a process has hung: ten minutes, far more than
the copy of new weights takes, during which an engine does not answer. Times are counted, not
seconds: a run that was itself stopped meanwhile may find an answer that it has not read yet."""


async def answers(actor: Any) -> bool:
    """Whether an actor that can say where it is does so.

    Raises:
        RayError: It cannot be asked; its process may have ended.
    """
    asked = asyncio.wrap_future(actor.whereabouts.remote().future())
    # When nobody waits any more it may still come to an error, which is then nobody's.
    asked.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    for _ in range(PATIENCE):
        if (await asyncio.wait([asked], timeout=ASK_EVERY_S))[0]:
            asked.result()
            return True
    return False
