# SPDX-License-Identifier: Apache-2.0
"""Calls of tools and reasoning in answers to the client, with texts that a model could write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest

from rlrun.rendering.renderer import Renderer
from tests.serve.engines import ADD, QUESTION, Scripted, Served, serve

CALL = '<tool_call>{"name": "add", "arguments": {"a": 37, "b": 45}}</tool_call>'
CODED = (
    "<think>\nadd\n</think>\n\n<tool_call>\n<function=add>\n<parameter=a>\n37\n</parameter>\n"
    "</function>\n</tool_call>"
)
ROOM = (
    "policy.max_total_sequence_length=2048",
    "policy.train_micro_batch_tokens=2048",
)
HERMES = ("generation.http.tool_parser=hermes",)
NANO = ("generation.http.tool_parser=qwen3_coder", "generation.http.reasoning_parser=nano_v3")


def check(
    renderer: Renderer,
    texts: tuple[str, ...],
    work: Callable[[Served], Awaitable[Any]],
    *overrides: str,
) -> Any:
    async def run() -> Any:
        async with (
            asyncio.timeout(300),
            serve(Scripted(renderer, texts), renderer, *overrides) as s,
        ):
            return await work(s)

    return asyncio.run(run())


class Check(Protocol):
    """Runs work against a server in front of an engine that writes these texts."""

    def __call__(
        self, texts: tuple[str, ...], work: Callable[[Served], Awaitable[Any]], *overrides: str
    ) -> Any: ...


@pytest.fixture
def check_tools(tool_renderer: Renderer, tool_model: str) -> Check:
    def run(
        texts: tuple[str, ...], work: Callable[[Served], Awaitable[Any]], *overrides: str
    ) -> Any:
        model = (f"policy.model={tool_model}", "generation.http.served_model_name=rlrun:tiny")
        return check(tool_renderer, texts, work, *model, *ROOM, *overrides)

    return run


def ask(served: Served, **fields: Any) -> Any:
    return served.client.chat.completions.create(
        **{"model": "rlrun:tiny", "messages": QUESTION, "tools": [ADD], **fields}
    )


def test_a_call_is_told_apart_and_its_tokens_are_there(
    check_tools: Check, tool_renderer: Renderer
) -> None:
    async def work(served: Served) -> None:
        (choice,) = (await ask(served)).choices
        (call,) = choice.message.tool_calls
        assert call.type == "function" and call.function.name == "add"
        assert json.loads(call.function.arguments) == {"a": 37, "b": 45}
        assert choice.message.content is None and choice.finish_reason == "tool_calls"
        # The one form of id that every chat template takes.
        assert len(call.id) == 9 and call.id.isalnum() and call.id.isascii()
        ids = choice.message.model_extra["generation_token_ids"]
        assert tool_renderer.decode(ids, skip_special=False) == CALL + "<|im_end|>"

    check_tools((CALL,), work, *HERMES)


def test_an_agent_goes_on_with_the_result(check_tools: Check) -> None:
    async def work(served: Served) -> None:
        first = (await ask(served)).choices[0].message
        result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "82"}
        messages = [*QUESTION, first.model_dump(), result]
        second = (await ask(served, messages=messages)).choices[0]
        before = first.model_extra
        context = before["prompt_token_ids"] + before["generation_token_ids"]
        assert second.message.model_extra["prompt_token_ids"][: len(context)] == context
        assert second.message.content == "Answer: 82" and second.finish_reason == "stop"

    check_tools((CALL, "Answer: 82"), work, *HERMES)


def test_ids_of_calls_differ_within_an_answer_and_between_answers(check_tools: Check) -> None:
    async def work(served: Served) -> None:
        answers = [await ask(served, n=2), await ask(served)]
        ids = [
            call.id for a in answers for choice in a.choices for call in choice.message.tool_calls
        ]
        assert len(ids) == 6 == len(set(ids))

    check_tools((CALL + CALL,), work, *HERMES)


def test_only_the_first_call_is_told_where_one_is_wanted(
    check_tools: Check, tool_renderer: Renderer
) -> None:
    async def work(served: Served) -> None:
        (choice,) = (await ask(served, parallel_tool_calls=False)).choices
        assert len(choice.message.tool_calls) == 1
        ids = choice.message.model_extra["generation_token_ids"]
        assert tool_renderer.decode(ids, skip_special=False).count("<tool_call>") == 2

    check_tools((CALL + CALL,), work, *HERMES)


def test_without_tools_or_with_none_to_choose_a_call_is_text(check_tools: Check) -> None:
    async def work(served: Served) -> None:
        for fields in ({"tools": None}, {"tools": []}, {"tool_choice": "none"}):
            (choice,) = (await ask(served, **fields)).choices
            assert choice.message.content == CALL and not choice.message.tool_calls
            assert choice.finish_reason == "stop"

    check_tools((CALL,), work, *HERMES)


def test_a_malformed_call_is_text(check_tools: Check) -> None:
    broken = CALL.replace("45", "45 +")

    async def work(served: Served) -> None:
        (choice,) = (await ask(served)).choices
        assert choice.message.content == broken and not choice.message.tool_calls

    check_tools((broken,), work, *HERMES)


def test_a_call_in_a_stream_has_its_place(check_tools: Check) -> None:
    async def work(served: Served) -> None:
        chunks = [chunk async for chunk in await ask(served, stream=True)]
        calls = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or ()]
        assert [c.index for c in calls] == [0, 1]
        assert {c.function.name for c in calls} == {"add"}
        assert chunks[-1].choices[0].finish_reason == "tool_calls"

    check_tools((CALL + CALL,), work, *HERMES)


def test_reasoning_and_a_call_are_told_apart(check_tools: Check) -> None:
    async def work(served: Served) -> None:
        (choice,) = (await ask(served)).choices
        extra = choice.message.model_extra
        assert extra["reasoning"] == extra["reasoning_content"] == "\nadd\n"
        (call,) = choice.message.tool_calls
        assert json.loads(call.function.arguments) == {"a": 37}

    check_tools((CODED,), work, *NANO)


def test_reasoning_that_the_prompt_began_is_told_apart(check_tools: Check) -> None:
    async def work(served: Served) -> None:
        for thinking, expected in ((True, "first 7+5"), (False, None)):
            options = {"chat_template_kwargs": {"enable_thinking": thinking}}
            (choice,) = (await ask(served, tools=None, extra_body=options)).choices
            extra = choice.message.model_extra
            assert extra.get("reasoning_content") == expected
            assert choice.message.content == ("82" if thinking else "first 7+5</think>82")

    text = "first 7+5</think>82"
    check_tools((text,), work, "generation.http.reasoning_parser=qwen3")


def test_reasoning_that_was_cut_leaves_an_empty_answer(check_tools: Check) -> None:
    async def work(served: Served) -> None:
        (choice,) = (await ask(served, tools=None)).choices
        assert choice.message.content == "" and choice.finish_reason == "length"
        assert choice.message.model_extra["reasoning_content"] == "hmm"

    check_tools(("hmm...",), work, "generation.http.reasoning_parser=nano_v3")


def test_without_a_reasoning_parser_there_is_no_such_field(check_tools: Check) -> None:
    async def work(served: Served) -> None:
        (choice,) = (await ask(served, tools=None)).choices
        assert "reasoning_content" not in choice.message.model_extra
        assert choice.message.content.endswith("82")

    check_tools(("a</think>82",), work)


@pytest.mark.parametrize("text", ["", "..."])
def test_an_empty_answer_is_an_answer(renderer: Renderer, text: str) -> None:
    async def work(served: Served) -> None:
        answer = await ask(served, tools=None, logprobs=True)
        (choice,) = answer.choices
        assert choice.message.content == ""
        count = len(choice.message.model_extra["generation_token_ids"])
        assert count == len(choice.logprobs.content) == answer.usage.completion_tokens
        assert count == (0 if text else 1)

    check(renderer, (text,), work)


def test_special_tokens_are_not_part_of_a_text(check_tools: Check) -> None:
    async def work(served: Served) -> None:
        (choice,) = (await ask(served, tools=None)).choices
        assert choice.message.content == "82 and 83"

    check_tools(("82<|pad2|> and<|endoftext|> 83",), work)
