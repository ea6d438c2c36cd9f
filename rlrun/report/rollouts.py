# SPDX-License-Identifier: Apache-2.0
"""Which rollouts the page holds, and each of them token by token.

A run has far more than fit into a page. From the last, the first and evenly spaced steps it takes
the group whose rewards differ most, and the worst, best, longest and most influential samples,
until the room is used up. `rlrun view` shows the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rlrun.errors import RESTORE, StorageError
from rlrun.report.size import size_of
from rlrun.report.token_text import TokenText
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.records import TrainedLine, ValidationLine, read_trained, read_validation

_MOST_STEPS = 40
_MOST_READ = 300_000_000
"""Bytes of trained/ that are read, about."""

_PER_STEP = 14
_MOST_TOKENS = 1500
"""Tokens of a rollout; of longer ones the middle is left out."""

_MOST_CHARACTERS = 8000
_VALIDATION = 24
"""Samples of the last validation."""


def pick_rollouts(run_dir: RunDir, room: int) -> dict[str, Any]:
    """Rollouts for the page.

    Args:
        run_dir: The run.
        room: Bytes that they may take.

    Raises:
        StorageError: A file is damaged.
    """
    text = TokenText.of_run(run_dir)
    validation = _validation(run_dir)
    room -= size_of(validation)
    chosen: list[dict[str, Any]] = []
    read = 0
    for step in spread(run_dir.trained_steps())[:_MOST_STEPS]:
        path = run_dir.trained_file(step)
        read += path.stat().st_size
        if chosen and read > _MOST_READ:
            break
        for why, line in _of_step(_checked(path)):
            rollout = _rollout(line, why, text)
            room -= size_of(rollout)
            if room < 0:
                return {"trained": _sorted(chosen), "validation": validation}
            chosen.append(rollout)
    return {"trained": _sorted(chosen), "validation": validation}


def _checked(path: Path) -> list[TrainedLine]:
    """The lines of a file of trained/, whose lists have an entry per token.

    Raises:
        StorageError: One is damaged.
    """
    lines = []
    for number, line in enumerate(read_trained(path), start=1):
        lists = (
            *(line["token_loss_mask"], line["advantages"]),
            *(line["generation_logprobs"], line["prev_logprobs"]),
        )
        if any(len(values) != len(line["token_ids"]) for values in lists):
            raise StorageError(f"{path}:{number}", "has lists of different lengths", RESTORE)
        lines.append(line)
    return lines


def spread(steps: Sequence[int]) -> list[int]:
    """The steps in an order whose every beginning covers them evenly: last, first, middle, ..."""
    if not steps:
        return []
    order = [len(steps) - 1, 0]
    stretches = [(0, len(steps) - 1)]
    while stretches:
        halves = []
        for start, end in stretches:
            middle = (start + end) // 2
            order.append(middle)
            halves += [(a, b) for a, b in ((start, middle), (middle, end)) if b - a > 1]
        stretches = halves
    return [steps[index] for index in dict.fromkeys(order)]


def _of_step(lines: Sequence[TrainedLine]) -> Iterator[tuple[str, TrainedLine]]:
    """(why, line) of what is worth a look, each line once."""
    groups: dict[str, list[TrainedLine]] = {}
    for line in lines:
        groups.setdefault(line["group_id"], []).append(line)
    if not groups:
        return
    told = max(groups.values(), key=lambda group: (_spread_of(group), -lines.index(group[0])))
    rewarded = [line for line in lines if line["reward"] is not None]
    picks = [("failed", line) for line in lines if line["reward"] is None][:2]
    if rewarded:
        picks += [
            ("lowest reward", min(rewarded, key=_reward)),
            ("highest reward", max(rewarded, key=_reward)),
            ("longest", max(rewarded, key=lambda line: sum(line["token_loss_mask"]))),
            ("largest advantage", max(rewarded, key=lambda line: abs(_advantage(line) or 0.0))),
            ("most off-policy", max(rewarded, key=_distance)),
        ]
    picks += [("group of differing rewards", line) for line in told]
    seen: dict[int, str] = {}
    for why, line in picks:
        seen[id(line)] = f"{seen[id(line)]}, {why}" if id(line) in seen else why
    by_id = {id(line): line for _, line in picks}
    for key in list(seen)[:_PER_STEP]:
        yield seen[key], by_id[key]


def _spread_of(group: Sequence[TrainedLine]) -> float:
    rewards = [line["reward"] for line in group if line["reward"] is not None]
    return max(rewards) - min(rewards) if rewards else -1.0


def _reward(line: TrainedLine) -> float:
    return line["reward"] if line["reward"] is not None else 0.0


def _advantage(line: TrainedLine) -> float | None:
    """Of the trajectory: its tokens share it."""
    trained = [a for a, m in zip(line["advantages"], line["token_loss_mask"], strict=False) if m]
    return max((a for a in trained if a is not None), key=abs, default=None)


def _distance(line: TrainedLine) -> float:
    pairs = zip(line["prev_logprobs"], line["generation_logprobs"], strict=False)
    return max((abs(p - g) for p, g in pairs if p is not None and g is not None), default=0.0)


def _rollout(line: TrainedLine, why: str, text: TokenText) -> dict[str, Any]:
    texts = text.pieces(line["token_ids"])
    stretches = []
    for sampled, places in groupby(enumerate(line["token_loss_mask"]), key=itemgetter(1)):
        indices = [index for index, _ in places]
        stretches.append((bool(sampled), indices[0], indices[-1] + 1))
    return {
        "step": line["step"],
        "why": why,
        "prompt_id": line["prompt_id"],
        "sample": line["sample_index"],
        "agent": None if line["agent_ref"] is None else str(line["agent_ref"]),
        "reward": line["reward"],
        "unfiltered": line["unfiltered_reward"],
        "rewards": line["rewards"],
        "advantage": _advantage(line),
        "in_loss": bool(line["sample_loss_mask"]),
        "stop": line["stop_reason"],
        "truncated": line["truncated"],
        "tokens": sum(line["token_loss_mask"]),
        "total": line["total_length"],
        "prompt": middle_out(line["prompt"], _MOST_CHARACTERS),
        "response": middle_out(line["response"], _MOST_CHARACTERS) if texts is None else "",
        "turns": _turns(line, stretches, texts),
    }


def _turns(
    line: TrainedLine, stretches: Sequence[tuple[bool, int, int]], texts: Sequence[str] | None
) -> list[dict[str, Any]]:
    """The stretches behind the prompt: what the policy sampled and what it was answered.

    Without a tokenizer the texts are token ids.
    """
    turns, left = [], _MOST_TOKENS
    for sampled, start, end in stretches:
        start = max(start, line["input_length"])
        if start >= end:
            continue
        shown = min(end, start + left)
        left -= shown - start
        span = range(start, shown)
        pieces = [f"{line['token_ids'][i]} " if texts is None else texts[i] for i in span]
        turn: dict[str, Any] = {"sampled": sampled, "left_out": end - shown}
        if sampled:
            turn |= {
                "tokens": pieces,
                "versions": [
                    [version, max(a, start) - start, min(b, shown) - start]
                    for version, a, b in line["weight_versions"]
                    if a < shown and b > start
                ],
                "ratios": [_ratio(line, i) for i in span],
            }
        else:
            turn["text"] = "".join(pieces)
        turns.append(turn)
    return turns


def _ratio(line: TrainedLine, index: int) -> float | None:
    """Probability of the token under the weights before the update over that of the generator."""
    learner, generator = line["prev_logprobs"][index], line["generation_logprobs"][index]
    if learner is None or generator is None:
        return None
    return float(f"{math.exp(min(50.0, max(-50.0, learner - generator))):.4g}")


def _validation(run_dir: RunDir) -> list[dict[str, Any]]:
    """The worst and the best samples of the last validation."""
    steps = run_dir.validation_steps()
    if not steps:
        return []
    lines = sorted(read_validation(run_dir.validation_file(steps[-1])), key=_of_validation)
    half = _VALIDATION // 2
    chosen = lines if len(lines) <= _VALIDATION else [*lines[:half], *lines[-half:]]
    return [
        {
            "step": line["step"],
            "prompt_id": line["prompt_id"],
            "sample": line["sample_index"],
            "reward": line["reward"],
            "rewards": line["rewards"],
            "extracted": line["extracted"],
            "answer": middle_out(line["answer"], 1000),
            "stop": line["stop_reason"],
            "truncated": line["truncated"],
            "prompt": middle_out(line["prompt"], 2000),
            "response": middle_out(line["response"], 4000),
        }
        for line in chosen
    ]


def _of_validation(line: ValidationLine) -> tuple[float, str, int]:
    reward = float("-inf") if line["reward"] is None else line["reward"]
    return reward, line["prompt_id"], line["sample_index"]


def _sorted(rollouts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rollouts, key=lambda r: -r["step"])


def middle_out(text: str, most: int) -> str:
    """The text; of a longer one the beginning and the end."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"
