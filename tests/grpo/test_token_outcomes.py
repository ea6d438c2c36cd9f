# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlrun.batch import Batch, collect_samples, with_advantages
from rlrun.grpo.token_outcomes import outcomes, token_categories
from rlrun.scheduler.events import Outcome, TokenCategory
from tests.factories import config, group

CONFIG = config()


def batch_of(rewards: Sequence[Sequence[float | None]]) -> Batch:
    groups = [group(values, position) for position, values in enumerate(rewards)]
    samples = with_advantages(collect_samples(groups, CONFIG.grpo, 28), CONFIG.advantage)
    return Batch(1, tuple(groups), tuple(samples))


def test_each_kind_of_group_has_its_outcome() -> None:
    batch = batch_of([[1.0, 0.0], [1.0, 1.0], [None, None]])
    assert outcomes([0, 1, 2], batch) == {
        0: Outcome.TRAINED,
        1: Outcome.NO_SIGNAL,
        2: Outcome.FILTERED,
    }


def test_tokens_are_told_apart_sample_by_sample() -> None:
    counts = token_categories(batch_of([[1.0, 0.0, None], [1.0, 1.0]]))
    assert counts == {
        TokenCategory.TRAINED: 4,
        TokenCategory.ERRORED: 2,
        TokenCategory.ZERO_SIGNAL: 4,
    }


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, None]), min_size=1), min_size=1, max_size=6))
def test_every_token_is_counted_once(rewards: list[list[float | None]]) -> None:
    batch = batch_of(rewards)
    assert sum(token_categories(batch).values()) == sum(g.num_sampled for g in batch.groups)


def test_stale_tokens_have_a_place_of_their_own() -> None:
    batch = batch_of([[1.0, 0.0, None]])
    stale = tuple(replace(sample, stale_tokens=3) for sample in batch.samples)
    assert token_categories(replace(batch, samples=stale)) == {
        TokenCategory.TRAINED: 4,
        TokenCategory.STALE: 6,
        TokenCategory.ERRORED: 5,
    }


def test_what_the_correction_leaves_no_weight_of_is_not_trained() -> None:
    batch = batch_of([[1.0, 0.0]])
    weightless = [replace(s, weights=np.zeros_like(s.weights)) for s in batch.samples]
    one = replace(batch, samples=(weightless[0], batch.samples[1]))
    assert token_categories(one) == {TokenCategory.ZERO_SIGNAL: 2, TokenCategory.TRAINED: 2}
    assert outcomes([0], one) == {0: Outcome.TRAINED}
    assert outcomes([0], replace(batch, samples=tuple(weightless))) == {0: Outcome.NO_SIGNAL}
