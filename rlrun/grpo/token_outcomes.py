# SPDX-License-Identifier: Apache-2.0
"""How each prompt and each token of a trained batch ended, for the scheduler's books. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rlrun.batch import Batch, Masked, Sample
from rlrun.scheduler.events import Outcome, TokenCategory


def outcomes(positions: Sequence[int], batch: Batch) -> dict[int, Outcome]:
    """Outcome of each position: trained as soon as one of its samples has a gradient term."""
    samples: dict[int, list[Sample]] = {position: [] for position in positions}
    for sample in batch.samples:
        samples[sample.prompt.position].append(sample)
    return {position: _outcome(members) for position, members in samples.items()}


def _outcome(samples: Sequence[Sample]) -> Outcome:
    if any(sample.has_gradient for sample in samples):
        return Outcome.TRAINED
    if all(sample.masked is not None for sample in samples):
        return Outcome.FILTERED
    return Outcome.NO_SIGNAL


def token_categories(batch: Batch) -> dict[TokenCategory, int]:
    """Where the sampled tokens of the batch went; the sum is all of them."""
    counts: dict[TokenCategory, int] = {}
    for sample in batch.samples:
        category, tokens = _category(sample), sample.trajectory.num_sampled
        if category is TokenCategory.ERRORED:
            tokens += sample.stale_tokens
        elif sample.stale_tokens:
            stale = counts.get(TokenCategory.STALE, 0)
            counts[TokenCategory.STALE] = stale + sample.stale_tokens
        if lost := sample.trajectory.lost_tokens:
            errored = counts.get(TokenCategory.ERRORED, 0)
            counts[TokenCategory.ERRORED] = errored + lost
        counts[category] = counts.get(category, 0) + tokens
    return counts


def _category(sample: Sample) -> TokenCategory:
    if sample.masked is Masked.FAILED:
        return TokenCategory.ERRORED
    if sample.masked is not None:
        return TokenCategory.FILTERED
    return TokenCategory.TRAINED if sample.has_gradient else TokenCategory.ZERO_SIGNAL
