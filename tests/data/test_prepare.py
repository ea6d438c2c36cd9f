# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from rlrun.data.prepare import prepare
from rlrun.errors import DataError

TOOL_SCHEMA = tuple(range(30))


def render_words(messages):
    """One token a word, four around each message."""
    return tuple(
        token
        for message in messages
        for token in (1, 2, *range(len(message["content"].split())), 3, 4)
    )


def rows(*problems):
    return b"".join(
        json.dumps({"problem": problem, "answer": "1"}).encode() + b"\n" for problem in problems
    )


def words(count):
    return " ".join(["word"] * count)


def test_long_prompts_are_left_out_and_counted(load):
    prepared = prepare(load(rows(words(6), words(7), words(5))), render_words, 10)
    assert [row.row_id for row in prepared.rows] == ["rows.jsonl:1", "rows.jsonl:3"]
    assert prepared.dropped == 1
    assert prepared.examples[0].endswith("rows.jsonl:2: 11 tokens")
    assert "1 of 3 prompts longer than 10 tokens and left out" in prepared.notices[0]
    assert prepared.rows[-1].row_id == "rows.jsonl:3"
    assert [row.row_id for row in prepared.rows[:1]] == ["rows.jsonl:1"]


def test_tool_schema_counts(load):
    def render(messages):
        return TOOL_SCHEMA + render_words(messages)

    loaded = load(rows(words(86), words(66)))
    assert prepare(loaded, render_words, 100).dropped == 0
    assert [row.row_id for row in prepare(loaded, render, 100).rows] == ["rows.jsonl:2"]


def test_no_prompt_left_is_an_error(load):
    with pytest.raises(DataError, match="0 of 3 prompts left after the length filter"):
        prepare(load(rows("a", "b", "c")), render_words, 1)


def test_short_ascii_rows_are_kept_without_rendering(load):
    rendered = []

    def render(messages):
        rendered.append(messages[0]["content"])
        return tuple(messages[0]["content"].encode())

    prepared = prepare(load(rows("a" * 40, "b" * 60, "é" * 10)), render, 101)
    assert len(prepared.rows) == 3
    assert rendered == ["x", "b" * 60, "é" * 10]


def test_verdict_equals_that_of_rendering_every_row(load):
    problems = ["ab" * n + "é" * (n % 3) for n in range(1, 60)]

    def render(messages):
        text = messages[0]["content"].encode()
        return (0,) * 7 + tuple(text)

    loaded = load(rows(*problems))
    kept = [row.row_id for row in prepare(loaded, render, 50).rows]
    assert kept == [row.row_id for row in loaded.rows if len(render(row.messages)) <= 50]


def test_rows_with_tool_calls_are_rendered_as_they_are(load):
    call = {"id": "c", "type": "function"}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "c"},
    ]

    def render(conversation):
        assert all("tool_call_id" in m for m in conversation if m["role"] == "tool")
        return (1, 2, 3)

    loaded = load(json.dumps({"messages": messages, "answer": "3"}).encode())
    assert len(prepare(loaded, render, 1000).rows) == 1


def test_row_that_cannot_be_rendered_is_named(load):
    def render(messages):
        raise DataError("chat template", "roles must alternate")

    with pytest.raises(DataError, match=r"rows\.jsonl.*roles must alternate"):
        prepare(load(rows("é")), render, 10)


def test_checksum_follows_what_is_kept(load):
    loaded = load(rows(words(3), words(30)))
    short, all_rows = (prepare(loaded, render_words, limit).checksum for limit in (10, 100))
    assert short != all_rows
    assert prepare(loaded, render_words, 11).checksum == short
