# SPDX-License-Identifier: Apache-2.0
"""Batching by age: the group with the oldest token first, then the one that finished first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from rlrun.interfaces import Batching, ReadyGroup, component


@component("batching/fifo")
@dataclass(kw_only=True, slots=True)
class Fifo(Batching):
    """Oldest finished group first. Never needs the scheduler's age test to change its order."""

    def rank(self, ready: Sequence[ReadyGroup]) -> list[ReadyGroup]:
        """By (oldest version, finish order)."""
        return sorted(ready, key=attrgetter("oldest_version"))
