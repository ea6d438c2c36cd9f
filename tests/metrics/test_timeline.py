# SPDX-License-Identifier: Apache-2.0
"""Spans, groups and stragglers of a step, by a clock that the test moves."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.metrics.stragglers import MOST, Cause, GroupSpan, cause_of, stragglers
from rlrun.metrics.timeline import Lane, Timeline, TimelineFile
from rlrun.report.timeline import gaps, shorten, union_s


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def group(position: int = 0, **fields: object) -> GroupSpan:
    one = GroupSpan(position, 0, f"rows:{position}", "math", 100.0, 110.0, "finished", 80, 10, 1)
    return replace(one, **fields)  # type: ignore[arg-type]  # fields by name


def test_several_at_once_are_one_span_and_short_breaks_are_none() -> None:
    clock = Clock()
    timeline = Timeline("math", clock)
    with timeline.busy(Lane.ENVIRONMENT, "rollouts"):
        clock.now += 1
        with timeline.busy(Lane.ENVIRONMENT, "rollouts"):
            clock.now += 1
    clock.now += 0.001
    with timeline.busy(Lane.ENVIRONMENT, "rollouts"):
        clock.now += 1
    clock.now += 2
    line = timeline.take(1)
    assert line["lanes"] == {
        "trainer": [],
        "generator": [],
        "environment": [["rollouts", 0.0, 3.001]],
    }
    assert (line["step"], line["seconds"]) == (1, 5.001)


def test_what_goes_on_is_cut_at_the_step_and_continues() -> None:
    clock = Clock()
    timeline = Timeline("", clock)
    with timeline.busy(Lane.GENERATOR, "rollouts"):
        assert timeline.doing(Lane.GENERATOR) == ("rollouts", 0.0)
        clock.now += 3
        assert timeline.doing(Lane.GENERATOR) == ("rollouts", 3.0)
        assert timeline.take(1)["lanes"]["generator"] == [["rollouts", 0.0, 3.0]]
        clock.now += 2
    assert timeline.doing(Lane.GENERATOR) == ("", 0.0)
    clock.now += 1
    line = timeline.take(2)
    assert line["lanes"]["generator"] == [["rollouts", 0.0, 2.0]] and line["seconds"] == 3.0


def test_a_group_is_a_straggler_of_the_step_that_trains_it() -> None:
    clock = Clock()
    timeline = Timeline("math", clock)
    timeline.ended(group(1, end=108.0))
    timeline.ended(group(2, outcome="failed"))
    timeline.ended(group(3, end=104.0))
    timeline.ended(group(4))
    timeline.discarded(4)
    clock.now = 112.0
    assert [g["outcome"] for g in timeline.take(1)["groups"]] == ["finished", "failed"] + [
        "finished"
    ] * 2
    timeline.step_begins([1, 2, 3, 4, 5], waited_since=106.0)
    line = timeline.take(2)
    assert [(s["position"], s["held_trainer_s"]) for s in line["stragglers"]] == [(1, 2), (3, 0)]
    assert line["stragglers"][0]["end"] == -4.0 and line["groups"] == []
    timeline.step_begins([1, 3], waited_since=106.0)
    assert timeline.take(3)["stragglers"] == []


@pytest.mark.parametrize(
    ("late", "cause"),
    [
        ({"end": 130.0, "longest": 30}, Cause.LONG_ANSWER),
        ({"end": 130.0, "longest": 30, "turns": 3}, Cause.MORE_TURNS),
        ({"end": 130.0, "env_s": 20.0}, Cause.ENVIRONMENT),
        ({"start": 120.0, "end": 130.0}, Cause.ADMITTED_LATE),
        ({"start": 120.0, "end": 130.0, "attempt": 1}, Cause.RETRY),
        ({"end": 130.0}, Cause.SLOW_GENERATION),
        ({"end": 110.2}, Cause.NONE),
    ],
)
def test_the_cause_is_what_explains_most_of_the_delay(
    late: dict[str, object], cause: Cause
) -> None:
    batch = [*(group(position) for position in range(5)), group(5, **late)]
    found = stragglers(batch, waited_since=100.0)
    assert found[0].group.position == 5 and found[0].cause is cause and len(found) == MOST


def test_of_a_call_in_lockstep_the_longest_answer_is_the_straggler() -> None:
    batch = [group(position, longest=10) for position in range(4)] + [group(9, longest=24)]
    first, second, _ = stragglers(batch, waited_since=100.0)
    assert (first.group.position, first.cause) == (9, Cause.LONG_ANSWER)
    assert second.cause is Cause.NONE


def test_groups_without_tokens_have_a_cause_too() -> None:
    batch = [group(position, longest=0, tokens=0, end=100.0) for position in range(3)]
    assert cause_of(batch[0], batch) is Cause.NONE


def test_a_file_that_cannot_be_written_is_switched_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = TimelineFile(tmp_path)
    file.write({"step": 1})
    file.close()
    file.close()
    assert "switched off" in caplog.text and len(caplog.records) == 1


def test_lines_are_whole_and_appended(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    for step in (1, 2):
        file = TimelineFile(path)
        file.write({"step": step})
        file.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


spans = st.lists(
    st.tuples(st.integers(-5, 50), st.integers(0, 20)).map(lambda s: ["x", s[0], s[0] + s[1]])
)


@given(spans, st.integers(1, 60))
def test_gaps_and_spans_fill_the_step(found: list[list[object]], seconds: int) -> None:
    empty = gaps(found, seconds)
    inside = [s for s in found if s[2] > 0 and s[1] < seconds]  # type: ignore[operator]
    clipped = [["x", max(0, s[1]), min(seconds, s[2])] for s in inside]  # type: ignore[call-overload]
    assert sum(b - a for a, b in empty) + union_s(clipped) == pytest.approx(seconds)
    assert all(0 <= a < b <= seconds for a, b in empty)


def test_gaps_say_what_was_waited_for() -> None:
    line = {
        "step": 1,
        "start": 0.0,
        "seconds": 10.0,
        "lanes": {
            "trainer": [["wait/waiting_groups", 0, 5], ["update", 5, 9]],
            "generator": [["rollouts", 0, 4]],
            "environment": [["rollouts", 4, 5]],
        },
        "groups": [group(n).to_json(100.0) for n in range(5)],
        "stragglers": [],
    }
    (shown,) = shorten([line], 3, 100, 10)
    assert shown["groups"] == []
    assert shown["lanes"]["generator"][1] == ["wait/update", 4, 10.0]
    assert shown["lanes"]["environment"][0] == ["wait/generation", 0.0, 4]
    assert shown["lanes"]["trainer"][-1] == ["other", 9, 10.0]
    assert len(shorten([line], 5, 100, 10)[0]["groups"]) == 5


def engines_line(count: int) -> dict[str, object]:
    """The first engine works all the time, the others for a second."""
    lanes = {
        "trainer": [["wait/waiting_groups", 0, 6], ["refit", 6, 9]],
        "generator": [],
        **{f"engine/engine {n} of {count}": [["requests", 0, 1]] for n in range(count)},
        f"engine/engine 0 of {count}": [["requests", 0, 10]],
    }
    return {
        "step": 1,
        "start": 0.0,
        "seconds": 10.0,
        "lanes": lanes,
        "groups": [],
        "stragglers": [],
    }


def test_every_engine_has_a_lane_that_says_what_it_waited_for() -> None:
    (shown,) = shorten([engines_line(12)], 0, 100, 10)
    names = [name for name in shown["lanes"] if name.startswith("engine/")]
    assert names == [f"engine/engine {n}" for n in range(12)] and shown["engines"] == 12
    assert shown["lanes"]["engine/engine 0"] == [["requests", 0, 10]]
    # Nothing was held back for it while the trainer waited: the others had what there was.
    assert shown["lanes"]["engine/engine 11"] == [["requests", 0, 1], ["wait/engines", 1, 10.0]]
    # Agents ask the engines by themselves: what rollouts noted is empty.
    assert shown["lanes"]["generator"] == [["rollouts", 0, 10]]


def test_lanes_of_engines_are_those_of_the_last_steps_and_of_the_idlest() -> None:
    lines = [engines_line(100) | {"step": step} for step in (1, 2, 3)]
    shown = shorten(lines, 0, 130, 10)
    counts = [sum(name.startswith("engine/") for name in line["lanes"]) for line in shown]
    assert counts == [0, 64, 64]
    assert "engine/engine 0" not in shown[2]["lanes"] and shown[2]["engines"] == 100
    (one,) = shorten([engines_line(1)], 0, 100, 10)
    assert list(one["lanes"]) == ["trainer", "generator", "environment"]


def test_an_engine_that_had_no_request_has_an_empty_lane() -> None:
    clock = Clock()
    timeline = Timeline("", clock)
    with timeline.engine("engine 0 of 2"):
        clock.now += 1
    assert timeline.take(1)["lanes"]["engine/engine 0 of 2"] == [["requests", 0.0, 1.0]]
    clock.now += 1
    assert timeline.take(2)["lanes"]["engine/engine 0 of 2"] == []


def test_a_step_of_many_spans_stays_small() -> None:
    draw = random.Random(1)
    starts = sorted(draw.uniform(0, 100) for _ in range(5000))
    noisy = [["rollouts", start, start + draw.uniform(0, 0.01)] for start in starts]
    lanes = {"trainer": [], "generator": noisy, "environment": noisy}
    line = {
        "step": 1,
        "start": 0.0,
        "seconds": 100.0,
        "lanes": lanes,
        "groups": [],
        "stragglers": [],
    }
    (shown,) = shorten([line], 0, 100, 10)
    assert all(len(lane) <= 40 for lane in shown["lanes"].values())


def test_of_a_long_run_the_page_gets_the_last_and_the_slowest_steps() -> None:
    def line(step: int) -> dict[str, Any]:
        seconds = 99.0 if step == 77 else 1.0
        return {
            **{"step": step, "start": float(step), "seconds": seconds},
            **{"lanes": {}, "groups": [], "stragglers": []},
        }

    lines = [line(step) for step in range(1, 1001)]
    steps = [shown["step"] for shown in shorten(lines, 0, 0, 100)]
    assert steps == sorted(set(steps)) and len(steps) <= 100
    assert {1, 77, *range(951, 1001)} <= set(steps)
    assert max(b - a for a, b in pairwise(steps)) < 50
    assert len(shorten(lines, 0, 0, 1000)) == 1000
