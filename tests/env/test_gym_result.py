# SPDX-License-Identifier: Apache-2.0
"""Answers of agents, read: tokens only by ids, and nothing that does not fit is trained."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.env.gym_result import BadResult, Tokens, partial_tokens, read_result
from rlrun.serve.sampled import SampledTurn
from rlrun.types import FailureKind, StopReason
from tests.env.gym_fakes import TURNS, completion, item, result

ROW = {
    "responses_create_params": {"input": "?", "metadata": {"extra_body": '{"seed": 7}'}},
    "_rowidx": 7,
    "mode": "x",
}
SAMPLED = [SampledTurn(prompt, completion(own, version)) for version, (prompt, own) in
           enumerate(TURNS)]  # fmt: skip
GOOD = [item(*turn) for turn in TURNS]


def refused(items: list[Any], sampled: list[SampledTurn] | None = None, **fields: Any) -> str:
    """Why an answer is refused."""
    with pytest.raises(BadResult) as error:
        read_result(result(ROW, items, **fields), ROW, SAMPLED if sampled is None else sampled)
    return f"{error.value.kind}: {error.value.message}"


def test_every_token_has_the_version_that_sampled_it() -> None:
    read = read_result(result(ROW, GOOD), ROW, SAMPLED)
    assert [(s.version, s.start, s.end) for s in read.tokens.spans] == [(0, 3, 5), (1, 7, 9)]


def test_items_of_the_environment_have_no_tokens_of_their_own() -> None:
    output = {"type": "function_call_output", "call_id": "1", "output": "42"}
    read = read_result(result(ROW, [GOOD[0], output, GOOD[1]]), ROW, SAMPLED)
    assert read.tokens.token_ids == [5, 6, 7, 8, 9, 1, 2, 3, 4] and read.tokens.turns == 2


def test_reasoning_alone_and_an_empty_last_message_are_read() -> None:
    reasoning = {**GOOD[0], "type": "reasoning", "summary": []}
    empty = {"type": "message", "content": [], "prompt_token_ids": None}
    read = read_result(result(ROW, [reasoning, empty]), ROW, SAMPLED)
    assert read.tokens.token_ids == [5, 6, 7, 8, 9]


def test_a_prompt_that_leaves_the_history_is_named_with_its_place() -> None:
    edited = item((5, 6, 7, 8, 99, 1, 2), (3, 4))
    sampled = [SAMPLED[0], SampledTurn((5, 6, 7, 8, 99, 1, 2), completion((3, 4)))]
    told = refused([GOOD[0], edited], sampled)
    assert "turn 2 leaves the tokens of the turns before it at token 4 of 5" in told
    assert "have it only add messages (docs/gym.md, Edited histories)" in told


def test_tokens_that_the_run_did_not_sample_are_refused() -> None:
    assert "did not sample" in refused([item((5, 6, 7), (8, 8))])
    assert "did not sample" in refused(GOOD, [])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"generation_log_probs": None}, "None for generation_log_probs of 2 tokens"),
        ({"generation_log_probs": [-0.5]}, "1 for generation_log_probs of 2 tokens"),
        ({"generation_log_probs": [-0.5, float("nan")]}, "log-prob nan"),
        ({"generation_log_probs": [-0.5, 0.5]}, "log-prob 0.5"),
        ({"generation_log_probs": [-0.5, -(10**400)]}, "log-prob -1000"),
        ({"generation_token_ids": ["8", "9"]}, "not a list of token ids"),
        ({"prompt_token_ids": None}, "not a list of token ids"),
    ],
)
def test_a_malformed_bundle_is_refused(fields: dict[str, Any], text: str) -> None:
    assert text in refused([GOOD[0] | fields])


@pytest.mark.parametrize(
    "reward", [None, "1", float("nan"), float("inf"), [1.0], 10**400, 1.7e308, -1e101]
)
def test_a_reward_that_nothing_can_reckon_with_is_an_error_of_the_reward(reward: Any) -> None:
    assert refused(GOOD, reward=reward).startswith(FailureKind.REWARD_ERROR)
    assert refused(GOOD, reward_components={"a": reward}).startswith(FailureKind.REWARD_ERROR)


@pytest.mark.parametrize("name", ["", " ", "a\nb"])
def test_a_part_of_the_reward_has_a_name_that_a_metric_can_have(name: str) -> None:
    assert "has the name" in refused(GOOD, reward_components={name: 1.0})


def test_answers_to_another_row_are_refused() -> None:
    assert "answered row 8" in refused(GOOD, _rowidx=8)
    other = {"input": "?", "metadata": {"extra_body": '{"seed": 8}'}}
    assert "another row" in refused(GOOD, responses_create_params=other)


def test_parts_numbers_and_the_rest_are_told_apart() -> None:
    read = read_result(
        result(
            ROW,
            GOOD,
            reward_components={"format": 0.25, "answer": 0.75},
            accuracy=1,
            passed=True,
            transcript=["a"],
            endless=10**400,
            best=sys.float_info.max,
            nothing=None,
            extracted_answer="B",
            mask_sample=True,
        ),
        ROW,
        SAMPLED,
    )
    assert read.rewards == {"format": 0.25, "answer": 0.75}
    assert read.measures == {"accuracy": 1.0, "passed": 1.0}
    assert read.others == ("transcript", "endless", "best")
    assert read.extracted == "B" and read.flagged


def test_why_an_episode_ended() -> None:
    def reason(items: list[Any], **fields: Any) -> StopReason:
        return read_result(result(ROW, items, **fields), ROW, SAMPLED).stop_reason

    assert reason(GOOD) is StopReason.STOP
    cut = {"output": GOOD, "incomplete_details": {"reason": "max_output_tokens"}}
    assert reason(GOOD, response=cut) is StopReason.LENGTH
    assert reason(GOOD, truncated=True) is StopReason.MAX_TURNS
    assert reason(GOOD, truncated=False) is StopReason.STOP


@pytest.mark.parametrize(
    "last",
    [
        {"type": "function_call_output", "call_id": "1", "output": "Solved."},
        {"type": "function_call", "call_id": "1", "name": "submit", "arguments": "{}"},
    ],
)
def test_an_episode_that_a_call_ends_is_not_truncated(last: dict[str, Any]) -> None:
    """Else overlong filtering would take the solved ones out, and leave those that gave up."""
    read = read_result(result(ROW, [*GOOD, last]), ROW, SAMPLED)
    assert read.stop_reason is StopReason.STOP


TURN_SIZES = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=6)


@given(TURN_SIZES)
def test_masked_tokens_are_exactly_the_sampled_ones(sizes: list[tuple[int, int]]) -> None:
    sampled, seen, token = [], [], 0
    for new, own in sizes:
        prompt = [*seen, *range(token, token + new)]
        generation = list(range(token + new, token + new + own))
        token += new + own
        sampled.append(SampledTurn(tuple(prompt), completion(generation)))
        seen = prompt + generation
    read = read_result(
        result(ROW, [item(t.prompt, t.completion.token_ids) for t in sampled]), ROW, sampled
    )
    tokens = read.tokens
    assert tokens.token_ids == seen == list(range(token))
    own_tokens = [t for turn in sampled for t in turn.completion.token_ids]
    pairs = zip(tokens.token_ids, tokens.loss_mask, strict=True)
    assert [t for t, own in pairs if own] == own_tokens
    covered = {i for span in tokens.spans for i in range(span.start, span.end)}
    assert covered == {i for i, own in enumerate(tokens.loss_mask) if own}


def test_what_was_sampled_before_a_failure_is_kept_as_far_as_it_fits() -> None:
    again = [*SAMPLED, SAMPLED[0]]
    assert partial_tokens(again).token_ids == [5, 6, 7, 8, 9, 1, 2, 3, 4]
    assert partial_tokens([]) == Tokens()
