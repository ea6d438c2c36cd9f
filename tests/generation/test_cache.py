# SPDX-License-Identifier: Apache-2.0
"""A cache with room holds what transformers' own holds, whatever is done to its rows."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.cache_utils import DynamicLayer

from rlrun.generation import cache
from rlrun.generation.cache import RoomyLayer

ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5)),
        st.tuples(st.just("select"), st.integers(0, 5)),
        st.tuples(st.just("trim"), st.integers(0, 3)),
    ),
    max_size=30,
)


@given(acts=ACTS, room=st.integers(1, 9))
def test_it_equals_concatenation(acts: list[tuple[str, int]], room: int) -> None:
    before, cache.ROOM = cache.ROOM, room
    try:
        random = torch.Generator().manual_seed(0)
        roomy, plain = RoomyLayer(), DynamicLayer()
        rows, handed_out = 3, []
        for act, number in [("add", 4), *acts]:
            if act == "add":
                # As attention has them: heads behind tokens in memory.
                new = torch.randn(2, rows, number, 2, 4, generator=random).transpose(2, 3)
                got = roomy.update(new[0], new[1])
                plain.update(new[0], new[1])
                handed_out.append((got, tuple(part.clone() for part in got)))
            elif act == "select":
                index = torch.arange(number, number + 2) % rows
                rows = 2
                roomy.reorder_cache(index)
                plain.reorder_cache(index)
            else:
                unused = min(number, roomy.get_seq_length() - 1)
                for layer in (roomy, plain):
                    layer.keys = layer.keys[:, :, unused:]
                    layer.values = layer.values[:, :, unused:]
            assert roomy.get_seq_length() == plain.get_seq_length()
            assert torch.equal(roomy.keys, plain.keys)
            assert torch.equal(roomy.values, plain.values)
        # What a layer once gave to attention is never written over.
        for got, then in handed_out:
            assert all(map(torch.equal, got, then))
    finally:
        cache.ROOM = before


def test_a_token_is_written_where_there_is_room() -> None:
    layer = RoomyLayer()
    first = torch.ones(1, 1, 3, 2)
    layer.update(first, first)
    keys, _ = layer.update(first, first)
    address = keys.data_ptr()
    for _ in range(cache.ROOM):
        keys, _ = layer.update(first[:, :, :1], first[:, :, :1])
        assert keys.data_ptr() == address
    keys, _ = layer.update(first, first)
    assert keys.data_ptr() != address
    assert keys.shape[2] == 6 + cache.ROOM + 3
