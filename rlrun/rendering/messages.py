# SPDX-License-Identifier: Apache-2.0
"""Chat messages in the form that every chat template takes, and the strings inside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlrun.errors import DataError
from rlrun.types import Message


def normalize(message: Message) -> Message:
    """The forms that every template takes: content a string, arguments of tool calls an object.

    Clients write null or an empty list where nothing is called, and templates that look for the
    name alone would take it for a call.
    """
    plain = dict(message)
    content = plain.get("content")
    if content is None:
        plain["content"] = ""
    elif not isinstance(content, str):
        plain["content"] = "\n".join(_text_part(part) for part in content)
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_normalize_call(call) for call in plain["tool_calls"]]
    else:
        plain.pop("tool_calls", None)
    return plain


def _text_part(part: Any) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise DataError("messages", f"content of type {kind!r}", "Only text can be rendered")


def _normalize_call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else None
        except (ValueError, RecursionError):
            return call
    # A function without parameters is called with "", null or nothing as well as with "{}".
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def strings(value: Any) -> Iterator[str]:
    """Every string inside nested messages, names of fields included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from strings(name)
            yield from strings(part)
    elif isinstance(value, Sequence):
        for part in value:
            yield from strings(part)


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Nested messages with every string changed, names of fields included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change(name) if isinstance(name, str) else name: map_strings(part, change)
            for name, part in value.items()
        }
    if isinstance(value, Sequence):
        return [map_strings(part, change) for part in value]
    return value
