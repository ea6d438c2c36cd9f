# SPDX-License-Identifier: Apache-2.0
"""Where the time and the tokens of a run went, and what to change first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.report.timeline import gaps, generator_spans, union_s

Line = Mapping[str, Any]

_PARTS = (
    ("idle/trainer_s/waiting_groups", "waiting for groups"),
    ("idle/trainer_s/age_limit", "waiting at the age limit"),
    ("idle/trainer_s/pause", "waiting for running groups before a refit"),
    ("perf/logprobs_s", "log-probs"),
    ("perf/update_s", "update"),
    ("refit/seconds", "refit"),
    ("perf/checkpoint_s", "checkpoints"),
)

NOTABLE = 0.05
"""Share of a run's time below which nothing is worth a change."""


@dataclass(frozen=True, slots=True)
class TimeUse:
    """Seconds of a run, as its trainer spent them.

    Attributes:
        total: All steps, checkpoints included.
        parts: By what they were spent on, the largest first; their sum is ``total``.
        generator_idle: Of ``total``, in which no training rollout was running.
        environment_alone: In which the trainer waited and trajectories were with the environment
            alone, none with a generator.
    """

    total: float
    parts: dict[str, float]
    generator_idle: float
    environment_alone: float

    def share(self, part: str) -> float:
        """Of the total, from 0 to 1."""
        return self.parts.get(part, 0.0) / self.total if self.total else 0.0

    def to_json(self) -> dict[str, Any]:
        """JSON-able fields."""
        return {
            "total": round(self.total, 3),
            "parts": [[name, round(seconds, 3)] for name, seconds in self.parts.items()],
            "generator_idle": round(self.generator_idle, 3),
            "environment_alone": round(self.environment_alone, 3),
        }


@dataclass(frozen=True, slots=True)
class Lever:
    """Something to change.

    Attributes:
        seconds: What it could save at most, of the run's time.
        title: In a few words.
        text: What was seen and what to do.
        command: To be typed; "" if there is none.
    """

    seconds: float
    title: str
    text: str
    command: str = ""


def time_use(lines: Sequence[Line], timeline: Sequence[Mapping[str, Any]]) -> TimeUse:
    """Where the time went.

    Args:
        lines: Of metrics.jsonl.
        timeline: Of timeline.jsonl; without it validation counts as other.
    """
    steps = [line for line in lines if line["step"] > 0]
    total = _sum(steps, "perf/step_s") + _sum(steps, "perf/checkpoint_s")
    parts = {label: _sum(steps, name) for name, label in _PARTS}
    parts["validation"] = math.fsum(
        end - start
        for line in timeline
        for what, start, end in line["lanes"].get("trainer", [])
        if what == "validation" and start >= 0
    )
    known = math.fsum(parts.values())
    # Timings overlap in places (a refit may include its pause): no part may exceed the whole.
    parts["other"] = max(0.0, total - known)
    ranked = sorted(parts.items(), key=lambda part: -part[1])
    return TimeUse(
        total=max(total, known),
        parts={name: seconds for name, seconds in ranked if seconds > 0},
        generator_idle=_sum(steps, "idle/generator_s"),
        environment_alone=math.fsum(map(_environment_alone, timeline)),
    )


def ledger(lines: Sequence[Line]) -> list[list[Any]]:
    """[category, tokens] at the last step that has them; "generated" first, the sum of the rest."""
    last = next((line for line in reversed(lines) if "tokens/generated" in line), {})
    names = [name for name in last if name.startswith("tokens/")]
    rest = sorted((n for n in names if n != "tokens/generated"), key=lambda n: -last[n])
    first = ["tokens/generated"] if names else []
    return [[name.partition("/")[2], last[name]] for name in (*first, *rest)]


def levers(lines: Sequence[Line], use: TimeUse, root: str) -> list[Lever]:
    """What to change, the most promising first; none that could save under NOTABLE of the time."""
    asynchronous = any("perf/ceiling_efficiency" in line for line in lines)
    schedule = _of_overlap(use, root) if asynchronous else _of_turns(lines, use, root)
    found = [*schedule, *_tokens(lines, use), *_rest(use)]
    worthy = [lever for lever in found if use.total and lever.seconds >= NOTABLE * use.total]
    return sorted(worthy, key=lambda lever: -lever.seconds)


def _of_turns(lines: Sequence[Line], use: TimeUse, root: str) -> Iterator[Lever]:
    """Of a run with grpo=sync."""
    waits = use.parts.get("waiting for groups", 0.0)
    trains = sum(use.parts.get(part, 0.0) for part in ("log-probs", "update"))
    yield Lever(
        min(waits, trains),
        "Let generation and training overlap",
        f"The trainer waits for rollouts {_percent(waits, use)} of the time and then computes "
        f"for {_percent(trains, use)}, in turns. With grpo=async, and a machine or cores for "
        "each, the shorter of the two disappears at best. Ask first what it would bring.",
        f"rlrun simulate --from {root}",
    )
    mean, most = _means(lines, "train/response_tokens_mean", "rollout/response_tokens_max")
    if most > 2 * mean > 0:
        yield Lever(
            waits * (1 - mean / most) / 2,
            "Shorten the wait for the longest answer",
            f"The longest answer of a step has {most:.0f} tokens, the mean {mean:.0f}: most "
            "of a batch waits for a few. Lower generation.max_new_tokens if long answers are "
            "rarely right, or use grpo=async.",
        )


def _of_overlap(use: TimeUse, root: str) -> Iterator[Lever]:
    """Of a run with grpo=async."""
    waits, idle = use.parts.get("waiting for groups", 0.0), use.generator_idle
    if waits >= 0.1 * use.total and idle >= 0.1 * use.total:
        yield Lever(
            min(waits, idle),
            "Loosen the coupling of generator and trainer",
            f"Both wait: the trainer {_percent(waits, use)}, the generators {_percent(idle, use)} "
            "of the time. More in flight needs a higher grpo.max_trajectory_age_steps.",
            f"rlrun simulate --from {root}",
        )
    elif waits >= idle:
        yield Lever(
            waits / 2,
            "Give generation more of the machine",
            f"The trainer waits for groups {_percent(waits, use)} of the time while the "
            f"generators wait {_percent(idle, use)}: generation is the bottleneck. Add engines "
            "or move cores or GPUs to them.",
        )
    else:
        yield Lever(
            idle / 2,
            "Give the learner more of the machine",
            f"The generators wait {_percent(idle, use)} of the time for the trainer, which waits "
            f"only {_percent(waits, use)}: the learner is the bottleneck. Raise "
            "policy.train_micro_batch_tokens, or move cores or GPUs to it.",
        )
    held = use.parts.get("waiting at the age limit", 0.0)
    yield Lever(
        held,
        "Raise the age bound",
        f"{_percent(held, use)} of the time goes to waiting for groups that would pass the age "
        "bound. Raise grpo.max_trajectory_age_steps, or choose grpo.on_age_limit=mask.",
    )


def _tokens(lines: Sequence[Line], use: TimeUse) -> Iterator[Lever]:
    counts = dict(ledger(lines))
    generated = counts.get("generated", 0)
    if not generated:
        return
    silent = counts.get("zero_signal", 0) / generated
    yield Lever(
        silent * use.total,
        "Choose prompts that teach",
        f"{100 * silent:.0f} % of the sampled tokens are of groups whose samples all have the same "
        "reward: they give no gradient. Use prompts of another difficulty, more samples per "
        "prompt, or grpo.use_dynamic_sampling=true.",
    )
    lost = sum(counts.get(n, 0) for n in ("stale", "cancelled", "errored", "surplus", "lost"))
    share = lost / generated
    yield Lever(
        share * use.total,
        "Stop throwing tokens away",
        f"{100 * share:.0f} % of the sampled tokens were never trained: stale, cancelled, errored, "
        "surplus or lost in a crash. The ledger says which; log.txt has the first errors.",
    )


def _rest(use: TimeUse) -> Iterator[Lever]:
    yield Lever(
        use.environment_alone,
        "Make the environment faster",
        f"{_percent(use.environment_alone, use)} of the time everything waits for the "
        "environment alone. Give it more workers, or look at the prompts in the straggler table.",
    )
    validation = use.parts.get("validation", 0.0)
    yield Lever(
        validation / 2,
        "Validate less often",
        f"Validation takes {_percent(validation, use)} of the time. Twice the grpo.val_period, "
        "or half of grpo.max_val_samples, halves it.",
    )
    saving = use.parts.get("checkpoints", 0.0)
    yield Lever(
        saving / 2,
        "Save less often",
        f"Checkpoints take {_percent(saving, use)} of the time. Raise checkpointing.save_period.",
    )
    refit = use.parts.get("refit", 0.0)
    yield Lever(
        refit / 2,
        "Make refits cheaper",
        f"Bringing weights to the generators takes {_percent(refit, use)} of the time. Larger "
        "batches need fewer refits: raise grpo.num_prompts_per_step.",
    )


def _environment_alone(line: Mapping[str, Any]) -> float:
    lanes = line["lanes"]
    waits = [s for s in lanes.get("trainer", []) if s[0].startswith("wait/")]
    silent = gaps(generator_spans(lanes), line["seconds"])
    alone = [
        ["alone", max(a, start), min(b, end)]
        for a, b in silent
        for _, start, end in lanes.get("environment", [])
        if min(b, end) > max(a, start)
    ]
    within = [
        ["alone", max(a, start), min(b, end)]
        for _, a, b in alone
        for _, start, end in waits
        if min(b, end) > max(a, start)
    ]
    return union_s(within)


def _sum(lines: Sequence[Line], name: str) -> float:
    return math.fsum(line[name] for line in lines if line.get(name) is not None)


def _means(lines: Sequence[Line], *names: str) -> list[float]:
    found = []
    for name in names:
        values = [line[name] for line in lines if line.get(name) is not None]
        found.append(math.fsum(values) / len(values) if values else 0.0)
    return found


def _percent(seconds: float, use: TimeUse) -> str:
    return f"{100 * seconds / use.total:.0f} %" if use.total else "0 %"
