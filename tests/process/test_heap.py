# SPDX-License-Identifier: Apache-2.0
"""What was there before a run is not looked at by the garbage collector, and is again after it."""

from __future__ import annotations

import gc

import pytest

from rlrun.process.heap import long_lived_heap


def test_what_exists_is_passed_over_until_the_end_however_it_comes() -> None:
    kept: list[object] = []
    usual = gc.get_threshold()
    with pytest.raises(ValueError, match="end"), long_lived_heap():
        assert gc.get_freeze_count() > 0
        assert not any(one is kept for one in gc.get_objects())
        raise ValueError("end")
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == usual
    assert any(one is kept for one in gc.get_objects())
