# SPDX-License-Identifier: Apache-2.0
"""Own parsers against vLLM's of the same name, and vLLM's through the same door."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

pytest.importorskip("vllm", reason="compares with vLLM, which is an extra")

from rlrun.errors import ConfigError
from rlrun.models.resolve import resolve_model
from rlrun.serve.parsers import own_reasoning_parsers, own_tool_parsers
from rlrun.serve.vllm_parsers import (
    VllmReasoning,
    VllmTools,
    vllm_reasoning_parsers,
    vllm_tool_parsers,
)
from tests.serve.test_parsers import TOOLS, coder

HERMES_TEXTS = [
    "just text",
    'hi <tool_call>{"name": "f", "arguments": {"i": 1}}</tool_call>',
    '<tool_call>{"name":"f","arguments":{"s":"\u00e9"}}</tool_call>\n'
    '<tool_call>{"name":"g","arguments":{}}</tool_call> tail',
    '<tool_call>{"name": "f", "arguments": {"i": 1}}',
    '<tool_call>{"name": "f", "argum',
    '<tool_call>{"name": "f"}</tool_call>',
]
CODER_TEXTS = [
    "just text",
    "hi\n" + coder("f", i="12", s="12", b="True", o='{"a": [1]}', n="1.5", a="[1]", m="null"),
    coder("f", i="abc") + coder("g", q="1"),
    coder("bare"),
    "<function=f><parameter=s>a\nb</parameter></function>",
]
REASONING_TEXTS = ["a</think>b", "<think>a</think>\n\nb", "<think>a", "<think>a<tool_call>x"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(resolve_model("rlrun:tiny"))
    loaded.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    return loaded


@pytest.mark.parametrize(
    ("name", "text"),
    [("hermes", text) for text in HERMES_TEXTS] + [("qwen3_coder", text) for text in CODER_TEXTS],
)
def test_calls_are_those_that_vllm_finds(
    tokenizer: PreTrainedTokenizerBase, name: str, text: str
) -> None:
    assert own_tool_parsers()[name](text, TOOLS) == VllmTools(name, tokenizer)(text, TOOLS)


@pytest.mark.parametrize("name", ["deepseek_r1", "qwen3", "nemotron_v3"])
@pytest.mark.parametrize("text", REASONING_TEXTS)
def test_reasoning_is_what_vllm_finds(
    tokenizer: PreTrainedTokenizerBase, name: str, text: str
) -> None:
    own = own_reasoning_parsers()[name](text, False, {})
    assert own == VllmReasoning(name, tokenizer)(text, False, {})


def test_all_names_of_vllm_are_known() -> None:
    assert {"hermes", "qwen3_coder", "mistral"} <= set(vllm_tool_parsers())
    assert {"deepseek_r1", "qwen3", "granite"} <= set(vllm_reasoning_parsers())


def test_a_parser_that_needs_other_tokens_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(ConfigError, match=r"tool_parser.*does not fit the tokenizer"):
        VllmTools("mistral", tokenizer)


def test_a_format_of_vllm_alone_is_read(tokenizer: PreTrainedTokenizerBase) -> None:
    content, (call,) = VllmTools("pythonic", tokenizer)("[f(i=1)]", TOOLS)
    assert (content, call.name, call.arguments) == ("", "f", '{"i": 1}')
    granite = VllmReasoning("granite", tokenizer)
    text = "Here is my thought process: a. Here is my response: b"
    reasoning, answer = granite(text, False, {})
    assert reasoning is not None and "a." in reasoning and answer.strip() == "b"
