# SPDX-License-Identifier: Apache-2.0
"""Batching in stream order: every group is admitted for one step and trained in that step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar

from rlrun.interfaces import Batching, ReadyGroup, component


@component("batching/in_order")
@dataclass(kw_only=True, slots=True)
class InOrder(Batching):
    """A step waits for exactly the groups that were admitted for it.

    Which prompts a step trains then does not depend on how long they take.
    """

    assigns_targets: ClassVar[bool] = True

    def rank(self, ready: Sequence[ReadyGroup]) -> list[ReadyGroup]:
        """By (target step, position)."""
        return sorted(ready, key=attrgetter("target_step", "position"))
