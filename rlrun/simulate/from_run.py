# SPDX-License-Identifier: Apache-2.0
"""What a finished run says about its workload: lengths of its answers, and what things cost it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.errors import StorageError
from rlrun.metrics.logs import read_metrics
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.records import read_trained

WARM_UP_STEPS = 2
"""The first steps of a run also load and compile: they say nothing about the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a run's files say.

    Attributes:
        groups: Sampled tokens of each sample of each trained group.
        prompts_per_step: Groups of a batch.
        generation: Steps as (longest sample in tokens, all sampled tokens, seconds); empty if
            generation overlapped with training, so that its seconds are not known.
        train_token_s: Seconds of training per sampled token; None if the run does not say.
        refit_s: Mean seconds of a refit; 0 if the run has none.
    """

    groups: Sequence[tuple[int, ...]]
    prompts_per_step: int
    generation: Sequence[tuple[int, int, float]]
    train_token_s: float | None
    refit_s: float


def read_run(root: Path) -> Recorded:
    """Reads ``trained/`` and ``metrics.jsonl`` of a run, which may still be going on.

    Raises:
        StorageError: There is no run, it has nothing to learn from, or a file is damaged.
    """
    run_dir = RunDir.read(root)
    steps = run_dir.trained_steps()
    if not steps:
        remedy = "Give a run of a few steps with logging.trained=true"
        raise StorageError(str(run_dir.trained), "holds no trained step", remedy)
    by_step = {step: _groups(run_dir.trained_file(step)) for step in steps}
    every = [group for groups in by_step.values() for group in groups]
    samples = statistics.mode(map(len, every))
    # A data set's last batch may be short, and so may a group of which a file lost a line.
    whole = [group for group in every if len(group) == samples]
    metrics = read_metrics(run_dir.metrics) if run_dir.metrics.exists() else []
    lines = {line["step"]: line for line in metrics if line["step"] in by_step}
    timed = [step for step in steps if step in lines]
    timed = timed[WARM_UP_STEPS:] or timed
    asynchronous = any((line.get("age/max") or 0) > 0 for line in lines.values())
    return Recorded(
        groups=whole,
        prompts_per_step=statistics.mode(map(len, by_step.values())),
        generation=[] if asynchronous else _generation(by_step, lines, timed),
        train_token_s=_train_token_s(by_step, lines, timed),
        refit_s=_mean([lines[step].get("refit/seconds") for step in timed]),
    )


def _groups(path: Path) -> list[tuple[int, ...]]:
    groups: dict[str, list[int]] = {}
    for line in read_trained(path):
        # A sample that failed before its first token still took a place.
        groups.setdefault(line["group_id"], []).append(max(1, sum(line["token_loss_mask"])))
    return [tuple(lengths) for lengths in groups.values()]


def _generation(
    by_step: dict[int, list[tuple[int, ...]]], lines: dict[int, dict[str, Any]], steps: list[int]
) -> list[tuple[int, int, float]]:
    found = []
    for step in steps:
        seconds = lines[step].get("perf/generation_s")
        if seconds:
            lengths = [length for group in by_step[step] for length in group]
            found.append((max(lengths), sum(lengths), float(seconds)))
    return found


def _train_token_s(
    by_step: dict[int, list[tuple[int, ...]]], lines: dict[int, dict[str, Any]], steps: list[int]
) -> float | None:
    seconds = tokens = 0.0
    for step in steps:
        logprobs, update = (lines[step].get(n) for n in ("perf/logprobs_s", "perf/update_s"))
        # A step without signal makes no update; what one costs is to be learned from the others.
        if logprobs and update:
            seconds += logprobs + update
            tokens += sum(map(sum, by_step[step]))
    return seconds / tokens if seconds else None


def fit_rates(generation: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """Seconds per token of a sequence alone and of a saturated generator, from whole batches.

    A batch that starts at once and ends with its longest sequence takes
    sequence_s * longest + saturated_s * all tokens, if every sequence takes
    sequence_s + saturated_s * c for a token beside c - 1 others. Both are fitted by least squares
    of the relative errors and are at least 0.

    Args:
        generation: Batches as (longest sequence, all tokens, seconds); at least one.

    Returns:
        sequence_s and saturated_s.
    """
    rows = [(longest / s, tokens / s) for longest, tokens, s in generation]
    xx = sum(x * x for x, _ in rows)
    xy = sum(x * y for x, y in rows)
    yy = sum(y * y for _, y in rows)
    bx, by = sum(x for x, _ in rows), sum(y for _, y in rows)
    determinant = xx * yy - xy * xy
    candidates = [(bx / xx, 0.0), (0.0, by / yy)]
    if determinant > 1e-9 * xx * yy:
        both = (bx * yy - by * xy) / determinant, (by * xx - bx * xy) / determinant
        if min(both) >= 0:
            return both

    def error(rates: tuple[float, float]) -> float:
        return sum((rates[0] * x + rates[1] * y - 1) ** 2 for x, y in rows)

    return min(candidates, key=error)


def _mean(values: Sequence[float | None]) -> float:
    given = [value for value in values if value is not None]
    return sum(given) / len(given) if given else 0.0
