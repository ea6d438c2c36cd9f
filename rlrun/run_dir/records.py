# SPDX-License-Identifier: Apache-2.0
"""What was trained and what a validation saw: a JSON line per trajectory, one file per step.

Nothing is padded, and the fields are the same in every schedule. Floats are written so that they
read back as the same number; one that is not finite (which ends a run, and is then what one looks
for) is null. Texts are UTF-8.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

from rlrun.atomic import atomic_file, storage_error
from rlrun.errors import RESTORE, StorageError
from rlrun.run_dir.json_line import (
    are_integers,
    are_numbers,
    is_integer,
    is_number,
    is_shallow,
    is_text,
    parse_object,
)
from rlrun.types import Prompt, Trajectory


class TrainedLine(TypedDict):
    """A line of trained/step_*.jsonl. The five token lists have total_length entries.

    token_loss_mask and sample_loss_mask are 1 or 0; a token is trained where both are 1.
    advantages, generation_logprobs and prev_logprobs are per token, 0 where token_loss_mask is 0.
    weight_versions are spans [version, start, end): which weights sampled which tokens.
    reward is what the advantage was computed from, after scaling and shaping; unfiltered_reward is
    what the environment gave. Both are null after a failure.
    """

    step: int
    target_step: int | None
    prompt_id: str
    group_id: str
    sample_index: int
    agent_ref: Any
    prompt: str
    response: str
    token_ids: list[int]
    token_loss_mask: list[int]
    sample_loss_mask: int
    advantages: list[float | None]
    generation_logprobs: list[float | None]
    prev_logprobs: list[float | None]
    weight_versions: list[list[int]]
    reward: float | None
    rewards: dict[str, float | None]
    unfiltered_reward: float | None
    input_length: int
    total_length: int
    truncated: bool
    stop_reason: str


class ValidationLine(TypedDict):
    """A line of validation/step_*.jsonl. reward is null after a failure."""

    step: int
    prompt_id: str
    sample_index: int
    prompt: str
    response: str
    reward: float | None
    rewards: dict[str, float | None]
    extracted: str | None
    stop_reason: str
    truncated: bool
    answer: str


def trained_line(
    *,
    step: int,
    target_step: int | None,
    prompt: Prompt,
    trajectory: Trajectory,
    advantages: Sequence[float],
    prev_logprobs: Sequence[float],
    sample_loss_mask: bool,
    reward: float | None,
    agent_ref: object,
    prompt_text: str,
) -> TrainedLine:
    """The line of one trajectory of a batch.

    Args:
        step: The step that trains it.
        target_step: The step it was admitted for, if the schedule assigns one.
        prompt: What it answers.
        trajectory: The tokens.
        advantages: Per token of ``trajectory.token_ids``; 0 where it is not trained.
        prev_logprobs: Likewise.
        sample_loss_mask: Whether the trajectory is in the loss at all.
        reward: After scaling and shaping; the trajectory's own is the unfiltered one.
        agent_ref: What the row says about its agent; None if nothing.
        prompt_text: The prompt as text.

    Raises:
        ValueError: A token list has another length than ``trajectory.token_ids``.
    """
    _check_lengths(
        len(trajectory.token_ids),
        advantages=advantages,
        prev_logprobs=prev_logprobs,
        generation_logprobs=trajectory.generation_logprobs,
        loss_mask=trajectory.loss_mask,
    )
    return TrainedLine(
        step=step,
        target_step=target_step,
        prompt_id=prompt.prompt_id,
        group_id=prompt.group_id,
        sample_index=trajectory.sample_index,
        agent_ref=agent_ref,
        prompt=prompt_text,
        response=trajectory.response,
        token_ids=list(trajectory.token_ids),
        token_loss_mask=[int(trained) for trained in trajectory.loss_mask],
        sample_loss_mask=int(sample_loss_mask),
        advantages=[_finite(value) for value in advantages],
        generation_logprobs=[_finite(value) for value in trajectory.generation_logprobs],
        prev_logprobs=[_finite(value) for value in prev_logprobs],
        weight_versions=[[s.version, s.start, s.end] for s in trajectory.weight_versions],
        reward=_finite(reward),
        rewards=_finite_parts(trajectory.rewards),
        unfiltered_reward=_finite(trajectory.reward),
        input_length=trajectory.input_length,
        total_length=len(trajectory.token_ids),
        truncated=trajectory.truncated,
        stop_reason=trajectory.stop_reason.value,
    )


def _check_lengths(tokens: int, **lists: Sequence[object]) -> None:
    for name, values in lists.items():
        if len(values) != tokens:
            raise ValueError(f"{name} has {len(values)} entries for {tokens} tokens")


def validation_line(
    step: int, prompt: Prompt, trajectory: Trajectory, prompt_text: str
) -> ValidationLine:
    """The line of one sample of a validation."""
    return ValidationLine(
        step=step,
        prompt_id=prompt.prompt_id,
        sample_index=trajectory.sample_index,
        prompt=prompt_text,
        response=trajectory.response,
        reward=_finite(trajectory.reward),
        rewards=_finite_parts(trajectory.rewards),
        extracted=trajectory.extracted,
        stop_reason=trajectory.stop_reason.value,
        truncated=trajectory.truncated,
        answer=prompt.row.answer,
    )


def write_lines(path: Path, lines: Iterable[TrainedLine] | Iterable[ValidationLine]) -> None:
    """Writes the lines one by one to a file that appears when all are there.

    Raises:
        StorageError: The file cannot be written; one that was there before is untouched.
    """
    with atomic_file(path) as file:
        for line in lines:
            file.write(_encode(line))


def read_trained(path: Path, prompt_id: str | None = None) -> Iterator[TrainedLine]:
    """The lines of a file of trained/, one at a time.

    Args:
        path: The file.
        prompt_id: Only this prompt's; the others are not even parsed, which takes a tenth of the
            time.

    Raises:
        StorageError: The file cannot be read, or a line of it is not as it was written.
    """
    if prompt_id is None:
        return (cast(TrainedLine, line) for line in _read(path, _TRAINED))
    texts = json.dumps(prompt_id, ensure_ascii=False), json.dumps(prompt_id)
    having = [text.encode(errors="replace") for text in texts]
    lines = (cast(TrainedLine, line) for line in _read(path, _TRAINED, having))
    return (line for line in lines if line["prompt_id"] == prompt_id)


def read_validation(path: Path) -> Iterator[ValidationLine]:
    """The lines of a file of validation/, one at a time.

    Raises:
        StorageError: The file cannot be read, or a line of it is not as it was written.
    """
    return (cast(ValidationLine, line) for line in _read(path, _VALIDATION))


def _encode(line: TrainedLine | ValidationLine) -> bytes:
    try:
        text = json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode() + b"\n"
    except UnicodeEncodeError:
        # Half a surrogate pair, as JSON from a tool can smuggle in, exists only as an escape.
        return json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _read(path: Path, checks: _Checks, having: Sequence[bytes] = ()) -> Iterator[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            for number, text in enumerate(file, start=1):
                if not having or any(part in text for part in having):
                    yield _parse(f"{path}:{number}", text, checks)
    except OSError as error:
        raise storage_error(path, "read", error) from error


def _parse(where: str, text: bytes, checks: _Checks) -> dict[str, Any]:
    line = parse_object(where, text)
    if missing := sorted(checks.keys() - line.keys()):
        raise StorageError(where, f"lacks {', '.join(missing)}", RESTORE)
    for name, fits in checks.items():
        if not fits(line[name]):
            raise StorageError(where, f"{name} is not as it was written", RESTORE)
    return line


def _are_parts(value: object) -> bool:
    return isinstance(value, dict) and all(map(is_number, value.values()))


def _are_spans(value: object) -> bool:
    return isinstance(value, list) and all(are_integers(span) and len(span) == 3 for span in value)


_Checks = Mapping[str, Callable[[Any], bool]]

_COMMON: _Checks = {
    "step": is_integer,
    "prompt_id": is_text,
    "sample_index": is_integer,
    "prompt": is_text,
    "response": is_text,
    "reward": is_number,
    "rewards": _are_parts,
    "stop_reason": is_text,
    "truncated": lambda value: isinstance(value, bool),
}

_TRAINED: _Checks = {
    **_COMMON,
    "target_step": lambda value: value is None or is_integer(value),
    "group_id": is_text,
    "agent_ref": is_shallow,
    "token_ids": are_integers,
    "token_loss_mask": are_integers,
    "sample_loss_mask": is_integer,
    "advantages": are_numbers,
    "generation_logprobs": are_numbers,
    "prev_logprobs": are_numbers,
    "weight_versions": _are_spans,
    "unfiltered_reward": is_number,
    "input_length": is_integer,
    "total_length": is_integer,
}

_VALIDATION: _Checks = {
    **_COMMON,
    "extracted": lambda value: value is None or is_text(value),
    "answer": is_text,
}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _finite_parts(parts: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in parts.items()}
