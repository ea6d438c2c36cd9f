# SPDX-License-Identifier: Apache-2.0
"""Which sampling a request gets, and which is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlrun.serve.errors import ApiError
from rlrun.serve.fields import Fields
from rlrun.serve.request import ChatRequest, Limits, read_chat_request
from rlrun.types import Sampling

TRAINING = Sampling(0.7, top_p=0.9, top_k=20, stop=("</a>", "</b>"))
VALIDATION = Sampling(0.0, top_p=0.9, top_k=20, stop=("</a>", "</b>"))


def read(*profiles: Sampling, **fields: Any) -> ChatRequest:
    limits = Limits(profiles or (TRAINING, VALIDATION), 50, 100, 280, True)
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return read_chat_request(Fields(json.dumps(body).encode()), limits)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "stop": ["</b>", "</a>"]},
        {"temperature": None, "top_k": 20.0},
    ],
)
def test_what_equals_the_run_or_is_left_out_is_training(fields: dict[str, Any]) -> None:
    assert read(**fields).sampling == TRAINING


def test_the_sampling_of_validation_is_the_runs_too() -> None:
    assert read(temperature=0).sampling == VALIDATION
    assert read(temperature=0.0, top_p=0.9).sampling == VALIDATION


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"temperature": 1.0}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"temperature": 0.7, "top_p": 1.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 0, "temperature": 0.7}, "top_k"),
        ({"stop": "</a>"}, "stop"),
        ({"stop": []}, "stop"),
    ],
)
def test_any_other_sampling_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert caught.value.param == named and caught.value.status == 400
    assert caught.value.message.startswith(named)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"model": "m", "max_tokens": 5, "max_tokens": 9}', "max_tokens"),
        (b'{"messages": [{"role": "user", "content": "a", "content": "b"}]}', "content"),
    ],
)
def test_a_field_given_twice_is_refused_by_name(body: bytes, named: str) -> None:
    with pytest.raises(ApiError, match=f"field '{named}' occurs more than once") as caught:
        Fields(body)
    assert (caught.value.status, caught.value.param) == (422, named)


def test_a_mixture_of_training_and_validation_is_refused() -> None:
    mixed = Sampling(0.7, top_p=0.5)
    with pytest.raises(ApiError):
        read(TRAINING, mixed, top_p=0.5, stop=["</a>", "</b>"])


def test_no_limit_is_written_as_null_or_as_vllm_does() -> None:
    free = Sampling(1.0)
    for value in (None, -1, 0):
        assert read(free, top_k=value).sampling == free
    with pytest.raises(ApiError, match="no limit"):
        read(free, top_k=5)


def test_the_lowest_bound_on_the_length_counts() -> None:
    assert read().max_new_tokens == 50
    assert read(max_tokens=20).max_new_tokens == 20
    assert read(max_completion_tokens=20, max_tokens=30).max_new_tokens == 20
    assert read(max_tokens=51).max_new_tokens == 50


def test_tools_may_be_shown_and_not_called() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert not read().calls_tools
    assert read(tools=[tool]).calls_tools
    assert read(tools=[tool], tool_choice="auto").calls_tools
    shown = read(tools=[tool], tool_choice="none")
    assert not shown.calls_tools and shown.conversation.view.tools == (tool,)
