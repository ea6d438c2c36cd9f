# SPDX-License-Identifier: Apache-2.0
"""in_order ranks by target step, then by position, and asks for targets."""

from rlrun.batching.fifo import Fifo
from rlrun.batching.in_order import InOrder
from rlrun.interfaces import ReadyGroup


def test_earliest_target_comes_first_then_position() -> None:
    ready = [ReadyGroup(5, 0, 0, 0, 3), ReadyGroup(4, 0, 0, 1, 2), ReadyGroup(3, 0, 0, 2, 2)]
    assert [group.position for group in InOrder().rank(ready)] == [3, 4, 5]


def test_only_in_order_assigns_targets() -> None:
    assert InOrder().assigns_targets
    assert not Fifo().assigns_targets
