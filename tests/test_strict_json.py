# SPDX-License-Identifier: Apache-2.0
"""What Python's own reader of JSON takes in silence."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.strict_json import NameTwice, read_json

VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(value=VALUE.filter(lambda value: "Infinity" not in json.dumps(value)))
def test_what_is_plain_json_reads_as_it_does_everywhere(value: object) -> None:
    text = json.dumps(value)
    for only_finite in (False, True):
        assert read_json(text, only_finite=only_finite) == value
        assert read_json(text.encode(), only_finite=only_finite) == value


@given(value=st.dictionaries(st.text(), VALUE, min_size=1), deep=st.booleans(), data=st.data())
def test_a_name_that_an_object_has_twice_is_refused_by_name(
    value: dict[str, object], deep: bool, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(value)))
    pairs = [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in value.items()]
    again = f"{json.dumps(name)}: 1"
    text = "{" + ", ".join([*pairs, again]) + "}"
    with pytest.raises(NameTwice) as caught:
        read_json(f'[{{"x": {text}}}]' if deep else text, only_finite=False)
    assert caught.value.name == name


def test_one_name_in_two_objects_is_none_twice() -> None:
    assert read_json('[{"a": {"a": 1}}, {"a": 2}]', only_finite=True) == [{"a": {"a": 1}}, {"a": 2}]


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "[Infinity]", "1e400", '{"a": -1e999}'])
def test_numbers_that_are_none_are_refused_on_demand(text: str) -> None:
    with pytest.raises(ValueError, match="is not JSON|out of range"):
        read_json(text, only_finite=True)
    read_json(text, only_finite=False)
    assert math.isnan(read_json("NaN", only_finite=False))


def test_a_long_name_is_cut_in_the_message() -> None:
    name = "x" * 1000
    with pytest.raises(NameTwice) as caught:
        read_json(f'{{"{name}": 1, "{name}": 2}}', only_finite=False)
    assert len(str(caught.value)) < 120
