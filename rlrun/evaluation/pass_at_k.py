# SPDX-License-Identifier: Apache-2.0
"""pass@k: how likely k samples of a prompt hold a right one, with an interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z_95 = 1.959963984540054
"""Standard normal quantile of 97.5 %."""

METHOD = "95 % Wilson interval over prompts"
"""Named wherever the intervals are shown."""


@dataclass(frozen=True, slots=True)
class PassAtK:
    """An estimate over prompts.

    Attributes:
        k: Samples of which one must be right.
        value: The mean over the prompts.
        low: Lower end of the 95 % interval.
        high: Upper end.
        prompts: Prompts that have at least k scored samples; the others are left out.
    """

    k: int
    value: float
    low: float
    high: float
    prompts: int


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Probability that k of the samples, drawn without replacement, hold a right one.

    1 - C(n - c, k) / C(n, k): the unbiased estimator of Chen et al. (arXiv 2107.03374), in exact
    integers and rounded once.

    Args:
        num_samples: n, at least k.
        num_correct: c, from 0 to n.
        k: At least 1.
    """
    ways = math.comb(num_samples, k)
    return (ways - math.comb(num_samples - num_correct, k)) / ways


def estimates(counts: Sequence[tuple[int, int]]) -> list[PassAtK]:
    """pass@1, pass@2, pass@4, ... up to the largest number of samples of a prompt.

    Args:
        counts: Of each prompt the scored samples and how many of them are right.
    """
    found: list[PassAtK] = []
    k = 1
    while usable := [(n, c) for n, c in counts if n >= k]:
        values = [pass_at_k(n, c, k) for n, c in usable]
        value = math.fsum(values) / len(values)
        samples = sum(n for n, _ in usable) / len(usable)
        low, high = interval(values, max(1.0, samples / k))
        found.append(PassAtK(k, value, low, high, len(values)))
        k *= 2
    return found


def interval(values: Sequence[float], draws: float) -> tuple[float, float]:
    """95 % interval of the mean of values from 0 to 1, one per prompt.

    Wilson's score interval (1927) with the number of prompts times p (1 - p) / s^2 as sample size,
    s^2 being the variance over prompts: samples of a prompt are not independent, so the prompts
    are what is counted. With one sample each that is Wilson's interval itself. Unlike resampling
    it has a width where all prompts are right, or none, and needs no seed.

    Args:
        values: Not empty.
        draws: At most how many independent draws a prompt can stand for; at least 1.
    """
    prompts = len(values)
    mean = min(1.0, max(0.0, math.fsum(values) / prompts))
    spread = math.fsum((value - mean) ** 2 for value in values) / prompts
    binomial = mean * (1.0 - mean)
    # Where all prompts are right, or none, nothing says how alike the samples of a prompt are.
    effect = 1.0 if binomial == 0.0 else min(binomial / max(spread, 1e-12), draws)
    size = prompts * max(1.0, effect)
    squared = Z_95**2
    centre = (mean + squared / (2 * size)) / (1 + squared / size)
    half = Z_95 / (1 + squared / size) * math.sqrt(binomial / size + squared / (4 * size**2))
    return max(0.0, centre - half), min(1.0, centre + half)
