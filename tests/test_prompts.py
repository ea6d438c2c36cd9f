# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.errors import DataError
from rlrun.prompts import PromptStream, ValidationPrompts, permutation
from rlrun.types import Row


def rows(count):
    return [
        Row(f"f:{n}", ({"role": "user", "content": f"q{n}"},), str(n), {}, f"f:{n}")
        for n in range(count)
    ]


def render(messages):
    return tuple(messages[0]["content"].encode())


def stream(count=10, seed=0, epochs=None, shuffle=True, checksum="abc"):
    return PromptStream(
        rows(count), render, checksum=checksum, seed=seed, epochs=epochs, shuffle=shuffle
    )


@given(
    count=st.integers(1, 300), seed=st.integers(0, 2**63), epoch=st.integers(0, 50), data=st.data()
)
@settings(deadline=None)
def test_every_epoch_has_every_row_once_in_any_order_of_access(count, seed, epoch, data):
    prompts = stream(count, seed)
    order = data.draw(st.permutations(range(count)))
    ids = {p: prompts.prompt_at(epoch * count + p) for p in order}
    assert {prompt.row.row_id for prompt in ids.values()} == {f"f:{n}" for n in range(count)}
    again = stream(count, seed)
    for place, prompt in ids.items():
        assert again.prompt_at(epoch * count + place) == prompt
        assert (prompt.epoch, prompt.position) == (epoch, epoch * count + place)
        assert prompt.token_ids == render(prompt.row.messages)


def test_orders_differ_between_epochs_and_seeds():
    orders = {tuple(permutation(20, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_order_is_fixed_for_all_time():
    assert permutation(10, 0, 0).tolist() == [2, 8, 3, 0, 9, 6, 5, 1, 4, 7]
    assert permutation(10, 42, 3).tolist() == [4, 8, 5, 1, 2, 3, 0, 6, 7, 9]


def test_every_row_comes_to_every_place_about_equally_often():
    counts = np.zeros((6, 6))
    for seed in range(6000):
        counts[np.arange(6), permutation(6, seed, 0)] += 1
    # 1000 expected, standard deviation 29.
    assert abs(counts - 1000).max() < 150


def test_alternating_between_epochs_gives_the_same_prompts():
    prompts = stream(7)
    there_and_back = [prompts.prompt_at(p) for p in (0, 13, 27, 0, 13, 27)]
    assert there_and_back[:3] == there_and_back[3:]


def test_without_shuffling_rows_come_in_their_order():
    prompts = stream(3, shuffle=False)
    assert [prompts.prompt_at(p).row.answer for p in range(7)] == list("0120120")


def test_total_ends_the_stream():
    prompts = stream(3, epochs=2)
    assert (prompts.len_per_epoch, prompts.total) == (3, 6)
    assert prompts.prompt_at(5).epoch == 1
    for position in (-1, 6):
        with pytest.raises(IndexError):
            prompts.prompt_at(position)
    assert stream(3).total is None


def test_group_ids_are_unique_over_epochs():
    prompts = stream(4)
    assert len({prompts.prompt_at(p).group_id for p in range(40)}) == 40


def test_same_data_set_may_be_continued_with_more_epochs():
    stream(epochs=1).check_state(stream(epochs=5).state())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"checksum": "abd"}, "content of the rows"),
        ({"count": 11}, "was 10, is 11"),
        ({"seed": 1}, "the seed"),
        ({"shuffle": False}, "data.train.shuffle"),
    ],
)
def test_changed_data_set_is_refused(change, named):
    with pytest.raises(DataError, match=named):
        stream(**change).check_state(stream().state())


def test_data_set_smaller_than_a_step_is_said():
    assert stream(10).notices(10) == []
    (notice,) = stream(10).notices(11)
    assert "10 prompts" in notice and "num_prompts_per_step=11" in notice
    assert "repeatedly" in notice and stream(10, epochs=2).notices(11) == [notice]
    assert "the run is one step of 10; grpo.max_num_epochs" in stream(10, epochs=1).notices(11)[0]


def test_stream_of_nothing_is_refused():
    with pytest.raises(DataError, match="no rows"):
        stream(0)


@pytest.mark.parametrize(("limit", "count"), [(None, 10), (4, 4), (10, 10), (99, 10)])
def test_validation_has_each_row_once_in_order(limit, count):
    prompts = ValidationPrompts(rows(10), render, limit)
    assert len(prompts) == count
    assert [prompt.row.answer for prompt in prompts] == [str(n) for n in range(count)]
    assert [prompt.position for prompt in prompts] == list(range(count))
    assert [prompt.position for prompt in prompts[2:4]] == [2, 3]
    assert prompts[-1].token_ids == render(prompts[-1].row.messages)
