# SPDX-License-Identifier: Apache-2.0
"""What the HTTP server promises with every engine, asked for by the openai client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from rlrun.serve.sampled import SampledLog
from rlrun.types import StopReason
from tests.factories import config
from tests.serve.engines import QUESTION, Engine, Served, serve

MODEL = "rlrun:tiny"


def with_server(
    engine: Engine, work: Callable[[Served], Awaitable[Any]], *overrides: str, **options: Any
) -> Any:
    async def run() -> Any:
        async with serve(
            engine.generator, engine.renderer, *engine.overrides, *overrides, **options
        ) as served:
            return await work(served)

    return engine.run(run())


def ask(served: Served, **fields: Any) -> Any:
    return served.client.chat.completions.create(
        **{"model": MODEL, "messages": QUESTION, "seed": 0, **fields}
    )


def test_an_answer_has_text_and_the_tokens_that_were_sampled(engine: Engine) -> None:
    answer = with_server(engine, ask)
    (choice,) = answer.choices
    extra = choice.message.model_extra
    ids = tuple(extra["generation_token_ids"])
    assert tuple(extra["prompt_token_ids"]) == engine.renderer.prompt_ids(QUESTION)
    assert choice.message.content == engine.renderer.decode(ids)
    assert choice.message.role == "assistant" and not choice.message.tool_calls
    assert choice.finish_reason == "stop" and ids[-1] in engine.renderer.eos_ids
    assert answer.model == MODEL and answer.object == "chat.completion"
    assert answer.usage.prompt_tokens == len(extra["prompt_token_ids"])
    assert answer.usage.completion_tokens == len(ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(ids)


def test_log_probs_are_the_engines_own(engine: Engine) -> None:
    async def work(served: Served) -> None:
        extra = (await ask(served)).choices[0].message.model_extra
        scores = await engine.generator.score(
            [*extra["prompt_token_ids"], *extra["generation_token_ids"]]
        )
        own = scores[len(extra["prompt_token_ids"]) - 1 :]
        assert extra["generation_log_probs"] == pytest.approx(own, abs=1e-4)

    with_server(engine, work)


def test_the_three_ways_to_the_token_ids_agree(engine: Engine) -> None:
    async def work(served: Served) -> None:
        answer = await ask(
            served,
            logprobs=True,
            top_logprobs=0,
            extra_body={"return_tokens_as_token_ids": True, "return_token_ids": True},
        )
        (choice,) = answer.choices
        first = choice.message.model_extra
        assert answer.model_extra["prompt_token_ids"] == first["prompt_token_ids"]
        assert choice.model_extra["token_ids"] == first["generation_token_ids"]
        entries = choice.logprobs.content
        assert [e.token for e in entries] == [
            f"token_id:{token}" for token in first["generation_token_ids"]
        ]
        assert [e.logprob for e in entries] == first["generation_log_probs"]
        status, tokenized = await served.post(
            "/tokenize", {"model": MODEL, "messages": list(QUESTION)}
        )
        assert status == 200
        assert tokenized["tokens"] == first["prompt_token_ids"]
        assert tokenized["count"] == len(tokenized["tokens"])
        assert tokenized["max_model_len"] == engine.config.policy.max_total_sequence_length

    with_server(engine, work)


def test_log_probs_name_tokens_by_their_text_unless_asked_otherwise(engine: Engine) -> None:
    (choice,) = with_server(engine, lambda served: ask(served, logprobs=True)).choices
    entries = choice.logprobs.content
    assert "".join(e.token for e in entries[:-1]) == choice.message.content
    assert bytes(entries[0].bytes).decode() == entries[0].token
    assert with_server(engine, ask).choices[0].logprobs is None


def test_further_turns_keep_every_token(engine: Engine) -> None:
    async def work(served: Served) -> None:
        messages: list[Any] = list(QUESTION)
        context = engine.renderer.prompt_ids(QUESTION)
        for turn in range(3):
            answer = (await ask(served, messages=messages, seed=turn)).choices[0].message
            extra = answer.model_extra
            assert tuple(extra["prompt_token_ids"]) == context
            # As agents do: the answer is sent back as it came, with all its fields.
            follow_up = {"role": "user", "content": f"And {turn}?"}
            messages += [answer.model_dump(), follow_up]
            sampled = tuple(extra["generation_token_ids"])
            context += sampled
            context += engine.renderer.turn_ids(context, [follow_up], stopped=True)
            _, tokenized = await served.post("/tokenize", {"messages": messages})
            assert tuple(tokenized["tokens"]) == context

    with_server(engine, work)


def test_a_seed_repeats_an_answer_and_none_does_not(engine: Engine) -> None:
    async def work(served: Served) -> None:
        answers = [(await ask(served, seed=seed)) for seed in (5, 5, -6)]
        ids = [a.choices[0].message.model_extra["generation_token_ids"] for a in answers]
        assert ids[0] == ids[1] and answers[0].id == answers[1].id
        assert answers[0].id != answers[2].id
        free = [(await ask(served, seed=None)) for _ in range(8)]
        assert len({answer.choices[0].message.content for answer in free}) > 1
        assert len({answer.id for answer in free}) == 8

    with_server(engine, work)


def test_a_run_repeats_its_draws(engine: Engine) -> None:
    async def work(served: Served) -> list[str]:
        return [(await ask(served, seed=None)).choices[0].message.content for _ in range(4)]

    first = with_server(engine, work)
    assert first == with_server(engine, work)
    assert first != with_server(engine, work, "grpo.seed=7")


def test_several_choices_are_several_draws(engine: Engine) -> None:
    answer = with_server(engine, lambda served: ask(served, n=6))
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert len({choice.message.content for choice in answer.choices}) > 1
    tokens = [c.message.model_extra["generation_token_ids"] for c in answer.choices]
    assert answer.usage.completion_tokens == sum(map(len, tokens))


def test_the_answer_is_cut_where_the_client_says(engine: Engine) -> None:
    (choice,) = with_server(engine, lambda served: ask(served, max_tokens=2)).choices
    assert choice.finish_reason == "length"
    assert len(choice.message.model_extra["generation_token_ids"]) == 2
    (choice,) = with_server(engine, lambda served: ask(served, max_completion_tokens=3)).choices
    assert len(choice.message.model_extra["generation_token_ids"]) == 3


def test_more_than_the_run_or_the_context_allows_is_cut_there(engine: Engine) -> None:
    room = 2
    prompt = len(engine.renderer.prompt_ids(QUESTION))
    overrides = (
        f"policy.max_total_sequence_length={prompt + room}",
        f"generation.max_new_tokens={prompt + room}",
    )
    answer = with_server(engine, lambda served: ask(served, max_tokens=4000), *overrides)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == room
    answer = with_server(engine, ask, "generation.max_new_tokens=2")
    assert answer.usage.completion_tokens == 2


def test_a_full_context_is_refused_in_the_words_that_clients_look_for(engine: Engine) -> None:
    prompt = len(engine.renderer.prompt_ids(QUESTION))
    overrides = (
        f"policy.max_total_sequence_length={prompt}",
        f"generation.max_new_tokens={prompt}",
        "data.max_prompt_tokens=null",
    )
    with pytest.raises(openai.BadRequestError, match=f"maximum context length is {prompt} tokens"):
        with_server(engine, ask, *overrides)


def assert_same_tokens(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Log-probs are rounded by what else is in the batch."""
    name = "generation_log_probs"
    assert ours[name] == pytest.approx(theirs[name], abs=1e-4)
    assert ours | {name: None} == theirs | {name: None}


def test_a_stream_says_what_a_whole_answer_says(engine: Engine) -> None:
    async def work(served: Served) -> None:
        whole = await ask(served, n=2, logprobs=True)
        stream = await ask(
            served, n=2, logprobs=True, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
        for index, choice in enumerate(whole.choices):
            own = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
            assert "".join(c.delta.content or "" for c in own) == choice.message.content
            assert own[0].delta.role == "assistant"
            assert_same_tokens(own[0].delta.model_extra, choice.message.model_extra)
            entries = zip(own[0].logprobs.content, choice.logprobs.content, strict=True)
            assert all(ours.token == theirs.token for ours, theirs in entries)
            assert [c.finish_reason for c in own] == [None, choice.finish_reason]
        assert chunks[-1].usage == whole.usage
        unasked = [c async for c in await ask(served, stream=True)]
        assert all(chunk.usage is None for chunk in unasked)

    with_server(engine, work)


def test_a_stream_that_is_refused_is_no_stream(engine: Engine) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        with_server(engine, lambda served: ask(served, stream=True, temperature=0.3))


def test_tokens_say_which_weights_sampled_them(engine: Engine) -> None:
    extra = with_server(engine, ask).choices[0].message.model_extra
    assert extra["weight_versions"] == [[3, 0, len(extra["generation_token_ids"])]]


def test_many_clients_at_once_get_what_each_gets_alone(engine: Engine) -> None:
    async def work(served: Served) -> None:
        alone = [(await ask(served, seed=seed)).choices[0].message.content for seed in range(12)]
        answers = await asyncio.gather(*(ask(served, seed=seed) for seed in range(12)))
        assert [answer.choices[0].message.content for answer in answers] == alone

    with_server(engine, work)


@pytest.mark.parametrize("hangs_up", [True, False])
def test_what_nobody_waits_for_any_more_is_given_up_and_counted(
    engine: Engine, hangs_up: bool
) -> None:
    """A client that hangs up, or an episode that ends, in the middle of a generation."""

    async def cut_after(served: Served, log: SampledLog, seconds: float) -> int:
        seed = random.getrandbits(40)
        log.expect(seed)
        task = asyncio.create_task(ask(served, n=64, seed=seed))
        await asyncio.sleep(seconds)
        if hangs_up:
            task.cancel()
            while log._episodes[seed].running:
                await asyncio.sleep(0.001)
        ended = await log.end(seed)
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if not ended.turns and ended.unfinished and not hangs_up:
            assert isinstance(outcome, openai.APIStatusError) and outcome.status_code == 410
        return 0 if ended.turns else ended.unfinished

    async def work(served: Served) -> int:
        log = served.server.address(Path()).sampled
        # How long the right moment takes to come depends on the machine, and now and then the
        # machine does something else in between.
        for attempt in range(140):
            count = await cut_after(served, log, 0.01 * 1.5 ** (attempt % 14))
            if count:
                break
        return count

    assert 0 < with_server(engine, work) < 64 * config().generation.max_new_tokens


def test_a_stop_string_is_in_the_tokens_and_not_in_the_text(engine: Engine) -> None:
    async def work(served: Served) -> list[Any]:
        found = []
        for seed in range(12):
            (choice,) = (await ask(served, seed=seed)).choices
            text = engine.renderer.decode(choice.message.model_extra["generation_token_ids"])
            found.append((choice.message.content, text, choice.finish_reason))
        return found

    found = with_server(engine, work, "generation.stop=[Answer]")
    cut = [(content, text) for content, text, reason in found if "Answer" in text]
    assert cut
    assert all(text == content + "Answer" for content, text in cut)
    assert {reason for *_, reason in found} == {str(StopReason.STOP)}
