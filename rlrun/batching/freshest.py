# SPDX-License-Identifier: Apache-2.0
"""Batching by freshness: the youngest group first, as far as no group is left behind its bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from rlrun.interfaces import Batching, ReadyGroup, component


@component("batching/freshest")
@dataclass(kw_only=True, slots=True)
class Freshest(Batching):
    """Youngest finished group first; older ones follow when their age bound forces them in."""

    def rank(self, ready: Sequence[ReadyGroup]) -> list[ReadyGroup]:
        """By oldest version, the latest first; groups of one version by finish order."""
        return sorted(ready, key=attrgetter("oldest_version"), reverse=True)
