# SPDX-License-Identifier: Apache-2.0
import ast
import hashlib
import operator

import pytest

from rlrun.data.generators.addition import addition_pairs, question
from rlrun.data.generators.addition_one_digit import one_digit_pairs
from rlrun.errors import DataError

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def value(node):
    if isinstance(node, ast.Constant):
        return node.value
    return OPERATORS[type(node.op)](value(node.left), value(node.right))


def test_addition_splits_every_pair_once():
    train, validation = addition_pairs("train"), addition_pairs("validation")
    assert (len(train), len(validation)) == (9500, 500)
    assert set(train) | set(validation) == {(a, b) for a in range(100) for b in range(100)}


def test_addition_order_never_changes():
    digest = hashlib.sha256(repr(addition_pairs("validation")).encode()).hexdigest()
    assert digest == "ccc365232681266409d95062f8fcf2d6ede62ea90843b165e6e2e5a92cddb86b"


def test_addition_rows_are_right(load):
    rows = load("generator:addition", split="validation").rows
    assert [row.messages[0]["content"] for row in rows] == [
        question(a, b) for a, b in addition_pairs("validation")
    ]
    assert [int(row.answer) for row in rows] == [a + b for a, b in addition_pairs("validation")]
    assert len({row.row_id for row in rows}) == 500


def test_one_digit_addition_splits_every_pair_once():
    train, validation = one_digit_pairs("train"), one_digit_pairs("validation")
    assert (len(train), len(validation)) == (54, 27)
    assert set(train) | set(validation) == {(a, b) for a in range(1, 10) for b in range(1, 10)}


def test_one_digit_addition_order_never_changes():
    digest = hashlib.sha256(repr(one_digit_pairs("validation")).encode()).hexdigest()
    assert digest == "08a179b7afa85efc29a71a389e9669f3c8422d9e777c0f8e2f5406c90e418daa"


def test_one_digit_addition_rows_are_right_and_no_term_is_the_answer(load):
    for split in ("train", "validation"):
        rows = load("generator:addition_one_digit", split=split).rows
        for (a, b), row in zip(one_digit_pairs(split), rows, strict=True):
            assert row.messages[0]["content"] == f"What is {a} + {b}?"
            assert int(row.answer) == a + b
            assert int(row.answer) not in (a, b)


def test_calculator_rows_are_right_and_splits_disjoint(load):
    seen = {}
    for split in ("train", "validation"):
        rows = load("generator:calculator", split=split).rows
        for row in rows:
            text = row.messages[0]["content"].removeprefix("What is ").removesuffix("?")
            assert int(row.answer) == value(ast.parse(text, mode="eval").body)
            assert text not in seen
            seen[text] = split
    assert len(seen) == 10_000


def test_unknown_generator_and_split_name_what_exists(load):
    with pytest.raises(DataError, match="Did you mean generator:addition"):
        load("generator:additon", split="train")
    with pytest.raises(DataError, match="split=test does not exist.*train, validation"):
        load("generator:addition", split="test")
