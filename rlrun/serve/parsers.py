# SPDX-License-Identifier: Apache-2.0
"""Tells calls of tools and reasoning from the text of a completion, by the names that vLLM has.

The formats are simple and few models use others, so these are read here, with either engine and
without vLLM. Where it is installed, its parsers serve all other names: vllm_parsers.py.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.strict_json import read_json


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call; its arguments are the text of a JSON object."""

    name: str
    arguments: str


class ToolParser(ABC):
    """Finds calls of tools in text."""

    tags: tuple[str, ...] | None
    """What the format is made of, to be kept where it is a special token; None: all of these."""

    @abstractmethod
    def __call__(
        self, text: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, tuple[ToolCall, ...]]:
        """The text before the first call, and the calls.

        Without a call that can be read it is the whole text, and no call.
        """


class ReasoningParser(ABC):
    """Sets reasoning apart from the answer."""

    tags: tuple[str, ...] | None
    """As in ToolParser."""

    @abstractmethod
    def __call__(
        self, text: str, opened: bool, options: Mapping[str, Any]
    ) -> tuple[str | None, str]:
        """Reasoning (None if there is none) and answer.

        Args:
            text: The completion.
            opened: The prompt ends with the beginning of the reasoning.
            options: The template's variables.
        """


CALL, CALL_END = "<tool_call>", "</tool_call>"

NO_JSON = object()


def _read_json(text: str) -> Any:
    """The value of a JSON text of the policy; NO_JSON if it is none that can be written again.

    Clients and templates are told what a call holds: NaN, a number that becomes infinite or half a
    surrogate pair would be their error, and cost the sample its reward.
    """
    try:
        value = read_json(text, only_finite=True)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return NO_JSON
    return value


class HermesTools(ToolParser):
    """One JSON object with name and arguments between tags, per call (Hermes 2 Pro, Qwen)."""

    tags = (CALL, CALL_END)
    _block = re.compile(f"{CALL}(.*?)(?:{CALL_END}|$)", re.DOTALL)

    def __call__(
        self, text: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, tuple[ToolCall, ...]]:
        """See ToolParser. One call that cannot be read makes all of it text."""
        blocks = self._block.findall(text)
        calls = tuple(call for block in blocks if (call := self._read(block)) is not None)
        if not calls or len(calls) < len(blocks):
            return text, ()
        return text.partition(CALL)[0], calls

    @staticmethod
    def _read(block: str) -> ToolCall | None:
        call = _read_json(block)
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return None
        if not isinstance(call.get("arguments"), dict):
            return None
        return ToolCall(call["name"], json.dumps(call["arguments"], ensure_ascii=False))


class Qwen3CoderTools(ToolParser):
    """Functions and their parameters as tags (Qwen3-Coder, Nemotron 3)."""

    tags = (CALL, CALL_END)
    _function = re.compile(r"<function=([^>]*)>(.*?)</function>", re.DOTALL)
    _parameter = re.compile(r"<parameter=([^>]*)>(.*?)(?:</parameter>|(?=<parameter=))", re.DOTALL)

    def __call__(
        self, text: str, tools: Sequence[Mapping[str, Any]]
    ) -> tuple[str, tuple[ToolCall, ...]]:
        """See ToolParser. Values get the types that the definition of the tool names.

        A call that was cut off makes all of it text.
        """
        first = self._function.search(text)
        if first is None or "<function=" in self._function.sub("", text):
            return text, ()
        calls = []
        for name, body in self._function.findall(text):
            types = _parameter_types(name.strip(), tools)
            arguments = {
                key.strip(): _typed(_unwrapped(value), types.get(key.strip()))
                for key, value in self._parameter.findall(body)
            }
            calls.append(ToolCall(name.strip(), json.dumps(arguments, ensure_ascii=False)))
        before = text[: first.start()]
        return before.partition(CALL)[0].rstrip(), tuple(calls)


def _parameter_types(name: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """JSON schema types of a tool's parameters, by name."""
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            if isinstance(properties, Mapping):
                return {
                    key: schema.get("type")
                    for key, schema in properties.items()
                    if isinstance(schema, Mapping)
                }
    return {}


def _unwrapped(value: str) -> str:
    """Without the line break that the format puts on either side."""
    return value.removeprefix("\n").removesuffix("\n")


def _typed(value: str, kind: object) -> Any:
    """The value as its type; as text where it is none of that type."""
    kinds = kind if isinstance(kind, list) else [kind]
    if "string" in kinds and not ("null" in kinds and value == "null"):
        return value
    wanted: dict[object, tuple[type, ...]] = {
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "object": (dict,),
        "array": (list,),
        "null": (type(None),),
    }
    read = _read_json(value.strip().lower() if "boolean" in kinds else value)
    return read if any(type(read) in wanted.get(one, ()) for one in kinds) else value


THINK, THINK_END = "<think>", "</think>"


class ThinkReasoning(ReasoningParser):
    """Reasoning between tags, of which the first may be part of the prompt.

    Args:
        always: A completion begins with reasoning even if nothing says so.
        call_ends: A call of a tool ends reasoning as well.
        switchable: With the template variable enable_thinking=false there is no reasoning.
    """

    tags = (THINK, THINK_END)

    def __init__(self, *, always: bool, call_ends: bool, switchable: bool) -> None:
        self._always, self._switchable = always, switchable
        self._ends = (THINK_END, CALL) if call_ends else (THINK_END,)

    def __call__(
        self, text: str, opened: bool, options: Mapping[str, Any]
    ) -> tuple[str | None, str]:
        """See ReasoningParser. Reasoning that does not end is all there is."""
        if self._switchable and options.get("enable_thinking") is False:
            return None, text
        before, begun, rest = text.partition(THINK)
        if begun and THINK_END not in before:
            text = rest
        else:
            before = ""
        before *= bool(before.strip())
        if not (begun or opened or self._always or THINK_END in text):
            return None, text
        found = [(text.find(end), end) for end in self._ends if end in text]
        if not found:
            return text, before
        at, _ = min(found)
        return text[:at], before + text[at:].removeprefix(THINK_END)


def own_tool_parsers() -> dict[str, ToolParser]:
    """Tool parsers by name."""
    coder = Qwen3CoderTools()
    return {"hermes": HermesTools(), "qwen3_coder": coder, "qwen3_xml": coder}


def own_reasoning_parsers() -> dict[str, ReasoningParser]:
    """Reasoning parsers by name."""
    nemotron = ThinkReasoning(always=True, call_ends=True, switchable=True)
    return {
        "deepseek_r1": ThinkReasoning(always=True, call_ends=False, switchable=False),
        "qwen3": ThinkReasoning(always=False, call_ends=True, switchable=True),
        "nemotron_v3": nemotron,
        "nano_v3": nemotron,
    }
