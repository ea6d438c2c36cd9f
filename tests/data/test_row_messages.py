# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from rlrun.errors import DataError

USER = {"role": "user", "content": "What is this?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def rows(messages, **fields):
    return json.dumps({"messages": messages, "answer": "1", **fields}).encode()


def test_null_content_beside_tool_calls_is_empty_text(load):
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    ]
    read = load(rows(messages)).rows[0].messages
    assert read[1] == {"role": "assistant", "content": "", "tool_calls": [CALL]}
    assert read[2] == messages[2]


@pytest.mark.parametrize("arguments", ['{"a": 1, "b": {"c": 1, "c": 2}}', "{'a': 1}", 5])
def test_arguments_that_have_a_name_twice_are_refused_with_the_line(load, arguments):
    call = {**CALL, "function": {"name": "add", "arguments": arguments}}
    messages = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, USER]
    if "c" not in str(arguments):
        assert load(rows(messages)).rows[0].messages[1]["tool_calls"] == [call]
        return
    told = r"rows\.jsonl:1 duplicate field: messages\[1\]\.tool_calls\[0\].*: field 'c' occurs more"
    with pytest.raises(DataError, match=told):
        load(rows(messages))


def test_an_empty_list_of_calls_is_none(load):
    messages = [
        {**USER, "tool_calls": []},
        {"role": "assistant", "content": "A question.", "tool_calls": []},
        {**USER, "tool_calls": None},
    ]
    read = load(rows(messages)).rows[0].messages
    assert read == (USER, {"role": "assistant", "content": "A question."}, USER)


def test_text_parts_are_joined(load):
    parts = [{"type": "text", "text": "a "}, {"type": "input_text", "text": "b"}]
    assert load(rows([{"role": "user", "content": parts}])).rows[0].messages[0]["content"] == "a b"


BAD_MESSAGES = [
    ([], "bad messages"),
    ("text", None),
    ([USER, {"role": "assistant", "content": "It is"}], "bad messages"),
    ([{"role": "human", "content": "x"}], "bad messages"),
    ([{"content": "x"}], "bad messages"),
    (["x"], "bad messages"),
    ([{"role": "user", "content": None}], "bad messages"),
    ([{"role": "user", "content": 3}], "bad messages"),
    ([{"role": "user", "content": "x", "tool_calls": [CALL]}], "bad messages"),
    ([{"role": "user", "content": [{"type": "text", "text": None}]}], "bad messages"),
    ([{"role": "system", "content": "s"}, {"role": "user", "content": " "}], "empty problem"),
]


@pytest.mark.parametrize(("messages", "reason"), BAD_MESSAGES)
def test_only_a_conversation_that_can_be_continued_is_read(load, tmp_path, messages, reason):
    if reason is None:
        assert load(rows(messages)).rows[0].messages == ({"role": "user", "content": messages},)
        return
    with pytest.raises(DataError) as caught:
        load(rows(messages))
    assert f"{tmp_path / 'rows.jsonl'}:1 {reason}" in str(caught.value)


MEDIA_PARTS = [
    {"type": "image_url", "image_url": {"url": "x.png"}},
    {"type": "input_image", "image_url": "x.png"},
    {"type": "image", "image": "x.png"},
    {"type": "input_audio", "input_audio": {"data": "AA=="}},
    {"type": "audio", "audio": "x.wav"},
    {"type": "video", "video": "x.mp4"},
    {"type": "file", "file_id": "f1"},
    {"type": "text", "text": "look", "image": "x.png"},
]


@pytest.mark.parametrize("part", MEDIA_PARTS)
def test_media_part_is_refused_with_file_and_line(load, tmp_path, part):
    message = {"role": "user", "content": [{"type": "text", "text": "look"}, part]}
    with pytest.raises(DataError) as caught:
        load(rows([message]))
    assert f"{tmp_path / 'rows.jsonl'}:1 not text only" in str(caught.value)
    gym = {"responses_create_params": {"input": [message]}}
    with pytest.raises(DataError, match=":1 not text only"):
        load(json.dumps(gym).encode())


@pytest.mark.parametrize("field", ["images", "image", "audio", "Video", "image_url", "audio_paths"])
def test_media_field_is_refused_unless_empty(load, field):
    with pytest.raises(DataError, match=f":1 not text only: the row has a field '{field}'"):
        load(rows([USER], **{field: ["x"]}))
    with pytest.raises(DataError, match="not text only"):
        load(rows([{**USER, field: "x"}]))
    for empty in (None, [], "", {}):
        assert len(load(rows([USER], **{field: empty})).rows) == 1


def test_words_that_only_look_like_media_are_fields_like_others(load):
    assert load(rows([USER], imagery="vivid", image_count=3)).rows[0].payload["image_count"] == 3


def test_gym_row_is_kept_as_it_is(load):
    record = {
        "responses_create_params": {
            "instructions": "Use the tool.",
            "input": [
                {"type": "message", "role": "user", "content": "add"},
                {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "3"},
            ],
            "tools": [{"type": "function", "name": "add"}],
            "temperature": 0.5,
        },
        "agent_ref": {"name": "agent"},
        "weight": 0.25,
    }
    row = load(json.dumps(record).encode()).rows[0]
    assert row.payload == record
    assert row.answer == ""
    assert [message["role"] for message in row.messages] == ["system", "user", "assistant", "tool"]
    assert row.messages[2]["tool_calls"] == [CALL]


def test_gym_input_may_be_a_text(load):
    row = load(b'{"responses_create_params":{"input":"hi"}}').rows[0]
    assert row.messages == ({"role": "user", "content": "hi"},)


@pytest.mark.parametrize("params", [3, {}, {"input": ""}, {"input": "x", "instructions": 4}])
def test_unusable_gym_row_is_named(load, params):
    with pytest.raises(DataError, match=r"rows\.jsonl:1 (bad messages|empty problem)"):
        load(json.dumps({"responses_create_params": params}).encode())
