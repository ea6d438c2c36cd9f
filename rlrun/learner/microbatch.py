# SPDX-License-Identifier: Apache-2.0
"""Cuts a minibatch into microbatches by a token budget; what is trained stays the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from rlrun.batch import Sample
from rlrun.config.schema import Policy
from rlrun.learner.rows import TokenRows
from rlrun.learner.sharding import Ranks


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Samples that go through the model together.

    Attributes:
        members: Their indices in the minibatch; empty for one that only keeps a rank in step with
            the others.
        rows: Their tokens.
    """

    members: list[int]
    rows: TokenRows


def microbatches(
    samples: Sequence[Sample], policy: Policy, ranks: Ranks, device: torch.device
) -> Iterator[Microbatch]:
    """This rank's share of a minibatch; the cut does not depend on how many ranks there are."""
    lay_out = TokenRows.packed if policy.sequence_packing else TokenRows.padded
    for members in ranks.share(cut(samples, policy)):
        chosen = [samples[i].trajectory for i in members or [0]]
        token_ids = [trajectory.token_ids for trajectory in chosen]
        masks = [trajectory.loss_mask for trajectory in chosen]
        if members is None:
            masks = [(False,) * len(token_ids[0])]
        yield Microbatch(members or [], lay_out(token_ids, masks, device))


def cut(samples: Sequence[Sample], policy: Policy) -> list[list[int]]:
    """Indices of the samples that go through the model together."""
    lengths = [len(sample.trajectory.token_ids) for sample in samples]
    by_tokens = pack_by_tokens if policy.sequence_packing else split_by_tokens
    return by_tokens(lengths, policy.train_micro_batch_tokens)


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
