# SPDX-License-Identifier: Apache-2.0
"""Reads NeMo Gym rows: the conversation of ``responses_create_params``, the row kept as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlrun.data.bad_row import BadRow, shown
from rlrun.data.messages import read_messages
from rlrun.types import Message

GYM_FIELD = "responses_create_params"


def gym_messages(record: Mapping[str, Any]) -> tuple[Message, ...]:
    """The input items of a NeMo Gym row as chat messages, its instructions as a system message.

    Raises:
        BadRow: No usable input, or content other than text.
    """
    params = record[GYM_FIELD]
    if not isinstance(params, dict):
        raise BadRow("bad messages", f"{GYM_FIELD} is {shown(params)}, not an object")
    items = params.get("input")
    field = f"{GYM_FIELD}.input"
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if isinstance(items, list):
        items = [_chat_item(item) for item in items if not _is_reasoning(item)]
    messages = read_messages(items, field)
    instructions = params.get("instructions")
    if instructions is None:
        return messages
    if not isinstance(instructions, str):
        raise BadRow("bad messages", f"{GYM_FIELD}.instructions is {shown(instructions)}")
    return ({"role": "system", "content": instructions}, *messages)


def _is_reasoning(item: object) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


def _chat_item(item: object) -> object:
    """A Responses input item as a chat message; what is none is left for the message check."""
    if not isinstance(item, dict):
        return item
    if item.get("type") == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if item.get("type") == "function_call_output":
        return {
            "role": "tool",
            "tool_call_id": item.get("call_id"),
            "content": item.get("output"),
        }
    return {key: value for key, value in item.items() if key not in ("type", "id", "status")}
