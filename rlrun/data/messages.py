# SPDX-License-Identifier: Apache-2.0
"""Checks of chat messages in data rows: roles, contents, and that everything is text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rlrun.data.bad_row import BadRow, shown
from rlrun.strict_json import NameTwice, read_json
from rlrun.types import Message

ROLES = ("system", "developer", "user", "assistant", "tool")
TEXT_PARTS = ("text", "input_text", "output_text")
NOT_TEXT = "not text only"

_MEDIA_NAME = re.compile(r"(input_)?(image|audio|video)s?(_(url|path|byte|file|data)s?)?", re.I)


def check_no_media(fields: Mapping[str, Any], what: str) -> None:
    """Refuses fields named like image, audio or video content unless they are empty.

    Raises:
        BadRow: Such a field has a content.
    """
    for name in _media_among(tuple(fields)):
        value = fields[name]
        if value or not isinstance(value, str | list | dict | None):
            raise BadRow(NOT_TEXT, f"{what} has a field {name!r}; rows are text only")


@lru_cache(maxsize=4096)
def _media_among(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those that stand for media; rows of a source mostly have the same names."""
    return tuple(name for name in names if _MEDIA_NAME.fullmatch(name))


def read_messages(value: object, field: str) -> tuple[Message, ...]:
    """The messages of a row, contents as text (null becomes "" beside tool calls).

    A content given as a list of parts becomes the concatenation of its text parts.

    Raises:
        BadRow: Not a conversation that a policy can continue.
    """
    if not isinstance(value, list) or not value:
        raise BadRow("bad messages", f"field {field!r} is {shown(value)}, not a list of messages")
    messages = tuple(_message(item, f"{field}[{index}]") for index, item in enumerate(value))
    last = messages[-1]
    if last["role"] == "assistant":
        raise BadRow("bad messages", f"the last message of {field!r} is the assistant's")
    if not last["content"].strip():
        raise BadRow("empty problem", f"the last message of {field!r} has no text")
    return messages


def _message(item: object, name: str) -> Message:
    if not isinstance(item, dict):
        raise BadRow("bad messages", f"{name} is {shown(item)}, not an object")
    check_no_media(item, name)
    role = item.get("role")
    if role not in ROLES:
        raise BadRow(
            "bad messages", f"{name} has role {shown(role)}, not one of {', '.join(ROLES)}"
        )
    message: dict[str, Any] = _present(item)
    if message.get("tool_calls") == []:  # columnar files store absent calls as an empty list too
        del message["tool_calls"]
    if "tool_calls" in message and role != "assistant":
        raise BadRow("bad messages", f"{name} has tool_calls, and role {role!r}")
    calls = message.get("tool_calls", [])
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadRow("bad messages", f"{name} has tool_calls {shown(calls)}, not a list of objects")
    for index, call in enumerate(calls):
        _check_arguments(call, f"{name}.tool_calls[{index}].function.arguments")
    message["content"] = _content(item.get("content"), bool(message.get("tool_calls")), name)
    return message


def _check_arguments(call: Mapping[str, Any], name: str) -> None:
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, str):
        return
    try:
        read_json(arguments, only_finite=False)
    except NameTwice as error:
        raise BadRow("duplicate field", f"{name}: {error}") from None
    except (ValueError, RecursionError):
        pass  # What is no JSON is rendered as the text that it is.


def _present(value: Any) -> Any:
    """Without keys that are null, at any depth: columnar files store an absent key so."""
    if isinstance(value, dict):
        return {key: _present(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_present(one) for one in value]
    return value


def _content(content: object, has_tool_calls: bool, name: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and has_tool_calls:
        return ""
    if isinstance(content, list) and content:
        return "".join(_part(part, f"{name}.content[{i}]") for i, part in enumerate(content))
    raise BadRow("bad messages", f"{name} has content {shown(content)}, not a text")


def _part(part: object, name: str) -> str:
    if not isinstance(part, dict):
        raise BadRow("bad messages", f"{name} is {shown(part)}, not an object")
    check_no_media(part, name)
    kind, text = part.get("type"), part.get("text")
    if kind not in TEXT_PARTS:
        raise BadRow(NOT_TEXT, f"{name} has type {shown(kind)}; rows are text only")
    if not isinstance(text, str):
        raise BadRow("bad messages", f"{name} has text {shown(text)}")
    return text
