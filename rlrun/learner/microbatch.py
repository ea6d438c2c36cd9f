# SPDX-License-Identifier: Apache-2.0
"""Cuts a minibatch into microbatches by a token budget; what is trained stays the same."""

from __future__ import annotations

from collections.abc import Sequence


def split_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Groups sequences of similar length so that rows x longest row stays within ``budget``.

    Args:
        lengths: Tokens of each sequence.
        budget: Padded tokens per microbatch; at least the longest sequence.

    Returns:
        Indices of the sequences of each microbatch, longest microbatch first: if memory does not
        suffice, the first one says so.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    microbatches: list[list[int]] = []
    for index in order:
        current = microbatches[-1] if microbatches else None
        if current is not None and (len(current) + 1) * lengths[current[0]] <= budget:
            current.append(index)
        else:
            microbatches.append([index])
    return microbatches


def pack_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Groups sequences so that their sum stays within ``budget`` (first fit, longest first).

    First-fit decreasing needs at most 11/9 of the fewest possible bins, plus one (Johnson, 1973).

    Args:
        lengths: Tokens of each sequence.
        budget: Tokens per microbatch; at least the longest sequence.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    bins: list[list[int]] = []
    rooms: list[int] = []
    for index in order:
        place = next((b for b, room in enumerate(rooms) if lengths[index] <= room), None)
        if place is None:
            place = len(bins)
            bins.append([])
            rooms.append(budget)
        bins[place].append(index)
        rooms[place] -= lengths[index]
    return bins
