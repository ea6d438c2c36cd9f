# SPDX-License-Identifier: Apache-2.0
"""generation=vllm against a live engine: what is sampled, its log-probs, limits, lost engines."""

from __future__ import annotations

import asyncio
import copy
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from rlrun.errors import GenerationError, GenerationTimeout, TrainingError
from rlrun.generation.abandoned import Abandoned
from rlrun.generation.sampler import Sampler
from rlrun.generation.static_batch import StaticBatches
from rlrun.learner.model import saved_tensors
from rlrun.sampling import process_logits, token_logprobs
from rlrun.types import Completion, GenerationRequest, Sampling, StopReason
from tests.generation.conftest import Requests
from tests.generation.vllm_session import CONTEXT, VLLMSession, inputs_for


def learner_logprobs(
    model: PreTrainedModel, request: GenerationRequest, completion: Completion
) -> list[float]:
    """Of the completion's tokens, under the request's temperature and filters."""
    ids = torch.tensor([[*request.token_ids, *completion.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(request.token_ids) - 1 : -1]
    tokens = torch.tensor(completion.token_ids)
    logprobs: list[float] = token_logprobs(
        process_logits(logits, request.sampling), tokens
    ).tolist()
    return logprobs


def long_requests(count: int, tokens: int = 200) -> list[GenerationRequest]:
    """Of a forced length while the session is endless."""
    return [GenerationRequest((5, 6, 7), tokens, seed, Sampling(2.0)) for seed in range(count)]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(0.7),
        Sampling(1.3, top_k=3),
        Sampling(1.0, top_p=0.8),
        Sampling(2.0, top_p=0.7, top_k=6),
        Sampling(0.0),
        Sampling(0.0, top_p=0.5, top_k=2),
    ],
    ids=str,
)
def test_log_probs_are_the_learners_under_the_same_sampling(
    vllm: VLLMSession, requests_for: Requests, sampling: Sampling
) -> None:
    requests = requests_for(4, 2, sampling)
    completions = vllm.run(vllm.generator.generate(requests))
    for request, completion in zip(requests, completions, strict=True):
        expected = learner_logprobs(vllm.model, request, completion)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_requests_of_different_sampling_in_one_batch_keep_their_own(
    vllm: VLLMSession, requests_for: Requests
) -> None:
    kinds = [Sampling(0.0), Sampling(1.0), Sampling(0.5, top_k=2), Sampling(1.5, top_p=0.6)]
    requests = [requests_for(1, 1, kind, seed=i)[0] for i, kind in enumerate(kinds)]
    completions = vllm.run(vllm.generator.generate(requests))
    for request, completion in zip(requests, completions, strict=True):
        expected = learner_logprobs(vllm.model, request, completion)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("top_k", [None, 1, 3, 8])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 0.01])
def test_filters_agree_with_vllms_own_ties_included(top_k: int | None, top_p: float) -> None:
    ops = pytest.importorskip("vllm.v1.sample.ops.topk_topp_sampler")
    generator = torch.Generator().manual_seed(3)
    # Few levels, so that nearly every border falls into a tie.
    logits = torch.randint(0, 5, (64, 12), generator=generator).float()
    sampling = Sampling(0.7, top_p, top_k)
    k = None if top_k is None else torch.full((64,), top_k)
    p = None if top_p == 1 else torch.full((64,), top_p)
    theirs = ops.apply_top_k_top_p_pytorch(logits / 0.7, k, p, allow_cpu_sync=True)
    assert torch.equal(process_logits(logits, sampling), theirs)


def test_a_request_gets_the_same_sample_alone_and_among_others(
    vllm: VLLMSession, requests_for: Requests
) -> None:
    requests = requests_for(4, 4)
    together = vllm.run(vllm.generator.generate(requests))
    alone = [vllm.run(vllm.generator.generate([request]))[0] for request in requests[:3]]
    assert [c.token_ids for c in together[:3]] == [c.token_ids for c in alone]


def test_seeds_make_different_samples_of_one_prompt(vllm: VLLMSession) -> None:
    completions = vllm.run(vllm.generator.generate(long_requests(8, 20)))
    assert len({completion.token_ids for completion in completions}) == 8


def test_a_completion_ends_at_the_first_of_the_renderers_end_tokens(
    vllm: VLLMSession, requests_for: Requests
) -> None:
    eos = vllm.inputs.renderer.eos_ids
    completions = vllm.run(vllm.generator.generate(requests_for(8, 4)))
    ended = [c for c in completions if c.stop_reason is StopReason.STOP]
    assert ended
    for completion in completions:
        ends = [token in eos for token in completion.token_ids]
        assert ends.index(True) == len(ends) - 1 if completion in ended else not any(ends)


@pytest.mark.parametrize("stop", ["=", "1", "<|im_end|>"])
def test_a_stop_string_ends_a_completion_where_static_batches_end_it(
    vllm: VLLMSession, requests_for: Requests, stop: str
) -> None:
    sampling = Sampling(0.0, stop=(stop,))
    requests = requests_for(6, 1, sampling)
    batches = StaticBatches(Sampler(vllm.model, vllm.inputs.renderer, None), None)
    expected = batches(requests, Event())
    found = vllm.run(vllm.generator.generate(requests))
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]
    assert [c.stop_reason for c in found] == [c.stop_reason for c in expected]
    assert all(len(c.logprobs) == len(c.token_ids) for c in found)


def test_a_request_may_use_the_whole_context_and_not_a_token_more(vllm: VLLMSession) -> None:
    fits = GenerationRequest((5,) * (CONTEXT - 4), 4, 0, Sampling(2.0))
    (completion,) = vllm.run(vllm.generator.generate([fits]))
    assert 1 <= len(completion.token_ids) <= 4
    with pytest.raises(GenerationError, match=f"{CONTEXT - 3} tokens and max_new_tokens=4 exceed"):
        vllm.run(vllm.generator.generate([replace(fits, token_ids=(5,) * (CONTEXT - 3))]))
    with pytest.raises(GenerationError, match="without tokens"):
        vllm.run(vllm.generator.generate([replace(fits, token_ids=())]))


def test_scores_are_the_learners(vllm: VLLMSession) -> None:
    sequence = [(7 * i + 3) % 40 + 4 for i in range(CONTEXT)]
    sampler = Sampler(vllm.model, vllm.inputs.renderer, None)
    for length in (2, 31, 32, 33, 65, CONTEXT):
        scores = vllm.run(vllm.generator.score(sequence[:length]))
        assert scores == pytest.approx(sampler.score(sequence[:length]), abs=1e-4)
    with pytest.raises(GenerationError, match="cannot be scored"):
        vllm.run(vllm.generator.score([*sequence, 5]))


@pytest.fixture
def forced_lengths(vllm: VLLMSession) -> Iterator[None]:
    with vllm.endless():
        yield


def unfinished(vllm: VLLMSession) -> int:
    return int(vllm.generator.engines[0].llm.get_num_unfinished_requests())


@pytest.mark.usefixtures("forced_lengths")
def test_cancelling_takes_the_requests_out_of_the_engine(vllm: VLLMSession) -> None:
    async def run() -> int:
        task = asyncio.create_task(vllm.generator.generate(long_requests(8)))
        await vllm.sampling(8)
        task.cancel()
        with pytest.raises(Abandoned) as caught:
            await task
        return caught.value.tokens

    assert 8 <= vllm.run(run()) < 8 * 200
    assert unfinished(vllm) == 0
    assert [engine.outstanding for engine in vllm.generator.engines] == [0]
    assert len(vllm.run(vllm.generator.generate(long_requests(2, 5)))) == 2


@pytest.mark.usefixtures("forced_lengths")
def test_a_request_that_takes_too_long_is_an_error_and_leaves_the_engine(vllm: VLLMSession) -> None:
    generator = vllm.with_settings(request_timeout_s=0.05)
    with pytest.raises(GenerationTimeout, match=r"more than 0.05 s on engine 0 of 1"):
        vllm.run(generator.generate(long_requests(64)))
    assert unfinished(vllm) == 0


@pytest.mark.usefixtures("forced_lengths")
def test_the_event_loop_goes_on_while_the_engine_samples(vllm: VLLMSession) -> None:
    async def run() -> int:
        task = asyncio.create_task(vllm.generator.generate(long_requests(32)))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        await task
        return ticks

    assert vllm.run(run()) >= 5


def test_what_libraries_print_is_in_the_log(vllm: VLLMSession) -> None:
    assert vllm.inputs.folder is not None
    assert "init engine" in (vllm.inputs.folder / "vllm.log").read_text()


def test_an_engine_that_does_not_start_says_vllms_own_reason(
    vllm: VLLMSession, tmp_path: Path
) -> None:
    # Room for a single block of 32 tokens.
    settings = replace(vllm.settings, vllm_kwargs={"kv_cache_memory_bytes": 40_000})
    inputs = inputs_for(vllm.model, vllm.inputs.renderer, tmp_path)
    with pytest.raises(GenerationError, match="KV cache") as caught:
        vllm.run(settings.start(inputs))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "vllm.log") in str(caught.value)
    settings = replace(vllm.settings, vllm_kwargs={"block_size": "many"})
    with pytest.raises(GenerationError, match="block_size"):
        vllm.run(settings.start(inputs))


def sampled(completions: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in completions]


PROBE = [(11 * i + 5) % 40 + 4 for i in range(48)]


@pytest.mark.usefixtures("forced_lengths")
def test_requests_of_a_lost_engine_go_on_with_the_last_weights_once_these_are_proved(
    vllm: VLLMSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlrun.generation.vllm_engine import Engine, EngineLost

    with torch.no_grad():
        for parameter in vllm.model.parameters():
            parameter.mul_(1.01)
    vllm.refit(7)
    before = vllm.run(vllm.generator.generate(long_requests(2, 20)))
    vllm.run(vllm.generator.engine_scores(PROBE))
    # What was not published must not be what it comes back with.
    kept = {name: value.clone() for name, value in vllm.model.state_dict().items()}
    with torch.no_grad():
        for parameter in vllm.model.parameters():
            parameter.mul_(0.5)
    process = vllm.run(vllm.generator.engines[0].llm.collective_rpc("rlrun_process"))[0]
    folder = vllm.folder
    assert len(sockets_in(folder)) >= 2
    calls: list[str] = []
    for name in ("score", "generate"):
        monkeypatch.setattr(Engine, name, noted(calls, getattr(Engine, name)))
    start, failures = Engine.start, ["it was killed as it started"]

    async def killed_once(engine: Engine) -> None:
        if failures:
            raise GenerationError(engine.name, failures.pop())
        await start(engine)

    monkeypatch.setattr(Engine, "start", killed_once)
    requests = long_requests(8)
    stopping = replace(requests[0], sampling=Sampling(2.0, stop=("no such text",)))

    async def lose() -> list[list[Completion] | BaseException]:
        both = [
            asyncio.create_task(vllm.generator.generate(some)) for some in (requests, [stopping])
        ]
        await vllm.sampling(9)
        calls.clear()
        os.kill(process, signal.SIGKILL)
        return await asyncio.gather(*both, return_exceptions=True)

    completions, lost = vllm.run(lose(), timeout=500)
    # Text that vLLM would have to look for on both sides of the loss is sampled anew, by others.
    assert isinstance(lost, EngineLost)
    assert lost.tokens > 0 and "engine 0 of 1 is gone" in str(lost) and "vllm.log" in str(lost)
    assert calls == ["score", *["generate"] * 8] and not failures
    # What the killed process left went when the other one was started, which has its own.
    assert not folder.exists()
    assert len(sockets_in(vllm.folder)) >= 2
    vllm.model.load_state_dict(kept)
    assert isinstance(completions, list)
    for request, completion in zip(requests, completions, strict=True):
        count = len(completion.token_ids)
        # The engine that came back knows its model's own end of sequence.
        assert count == 200 or completion.stop_reason is StopReason.STOP
        assert [(s.version, s.start, s.end) for s in completion.weight_versions] == [(7, 0, count)]
        expected = learner_logprobs(vllm.model, request, completion)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    assert len(set(sampled(completions))) == 8
    after = vllm.run(vllm.generator.generate(long_requests(2, 20)))
    assert sampled(after) == sampled(before)


def sockets_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_socket()]


def noted(calls: list[str], method: Any) -> Any:
    """The method, which says when it is called."""

    async def call(*arguments: Any) -> Any:
        calls.append(method.__name__)
        return await method(*arguments)

    return call


def test_an_engine_that_comes_back_with_other_weights_ends_the_run(
    vllm: VLLMSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlrun.generation.vllm_engine import Engine
    from rlrun.refit.cpu import SharedMemoryTransfer

    async def nothing(engine: Engine) -> None:
        """The process goes on: only what follows its start is looked at."""

    monkeypatch.setattr(Engine, "start", nothing)
    monkeypatch.setattr(Engine, "stop", nothing)
    generator = vllm.with_settings()
    (engine,) = generator.engines
    vllm.run(generator.refit(8))
    vllm.run(generator.engine_scores(PROBE[::-1]))
    vllm.run(generator._start(engine))
    changed = {name: 1.1 * value for name, value in saved_tensors(vllm.model).items()}
    generator.transfer = SharedMemoryTransfer(lambda: iter(changed.items()))
    generator.transfer.publish()
    with pytest.raises(TrainingError, match="engine 0 of 1: it was started again and does not"):
        vllm.run(generator._start(engine))
    with pytest.raises(TrainingError, match="started again"):
        vllm.run(generator.generate(long_requests(1, 5)))
    with pytest.raises(TrainingError, match="started again"):
        vllm.run(generator.refit(9))
    vllm.refit(9)


def test_requests_go_to_the_idlest_engine_or_to_that_of_a_view_as_long_as_it_is_there(
    vllm: VLLMSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlrun.generation.vllm_engine import Engine

    asked: list[str] = []
    method = Engine.generate

    async def named(engine: Engine, *arguments: Any) -> Completion:
        asked.append(engine.name)
        return await method(engine, *arguments)

    monkeypatch.setattr(Engine, "generate", named)
    generator = vllm.with_settings(restart_at_once=False)
    assert generator.engine_views() == (generator,)
    first = generator.engines[0]
    second = copy.copy(first)  # the same process under another name
    second.name = "engine 1 of 2"
    generator.engines = (first, second)
    views = generator.engine_views()
    for view in views:
        vllm.run(view.generate(long_requests(3, 2)))
    assert asked == [first.name] * 3 + [second.name] * 3
    asked.clear()
    vllm.run(generator.generate(long_requests(8, 2)))
    assert [asked.count(engine.name) for engine in generator.engines] == [4, 4]
    second.loaded = False
    vllm.run(views[1].generate(long_requests(1, 2)))
    assert asked[-1] == first.name


def test_an_engine_that_is_gone_neither_goes_to_sleep_nor_wakes_up(
    vllm: VLLMSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from rlrun.generation.vllm_engine import Engine
    from rlrun.generation.vllm_log import EngineLog

    generator = vllm.with_settings()
    monkeypatch.setattr(type(generator.transfer), "colocated", True)
    generator.engines = (Engine("engine 0 of 1", {}, {}, EngineLog(tmp_path), []),)
    for _ in range(2):
        vllm.run(generator.release_memory())
        vllm.run(generator._wake())
