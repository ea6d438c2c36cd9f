# SPDX-License-Identifier: Apache-2.0
"""Facts about sampling from a transformers model, on the embedded one and on a hybrid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Event

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel

from rlrun.errors import GenerationError, TrainingError
from rlrun.generation import static_batch
from rlrun.generation.sampler import Sampler
from rlrun.generation.static_batch import StaticBatches
from rlrun.rendering.renderer import Renderer
from rlrun.types import Completion, GenerationRequest, Sampling, StopReason, VersionSpan
from tests.generation.hybrid import tiny_hybrid

Requests = Callable[..., list[GenerationRequest]]


def sample(
    model: PreTrainedModel,
    renderer: Renderer,
    requests: list[GenerationRequest],
    max_batch_size: int | None = None,
    version: int = 0,
) -> list[Completion]:
    sampler = Sampler(model, renderer, None)
    sampler.version = version
    return StaticBatches(sampler, max_batch_size)(requests, Event())


def expected_logprobs(
    model: PreTrainedModel, request: GenerationRequest, completion: Completion
) -> torch.Tensor:
    """Log-probs from one forward pass over the whole sequence, filters by explicit sorting."""
    ids = torch.tensor([request.token_ids + completion.token_ids])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0].double()
    first = len(request.token_ids)
    sampling = request.sampling
    found = []
    for position, token in enumerate(completion.token_ids, start=first):
        row = logits[position - 1] / (sampling.temperature or 1.0)
        order = row.argsort(descending=True)
        if sampling.temperature > 0:
            order = order[: sampling.top_k]
            reached = row[order].softmax(0).cumsum(0)
            order = order[: int((reached < sampling.top_p).sum()) + 1]
        kept = row[order].log_softmax(0)
        found.append(kept[order.tolist().index(token)])
    return torch.stack(found)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(0.7),
        Sampling(1.0, top_p=0.9),
        Sampling(1.0, top_k=5),
        Sampling(0.7, top_p=0.9, top_k=5),
        Sampling(0.0),
    ],
)
def test_logprobs_equal_those_of_a_full_forward_pass(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests, sampling: Sampling
) -> None:
    requests = requests_for(12, samples=2, sampling=sampling)
    assert len({len(request.token_ids) for request in requests}) > 1
    completions = sample(model, renderer, requests)
    model = model.double()
    for request, completion in zip(requests, completions, strict=True):
        expected = expected_logprobs(model, request, completion)
        difference = (expected - torch.tensor(completion.logprobs)).abs().max().item()
        assert difference < 1e-5


def test_a_mixture_of_sampling_settings_is_applied_row_by_row(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    settings = [Sampling(0.0), Sampling(1.0), Sampling(0.7, top_k=3)]
    apart = [requests_for(6, sampling=sampling) for sampling in settings]
    mixed = [request for group in zip(*apart, strict=True) for request in group]
    together = sample(model, renderer, mixed)
    for i, requests in enumerate(apart):
        alone = sample(model, renderer, requests)
        assert [c.token_ids for c in together[i::3]] == [c.token_ids for c in alone]


def test_the_same_requests_give_the_same_bits(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    requests = requests_for(16, samples=4)
    state = torch.random.get_rng_state()
    first = sample(model, renderer, requests)
    torch.manual_seed(1234)
    assert sample(model, renderer, requests) == first
    torch.random.set_rng_state(state)
    sample(model, renderer, requests)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("max_batch_size", [1, 8, 64])
def test_draws_do_not_depend_on_the_batch(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests, max_batch_size: int
) -> None:
    requests = requests_for(32, samples=2)
    together = sample(model, renderer, requests)
    split = sample(model, renderer, requests, max_batch_size)
    assert [c.token_ids for c in split] == [c.token_ids for c in together]
    for a, b in zip(split, together, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_order_of_requests_does_not_matter(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    requests = requests_for(32)
    backwards = sample(model, renderer, requests[::-1])[::-1]
    assert [c.token_ids for c in backwards] == [
        c.token_ids for c in sample(model, renderer, requests)
    ]


def test_the_settings_of_the_models_folder_do_not_count(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    """transformers' own generate fills what is at its default from them, a temperature of 1 too."""
    requests = requests_for(3, 2)
    plain = sample(model, renderer, requests)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.05,
        top_k=1,
        top_p=0.1,
        repetition_penalty=3.0,
        max_new_tokens=2,
        eos_token_id=list(range(280)),
    )
    assert sample(model, renderer, requests) == plain


def test_a_row_of_the_embedding_that_is_no_token_is_sampled_and_read_as_any_other(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    """Embeddings are padded to a round size, and training may raise what nobody ever trained."""
    beyond = len(renderer.tokenizer)
    model.resize_token_embeddings(beyond + 8, mean_resizing=False)
    with torch.no_grad():
        model.get_output_embeddings().weight[beyond:] *= 40.0
    (request,) = requests_for(1, sampling=Sampling(2.0), max_new_tokens=24)
    (first,) = sample(model, renderer, [request])
    assert any(token >= beyond for token in first.token_ids)
    said = tuple(token for token in first.token_ids if token < beyond)
    for skip_special in (True, False):
        text = renderer.decode(first.token_ids, skip_special=skip_special)
        assert text == renderer.decode(said, skip_special=skip_special)
    (second,) = sample(model, renderer, [replace(request, token_ids=first.token_ids)])
    assert second.token_ids


@pytest.mark.parametrize("compact_below", [0.0, 1.0])
def test_removing_finished_rows_changes_nothing(
    model: PreTrainedModel,
    renderer: Renderer,
    requests_for: Requests,
    compact_below: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = requests_for(20, samples=3)
    expected = sample(model, renderer, requests)
    assert len({len(c.token_ids) for c in expected}) > 3
    monkeypatch.setattr(static_batch, "COMPACT_BELOW", compact_below)
    found = sample(model, renderer, requests)
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]
    for a, b in zip(found, expected, strict=True):
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_samples_of_one_prompt_differ_and_seeds_repeat_them(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    completions = sample(model, renderer, requests_for(1, samples=8, seed=1))
    assert len({c.token_ids for c in completions}) > 1
    again = sample(model, renderer, requests_for(1, samples=8, seed=1))
    assert completions == again
    other = sample(model, renderer, requests_for(1, samples=8, seed=100))
    assert [c.token_ids for c in completions] != [c.token_ids for c in other]
    greedy = sample(model, renderer, requests_for(1, samples=4, sampling=Sampling(0.0)))
    assert len({c.token_ids for c in greedy}) == 1


def test_samples_follow_the_processed_distribution(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    count = 3000
    sampling = Sampling(1.5, top_p=0.95, top_k=6)
    requests = requests_for(1, samples=count, sampling=sampling, max_new_tokens=1)
    completions = sample(model, renderer, requests)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([requests[0].token_ids])).logits[0, -1].double()
    row = logits / sampling.temperature
    order = row.argsort(descending=True)[: sampling.top_k]
    order = order[: int((row[order].softmax(0).cumsum(0) < sampling.top_p).sum()) + 1]
    expected = row[order].softmax(0) * count
    drawn = [c.token_ids[0] for c in completions]
    observed = torch.tensor([drawn.count(token) for token in order.tolist()])
    assert len(order) > 2 and observed.sum() == count
    chi_square = ((observed - expected) ** 2 / expected).sum().item()
    assert chi_square < 25.7  # exceeded at most once in 10,000 with up to 5 degrees of freedom


def test_a_completion_ends_with_one_end_of_sequence_token(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    # The pad token is an end-of-sequence token here as well: neither may be lost or repeated.
    both = Renderer(renderer.tokenizer, eos_ids=(renderer.eos_ids[0], renderer.pad_id))
    for completion in sample(model, both, requests_for(20, samples=2)):
        ends = [token in both.eos_ids for token in completion.token_ids]
        assert not any(ends[:-1])
        assert ends[-1] == (completion.stop_reason is StopReason.STOP)


def test_each_request_has_its_own_limit(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    requests = [
        GenerationRequest(r.token_ids, limit, r.seed, r.sampling)
        for r, limit in zip(requests_for(20), list(range(1, 21)), strict=True)
    ]
    free = sample(model, renderer, requests_for(20))
    for request, completion, unlimited in zip(
        requests, sample(model, renderer, requests), free, strict=True
    ):
        limit = request.max_new_tokens
        assert completion.token_ids == unlimited.token_ids[:limit]
        if len(unlimited.token_ids) > limit:
            assert len(completion.token_ids) == limit
            assert completion.stop_reason is StopReason.LENGTH
        else:
            assert completion.stop_reason is StopReason.STOP


def test_a_stop_string_ends_the_completion_and_is_kept(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    free = sample(model, renderer, requests_for(40))
    stopped = sample(model, renderer, requests_for(40, sampling=Sampling(1.0, stop=(" Answ",))))
    cut = 0
    for a, b in zip(free, stopped, strict=True):
        text = renderer.decode(a.token_ids)
        if " Answ" in text and not text.startswith("Answ"):
            cut += 1
            assert b.stop_reason is StopReason.STOP
            assert b.token_ids == a.token_ids[: len(b.token_ids)]
            assert " Answ" in renderer.decode(b.token_ids)
            assert " Answ" not in renderer.decode(b.token_ids[:-1])
        else:
            assert a.token_ids == b.token_ids
    assert cut > 5


def test_a_stop_string_of_several_tokens_and_bytes_is_found(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    free = sample(model, renderer, requests_for(40))
    stop = "+1="
    ended = sample(model, renderer, requests_for(40, sampling=Sampling(1.0, stop=("é", stop))))
    texts = [
        (renderer.decode(a.token_ids), renderer.decode(b.token_ids))
        for a, b in zip(free, ended, strict=True)
    ]
    assert any(stop in text for text, _ in texts)
    for text, cut in texts:
        assert cut == (text[: text.index(stop) + len(stop)] if stop in text else text)


def test_a_prompt_has_to_fit_the_model(model: PreTrainedModel, renderer: Renderer) -> None:
    context = model.config.max_position_embeddings
    fitting = GenerationRequest((5,) * (context - 1), 1, 0, Sampling(1.0))
    assert len(sample(model, renderer, [fitting])[0].token_ids) == 1
    with pytest.raises(GenerationError, match=f"context of {context}"):
        sample(model, renderer, [GenerationRequest((5,) * context, 1, 0, Sampling(1.0))])
    with pytest.raises(GenerationError, match="without tokens"):
        sample(model, renderer, [GenerationRequest((), 1, 0, Sampling(1.0))])


def test_weights_that_are_not_finite_are_an_error(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(TrainingError, match="not finite"):
        sample(model, renderer, requests_for(2))


@pytest.mark.parametrize("training", [True, False])
def test_the_model_stays_trainable_and_in_its_mode(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests, training: bool
) -> None:
    model.train(training)
    requests = requests_for(4)
    sample(model, renderer, requests)
    assert model.training is training
    assert all(parameter.grad is None for parameter in model.parameters())
    model(input_ids=torch.tensor([requests[0].token_ids])).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_next_batch_sees_an_update_of_the_parameters(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    requests = requests_for(4, sampling=Sampling(0.0))
    before = sample(model, renderer, requests)
    with torch.no_grad():
        model.lm_head.weight[renderer.eos_ids[0]] += 100.0
    after = sample(model, renderer, requests)
    assert [c.logprobs for c in before] != [c.logprobs for c in after]


def test_versions_cover_every_token(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    for completion in sample(model, renderer, requests_for(4), version=7):
        assert completion.weight_versions == (VersionSpan(7, 0, len(completion.token_ids)),)
        assert len(completion.logprobs) == len(completion.token_ids)


def test_bfloat16_arithmetic_stays_near_float32(
    model: PreTrainedModel, renderer: Renderer, requests_for: Requests
) -> None:
    requests = requests_for(8, sampling=Sampling(0.0), max_new_tokens=1)
    half = StaticBatches(Sampler(model, renderer, torch.bfloat16), None)(requests, Event())
    full = sample(model, renderer, requests)
    differences = [abs(a.logprobs[0] - b.logprobs[0]) for a, b in zip(half, full, strict=True)]
    assert 0 < max(differences) < 0.2
    assert model.dtype is torch.float32


def test_a_hybrid_of_attention_state_space_and_experts_samples_right(renderer: Renderer) -> None:
    hybrid = tiny_hybrid(280)
    requests = [
        GenerationRequest(tuple(range(3, 3 + length)), 5 + length, seed, Sampling(1.0))
        for seed, length in enumerate((5, 9, 9, 12, 2, 1))
    ]
    completions = sample(hybrid, renderer, requests)
    hybrid.train(False)
    for request, completion in zip(requests, completions, strict=True):
        expected = expected_logprobs(hybrid, request, completion)
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
