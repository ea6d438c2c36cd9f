# SPDX-License-Identifier: Apache-2.0
"""The wire: what one process puts in, another reads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlrun.errors import GenerationError
from rlrun.refit.shared_memory import ALIGNMENT, SharedWeights, lay_out, load_weights, read_weights
from tests.conftest import environment

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.float64)


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@st.composite
def named_tensors(draw: st.DrawFn) -> dict[str, Tensor]:
    shapes = st.lists(st.integers(0, 4), max_size=3)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return {
        f"layers.{i}.weight": (torch.randn(draw(shapes), generator=generator) * 10).to(dtype)
        for i, dtype in enumerate(draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=6)))
    }


@given(named_tensors())
@settings(max_examples=50, deadline=None)
def test_what_is_published_is_read_bit_for_bit(tensors: dict[str, Tensor]) -> None:
    shared = SharedWeights(lambda: iter(tensors.items()))
    shared.publish()
    found = dict(read_weights(shared.handle()))
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert bits(found[name]) == bits(tensor)
    shared.close()


@given(named_tensors())
def test_extents_are_aligned_and_do_not_overlap(tensors: dict[str, Tensor]) -> None:
    end = 0
    for extent in lay_out(list(tensors.items())):
        assert extent.offset % ALIGNMENT == 0
        assert extent.offset >= end
        end = extent.offset + extent.size


def test_a_transposed_parameter_arrives_as_it_is() -> None:
    weight = torch.arange(6.0).view(2, 3).t()
    shared = SharedWeights(lambda: iter([("w", weight)]))
    shared.publish()
    ((_, found),) = read_weights(shared.handle())
    assert torch.equal(found, weight)


def test_another_process_reads_every_new_version_and_nothing_is_pickled() -> None:
    weight = torch.zeros(1000)
    shared = SharedWeights(lambda: iter([("w", weight)]))
    program = (
        "import sys\n"
        "from rlrun.refit.shared_memory import read_weights\n"
        "for handle in sys.stdin:\n"
        "    print(sum(float(t.sum()) for _, t in read_weights(handle)), flush=True)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert child.stdin is not None and child.stdout is not None
    for value in (1.0, 2.0):
        weight.fill_(value)
        shared.publish()
        json.loads(shared.handle())
        child.stdin.write(shared.handle() + "\n")
        child.stdin.flush()
        assert float(child.stdout.readline()) == 1000 * value
    child.stdin.close()
    assert child.wait(300) == 0


def test_weights_that_change_their_layout_are_refused() -> None:
    tensors = {"a": torch.zeros(2), "b": torch.zeros(3)}
    shared = SharedWeights(lambda: iter(tensors.items()))
    shared.publish()
    del tensors["b"]
    with pytest.raises(GenerationError, match="changed their layout, at b"):
        shared.publish()


def test_closing_twice_is_fine_and_ends_the_handle() -> None:
    shared = SharedWeights(lambda: iter([("a", torch.zeros(2))]))
    shared.publish()
    handle = shared.handle()
    shared.close()
    shared.close()
    with pytest.raises((OSError, RuntimeError)):
        list(read_weights(handle))


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
