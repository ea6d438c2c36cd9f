# SPDX-License-Identifier: Apache-2.0
"""Why a single row cannot be used: a reason that is counted, and a detail that is shown."""

from __future__ import annotations

SHOWN_CHARACTERS = 80
"""Longest piece of a row that an error message repeats."""


class BadRow(Exception):
    """A row that cannot be used; caught by the loader, which adds file and line.

    Args:
        reason: The kind of mistake, the same text for every row that has it.
        detail: What is wrong with this row, with the offending value.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else reason)


def shown(value: object) -> str:
    """A value as an error message repeats it: quoted, on one line, cut at SHOWN_CHARACTERS."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."
