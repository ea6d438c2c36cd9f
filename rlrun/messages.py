# SPDX-License-Identifier: Apache-2.0
"""Chat messages in the form that every chat template takes, and the strings inside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlrun.errors import DataError
from rlrun.types import Message


def normalize(message: Message) -> Message:
    """The forms that every template takes: content a string, arguments of tool calls an object."""
    plain = dict(message)
    content = plain.get("content")
    if content is None:
        plain["content"] = ""
    elif not isinstance(content, str):
        plain["content"] = "\n".join(_text_part(part) for part in content)
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_normalize_call(call) for call in plain["tool_calls"]]
    return plain


def _text_part(part: Any) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise DataError("messages", f"content of type {kind!r}", "Only text can be rendered")


def _normalize_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def strings(value: Any) -> Iterator[str]:
    """Every string inside nested messages."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from strings(part)
    elif isinstance(value, Sequence):
        for part in value:
            yield from strings(part)


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Nested messages with every string changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_strings(part, change) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [map_strings(part, change) for part in value]
    return value
