# SPDX-License-Identifier: Apache-2.0
"""Games of finding a number from 1 to 9: which ranges are told, and which number it is.

Every range has all its numbers; a digest decides which games are for training.
"""

from __future__ import annotations

import hashlib

VALIDATION_GAMES = 30


def games(split: str) -> list[tuple[int, int, int]]:
    """(lowest, highest, number) of a split's games, in a fixed shuffled order."""
    found = [
        (low, high, number)
        for low in range(1, 9)
        for high in range(low + 1, 10)
        for number in range(low, high + 1)
    ]
    found.sort(key=lambda game: hashlib.sha256(b"guess/%d-%d/%d" % game).digest())
    return {"validation": found[:VALIDATION_GAMES], "train": found[VALIDATION_GAMES:]}[split]


def records(split: str) -> list[dict[str, str]]:
    """Rows with problem and answer."""
    return [
        {
            "problem": f"Guess my number from {low} to {high}. I say higher or lower.",
            "answer": str(number),
        }
        for low, high, number in games(split)
    ]
