# SPDX-License-Identifier: Apache-2.0
"""Synchronous GRPO: generate, update and refit take turns."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.interfaces import GRPO, component


@component("grpo/sync")
@dataclass(kw_only=True, slots=True)
class SyncGRPO(GRPO):
    """Settings of the synchronous schedule."""
