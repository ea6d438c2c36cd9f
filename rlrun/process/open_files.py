# SPDX-License-Identifier: Apache-2.0
"""How many files and connections this process may have open at a time."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

MOST = 2**16
"""Enough for tens of thousands of episodes; where the system sets no bound, some programs that a
run starts look at every number up to theirs."""


def raise_limit() -> None:
    """Raises the limit of this process, and of what it starts, as far as the system allows.

    Every episode is a connection to its agent, every request of the agent one to the policy, and
    Ray needs many more; a login shell mostly allows 1024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(MOST, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays at %d: %s", soft, error)
    else:
        log.info("the limit of open files is raised from %d to %d", soft, wanted)
