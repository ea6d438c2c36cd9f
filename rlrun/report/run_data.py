# SPDX-License-Identifier: Apache-2.0
"""What the page knows of one run, as JSON-able data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.atomic import storage_error
from rlrun.errors import RESTORE, StorageError
from rlrun.metrics.logs import read_metrics
from rlrun.metrics.registry import find, is_declared
from rlrun.report.charts import CHARTS
from rlrun.report.rollouts import pick_rollouts
from rlrun.report.time_use import Lever, TimeUse, ledger, levers, time_use
from rlrun.report.timeline import shorten
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.json_line import are_numbers, parse_object
from rlrun.run_dir.state import state_in_words

MOST_POINTS = 600
"""Steps that the curves show; of longer runs evenly spaced ones, the first and the last among."""

_BYTES = 3_000_000
"""Of rollouts, of all runs together: what keeps the file below 5 MB."""

_GROUPS = 6000
"""Bars of groups in the timelines of all runs together."""

_ENGINE_SPANS = 12_000
"""Likewise, spans in the lanes of single engines."""

_STEPS = 1500
"""Steps in the timelines of all runs together."""


def collect(run_dir: RunDir, name: str, share: float) -> dict[str, Any]:
    """Reads a run directory.

    Args:
        run_dir: The run; it may still go on, or have ended before anything was trained.
        name: What the page calls it.
        share: Of the page's size that it may use.

    Raises:
        StorageError: A file is damaged.
    """
    try:
        return _collected(run_dir, name, share)
    except OverflowError as error:
        what = f"the numbers in its files have no sum: {error}"
        remedy = "Restore metrics.jsonl and timeline.jsonl from a copy"
        raise StorageError(str(run_dir.root), what, remedy) from error


def _collected(run_dir: RunDir, name: str, share: float) -> dict[str, Any]:
    lines = read_metrics(run_dir.metrics) if run_dir.metrics.exists() else []
    timeline = read_timeline(run_dir.timeline) if run_dir.timeline.exists() else []
    asynchronous = any("perf/ceiling_efficiency" in line for line in lines)
    use = time_use(lines, timeline)
    if not math.isfinite(use.total):
        raise OverflowError("the run took longer than a float can say")
    return {
        "name": name,
        "root": str(run_dir.root),
        "state": state_in_words(run_dir),
        "facts": _facts(lines, asynchronous),
        "steps": [line["step"] for line in _thinned(lines)],
        "metrics": _series(_thinned(lines)),
        "units": _units(lines),
        "time": use.to_json(),
        "levers": [_lever(one, use) for one in levers(lines, use, str(run_dir.root))],
        "ledger": ledger(lines),
        "timeline": shorten(
            timeline, round(_GROUPS * share), round(_ENGINE_SPANS * share), round(_STEPS * share)
        ),
        "rollouts": pick_rollouts(run_dir, round(_BYTES * share)),
        "config": read_config(run_dir),
    }


def read_timeline(path: Path) -> list[dict[str, Any]]:
    """The lines of a timeline.jsonl; a last one that is still being written is left out.

    Raises:
        StorageError: The file cannot be read, or a whole line is damaged.
    """
    lines = []
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                if raw.endswith(b"\n"):
                    line = parse_object(f"{path}:{number}", raw)
                    _check_timeline(f"{path}:{number}", line)
                    lines.append(line)
    except OSError as error:
        raise storage_error(path, "read", error) from error
    return lines


def read_config(run_dir: RunDir) -> list[list[str]]:
    """[key, value, layer, place] of every key; without a record of origins, from config.yaml.

    Raises:
        StorageError: A file cannot be read or is damaged.
    """
    record = run_dir.read_origins()
    if not record:
        return _config_text(run_dir)
    return [[key, o["value"], o["from"], o["where"]] for key, o in sorted(record.items())]


def _config_text(run_dir: RunDir) -> list[list[str]]:
    """The keys of config.yaml by their indentation: all that a run without a record has."""
    try:
        text = run_dir.config.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise storage_error(run_dir.config, "read", error) from error
    rows: list[list[str]] = []
    path: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        key, colon, value = line.partition(":")
        if not colon or key.lstrip().startswith(("#", "-")):
            continue
        indent = len(key) - len(key.lstrip())
        path = [(depth, name) for depth, name in path if depth < indent]
        path.append((indent, key.strip()))
        if value.strip():
            name = ".".join(part for _, part in path)
            rows.append([name, value.strip(), "", f"config.yaml:{number}"])
    return rows


def _check_timeline(where: str, line: Mapping[str, Any]) -> None:
    try:
        lanes, numbers = line["lanes"], [line["step"], line["start"], line["seconds"]]
        spans = [span for lane in lanes.values() for span in lane]
        texts = [what for what, _, _ in spans]
        numbers += [number for _, start, end in spans for number in (start, end)]
        for group in (*line["groups"], *line["stragglers"]):
            numbers += [group[name] for name in ("start", "end", "tokens", "longest", "env_s")]
            texts += [group[name] for name in ("prompt_id", "environment", "outcome")]
        numbers += [group["held_trainer_s"] for group in line["stragglers"]]
        texts += [group["cause"] for group in line["stragglers"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(where, "is no line of a timeline", RESTORE) from error
    if not are_numbers(numbers) or None in numbers:
        raise StorageError(where, "has a time that is no finite number", RESTORE)
    if not all(type(text) is str for text in texts):
        raise StorageError(where, "has a name that is no text", RESTORE)


def _thinned(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most MOST_POINTS lines, and all that have a validation among them if those are fewer."""
    if len(lines) <= MOST_POINTS:
        return list(lines)
    kept = {round(place * (len(lines) - 1) / (MOST_POINTS - 1)) for place in range(MOST_POINTS)}
    validated = [n for n, line in enumerate(lines) if "validation/reward_mean" in line]
    if len(validated) <= MOST_POINTS:
        kept |= set(validated)
    return [lines[number] for number in sorted(kept)]


def _series(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    names = dict.fromkeys(name for line in lines for name in line)
    shown = dict.fromkeys(name for chart in CHARTS for name in chart.names_in(names))
    return {name: [_rounded(line.get(name)) for line in lines] for name in shown}


def _units(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """[unit, meaning] of the metrics that are shown."""
    names = {name for line in lines for name in line if is_declared(name)}
    return {name: [find(name).unit, find(name).meaning] for name in sorted(names)}


def _rounded(value: float | None) -> float | None:
    if value is None:
        return None
    rounded = float(f"{value:.5g}")
    # Rounding up can lead beyond the largest float.
    return rounded if math.isfinite(rounded) else float(value)


def _facts(lines: Sequence[Mapping[str, Any]], asynchronous: bool) -> list[list[str]]:
    """[what, value] for the head of the page."""
    steps = [line for line in lines if line["step"] > 0]
    facts = [["schedule", "asynchronous" if asynchronous else "synchronous"]]
    for name, label in (
        ("train/reward_mean", "reward"),
        ("validation/accuracy", "validation accuracy"),
        ("perf/ceiling_efficiency", "efficiency E"),
        ("perf/step_s", "seconds per step"),
        ("age/mean", "mean age"),
    ):
        values = [line[name] for line in lines if line.get(name) is not None]
        if name.startswith("perf/") and values:
            facts.append([label, f"{sum(values) / len(values):.3g}"])
        elif values:
            first, last = f"{values[0]:.3g}", f"{values[-1]:.3g}"
            facts.append([label, last if len(values) == 1 else f"{first} to {last}"])
    return [["steps", str(len(steps))], *facts]


def _lever(lever: Lever, use: TimeUse) -> dict[str, Any]:
    return {
        "title": lever.title,
        "text": lever.text,
        "command": lever.command,
        "share": round(lever.seconds / use.total, 4) if use.total else 0.0,
    }
