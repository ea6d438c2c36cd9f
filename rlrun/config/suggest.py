# SPDX-License-Identifier: Apache-2.0
"""Finds the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

_GOOD_ENOUGH = 0.6


def nearest(word: str, names: Iterable[str]) -> list[str]:
    """All names, the most similar first; equally similar ones in alphabetical order."""
    return sorted(sorted(names), key=lambda name: -_similarity(word, name))


def nearest_key(key: str, keys: Iterable[str]) -> str | None:
    """The dotted key that resembles a mistyped one most, or None if none does.

    Either the whole keys resemble each other or their last components do; a key of the same section
    is preferred, one that ends in the very same word, and one whose section resembles the mistyped.
    Upper and lower case are the same.
    """
    section, _, last = key.lower().rpartition(".")
    best, best_score = None, _GOOD_ENOUGH
    for candidate in sorted(keys):
        candidate_section, _, candidate_last = candidate.lower().rpartition(".")
        score = max(_similarity(key, candidate), _similarity(last, candidate_last))
        score += 0.1 * (section == candidate_section) + 0.05 * (last == candidate_last)
        score += 0.04 * _similarity(section, candidate_section)
        if score > best_score:
            best, best_score = candidate, score
    return best


def _similarity(left: str, right: str) -> float:
    return SequenceMatcher(None, left.lower(), right.lower()).ratio()
