# SPDX-License-Identifier: Apache-2.0
"""Numbers of things in words."""

from __future__ import annotations


def counted(count: float, thing: str, things: str = "", *, form: str = "") -> str:
    """How many of something there are: "0 steps", "1 step", "2 batches".

    Args:
        count: The number.
        thing: The word for one.
        things: The word for several; ``thing`` with an s by default.
        form: How the number is written, as in a format string.
    """
    return f"{count:{form}} {thing if count == 1 else things or f'{thing}s'}"
