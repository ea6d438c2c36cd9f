# SPDX-License-Identifier: Apache-2.0
"""The number of connections that a process may have."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from rlrun.process.open_files import MOST, raise_limit

LIMIT = resource.RLIMIT_NOFILE


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = resource.getrlimit(LIMIT)
    yield
    resource.setrlimit(LIMIT, before)


def test_a_low_limit_is_raised_as_far_as_the_system_allows() -> None:
    _, hard = resource.getrlimit(LIMIT)
    resource.setrlimit(LIMIT, (256, hard))
    raise_limit()
    allowed = MOST if hard == resource.RLIM_INFINITY else min(MOST, hard)
    assert resource.getrlimit(LIMIT) == (allowed, hard)


def test_a_limit_that_suffices_stays() -> None:
    before = resource.getrlimit(LIMIT)
    raise_limit()
    soft, hard = resource.getrlimit(LIMIT)
    raise_limit()
    assert resource.getrlimit(LIMIT) == (soft, hard)
    assert soft >= before[0] and hard == before[1]
