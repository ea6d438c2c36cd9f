# SPDX-License-Identifier: Apache-2.0
"""Compares trained/step_*.jsonl and metrics.jsonl of a run with its event log."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from rlrun.atomic import storage_error
from rlrun.config.yaml_file import read_yaml
from rlrun.console.counted import counted
from rlrun.errors import RESTORE, StorageError
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.json_line import is_integer, parse_object
from rlrun.run_dir.retention import removed_up_to
from rlrun.scheduler import Outcome
from rlrun.scheduler.history import History

_GROUP_ID = re.compile(r"([0-9]{1,18})/.*", re.DOTALL)
_WRITTEN = ("logging", "trained")
_KEPT = ("logging", "keep_trained_steps")


@dataclass(slots=True)
class Compared:
    """What the comparison found.

    Attributes:
        violations: What must not be.
        notes: What could not be compared.
    """

    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare_files(run_dir: RunDir, history: History) -> Compared:
    """Whether the files tell of the same groups and tokens as the event log, and of all steps.

    Raises:
        StorageError: A file cannot be read, or a line of it makes no sense.
    """
    report = Compared()
    _compare_trained(run_dir, history, report)
    _compare_metrics(run_dir, history, report)
    return report


def _compare_metrics(run_dir: RunDir, history: History, report: Compared) -> None:
    """Tells a log of another run: its steps trained other numbers of tokens."""
    path = run_dir.metrics
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    return
                line = parse_object(f"{path}:{number}", raw)
                step, tokens = line.get("step", 0), line.get("tokens/trained")
                known = history.trained_tokens.get(step) if is_integer(step) else None
                if None not in (known, tokens) and known != tokens:
                    report.violations.append(
                        f"metrics.jsonl has {tokens} trained tokens after step {step}, "
                        f"events.jsonl {known}: they are not of one run"
                    )
                    return
    except OSError as error:
        raise storage_error(path, "read", error) from error


def _compare_trained(run_dir: RunDir, history: History, report: Compared) -> None:
    removed = removed_up_to(run_dir)
    if removed:
        report.notes.append(
            f"trained/ keeps the newest steps only (logging.keep_trained_steps): files up to step "
            f"{removed} were removed, and not compared"
        )
    found = _compare_steps(run_dir, history, report)
    # Only the oldest files are removed: there is none to be missed behind one that is there.
    removed = min(removed, min(found, default=removed))
    missing = sorted(step for step in history.steps.keys() - found if step > removed)
    if missing:
        _tell_missing(run_dir, missing, bool(found), report)


def _compare_steps(run_dir: RunDir, history: History, report: Compared) -> set[int]:
    """The completed steps that have a file."""
    rows = history.rows_per_epoch
    step_of: dict[str, int] = {}
    found: set[int] = set()
    for step in run_dir.trained_steps():
        path = run_dir.trained_file(step)
        epochs = _read_step(path, step, report)
        if step == len(history.steps) + 1:
            report.notes.append(f"{path.name} was written but step {step} did not complete")
            continue
        if step not in history.steps:
            report.violations.append(f"{path.name}: no such step in events.jsonl")
            continue
        found.add(step)
        for group in epochs:
            if group in step_of:
                report.violations.append(
                    f"group {group} was trained in steps {step_of[group]} and {step}"
                )
            step_of[group] = step
        in_file = Counter(epochs.values())
        batch = Counter(position // rows for position in history.steps[step])
        with_loss = Counter(
            position // rows
            for position in history.steps[step]
            if history.outcome(position) is Outcome.TRAINED
        )
        if not with_loss <= in_file <= batch:
            report.violations.append(
                f"{path.name}: groups by epoch {dict(in_file)}, in events.jsonl {dict(batch)}"
            )
    return found


def _tell_missing(
    run_dir: RunDir, missing: list[int], some_are_there: bool, report: Compared
) -> None:
    """A file that the run wrote and that is gone is a violation; others are noted."""
    configs = _configs(run_dir)
    written = {config.get(_WRITTEN) for config in configs}
    steps = counted(len(missing), "step")
    if False in written:
        report.notes.append(
            f"trained/ has no file of {steps}, which could not be compared: the run had "
            "logging.trained=false"
        )
    elif some_are_there:
        report.violations.append(f"trained/ has no file of step {missing[0]}")
    elif True in written:
        kept = configs[0].get(_KEPT)
        due = missing[-kept:] if isinstance(kept, int) else missing
        report.violations.append(
            f"trained/ is missing or empty; with logging.trained=true it should hold the files of "
            f"steps {due[0]} to {due[-1]}"
        )
    else:
        report.notes.append(
            f"trained/ is missing or empty, so {steps} of events.jsonl could not be compared; no "
            "config.yaml says whether it should be"
        )


def _configs(run_dir: RunDir) -> list[dict[tuple[str, ...], object]]:
    """The values of config.yaml, and of those that resumes replaced."""
    paths = [run_dir.config, *sorted(run_dir.superseded.glob("config.yaml*"))]
    return [
        {entry.path: entry.value for entry in read_yaml(path).entries}
        for path in paths
        if path.is_file()
    ]


def _read_step(path: Path, step: int, report: Compared) -> dict[str, int]:
    """The epochs by group id, as a file of trained trajectories tells them."""
    epochs: dict[str, int] = {}
    prompts: dict[str, set[str]] = defaultdict(set)
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                row = parse_object(f"{path}:{number}", raw)
                group, prompt = row.get("group_id"), row.get("prompt_id")
                if not (isinstance(group, str) and isinstance(prompt, str) and "step" in row):
                    raise StorageError(f"{path}:{number}", "not a line of a trained file", RESTORE)
                if row["step"] != step:
                    shown = f"step {row['step']}" if is_integer(row["step"]) else "no step"
                    report.violations.append(f"{path.name}:{number}: {shown}")
                if match := _GROUP_ID.fullmatch(group):
                    epochs[group] = int(match[1])
                    prompts[group].add(prompt)
                else:
                    report.violations.append(
                        f"{path.name}:{number}: group_id {group!r:.80} names no epoch"
                    )
    except OSError as error:
        raise StorageError(str(path), f"cannot be read: {error.strerror}") from error
    report.violations += [
        f"{path.name}: group {group} has {len(ids)} prompts"
        for group, ids in prompts.items()
        if len(ids) > 1
    ]
    return epochs
