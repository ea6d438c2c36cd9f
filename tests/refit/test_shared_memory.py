# SPDX-License-Identifier: Apache-2.0
"""Weights that cross a process border arrive bit by bit, or not at all."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rlrun.errors import GenerationError
from rlrun.refit.shared_memory import WeightBlock, load_weights

TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool)


@given(
    st.lists(
        st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 5), min_size=0, max_size=3)),
        max_size=6,
    )
)
def test_what_is_written_is_read_bit_by_bit(shapes: list[tuple[torch.dtype, list[int]]]) -> None:
    weights = {
        f"w{i}": (torch.randn(shape) * 3).to(dtype) for i, (dtype, shape) in enumerate(shapes)
    }
    block = WeightBlock.make(weights.items())
    block.write(weights.items())
    other = WeightBlock.attach(block.fd, json.loads(json.dumps(block.layout())))
    found = other.tensors()
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        assert found[name].dtype is value.dtype
        assert torch.equal(found[name], value)
    block.close()
    block.close()


def test_another_process_sees_the_block() -> None:
    block = WeightBlock.make([("a", torch.zeros(2, 3))])
    block.write([("a", torch.arange(6.0).reshape(2, 3))])
    program = (
        "import json, sys; from rlrun.refit.shared_memory import WeightBlock\n"
        "block = WeightBlock.attach(int(sys.argv[1]), json.loads(sys.argv[2]))\n"
        "block.tensors()['a'].add_(1); print(block.tensors()['a'].tolist())"
    )
    arguments = [str(block.fd), json.dumps(block.layout())]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        pass_fds=[block.fd],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [[1, 2, 3], [4, 5, 6]]
    assert block.tensors()["a"].tolist() == [[1, 2, 3], [4, 5, 6]]
    block.close()


def targets() -> dict[str, Tensor]:
    return {"a": torch.zeros(2), "b": torch.zeros(3, dtype=torch.bfloat16)}


def test_values_take_the_type_of_the_model() -> None:
    own = targets()
    load_weights(own, {"a": torch.ones(2), "b": torch.full((3,), 0.5)})
    assert own["b"].dtype is torch.bfloat16
    assert own["b"].tolist() == [0.5] * 3


@pytest.mark.parametrize(
    "values",
    [
        {"a": torch.ones(2)},
        {"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(1)},
        {"a": torch.ones(2), "b": torch.ones(4)},
    ],
)
def test_weights_of_another_model_change_nothing(values: dict[str, Tensor]) -> None:
    own = targets()
    with pytest.raises(GenerationError, match="refit"):
        load_weights(own, values)
    assert all(not value.any() for value in own.values())


def test_a_block_takes_the_tensors_it_was_made_for() -> None:
    block = WeightBlock.make(targets().items())
    with pytest.raises(GenerationError, match="did not send 1"):
        block.write([("a", torch.ones(2))])
    with pytest.raises(GenerationError, match="no place"):
        block.write([("x", torch.ones(2))])
    block.close()
