# SPDX-License-Identifier: Apache-2.0
"""What is said about a step in a line: numbers in words, cut to what fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rlrun.console.activity import CAUSE_WORDS, Activity
from rlrun.console.terminal import columns, cut

WINDOW = 10
"""Steps that the trend of the reward, its collapse and the time left are judged by."""

SILENT = 5
"""Steps in a row without an update after which it is said that nothing is learned."""


def step_fields(
    metrics: Mapping[str, float | None],
    trend: float | None,
    seconds_left: float | None,
    activity: Activity | None = None,
) -> list[str]:
    """What a line says about a step, the most important first; what is not known is left out.

    Args:
        metrics: Of the step.
        trend: Of the reward.
        seconds_left: To the end of the run.
        activity: What goes on when the step has ended.
    """
    fields = [*reward_fields(metrics, trend)]
    if seconds_left is not None:
        fields.append(f"eta {duration(seconds_left)}")
    fields += efficiency_fields(metrics)
    # In turns every rollout of the next step begins now, and none is old.
    oldest = activity.oldest if activity is not None and overlaps(metrics) else None
    if oldest is not None and oldest.seconds >= 1:
        fields.append(f"oldest {oldest.short()}")
    fields += age_fields(metrics)
    for name, before, after in (
        ("perf/generated_tokens_per_s", "", " tok/s"),
        ("perf/step_s", "", " s/step"),
        ("train/response_tokens_mean", "", " tokens/answer"),
        ("perf/peak_memory_gib", "", " GiB"),
        ("train/entropy", "entropy ", ""),
        ("train/loss", "loss ", ""),
    ):
        value = metrics.get(name)
        # At the end of an asynchronous run nothing is sampled any more.
        if value is not None and (value or name != "perf/generated_tokens_per_s"):
            fields.append(f"{before}{number(value)}{after}")
    return fields


def reward_fields(metrics: Mapping[str, float | None], trend: float | None) -> Iterator[str]:
    """The reward with its trend, and the validation if there was one."""
    reward = metrics.get("train/reward_mean")
    if reward is not None:
        change = f" ({number(trend, sign=True)})" if trend is not None else ""
        yield f"reward {number(reward)}{change}"
    for name, label in (
        ("validation/accuracy", "validation accuracy"),
        ("validation/reward_mean", "validation reward"),
    ):
        if (value := metrics.get(name)) is not None:
            yield f"{label} {number(value)}"
            return


def efficiency_fields(metrics: Mapping[str, float | None]) -> Iterator[str]:
    """E, and the share of the step in which the trainer waited, with what for most."""
    efficiency = metrics.get("perf/ceiling_efficiency")
    if efficiency is None:
        # In turns the trainer waits by design; what for is no news.
        return
    yield f"E {efficiency:.2f}"
    idle, step = metrics.get("idle/trainer_s"), metrics.get("perf/step_s")
    if idle is None or not step or not math.isfinite(idle) or not math.isfinite(step):
        return
    prefix = "idle/trainer_s/"
    causes = {n.removeprefix(prefix): v for n, v in metrics.items() if n.startswith(prefix) and v}
    cause = max(causes, key=lambda name: causes[name] or 0.0, default="")
    words = f" for {CAUSE_WORDS.get(cause, cause)}" if cause else ""
    yield f"waits {100 * idle / step:.0f}%{words}"


def overlaps(metrics: Mapping[str, float | None]) -> bool:
    """Whether rollouts go on while the learner trains: only such a step has an efficiency."""
    return metrics.get("perf/ceiling_efficiency") is not None


def age_fields(metrics: Mapping[str, float | None]) -> Iterator[str]:
    """Mean and largest age; in turns every token is of the newest weights, which is no news."""
    mean, largest = metrics.get("age/mean"), metrics.get("age/max")
    if mean is not None and (overlaps(metrics) or largest):
        most = f" max {largest:g}" if largest is not None and largest > 0 else ""
        yield f"age {number(mean)}{most}"


def fit(head: str, fields: Sequence[str], width: int) -> str:
    """The head and, in order, every field that still fits as a whole into ``width`` columns."""
    line = head
    for field in fields:
        longer = f"{line}  {field}" if line else field
        if columns(longer) <= width:
            line = longer
    return cut(line, width)


def trend(rewards: Sequence[float]) -> float | None:
    """How much the mean of the last steps lies above that of as many before; None with under 4."""
    size = min(WINDOW, len(rewards) // 2)
    if size < 2:
        return None
    return _mean(rewards[-size:]) - _mean(rewards[-2 * size : -size])


def collapse_notice(rewards: Sequence[float]) -> str | None:
    """A warning if the mean reward of the last 10 steps is under half of that of the first 10.

    None with fewer than 20 steps, or if the first ten had no positive mean to lose.
    """
    if len(rewards) < 2 * WINDOW:
        return None
    first, last = _mean(rewards[:WINDOW]), _mean(rewards[-WINDOW:])
    if first <= 0 or last >= first / 2:
        return None
    return (
        f"the reward has collapsed: {number(last)} on average over the last {WINDOW} steps, "
        f"{number(first)} over the first {WINDOW}. Look at the worst samples with `rlrun view`; "
        "a lower policy.optimizer.lr is the usual remedy."
    )


def silence_notice(silent: int, reward: float | None) -> str | None:
    """A warning after ``SILENT`` steps in a row that changed no weight; ``reward`` is the mean."""
    if silent < SILENT:
        return None
    mean = "" if reward is None else f" (mean {number(reward)})"
    return (
        f"nothing was learned in the last {silent} steps: all samples of every prompt had the same "
        f"reward{mean}. Read them with `rlrun view`: the verifier does not find the answers, or "
        "the prompts are too hard or too easy."
    )


def duration(seconds: float) -> str:
    """Seconds in words of at most two units: 45s, 3m05s, 2h07m, 4d03h."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = round(seconds)
    for size, unit, part, small in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{small}"
    return f"{whole}s"


def step_text(step: int, total: int | None) -> str:
    """Which step of how many."""
    return f"step {step}" if total is None else f"step {step:>{len(str(total))}}/{total}"


def number(value: float, sign: bool = False) -> str:
    """A number in few characters."""
    plus = "+" if sign else ""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if 0.001 <= abs(value) < 100:
        digits = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1
        return f"{value:{plus}.{digits}f}"
    return f"{value:{plus}.0f}" if 100 <= abs(value) < 1e6 else f"{value:{plus}.1e}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)
