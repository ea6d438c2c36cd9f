# SPDX-License-Identifier: Apache-2.0
"""Additions of two numbers from 0 to 99: 9,500 pairs to train on, 500 others to validate on.

The split is fixed, and whatever pretrains a model for this task takes it from here as well, so
that the validation pairs are new to the model in every stage.
"""

from __future__ import annotations

import hashlib

VALIDATION_PAIRS = 500


def addition_pairs(split: str) -> list[tuple[int, int]]:
    """The ordered pairs (a, b) of a split, "train" or "validation", in a fixed shuffled order."""
    pairs = [(a, b) for a in range(100) for b in range(100)]
    # Sorting by a digest is a shuffle that no library version can change.
    pairs.sort(key=lambda pair: hashlib.sha256(b"%d+%d" % pair).digest())
    splits = {"validation": pairs[:VALIDATION_PAIRS], "train": pairs[VALIDATION_PAIRS:]}
    return splits[split]


def question(a: int, b: int) -> str:
    """The problem as text."""
    return f"What is {a} + {b}?"


def records(split: str) -> list[dict[str, str]]:
    """Rows with problem and answer."""
    return [{"problem": question(a, b), "answer": str(a + b)} for a, b in addition_pairs(split)]
