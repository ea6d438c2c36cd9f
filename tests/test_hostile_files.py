# SPDX-License-Identifier: Apache-2.0
"""Files and texts that anybody may have written: read, or refused with an error for the user."""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.checkpoint.manifest import Damaged, _checksum, read_manifest
from rlrun.config import load
from rlrun.data.bad_row import BadRow
from rlrun.data.jsonl import parse_line
from rlrun.data.messages import read_messages
from rlrun.env.answers.worker import compare
from rlrun.errors import RlrunError
from rlrun.metrics.logs import read_metrics
from rlrun.rendering.messages import normalize
from rlrun.run_dir.event_log import LogReader
from rlrun.run_dir.records import read_trained, read_validation
from rlrun.run_dir.status import read_status
from rlrun.serve.errors import ApiError
from rlrun.serve.fields import Fields

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["\ud800", "\0", "step", "1", "NaN", "../x"])
)
NAMES = st.text(max_size=4) | st.sampled_from(
    ["seq", "event", "decisions", "step", "type", "role", "content", "tool_calls", "state"]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
BYTES = st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode())
DEEP = b"[" * 100_000

READERS: dict[str, Callable[[Path], object]] = {
    "events": lambda path: list(LogReader(path)),
    "trained": lambda path: list(read_trained(path)),
    "validation": lambda path: list(read_validation(path)),
    "metrics": lambda path: list(read_metrics(path)),
    "status": read_status,
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=40, deadline=None)
@given(lines=st.lists(BYTES, max_size=4), end=st.sampled_from([b"", b"\n", b"\r\n"]))
def test_a_file_of_a_run_is_read_or_refused(
    folder: Path, reader: str, lines: list[bytes], end: bytes
) -> None:
    path = folder / reader
    path.write_bytes(b"\n".join(lines) + end)
    try:
        READERS[reader](path)
    except RlrunError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_a_run_that_is_nested_without_end_is_refused(folder: Path, reader: str) -> None:
    path = folder / reader
    path.write_bytes(DEEP + b"\n" + DEEP + b"\n{}\n")
    with pytest.raises(RlrunError):
        READERS[reader](path)


@settings(max_examples=60, deadline=None)
@given(content=VALUES, files=VALUES, sealed=st.booleans())
def test_a_manifest_is_what_was_saved_or_damaged(
    folder: Path, content: Any, files: Any, sealed: bool
) -> None:
    if isinstance(content, dict):
        content = {"format": 1, "step": 1, "metrics": {}, "files": files, **content}
        if sealed:
            content["sha256"] = _checksum(content)
    (folder / "manifest.json").write_text(json.dumps(content))
    try:
        manifest = read_manifest(folder)
    except Damaged:
        return
    assert all(type(size) is int and size >= 0 for size, _ in manifest.files.values())
    assert isinstance(manifest.step, int)


def test_a_manifest_names_no_file_outside_of_its_folder(folder: Path) -> None:
    for name in ("../secret", "/etc/passwd", "a/../../b"):
        content: dict[str, Any] = {"format": 1, "step": 1, "metrics": {}}
        content["files"] = {name: {"size": 1, "sha256": "0" * 64}}
        content["sha256"] = _checksum(content)
        (folder / "manifest.json").write_text(json.dumps(content))
        with pytest.raises(Damaged, match="outside"):
            read_manifest(folder)


def test_a_manifest_that_is_nested_without_end_is_damaged(folder: Path) -> None:
    (folder / "manifest.json").write_bytes(DEEP)
    with pytest.raises(Damaged):
        read_manifest(folder)


@settings(max_examples=150, deadline=None)
@given(BYTES)
def test_a_data_line_is_a_row_or_a_bad_row(line: bytes) -> None:
    try:
        assert isinstance(parse_line(line), dict)
    except BadRow as bad:
        assert bad.reason


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_messages_are_a_conversation_or_a_bad_row(value: object) -> None:
    try:
        messages = read_messages(value, "messages")
    except BadRow:
        return
    for message in messages:
        assert isinstance(message["content"], str)
        normalize(message)


@settings(max_examples=100, deadline=None)
@given(BYTES)
def test_a_request_body_is_an_object_or_a_bad_request(body: bytes) -> None:
    try:
        Fields(body)
    except ApiError as error:
        assert error.status == 400


FLAG_PARTS = st.sampled_from(
    ["grpo", ".", "seed", "=", "+", "~", "@", "[", "]", "{", "}", "${", "'", '"', "\\", ",", ":"]
    + ["1", "1e-6", "null", "policy.model", "oc.env:HOME", "\ud800", "é", " ", "/", "recipe", "-"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(FLAG_PARTS, max_size=9).map("".join))
def test_a_flag_is_a_value_or_a_mistake(flag: str) -> None:
    try:
        load(["+recipe=quickstart", flag])
    except RlrunError as error:
        assert error.exit_code == 2


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30), st.text(max_size=30))
def test_the_verifier_replies_to_any_pair(gold: str, answer: str) -> None:
    reply = compare(gold, answer)
    assert reply.keys() <= {"equal", "limit", "unreadable", "last"}
