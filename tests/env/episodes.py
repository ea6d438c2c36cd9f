# SPDX-License-Identifier: Apache-2.0
"""Episodes for environment tests."""

from __future__ import annotations

from typing import Any

from rlrun.interfaces import Episode
from rlrun.types import Prompt, Row, StopReason


def row(answer: str = "", **payload: Any) -> Row:
    """A row with an answer."""
    return Row("rows:1", ({"role": "user", "content": "?"},), answer, payload, "rows.jsonl:1")


def episode(response: str, answer: str = "", **payload: Any) -> Episode:
    """An episode after its first turn."""
    return Episode(
        prompt=Prompt(position=0, epoch=0, row=row(answer, **payload), token_ids=(1,)),
        sample_index=0,
        messages=({"role": "assistant", "content": response},),
        response=response,
        turn=1,
        stop_reason=StopReason.STOP,
    )
