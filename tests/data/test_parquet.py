# SPDX-License-Identifier: Apache-2.0
from decimal import Decimal
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest

from rlrun.data.hub import HubRows
from rlrun.data.narrow_floats import narrow_columns
from rlrun.data.parquet import ParquetStore
from rlrun.errors import DataError


def write(path, records, **options):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path, **options)


def test_rows_are_numbered_over_row_groups(load, tmp_path):
    records = [{"problem": f"p{n}", "answer": str(n), "level": n} for n in range(5000)]
    write(tmp_path / "rows.parquet", records, row_group_size=700)
    loaded = load("rows.parquet")
    assert len(loaded.rows) == 5000
    for n in (0, 699, 700, 4999):
        row = loaded.rows[n]
        assert (row.row_id, row.answer, row.payload) == (
            f"rows.parquet:{n + 1}",
            str(n),
            {"level": n},
        )


def test_nested_messages_lose_the_nulls_of_the_columns(load, tmp_path):
    call = {"id": "c", "type": "function"}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "c"},
    ]
    write(tmp_path / "rows.parquet", [{"messages": messages, "answer": 3}])
    row = load("rows.parquet").rows[0]
    assert row.messages[0] == {"role": "user", "content": "x"}
    assert row.messages[1] == {"role": "assistant", "content": "", "tool_calls": [call]}
    assert row.messages[2] == messages[2]


def test_a_call_has_its_own_arguments_and_not_those_of_other_calls(load, tmp_path):
    """A column of calls has the arguments of all of them, null where a call has none."""

    def call(**arguments):
        return {"type": "function", "function": {"name": "f", "arguments": arguments}}

    calls = [call(a=1, deep={"x": [0]}), call(b="two", deep={"y": False})]
    rows = [
        {
            "messages": [
                {"role": "user", "content": "x"},
                {"role": "assistant", "content": None, "tool_calls": [one]},
                {"role": "tool", "content": "3"},
            ],
            "answer": 3,
        }
        for one in calls
    ]
    write(tmp_path / "rows.parquet", rows)
    loaded = load("rows.parquet").rows
    assert [row.messages[1]["tool_calls"] for row in loaded] == [[one] for one in calls]


def test_bad_rows_are_named_by_their_number(load, tmp_path):
    records = [
        {"problem": "a", "answer": 0.5},
        {"problem": None, "answer": 1.0},
        {"problem": "c", "answer": float("nan")},
        {"problem": "d", "answer": None},
        {"problem": "e", "answer": float("inf")},
    ]
    write(tmp_path / "rows.parquet", records)
    with pytest.raises(DataError) as caught:
        load("rows.parquet")
    for number, reason in {2: "missing problem", 3: "bad answer", 4: "missing", 5: "bad"}.items():
        assert f"{tmp_path / 'rows.parquet'}:{number} {reason}" in str(caught.value)
    assert [row.answer for row in load("rows.parquet", skip=True).rows] == ["0.5"]


def test_decimal_answer_is_exact(load, tmp_path):
    write(tmp_path / "rows.parquet", [{"problem": "a", "answer": Decimal("1.10")}])
    assert load("rows.parquet").rows[0].answer == "1.10"


def test_media_column_is_refused(load, tmp_path):
    write(tmp_path / "rows.parquet", [{"problem": "a", "answer": "1", "image": b"\x89PNG"}])
    with pytest.raises(DataError, match=r"rows\.parquet:1 not text only"):
        load("rows.parquet")


def test_broken_file_is_an_error(load, tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        load("rows.parquet")


def test_invalid_utf8_in_a_column_is_an_error(load, tmp_path):
    column = pyarrow.array([b"caf\xe9"]).view(pyarrow.string())
    table = pyarrow.table({"problem": column, "answer": ["1"]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match="Invalid UTF8"):
        load("rows.parquet")


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([2**50], pyarrow.timestamp("ms")),
        pyarrow.array([2**62], pyarrow.duration("ms")),
        pyarrow.array([1], pyarrow.timestamp("us", tz="Mars/Phobos")),
    ],
    ids=["date", "duration", "zone"],
)
def test_a_time_that_python_cannot_hold_is_an_error_with_its_rows(load, tmp_path, column):
    table = pyarrow.table({"problem": ["a"], "answer": ["1"], "when": column})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet:1: a value of the rows 1 to 1 has no form"):
        load("rows.parquet")


@pytest.mark.parametrize("kind", [pyarrow.float16(), pyarrow.float32()])
def test_a_narrow_float_is_the_decimal_that_was_written(load, tmp_path, kind):
    written = [0.1, 2.0, -0.35, 1000.0, 0.5, 3e-5]
    columns = {
        "problem": [f"p{n}" for n in range(len(written))],
        "answer": pyarrow.array(written).cast(kind),
        "level": pyarrow.array([None, *written[1:]]).cast(kind),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet")
    rows = load("rows.parquet").rows
    assert [float(row.answer) for row in rows] == written
    assert [row.payload.get("level") for row in rows] == [None, *written[1:]]


def test_the_largest_narrow_float_is_kept(load, tmp_path):
    largest = pyarrow.array([3.4028234663852886e38]).cast(pyarrow.float32())
    table = pyarrow.table({"problem": ["p"], "answer": largest})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    assert float(load("rows.parquet").rows[0].answer) == pytest.approx(3.4028235e38)


WRITTEN = {
    "scores": [0.1, None, -0.35],
    "parts": {"left": 0.1, "name": "a", "more": [{"right": 0.2, "count": 3}, None]},
    "pairs": [("a", 0.1), ("b", None)],
    "pair": [0.1, 0.7],
    "none": None,
}
NARROW = pyarrow.schema(
    [
        ("scores", pyarrow.list_(pyarrow.float32())),
        (
            "parts",
            pyarrow.struct(
                [
                    ("left", pyarrow.float32()),
                    ("name", pyarrow.string()),
                    (
                        "more",
                        pyarrow.list_(
                            pyarrow.struct(
                                [("right", pyarrow.float32()), ("count", pyarrow.int32())]
                            )
                        ),
                    ),
                ]
            ),
        ),
        ("pairs", pyarrow.map_(pyarrow.string(), pyarrow.float32())),
        ("pair", pyarrow.list_(pyarrow.float32(), 2)),
        ("none", pyarrow.large_list(pyarrow.float32())),
    ]
)


def test_narrow_floats_are_the_decimals_that_were_written_at_any_depth(tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([WRITTEN], NARROW), path)
    store = ParquetStore("rows", [path])
    (scanned,) = store.scan()
    assert scanned.record == store.fetch(scanned.locator) == WRITTEN
    (widened,) = pyarrow.parquet.read_table(path).to_pylist()
    assert widened["parts"]["left"] != 0.1


def test_columns_without_narrow_floats_need_no_reading():
    kinds = [pyarrow.float64(), pyarrow.list_(pyarrow.int8()), pyarrow.string(), pyarrow.bool_()]
    assert narrow_columns(pyarrow.schema([(str(kind), kind) for kind in kinds])) == {}


def test_rows_of_the_hub_have_narrow_floats_as_they_were_written():
    class Dataset(list):
        """A data set of the hub as far as it is read here."""

        features = SimpleNamespace(arrow_schema=NARROW)

    rows = Dataset(pyarrow.Table.from_pylist([WRITTEN, WRITTEN], NARROW).to_pylist())
    assert rows[0] != WRITTEN
    read = HubRows(rows)
    assert len(read) == 2 and list(read) == read[:2] == [read[0], read[1]] == [WRITTEN] * 2
