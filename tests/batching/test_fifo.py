# SPDX-License-Identifier: Apache-2.0
"""fifo ranks by age, then by order of finishing."""

from rlrun.batching.fifo import Fifo
from rlrun.interfaces import ReadyGroup


def test_oldest_version_comes_first_then_order_of_finishing() -> None:
    ready = [ReadyGroup(0, 2, 2, 0), ReadyGroup(2, 1, 0, 1), ReadyGroup(1, 1, 1, 3)]
    assert [group.position for group in Fifo().rank(ready)] == [2, 1, 0]
