# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from dataclasses import fields

import pytest

from rlrun.config.data_schema import Data, DataSource, OnBadRow
from rlrun.errors import DataError

ROW = b'{"problem":"1+1","answer":"2"}\n'


def test_folder_is_read_in_the_order_of_names_and_not_below(load, tmp_path):
    folder = tmp_path / "set"
    (folder / "deeper").mkdir(parents=True)
    for name in ("b.jsonl", "a.JSONL", "deeper/c.jsonl", ".hidden.jsonl", "README.md"):
        (folder / name).write_bytes(ROW * 2)
    ids = [row.row_id for row in load("set").rows]
    assert ids == ["a.JSONL:1", "a.JSONL:2", "b.jsonl:1", "b.jsonl:2"]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: path.symlink_to("/nowhere/b.jsonl"), "b.jsonl: is a link to nothing"),
        (os.mkfifo, "b.jsonl: is no regular file"),
        (os.mkdir, "b.jsonl: is no regular file"),
    ],
)
def test_a_part_of_a_folder_that_cannot_be_read_is_not_passed_over(load, tmp_path, make, told):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.jsonl").write_bytes(ROW)
    make(tmp_path / "set" / "b.jsonl")
    with pytest.raises(DataError, match=told):
        load("set")


def test_files_of_a_folder_that_add_no_row_are_told(load, tmp_path):
    (tmp_path / "set").mkdir()
    for name in ("a.jsonl", "b.jsonl.gz", "c.csv", "README.md"):
        (tmp_path / "set" / name).write_bytes(ROW)
    (tmp_path / "set" / "d.jsonl").touch()
    loaded = load("set")
    assert len(loaded.rows) == 1
    assert loaded.notices == (
        "set: d.jsonl is empty",
        "set: not read: b.jsonl.gz, c.csv; only .jsonl, .json, .parquet are",
    )


def test_folder_without_data_files_says_what_it_has(load, tmp_path):
    (tmp_path / "set" / "part").mkdir(parents=True)
    with pytest.raises(DataError, match="no .jsonl, .json, .parquet file; it has part"):
        load("set")


def test_folder_of_two_kinds_is_refused(load, tmp_path):
    for name in ("a.jsonl", "b.parquet"):
        (tmp_path / name).write_bytes(ROW)
    with pytest.raises(DataError, match="JSON lines and Parquet"):
        load(str(tmp_path))


def test_missing_file_names_near_ones(load, tmp_path):
    (tmp_path / "gsm8k_test.jsonl").write_bytes(ROW)
    with pytest.raises(DataError, match=r"no such file.*gsm8k_test\.jsonl"):
        load("gsm8k_tset.jsonl")
    with pytest.raises(DataError, match="folder .*nowhere does not exist"):
        load("nowhere/rows.jsonl")


def test_what_is_no_file_is_called_so(load, tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    for name in ("pipe.jsonl", "loop.jsonl", "/dev/null"):
        with pytest.raises(DataError, match="is no regular file|cannot be looked up"):
            load(name)


@pytest.mark.parametrize(
    ("name", "told"),
    [("rows.jsonl.gz", ".gz is not read"), ("rows.csv", ".csv is not read"), ("rows", "no ending")],
)
def test_other_file_kinds_are_refused(load, tmp_path, name, told):
    (tmp_path / name).write_bytes(ROW)
    with pytest.raises(DataError, match=told):
        load(name)


@pytest.mark.parametrize("source", ["s3://bucket/rows.jsonl", "generator:", "hub:x", "", "hf: "])
def test_unknown_scheme_is_refused(load, source):
    with pytest.raises(DataError, match="names no source"):
        load(source)


def test_no_source_is_refused(load):
    with pytest.raises(DataError, match="no source is set"):
        load(None)


def test_path_with_a_colon_is_a_path(load, tmp_path):
    (tmp_path / "v:2.jsonl").write_bytes(ROW)
    assert len(load("./v:2.jsonl").rows) == 1


UNUSED = [
    ("rows.jsonl", {"size": 5}),
    ("rows.jsonl", {"split": "train"}),
    ("rows.jsonl", {"seed": 0}),
    ("rows.jsonl", {"options": {"a": 1}}),
    ("generator:addition", {"split": "train", "prompt_field": "problem"}),
    ("generator:addition", {"split": "train", "size": 5}),
    ("reasoning_gym:chain_sum", {"size": 3, "seed": 1, "answer_field": "answer"}),
    ("hf:name", {"split": "train", "size": 3}),
]


@pytest.mark.parametrize(("source", "settings"), UNUSED)
def test_setting_that_a_source_does_not_read_is_refused(load, source, settings):
    with pytest.raises(DataError, match="has no effect"):
        load(source, **settings)


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("generator:addition", {}),
        ("reasoning_gym:chain_sum", {"size": 3}),
        ("reasoning_gym:chain_sum", {"seed": 3}),
        ("hf:name", {}),
    ],
)
def test_setting_that_a_source_needs_is_asked_for(load, source, settings):
    with pytest.raises(DataError, match="is not set"):
        load(source, **settings)


@pytest.mark.parametrize("name", ["system_prompt", "answer_pattern", "prompt_field"])
def test_empty_text_setting_is_refused(load, name):
    with pytest.raises(DataError, match=f"{name} is empty"):
        load(ROW, **{name: " "})


def test_hub_without_its_package_says_what_to_install(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"rlrun\[hf\]"):
        load("hf:owner/name", split="train")


def test_reading_data_imports_no_torch():
    code = (
        "import sys, rlrun.data.load, rlrun.prompts, rlrun.env.reasoning_gym;"
        "assert not {'torch', 'transformers', 'pyarrow', 'reasoning_gym'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_data_settings_need_training_rows_and_never_shuffle_validation():
    def make_source(source, shuffle=True):
        off = dict.fromkeys(field.name for field in fields(DataSource))
        return DataSource(**(off | {"source": source, "options": {}, "shuffle": shuffle}))

    none = make_source(None)
    data = Data(train=none, validation=none, on_bad_row=OnBadRow.ERROR, max_prompt_tokens=None)
    assert [names for names, _, _ in data.problems()] == [
        ("train.source",),
        ("validation.shuffle",),
    ]
    data.train = make_source("rows.jsonl")
    data.validation = make_source(None, shuffle=False)
    assert list(data.problems()) == []
