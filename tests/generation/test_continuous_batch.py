# SPDX-License-Identifier: Apache-2.0
"""Rows that join and leave a running batch get what they would get alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from threading import Event

import pytest
import torch
from transformers import NemotronHForCausalLM, PreTrainedModel

from rlrun.errors import GenerationError
from rlrun.generation.continuous_batch import ContinuousBatch
from rlrun.generation.sampler import Sampler
from rlrun.generation.static_batch import StaticBatches
from rlrun.rendering.renderer import Renderer
from rlrun.types import Completion, GenerationRequest, Sampling, VersionSpan
from tests.generation.hybrid import tiny_hybrid

Requests = Callable[..., list[GenerationRequest]]


def drain(batch: ContinuousBatch) -> dict[int, list[Completion]]:
    done: dict[int, list[Completion]] = {}
    while batch.busy:
        done |= batch.step()
    return done


def alone(sampler: Sampler, requests: list[GenerationRequest]) -> list[Completion]:
    return [StaticBatches(sampler, None)([request], Event())[0] for request in requests]


def assert_same(found: list[Completion], expected: list[Completion]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert (one.stop_reason, one.weight_versions) == (other.stop_reason, other.weight_versions)


@pytest.mark.parametrize("max_rows", [None, 5])
def test_rows_that_join_at_any_time_get_what_they_get_alone(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests, max_rows: int | None
) -> None:
    sampler = Sampler(model, renderer, None)
    chance = random.Random(3)
    calls = {i: requests_for(1 + i % 4, samples=2, seed=100 * i) for i in range(8)}
    batch = ContinuousBatch(sampler, max_rows)
    done: dict[int, list[Completion]] = {}
    for call_id, requests in calls.items():
        batch.add(call_id, requests)
        for _ in range(chance.randrange(9)):
            done |= batch.step()
    done |= drain(batch)
    assert done.keys() == calls.keys()
    for call_id, requests in calls.items():
        assert_same(done[call_id], alone(sampler, requests))


def test_at_most_max_rows_run_at_once(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    batch = ContinuousBatch(Sampler(model, renderer, None), 3)
    batch.add(0, requests_for(4, samples=2))
    while batch.busy:
        batch.step()
        assert sum(row.stop_reason is None for b in batch._batches for row in b.rows) <= 3


def test_state_space_layers_run_beside_each_other_and_are_right(renderer: Renderer) -> None:
    hybrid: NemotronHForCausalLM = tiny_hybrid(len(renderer.tokenizer))
    sampler = Sampler(hybrid, renderer, None)
    calls = {i: [GenerationRequest((7, 8 + i, 9), 6, i, Sampling(1.0))] for i in range(3)}
    batch = ContinuousBatch(sampler, None)
    done: dict[int, list[Completion]] = {}
    for call_id, requests in calls.items():
        batch.add(call_id, requests)
        done |= batch.step()
        done |= batch.step()
    done |= drain(batch)
    for call_id, requests in calls.items():
        assert_same(done[call_id], alone(sampler, requests))


def test_a_cancelled_call_leaves_and_says_what_it_had(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    sampler = Sampler(model, renderer, None)
    first, second = requests_for(2), requests_for(2, seed=50)
    batch = ContinuousBatch(sampler, None)
    batch.add(0, first)
    batch.add(1, second)
    for _ in range(3):
        batch.step()
    assert batch.cancel(0) == 2 * 3
    assert batch.cancel(0) == 0
    assert_same(drain(batch)[1], alone(sampler, second))


def test_a_call_that_waits_can_be_cancelled(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    batch = ContinuousBatch(Sampler(model, renderer, None), 1)
    batch.add(0, requests_for(1))
    batch.add(1, requests_for(1))
    batch.step()
    assert batch.cancel(1) == 0
    assert drain(batch).keys() == {0}


def test_a_request_that_does_not_fit_takes_none_of_its_call_in(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    batch = ContinuousBatch(Sampler(model, renderer, None), None)
    with pytest.raises(GenerationError):
        batch.add(0, [*requests_for(1), GenerationRequest((5,) * 5000, 1, 0, Sampling(1.0))])
    assert not batch.busy


@pytest.mark.parametrize("reread", [False, True])
def test_weights_that_change_on_the_way_are_told_apart_token_by_token(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests, reread: bool
) -> None:
    """Log-probs after the change are those of a model that saw the prefix as it was computed."""
    never_ends = Renderer(renderer.tokenizer, eos_ids=(renderer.pad_id,))
    sampler = Sampler(model, never_ends, None)
    (request,) = requests_for(1, max_new_tokens=9)
    batch = ContinuousBatch(sampler, None)
    batch.add(0, [request])
    for _ in range(4):
        batch.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.05)
    sampler.version = 7
    if reread:
        batch.reread()
    (completion,) = drain(batch)[0]
    assert completion.weight_versions == (VersionSpan(0, 0, 4), VersionSpan(7, 4, 9))
    ids = torch.tensor([request.token_ids + completion.token_ids])
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    first = len(request.token_ids)
    new = [expected[first + i - 1, completion.token_ids[i]].item() for i in range(4, 9)]
    if reread:
        assert completion.logprobs[4:] == pytest.approx(new, abs=1e-4)
    else:
        # The cache holds keys and values of the old weights.
        assert completion.logprobs[4:] != pytest.approx(new, abs=1e-4)
