# SPDX-License-Identifier: Apache-2.0
"""Additions of two numbers from 1 to 9: 54 pairs to train on, 27 others to validate on.

Small enough for a pretrained chat model of a hundred million parameters, which knows the sums and
seldom says just them. Zero is left out: a sum is then neither of its terms, so repeating a number
of the question is never right.
"""

from __future__ import annotations

import hashlib

VALIDATION_PAIRS = 27


def one_digit_pairs(split: str) -> list[tuple[int, int]]:
    """The ordered pairs (a, b) of a split, "train" or "validation", in a fixed shuffled order."""
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    # Sorting by a digest is a shuffle that no library version can change.
    pairs.sort(key=lambda pair: hashlib.sha256(b"one digit/%d+%d" % pair).digest())
    splits = {"validation": pairs[:VALIDATION_PAIRS], "train": pairs[VALIDATION_PAIRS:]}
    return splits[split]


def records(split: str) -> list[dict[str, str]]:
    """Rows with problem and answer."""
    return [
        {"problem": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in one_digit_pairs(split)
    ]
