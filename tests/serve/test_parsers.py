# SPDX-License-Identifier: Apache-2.0
"""Calls of tools and reasoning in text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.serve.parsers import own_reasoning_parsers, own_tool_parsers

HERMES = own_tool_parsers()["hermes"]
CODER = own_tool_parsers()["qwen3_coder"]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "properties": {
                    "i": {"type": "integer"},
                    "s": {"type": "string"},
                    "b": {"type": "boolean"},
                    "o": {"type": "object"},
                    "n": {"type": "number"},
                    "a": {"type": "array"},
                    "m": {"type": ["string", "null"]},
                    "u": {"description": "of no type"},
                }
            },
        },
    },
    {"type": "function", "function": {"name": "bare"}},
]


@pytest.mark.parametrize("parser", [HERMES, CODER])
def test_text_without_a_call_stays(parser: Any) -> None:
    for text in ("", "just text", "a <tool> b"):
        assert parser(text, TOOLS) == (text, ())


def test_hermes_calls_are_json_between_tags() -> None:
    text = (
        'Let me see. <tool_call>\n{"name": "add", "arguments": {"s": "\u00e9", "i": [1]}}\n'
        '</tool_call>\n<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    )
    content, calls = HERMES(text, TOOLS)
    assert content == "Let me see. "
    assert [(c.name, c.arguments) for c in calls] == [
        ("add", '{"s": "\u00e9", "i": [1]}'),
        ("g", "{}"),
    ]


def test_a_whole_hermes_call_needs_no_end_tag() -> None:
    content, calls = HERMES('<tool_call>{"name": "g", "arguments": {}}', TOOLS)
    assert content == "" and [c.name for c in calls] == ["g"]


@pytest.mark.parametrize(
    "block",
    [
        '{"name": "g", "argum',
        '{"name": "g"}',
        '{"name": 5, "arguments": {}}',
        '{"name": "g", "arguments": "{}"}',
        '{"name": "g", "arguments": {"x": NaN}}',
        '{"name": "g", "arguments": {"x": 1e999}}',
        '{"name": "g", "arguments": {"x": "\\ud800"}}',
        '{"name": "\\udc00", "arguments": {}}',
        '{"name": "g", "arguments": {"x": 1, "x": 2}}',
        "[1]",
        "",
        "[" * 50_000,
    ],
)
def test_a_hermes_call_that_cannot_be_read_makes_all_of_it_text(block: str) -> None:
    good = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    for text in (f"<tool_call>{block}</tool_call>", f"{good}<tool_call>{block}</tool_call>"):
        assert HERMES(text, TOOLS) == (text, ())


def coder(name: str, **values: str) -> str:
    body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def arguments(text: str) -> Any:
    (call,) = CODER(text, TOOLS)[1]
    return json.loads(call.arguments)


def test_values_get_the_types_that_the_tool_names() -> None:
    values = {"i": "12", "s": "12", "b": "True", "o": '{"a": [1]}', "n": "1.5", "a": "[1, 2]"}
    assert arguments(coder("f", **values)) == {
        "i": 12,
        "s": "12",
        "b": True,
        "o": {"a": [1]},
        "n": 1.5,
        "a": [1, 2],
    }
    assert arguments(coder("f", m="null", u="1")) == {"m": None, "u": "1"}
    assert arguments(coder("f", m="word")) == {"m": "word"}
    assert arguments(coder("unknown", i="1")) == {"i": "1"}
    assert arguments(coder("bare", i="1")) == {"i": "1"}


def test_a_value_of_another_type_stays_text() -> None:
    wrong = {"i": "twelve", "b": "yes", "o": "[1]", "n": "NaN", "a": "{"}
    assert arguments(coder("f", **wrong)) == wrong
    wrong = {"n": "1e999", "o": '{"x": -Infinity}', "a": '["\\ud800"]'}
    assert arguments(coder("f", **wrong)) == wrong
    assert arguments(coder("f", i="true")) == {"i": "true"}
    assert arguments(coder("f", i="1.5")) == {"i": "1.5"}


def test_text_in_a_value_is_kept_but_for_the_formats_own_line_breaks() -> None:
    text = "\n  two\n\nlines <b>\n"
    assert arguments(coder("f", s=text)) == {"s": text}
    assert arguments("<function=f><parameter=s>x</parameter></function>") == {"s": "x"}


def test_several_functions_are_several_calls() -> None:
    content, calls = CODER(f"first\n{coder('f', i='1')}\n{coder('bare')}", TOOLS)
    assert content == "first"
    assert [(c.name, c.arguments) for c in calls] == [("f", '{"i": 1}'), ("bare", "{}")]


def test_a_call_that_was_cut_is_text() -> None:
    for cut in ("<tool_call>\n<function=f>\n<parameter=s>\nrm -rf /tmp", "<function=f>"):
        assert CODER(cut, TOOLS) == (cut, ())
        both = coder("bare") + cut
        assert CODER(both, TOOLS) == (both, ())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.text(), st.dictionaries(st.text(), JSON, max_size=4))
def test_any_hermes_call_is_read_back(name: str, values: dict[str, Any]) -> None:
    text = json.dumps({"name": name, "arguments": values})
    if "</tool_call>" in text:
        return
    (call,) = HERMES(f"<tool_call>\n{text}\n</tool_call>", ())[1]
    assert call.name == name and json.loads(call.arguments) == values


REASONING: list[tuple[str, str, bool, dict[str, Any], tuple[str | None, str]]] = [
    ("deepseek_r1", "a</think>b", True, {}, ("a", "b")),
    ("deepseek_r1", "<think>a</think>\n\nb", False, {}, ("a", "\n\nb")),
    ("deepseek_r1", "cut", False, {}, ("cut", "")),
    ("deepseek_r1", "a<tool_call>", False, {}, ("a<tool_call>", "")),
    ("deepseek_r1", "a</think>", False, {}, ("a", "")),
    ("qwen3", "<think>a</think>b", False, {}, ("a", "b")),
    ("qwen3", "a</think>b", True, {}, ("a", "b")),
    ("qwen3", "a</think>b", False, {}, ("a", "b")),
    ("qwen3", "<think>cut", False, {}, ("cut", "")),
    ("qwen3", "cut", True, {}, ("cut", "")),
    ("qwen3", "no reasoning", False, {}, (None, "no reasoning")),
    ("qwen3", "x", True, {"enable_thinking": False}, (None, "x")),
    ("qwen3", "<think>a<tool_call>b", False, {}, ("a", "<tool_call>b")),
    ("qwen3", "a</think>b<tool_call>c", True, {}, ("a", "b<tool_call>c")),
    ("qwen3", "a</think>b <think> c", True, {}, ("a", "b <think> c")),
    ("nano_v3", "a</think>b", True, {}, ("a", "b")),
    ("nano_v3", "cut", True, {"enable_thinking": True}, ("cut", "")),
    ("nano_v3", "plain", False, {"enable_thinking": False}, (None, "plain")),
    ("nemotron_v3", "a<tool_call>b", False, {}, ("a", "<tool_call>b")),
]


@pytest.mark.parametrize(("name", "text", "opened", "options", "expected"), REASONING)
def test_reasoning_is_set_apart(
    name: str, text: str, opened: bool, options: dict[str, Any], expected: tuple[str | None, str]
) -> None:
    assert own_reasoning_parsers()[name](text, opened, options) == expected


@given(st.text(), st.text(), st.sampled_from(sorted(own_reasoning_parsers())))
def test_nothing_between_and_behind_the_tags_is_lost(before: str, after: str, name: str) -> None:
    for tag in ("<think>", "</think>", "<tool_call>"):
        if tag in before + after:
            return
    parser = own_reasoning_parsers()[name]
    assert parser(f"<think>{before}</think>{after}", False, {}) == (before, after)
