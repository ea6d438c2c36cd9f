# SPDX-License-Identifier: Apache-2.0
import codecs
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlrun.data import jsonl
from rlrun.errors import DataError

GOOD = b'{"problem":"1+1","answer":"2"}\n'

text = st.text(min_size=1).filter(lambda value: value.strip())


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=60,
)
@given(
    rows=st.lists(st.tuples(text, text, st.sampled_from([b"\n", b"\r\n", b"\n\n \t\r\n"]))),
    escaped=st.booleans(),
    mark=st.booleans(),
    final_newline=st.booleans(),
)
def test_any_unicode_rows_come_back_as_written(load, rows, escaped, mark, final_newline):
    rows = [("first", "1", b"\n"), *rows]
    content = codecs.BOM_UTF8 if mark else b""
    lines, line = [], 1
    for problem, answer, ending in rows:
        record = {"problem": problem, "answer": answer, "n": 1.5}
        content += json.dumps(record, ensure_ascii=escaped).encode() + ending
        lines.append(line)
        line += ending.count(b"\n")
    if not final_newline:
        content = content.rstrip()
    loaded = load(content)
    read = [(row.messages[0]["content"], row.answer, row.where) for row in loaded.rows]
    wanted = [(problem, answer.strip()) for problem, answer, _ in rows]
    assert [(problem, answer) for problem, answer, _ in read] == wanted
    assert [int(where.rpartition(":")[2]) for _, _, where in read] == lines
    assert loaded.rows[0].payload == {"n": 1.5}


def test_unicode_line_separators_split_no_line(load):
    problem = "a\u2028b\u2029c\x85d\x0be"
    loaded = load(json.dumps({"problem": problem, "answer": "1"}, ensure_ascii=False).encode())
    assert [row.messages[0]["content"] for row in loaded.rows] == [problem]


def test_blank_lines_crlf_and_no_final_newline_leave_two_clean_rows(load):
    loaded = load(b'{"problem":"a","answer":"1"}\r\n\r\n{"problem":"b","answer":"2"}')
    assert [(row.row_id, row.answer) for row in loaded.rows] == [
        ("rows.jsonl:1", "1"),
        ("rows.jsonl:3", "2"),
    ]


BAD_LINES = {
    b'{"problem": "x"': "invalid JSON",
    b'{"problem":"x","answer":"1"} extra': "invalid JSON",
    b"[1, 2]": "not an object",
    b'"text"': "not an object",
    b'{"problem":"x","problem":"y","answer":"1"}': "duplicate field",
    b'{"problem":"x","answer":"1","deep":{"a":1,"a":2}}': "duplicate field",
    b'{"problem":"x","answer":NaN}': "invalid number",
    b'{"problem":"x","answer":"1","score":-Infinity}': "invalid number",
    b'{"problem":"x","answer":1e400}': "invalid number",
    b'{"problem":"x","answer":' + b"9" * 5000 + b"}": "invalid number",
    b'{"problem":"caf\xe9","answer":"1"}': "not UTF-8",
    b'{"problem":"\\ud83d","answer":"1"}': "not Unicode text",
    b'{"problem":"x","answer":"1","deep":' + b"[" * 100 + b"]" * 100 + b"}": "nested too deeply",
    b"[" * 200_000: "nested too deeply",
    b'{"a":' * 200_000: "nested too deeply",
    b'\xef\xbb\xbf{"problem":"x","answer":"1"}': "invalid JSON",
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items(), ids=range(len(BAD_LINES)))
def test_bad_line_is_named_with_file_and_line(load, tmp_path, line, reason):
    content = GOOD * 2 + line + b"\n" + GOOD * 2
    with pytest.raises(DataError) as caught:
        load(content)
    assert f"{tmp_path / 'rows.jsonl'}:3 {reason}" in str(caught.value)
    assert f"1 of 5 rows cannot be used (1 {reason})" in str(caught.value)
    loaded = load(content, skip=True)
    assert [row.row_id for row in loaded.rows] == [f"rows.jsonl:{n}" for n in (1, 2, 4, 5)]
    assert loaded.skipped[reason].count == 1
    assert f"{tmp_path / 'rows.jsonl'}:3 {reason}" in loaded.skipped[reason].examples[0]
    assert any("1 row skipped" in notice for notice in loaded.notices)


def test_invalid_character_is_named_with_its_place(load):
    told = r":1 invalid JSON: Invalid control character at column 14:"
    with pytest.raises(DataError, match=told):
        load(b'{"problem":"x\ty","answer":"1"}\n')


def test_invalid_byte_is_named_with_its_place(load):
    with pytest.raises(DataError, match=r":1 not UTF-8: byte 0xe9 at byte 16 of the row"):
        load(b'{"problem":"caf\xe9","answer":"1"}')


def test_brackets_inside_texts_are_not_nesting(load):
    problem = '[{"' * 100 + "\\"
    loaded = load(json.dumps({"problem": problem, "answer": "1"}).encode())
    assert loaded.rows[0].messages[0]["content"] == problem


def test_utf16_file_and_json_array_are_told_apart(load, tmp_path):
    with pytest.raises(DataError, match="UTF-16"):
        load('{"problem":"x","answer":"1"}\n'.encode("utf-16"))
    (tmp_path / "rows.json").write_text('[{"problem":"x","answer":"1"}]')
    with pytest.raises(DataError, match="JSON array"):
        load("rows.json")


def test_rows_of_a_small_file_survive_its_removal(load, tmp_path):
    loaded = load(GOOD)
    (tmp_path / "rows.jsonl").unlink()
    assert loaded.rows[0].answer == "2"


def test_large_file_is_read_again_by_offset_and_its_change_noticed(load, tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "KEEP_IN_MEMORY_BYTES", 0)
    content = codecs.BOM_UTF8 + b'  {"problem":"a","answer":"1"} \r\n\n{"problem":"b","answer":"2"}'
    loaded = load(content)
    assert [row.answer for row in loaded.rows] == ["1", "2"]
    path: Path = tmp_path / "rows.jsonl"
    path.write_bytes(content.replace(b'"2"', b'"3"'))
    assert loaded.rows[0].answer == "1"
    with pytest.raises(DataError, match=r"rows\.jsonl:3: the file has changed"):
        loaded.rows[1]
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        loaded.rows[0]


def test_checksum_is_the_same_in_memory_and_on_disk(load, monkeypatch):
    in_memory = load(GOOD * 3).checksum
    monkeypatch.setattr(jsonl, "KEEP_IN_MEMORY_BYTES", 0)
    assert load(GOOD * 3).checksum == in_memory
