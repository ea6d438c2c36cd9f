# SPDX-License-Identifier: Apache-2.0
"""freshest ranks by youth, then by order of finishing."""

from rlrun.batching.freshest import Freshest
from rlrun.interfaces import ReadyGroup


def test_latest_version_comes_first_then_order_of_finishing() -> None:
    ready = [ReadyGroup(0, 1, 1, 0), ReadyGroup(2, 2, 1, 1), ReadyGroup(1, 2, 2, 3)]
    assert [group.position for group in Freshest().rank(ready)] == [2, 1, 0]
