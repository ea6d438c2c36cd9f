# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that must be told one before they start."""

from __future__ import annotations

import os
import random
import socket

FIRST, EACH = 20_000, 1_000
"""Below those that Linux hands out (32768 and up) and above those of Ray's workers: a port that is
asked for later can have been given to somebody else only by a test, and workers of pytest have
ranges of their own."""

_chosen: set[int] = set()


def free_port() -> int:
    """A port that nothing listens at, another one at every call."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = range(FIRST + EACH * (worker % 10), FIRST + EACH * (worker % 10 + 1))
    # Not from the same one on: another run of the tests may be on this machine.
    for port in random.SystemRandom().sample(own, len(own)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
        if port not in _chosen:
            _chosen.add(port)
            return port
    raise AssertionError("no port is free")
