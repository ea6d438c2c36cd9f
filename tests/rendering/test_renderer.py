# SPDX-License-Identifier: Apache-2.0
"""Prompts and turns: what is rendered, what is never tokenized again, what stays plain text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rlrun.errors import DataError
from rlrun.models.resolve import resolve_model
from rlrun.rendering.renderer import Renderer
from rlrun.types import Message

QUESTION = {"role": "user", "content": "What is 37 + 45?"}
RESULT = {"role": "tool", "content": "82"}

STRIPPING = """\
{%- for m in messages %}
{%- set content = m.content.split('</think>')[-1] if m.role == 'assistant' and not loop.last
    else m.content %}
{{- '<|im_start|>' + m.role + '\\n' + content | trim + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
HEADERS = """\
{{- bos_token }}
{%- for m in messages %}
{{- '<|header|>' + m.role + '<|/header|>\\n\\n' + m.content | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\\n\\n' }}{% endif %}
"""
BRACKETS = """\
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}
{%- elif m.role == 'assistant' %}{{ ' ' + m.content + ' <|eot|>' }}
{%- else %}{{ raise_exception('only user and assistant, not ' + m.role) }}
{%- endif %}
{%- endfor %}
"""
LAST_OPEN = """\
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{{- '<|im_end|>\\n' if loop.last or m.role != 'assistant' else '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
NO_END = """\
{%- for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}
"""


def load() -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny"))
    return tokenizer


def with_template(template: str) -> Renderer:
    """The embedded tokenizer, further special tokens, and another chat template."""
    tokenizer = load()
    tokenizer.add_special_tokens(
        {
            "bos_token": "<|bos|>",
            "additional_special_tokens": ["<|header|>", "<|/header|>", "<|eot|>"],
        }
    )
    tokenizer.chat_template = template
    eot = tokenizer.convert_tokens_to_ids("<|eot|>")
    assert isinstance(eot, int)
    return Renderer(tokenizer, eos_ids=(tokenizer.eos_token_id, eot))


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(load())


def encode(renderer: Renderer, text: str) -> tuple[int, ...]:
    return tuple(renderer.tokenizer(text, add_special_tokens=False)["input_ids"])


def test_a_prompt_ends_where_the_policy_begins(renderer: Renderer) -> None:
    text = renderer.decode(renderer.prompt_ids([QUESTION]), skip_special=False)
    assert text == "<|im_start|>user\nWhat is 37 + 45?<|im_end|>\n<|im_start|>assistant\n"


def test_a_beginning_of_sequence_token_comes_once() -> None:
    renderer = with_template(HEADERS)
    bos = renderer.tokenizer.bos_token_id
    renderer.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", bos)]
    )
    assert renderer.tokenizer("a")["input_ids"][0] == bos
    assert renderer.prompt_ids([QUESTION]).count(bos) == 1
    assert bos not in renderer.turn_ids((5, *renderer.eos_ids), [QUESTION])


def test_sampled_tokens_are_not_part_of_what_is_appended(renderer: Renderer) -> None:
    prompt = renderer.prompt_ids([QUESTION])
    spelled = tuple(i for letter in "Answer" for i in encode(renderer, letter))
    canonical = encode(renderer, "Answer")
    assert spelled != canonical
    end = renderer.eos_ids
    appended = [
        renderer.turn_ids(prompt + completion + end, [RESULT])
        for completion in (spelled, canonical)
    ]
    assert appended[0] == appended[1]
    assert renderer.decode(appended[0], skip_special=False) == (
        "\n<|im_start|>tool\n82<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_context_of_a_third_turn_holds_both_earlier_ones(renderer: Renderer) -> None:
    context = renderer.prompt_ids([QUESTION])
    for turn in range(2):
        completion = (*encode(renderer, f"look {turn}"), *renderer.eos_ids)
        context += completion
        context += renderer.turn_ids(context, [RESULT])
    assert renderer.decode(context, skip_special=False) == (
        "<|im_start|>user\nWhat is 37 + 45?<|im_end|>\n"
        "<|im_start|>assistant\nlook 0<|im_end|>\n<|im_start|>tool\n82<|im_end|>\n"
        "<|im_start|>assistant\nlook 1<|im_end|>\n<|im_start|>tool\n82<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_turn_ended_by_a_stop_string_is_closed(renderer: Renderer) -> None:
    prompt, completion = renderer.prompt_ids([QUESTION]), encode(renderer, "ok</call>")
    ids = renderer.turn_ids(prompt + completion, [RESULT], stopped=True)
    assert ids[0] == renderer.eos_ids[0]
    context = (*prompt, *completion, renderer.eos_ids[0])
    ended = renderer.turn_ids(context, [RESULT], stopped=True)
    assert ids[1:] == ended


def test_a_cut_completion_cannot_be_answered(renderer: Renderer) -> None:
    prompt = renderer.prompt_ids([QUESTION])
    for context in ((*prompt, 5, 6), prompt):
        with pytest.raises(ValueError, match="cannot be answered"):
            renderer.turn_ids(context, [RESULT])


def test_any_end_of_sequence_token_ends_a_turn(renderer: Renderer) -> None:
    both = Renderer(renderer.tokenizer, (*renderer.eos_ids, renderer.pad_id))
    prompt = both.prompt_ids([QUESTION])
    with_pad = both.turn_ids((*prompt, 5, renderer.pad_id), [RESULT])
    assert with_pad == renderer.turn_ids((*prompt, 5, *renderer.eos_ids), [RESULT])


@pytest.mark.parametrize("template", [HEADERS, BRACKETS, STRIPPING])
def test_other_templates_continue_as_they_render(template: str) -> None:
    renderer = with_template(template)
    renderer.check_turns()
    conversation = [QUESTION, {"role": "assistant", "content": "82"}, QUESTION]
    whole = renderer.prompt_ids(conversation)
    (end,) = {token for token in whole if token in renderer.eos_ids}
    prompt = renderer.prompt_ids([QUESTION])
    appended = renderer.turn_ids((*prompt, *encode(renderer, "82"), end), [QUESTION])
    assert whole[-len(appended) :] == appended
    assert whole[-len(appended) - 1] == end


def test_a_template_that_drops_reasoning_only_contributes_new_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    renderer = with_template(STRIPPING)
    prompt = renderer.prompt_ids([QUESTION])
    completion = (*encode(renderer, "<think>a</think>b"), renderer.tokenizer.eos_token_id)
    context = prompt + completion
    context += renderer.turn_ids(context, [QUESTION])
    text = renderer.decode(context, skip_special=False)
    assert "<think>a</think>b<|im_end|>\n<|im_start|>user\nWhat" in text
    rendered = [QUESTION, {"role": "assistant", "content": "<think>a</think>b"}, QUESTION]
    assert "<think>" not in renderer.decode(renderer.prompt_ids(rendered))
    with caplog.at_level("INFO"):
        renderer.check_turns()
    assert "drops the reasoning" in caplog.text


@pytest.mark.parametrize(
    ("template", "reason"), [(LAST_OPEN, "differently once"), (NO_END, "holds none of the model's")]
)
def test_a_template_that_cannot_be_extended_is_named(template: str, reason: str) -> None:
    renderer = with_template(template)
    assert renderer.prompt_ids([QUESTION])
    for attempt in (
        renderer.check_turns,
        lambda: renderer.turn_ids((5, *renderer.eos_ids), [QUESTION]),
    ):
        with pytest.raises(DataError, match=reason) as caught:
            attempt()
        assert renderer.tokenizer.name_or_path in str(caught.value)


def test_a_role_that_the_template_refuses_is_an_error() -> None:
    renderer = with_template(BRACKETS)
    with pytest.raises(DataError, match="only user and assistant, not tool"):
        renderer.turn_ids((5, *renderer.eos_ids), [RESULT])


def test_content_may_be_missing_where_a_tool_is_called(renderer: Renderer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 37}'}}
    empty: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
    absent: Message = {"role": "assistant", "tool_calls": [call]}
    ids = renderer.prompt_ids([QUESTION, empty, RESULT])
    assert ids == renderer.prompt_ids([QUESTION, absent, RESULT])
    assert (
        '<|im_start|>assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 37}}\n'
        "</tool_call><|im_end|>\n<|im_start|>tool\n82<|im_end|>\n"
    ) in renderer.decode(ids, skip_special=False)


def test_text_parts_are_joined_and_others_refused(renderer: Renderer) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\na\nb<|im_end|>" in renderer.decode(
        renderer.prompt_ids([{"role": "user", "content": parts}]), skip_special=False
    )
    with pytest.raises(DataError, match="image_url"):
        renderer.prompt_ids([{"role": "user", "content": [{"type": "image_url"}]}])


def test_text_that_is_not_unicode_is_refused(renderer: Renderer) -> None:
    with pytest.raises(DataError, match="surrogates"):
        renderer.prompt_ids([{"role": "user", "content": "a\ud800b"}])


def test_decoding_keeps_special_tokens_only_if_asked(renderer: Renderer) -> None:
    ids = (renderer.eos_ids[0], *encode(renderer, "a , b"))
    assert renderer.decode(ids) == "a , b"
    assert renderer.decode(ids, skip_special=False) == "<|im_end|>a , b"


def test_a_tokenizer_without_an_end_is_refused() -> None:
    tokenizer = load()
    tokenizer.eos_token = None
    with pytest.raises(DataError, match="no end-of-sequence token"):
        Renderer(tokenizer)


def test_a_token_that_the_model_does_not_know_is_refused() -> None:
    tokenizer = load()
    known = len(tokenizer)
    tokenizer.add_tokens(["<image>"], special_tokens=False)
    renderer = Renderer(tokenizer, vocabulary=known)
    assert renderer.prompt_ids([QUESTION]) == Renderer(tokenizer).prompt_ids([QUESTION])
    with pytest.raises(DataError, match=f"'<image>' is token {known}, and the model knows {known}"):
        renderer.prompt_ids([{"role": "user", "content": "what is <image>"}])


def test_an_end_of_sequence_token_need_not_be_marked_as_special() -> None:
    tokenizer = load()
    tokenizer.add_tokens(["<|stop|>"], special_tokens=False)
    stop = tokenizer.convert_tokens_to_ids("<|stop|>")
    renderer = Renderer(tokenizer, (stop, tokenizer.eos_token_id))
    ids = renderer.prompt_ids([{"role": "user", "content": "a<|stop|>b"}])
    assert stop not in ids
    assert "a<|stop|>b" in renderer.decode(ids)
    assert renderer.decode([*encode(renderer, "82"), stop]) == "82"


def test_padding_falls_back_to_the_end_of_sequence() -> None:
    tokenizer = load()
    tokenizer.pad_token = None
    assert Renderer(tokenizer).pad_id == tokenizer.eos_token_id


TEXT = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_", "end|>", "\n"]),
        st.sampled_from([chr(0x100000), chr(0x10FFFD), "\0"]),
    ),
    max_size=6,
).map("".join)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "tool", "assistant"]), "content": TEXT}
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=150, deadline=None)
@given(MESSAGES)
def test_no_text_becomes_a_control_token(messages: list[dict[str, Any]]) -> None:
    renderer = SHARED
    start = renderer.tokenizer.convert_tokens_to_ids("<|im_start|>")
    ids = renderer.prompt_ids(messages)
    assert ids.count(start) == len(messages) + 1
    assert ids.count(renderer.eos_ids[0]) == len(messages)
    assert renderer.pad_id not in ids
    assert renderer.decode(ids, skip_special=False) == (
        "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        + "<|im_start|>assistant\n"
    )


@settings(max_examples=150, deadline=None)
@given(MESSAGES, TEXT, MESSAGES)
def test_turns_append_up_to_what_the_whole_conversation_renders_to(
    before: list[dict[str, Any]], answer: str, after: list[dict[str, Any]]
) -> None:
    renderer = SHARED
    whole = renderer.prompt_ids([*before, {"role": "assistant", "content": answer}, *after])
    prompt = renderer.prompt_ids(before)
    assert whole[: len(prompt)] == prompt
    appended = renderer.turn_ids((*prompt, *renderer.eos_ids), after)
    assert whole[-len(appended) :] == appended
    completion = whole[len(prompt) : -len(appended)]
    assert completion[-1:] == renderer.eos_ids
    assert renderer.decode(completion, skip_special=False) == answer + "<|im_end|>"


SHARED = Renderer(load())


def test_a_template_that_asks_for_the_date_is_told_of() -> None:
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny"))
    assert Renderer(tokenizer).notices() == []
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}" + tokenizer.chat_template
    (notice,) = Renderer(tokenizer).notices()
    assert "today's date" in notice and "2024-07-26 every day" in notice
