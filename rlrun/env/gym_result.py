# SPDX-License-Identifier: Apache-2.0
"""From an agent's answer to a trajectory: the ids on its output items, never text. Pure.

Ids are on the last output item of each call of the policy and cover the whole call. What the
environment said in between is what a call's prompt has beyond the calls before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlrun.console.counted import counted
from rlrun.run_dir.json_line import finite
from rlrun.serve.sampled import SampledTurn
from rlrun.types import LARGEST_REWARD, FailureKind, StopReason, VersionSpan

PROMPT, GENERATION, LOGPROBS = "prompt_token_ids", "generation_token_ids", "generation_log_probs"

NOT_MEASURES = frozenset(
    {"responses_create_params", "response", "reward", "reward_components", "mask_sample"}
    | {"failure_kind", "failure_reason", "instance_config", "extracted_answer", "agent_ref"}
)
"""Fields of an answer that have a place of their own."""

EDITED = (
    "the agent shortened or rewrote what was said, showed other tools, or its model server did not "
    "hand the token ids back; have it only add messages (docs/gym.md, Edited histories)"
)
"""Why an episode is no one sequence, and what to do."""

MOST = 1e-3
"""Of a log-prob; rounding may lift it above 0."""

JsonObject = Mapping[str, Any]


class BadResult(Exception):
    """An answer that nothing can be learnt from.

    Args:
        kind: Of the failure.
        message: What is wrong with it.
    """

    def __init__(self, kind: FailureKind, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message


@dataclass(slots=True)
class Tokens:
    """Tokens of an episode so far, aligned as in a trajectory."""

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    input_length: int = 0
    turns: int = 0

    def append(
        self,
        prompt: Sequence[int],
        generation: Sequence[int],
        logprobs: Sequence[float],
        spans: Sequence[VersionSpan],
    ) -> None:
        """Adds a call of the policy.

        Raises:
            BadResult: Its prompt does not begin with all tokens before it.
        """
        seen = len(self.token_ids)
        if list(prompt[:seen]) != self.token_ids:
            same = next(
                (i for i, (a, b) in enumerate(zip(prompt, self.token_ids, strict=False)) if a != b),
                min(len(prompt), seen),
            )
            raise BadResult(
                FailureKind.ENV_ERROR,
                f"the prompt of turn {self.turns + 1} leaves the tokens of the turns before it at "
                f"token {same} of {seen}: {EDITED}",
            )
        new = len(prompt) - seen
        start = len(prompt)
        self.token_ids += [*prompt[seen:], *generation]
        self.loss_mask += [False] * new + [True] * len(generation)
        self.logprobs += [0.0] * new + list(logprobs)
        self.spans += [VersionSpan(s.version, s.start + start, s.end + start) for s in spans]
        if self.turns == 0:
            self.input_length = start
        self.turns += 1


@dataclass(frozen=True, slots=True)
class Result:
    """What an answer says.

    Attributes:
        tokens: Of all turns.
        reward: Finite, within LARGEST_REWARD, as are parts and measures.
        rewards: Named parts.
        measures: Further numbers.
        others: Names of further fields, which are no such numbers.
        extracted: The answer as the verifier read it.
        flagged: The reward measures nothing.
        stop_reason: Why the episode ended.
    """

    tokens: Tokens
    reward: float
    rewards: Mapping[str, float]
    measures: Mapping[str, float]
    others: tuple[str, ...]
    extracted: str | None
    flagged: bool
    stop_reason: StopReason


def read_result(answer: object, row: JsonObject, sampled: Sequence[SampledTurn]) -> Result:
    """Reads an agent's answer to ``row``.

    Args:
        answer: Decoded JSON.
        row: As it was sent.
        sampled: What the run's own servers sampled for it.

    Raises:
        BadResult: It has no reward, no tokens, or is about something else.
    """
    if not isinstance(answer, Mapping):
        raise _error(f"the agent answered with {_kind(answer)} where one result was due")
    _check_identity(answer, row)
    response = answer.get("response")
    output = response.get("output") if isinstance(response, Mapping) else None
    if not isinstance(response, Mapping) or not isinstance(output, list):
        raise _error("the agent's answer has no response.output")
    tokens, stop_reason = _read_turns(output, sampled)
    rewards = _components(answer.get("reward_components"))
    flagged = answer.get("mask_sample") is True
    instance = answer.get("instance_config")
    if isinstance(instance, Mapping):
        flagged |= instance.get("mask_sample") is True
    measures, others = _measures(answer, row)
    extracted = answer.get("extracted_answer")
    return Result(
        tokens=tokens,
        reward=_number(answer.get("reward"), "the reward"),
        rewards=rewards,
        measures=measures,
        others=others,
        extracted=extracted if isinstance(extracted, str) else None,
        flagged=flagged,
        stop_reason=_stop_reason(answer, response, stop_reason),
    )


def partial_tokens(sampled: Sequence[SampledTurn]) -> Tokens:
    """What was sampled for an episode that failed, as far as it is one conversation."""
    tokens = Tokens()
    for turn in sampled:
        completion = turn.completion
        try:
            tokens.append(
                turn.prompt, completion.token_ids, completion.logprobs, completion.weight_versions
            )
        except BadResult:
            break
    return tokens


def _check_identity(answer: JsonObject, row: JsonObject) -> None:
    """An answer names the row that it is about; one to another row is worth nothing."""
    ours, theirs = row["_rowidx"], answer.get("_rowidx", row["_rowidx"])
    if ours != theirs:
        raise _error(f"the agent answered row {theirs!r:.60} where {ours!r} was asked")
    params = answer.get("responses_create_params")
    metadata = params.get("metadata") if isinstance(params, Mapping) else None
    if isinstance(metadata, Mapping) and "extra_body" in metadata:
        sent = row["responses_create_params"]["metadata"]["extra_body"]
        if metadata["extra_body"] != sent:
            raise _error(f"the agent answered another row than {ours!r}")


def _read_turns(
    output: Sequence[object], sampled: Sequence[SampledTurn]
) -> tuple[Tokens, StopReason]:
    """Tokens, and why the last turn ended.

    Only what the run itself sampled can be trained: nobody else knows by which weights.
    """
    tokens, last = Tokens(), StopReason.STOP
    known = {(turn.prompt, turn.completion.token_ids): turn for turn in sampled}
    for item in output:
        if not isinstance(item, Mapping) or not item.get(GENERATION):
            continue
        name = f"the output of turn {tokens.turns + 1}"
        prompt = _ids(item.get(PROMPT), f"{name}: {PROMPT}")
        generation = _ids(item[GENERATION], f"{name}: {GENERATION}")
        logprobs = _logprobs(item.get(LOGPROBS), len(generation), name)
        turn = known.get((prompt, generation))
        if turn is None:
            raise _error(
                f"{name} has tokens that this run did not sample for the row; its agent and model "
                "server must pass on responses_create_params.metadata.extra_body"
            )
        tokens.append(prompt, generation, logprobs, turn.completion.weight_versions)
        last = turn.completion.stop_reason
    if tokens.turns == 0:
        raise _error(
            "the agent's answer has no sampled tokens: it did not ask the policy, or not one turn "
            "fits into policy.max_total_sequence_length with the row's tools"
        )
    return tokens, last


def _stop_reason(answer: JsonObject, response: JsonObject, sampled: StopReason) -> StopReason:
    """Why the episode ended: as the agent says, else as its last turn did.

    A call at the end says nothing: many environments are solved by one, and end the episode then.
    """
    details = response.get("incomplete_details")
    if isinstance(details, Mapping) and details.get("reason") == "max_output_tokens":
        return StopReason.LENGTH
    if answer.get("truncated") is True:
        return StopReason.MAX_TURNS
    return sampled


def _components(value: object) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadResult(FailureKind.REWARD_ERROR, f"reward_components is {_kind(value)}")
    for name in value:
        if not name.strip() or "\n" in name:
            raise BadResult(
                FailureKind.REWARD_ERROR, f"a part of the reward has the name {name!r:.80}"
            )
    return {name: _number(part, f"the reward's {name}") for name, part in value.items()}


def _measures(answer: JsonObject, row: JsonObject) -> tuple[dict[str, float], tuple[str, ...]]:
    """Numbers that the answer has beyond the row, and the names of what else it has."""
    numbers: dict[str, float] = {}
    others = []
    for name, value in answer.items():
        if name in NOT_MEASURES or name in row or value is None or not _is_name(name):
            continue
        number = finite(value)
        if number is None or abs(number) > LARGEST_REWARD:
            others.append(name)
        else:
            numbers[name] = number
    return numbers, tuple(others)


def _is_name(name: str) -> bool:
    return bool(name.strip()) and "\n" not in name and not name.startswith("_")


def _number(value: object, name: str) -> float:
    number = finite(value)
    if number is None or abs(number) > LARGEST_REWARD:
        what = f"{name} is {value!r:.80}, which is no finite number up to {LARGEST_REWARD:.0e}"
        raise BadResult(FailureKind.REWARD_ERROR, what)
    return number


def _ids(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or set(map(type, value)) - {int} or min(value, default=0) < 0:
        raise _error(f"{name} is {_kind(value)}, not a list of token ids")
    return tuple(value)


def _logprobs(value: object, count: int, name: str) -> list[float]:
    if not isinstance(value, list) or len(value) != count:
        found = f"{len(value)}" if isinstance(value, list) else _kind(value)
        raise _error(f"{name} has {found} for {LOGPROBS} of {counted(count, 'token')}")
    if set(map(type, value)) <= {float} and math.isfinite(sum(value)) and max(value) <= MOST:
        # Nearly always, and at a tenth of the time.
        return value
    logprobs = []
    for one in value:
        logprob = finite(one)
        if logprob is None or logprob > MOST:
            raise _error(f"{name} has the log-prob {one!r:.40}")
        logprobs.append(logprob)
    return logprobs


def _error(message: str) -> BadResult:
    return BadResult(FailureKind.ENV_ERROR, message)


def _kind(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return f"{value!r:.60}"
