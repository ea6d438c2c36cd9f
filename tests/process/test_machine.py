# SPDX-License-Identifier: Apache-2.0
"""What a process computes on."""

from __future__ import annotations

import pytest

from rlrun.process.machine import available_cores, cores_to_take


@pytest.mark.parametrize(
    ("told", "cores"), [("5", 5), (" 3,2", 3), ("", None), ("0", None), ("-1", None), ("all", None)]
)
def test_the_variable_of_openmp_says_how_many_cores_a_run_takes(
    told: str, cores: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert cores_to_take() == (available_cores() if cores is None else cores)


def test_without_it_a_run_takes_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert cores_to_take() == available_cores()
