# SPDX-License-Identifier: Apache-2.0
"""The timeline as the page shows it: gaps with what was waited for, and no more than fits."""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.metrics.timeline import ENGINE

_NOTABLE = 0.004
"""Share of a step below which a span or a gap is not shown."""

_MOST_SPANS = 40
"""Spans of a lane in a step; the shortest of more are left out."""

_MOST_ENGINES = 64
"""Lanes of single engines in a step."""

Span = list[Any]
"""[what, start, end], times in seconds since the beginning of the step's line."""


def shorten(
    lines: Sequence[dict[str, Any]], most_groups: int, most_engine_spans: int, most_steps: int
) -> list[dict[str, Any]]:
    """The lines for the page.

    Every step that is kept has its lanes and stragglers. Bars of groups, and lanes of single
    engines where there are several, are kept from the last step backwards until there are enough.

    Args:
        lines: As read from timeline.jsonl.
        most_groups: Bars of groups in all.
        most_engine_spans: Spans in lanes of single engines, in all.
        most_steps: Of longer runs the last steps, the slowest, and evenly spaced others are kept.
    """
    shown = []
    for line in reversed(_kept(lines, most_steps)):
        groups = line["groups"] if most_groups >= len(line["groups"]) else []
        most_groups -= len(line["groups"])
        engines = engine_lanes(line["lanes"])
        lanes = _lanes(line)
        if len(engines) > 1 and most_engine_spans > 0:
            apart = _engines(line, engines)
            most_engine_spans -= sum(map(len, apart.values()))
            lanes |= apart
        shown.append(
            {
                "step": line["step"],
                "start": line["start"],
                "seconds": line["seconds"],
                "lanes": lanes,
                "engines": len(engines),
                "groups": [_group(group) for group in groups],
                "stragglers": [_straggler(one) for one in line["stragglers"]],
            }
        )
    return shown[::-1]


def _kept(lines: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    if len(lines) <= most:
        return list(lines)
    places = range(len(lines))
    chosen = set(places[-(most // 2) :])
    chosen |= set(heapq.nlargest(most // 10, places, key=lambda place: lines[place]["seconds"]))
    spaced = max(2, most - len(chosen))
    chosen |= {round(n * (len(lines) - 1) / (spaced - 1)) for n in range(spaced)}
    return [lines[place] for place in sorted(chosen)]


def engine_lanes(lanes: Mapping[str, list[Span]]) -> dict[str, list[Span]]:
    """The spans of each engine, by its name without "of how many", in the order of numbers."""
    names = sorted((name for name in lanes if name.startswith(ENGINE)), key=_by_number)
    return {re.sub(r" of \d+$", "", name.removeprefix(ENGINE)): lanes[name] for name in names}


def generator_spans(lanes: Mapping[str, list[Span]]) -> list[Span]:
    """When anything was generated: as rollouts have noted, or, where agents ask, the engines."""
    noted = lanes.get("generator", [])
    if noted:
        return noted
    spans = [span for spans in engine_lanes(lanes).values() for span in spans]
    return [["rollouts", start, end] for _, start, end in spans]


def union_s(spans: Sequence[Span]) -> float:
    """Seconds in which at least one of the spans is."""
    total, reached = 0.0, float("-inf")
    for _, start, end in sorted(spans, key=lambda span: span[1]):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def gaps(spans: Sequence[Span], seconds: float) -> list[tuple[float, float]]:
    """The stretches from 0 to ``seconds`` in which none of the spans is."""
    found, reached = [], 0.0
    for _, start, end in sorted(spans, key=lambda span: span[1]):
        if min(start, seconds) > reached:
            found.append((reached, min(start, seconds)))
        reached = max(reached, end)
    if reached < seconds:
        found.append((reached, seconds))
    return found


def covered(spans: Sequence[Span], seconds: float) -> list[tuple[float, float]]:
    """The stretches from 0 to ``seconds`` in which at least one of the spans is."""
    return gaps([["", start, end] for start, end in gaps(spans, seconds)], seconds)


def _lanes(line: dict[str, Any]) -> dict[str, list[Span]]:
    lanes, seconds = line["lanes"], line["seconds"]
    trainer = lanes.get("trainer", [])
    generator = generator_spans(lanes)
    environment = lanes.get("environment", [])
    least = _NOTABLE * seconds
    generator_waits = [
        [f"wait/{_during(trainer, start, end) or 'nothing'}", start, end]
        for start, end in gaps(generator, seconds)
        if end - start >= least
    ]
    environment_waits = [
        [f"wait/{'generation' if _during(generator, start, end) else 'nothing'}", start, end]
        for start, end in gaps(environment, seconds)
        if end - start >= least
    ]
    trainer_works = [
        ["other", start, end] for start, end in gaps(trainer, seconds) if end - start >= least
    ]
    return {
        "trainer": _visible([*trainer, *trainer_works], least),
        "generator": _visible([*generator, *generator_waits], least),
        "environment": _visible([*environment, *environment_waits], least),
    }


def _engines(line: dict[str, Any], engines: Mapping[str, list[Span]]) -> dict[str, list[Span]]:
    """A lane per engine, of many for those that worked least; with what each waited for."""
    trainer, seconds = line["lanes"].get("trainer", []), line["seconds"]
    anyone = [span for spans in engines.values() for span in spans]
    at_work = [["engines", a, b] for a, b in covered(anyone, seconds)]
    least, lanes = _NOTABLE * seconds, {}
    idlest = sorted(engines, key=lambda name: union_s(engines[name]))[:_MOST_ENGINES]
    for name in (name for name in engines if name in idlest):
        waits = []
        for start, end in gaps(engines[name], seconds):
            doing = _during(trainer, start, end) or "nothing"
            if doing.startswith(("wait/", "nothing")):
                # Nobody holds it up: what there is to do is with the others.
                doing = _during(at_work, start, end) or doing
            if end - start >= least:
                waits.append([f"wait/{doing}", start, end])
        lanes[f"{ENGINE}{name}"] = _visible([*engines[name], *waits], least)
    return lanes


def _by_number(name: str) -> tuple[str | int, ...]:
    """Sorts "engine 10" behind "engine 9"."""
    parts = re.split(r"(\d+)", name)
    return tuple(int(part) if n % 2 else part for n, part in enumerate(parts))


def _visible(spans: Sequence[Span], least: float) -> list[Span]:
    """The longest spans, joined where the same goes on and rounded, in the order of time."""
    joined: list[Span] = []
    for what, start, end in sorted(spans, key=lambda span: span[1]):
        if joined and joined[-1][0] == what and start - joined[-1][2] <= least:
            joined[-1][2] = max(end, joined[-1][2])
        else:
            joined.append([what, start, end])
    long = sorted(joined, key=lambda span: span[1] - span[2])[:_MOST_SPANS]
    kept = [[what, round(a, 3), round(b, 3)] for what, a, b in long if b - a >= least / 4]
    return sorted(kept, key=lambda span: span[1])


def _during(spans: Sequence[Span], start: float, end: float) -> str:
    """What fills most of the stretch; "" if nothing does."""
    filled: dict[str, float] = {}
    for what, began, ended in spans:
        overlap = min(end, ended) - max(start, began)
        if overlap > 0:
            filled[what] = filled.get(what, 0.0) + overlap
    return max(filled, key=lambda what: filled[what], default="")


def _group(group: dict[str, Any]) -> list[Any]:
    names = ("prompt_id", "start", "end", "outcome", "tokens", "longest", "env_s")
    return [group[name] for name in names]


def _straggler(group: dict[str, Any]) -> dict[str, Any]:
    names = (
        *("prompt_id", "environment", "cause", "held_trainer_s", "start", "end"),
        *("tokens", "longest", "env_s"),
    )
    return {name: group[name] for name in names}
