# SPDX-License-Identifier: Apache-2.0
import sys

import pytest

from rlrun.errors import DataError


def test_rows_load_with_what_their_verifier_needs(load):
    pytest.importorskip("reasoning_gym")
    row = load("reasoning_gym:chain_sum", size=3, seed=1).rows[2]
    task = row.payload["reasoning_gym"]
    assert row.row_id == "reasoning_gym:chain_sum:2"
    assert (task["name"], task["config"]) == ("chain_sum", {"size": 3, "seed": 1})
    assert task["entry"]["answer"] == row.answer


def test_answer_may_be_left_to_the_verifier(load):
    pytest.importorskip("reasoning_gym")
    assert load("reasoning_gym:graph_color", size=2, seed=1).rows[0].answer == ""


def test_missing_package_is_named_with_what_to_install(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(DataError, match=r"rlrun\[reasoning-gym\]"):
        load("reasoning_gym:chain_sum", size=3, seed=1)
