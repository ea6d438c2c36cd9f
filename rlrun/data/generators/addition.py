# SPDX-License-Identifier: Apache-2.0
"""Two-digit addition: every pair of numbers below 100, split once and for all."""

from __future__ import annotations

import random

NUM_VALIDATION = 500
SPLIT_SEED = 1


def addition_pairs(split: str) -> list[tuple[int, int]]:
    """The (a, b) with 0 <= a, b < 100 of a split: 9,500 for "train", 500 for "validation"."""
    pairs = [(a, b) for a in range(100) for b in range(100)]
    random.Random(SPLIT_SEED).shuffle(pairs)
    if split == "validation":
        return pairs[:NUM_VALIDATION]
    if split == "train":
        return pairs[NUM_VALIDATION:]
    raise ValueError(f"split={split!r} is neither 'train' nor 'validation'")


def question(a: int, b: int) -> str:
    """The question as the policy reads it."""
    return f"What is {a} + {b}?"
