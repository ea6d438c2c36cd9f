# SPDX-License-Identifier: Apache-2.0
"""Each kind of assertion holds where it should and fails where it should."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.metrics.registry import METRICS
from rlrun.nightly.assertions import (
    AgeBound,
    Assertion,
    Audited,
    Bound,
    LedgerClosed,
    Rises,
    StepTime,
)
from rlrun.nightly.decide import compare, decide
from rlrun.nightly.evidence import Evidence, SeedRun, Verdict
from rlrun.nightly.execute import Ending
from rlrun.nightly.reports import CaseResult, junit, markdown
from rlrun.nightly.spec import ParitySpec
from rlrun.nightly.statistics import Statistic
from rlrun.nightly.trend import append_trend, baseline_step_s, read_trend
from tests.factories import config
from tests.test_audit import record

PARTS = [name for name in METRICS if name.startswith("tokens/") and name != "tokens/generated"]


def evidence(
    *seeds: Sequence[Mapping[str, float | None]],
    baseline: float | None = None,
    overrides: tuple[str, ...] = (),
) -> Evidence:
    runs = [
        SeedRun(seed, Path(), [{"step": step, **line} for step, line in enumerate(lines, 1)])
        for seed, lines in enumerate(seeds)
    ]
    return Evidence(runs, config(*overrides), baseline)


def rewards(*values: float) -> list[dict[str, float]]:
    return [{"train/reward_mean": value} for value in values]


@pytest.mark.parametrize(
    ("assertion", "found", "passed", "value"),
    [
        (Rises("train/reward_mean", 2, 0.4), [rewards(0, 0.2, 0.5, 0.7)], True, 0.5),
        (Rises("train/reward_mean", 2, 0.6), [rewards(0, 0.2, 0.5, 0.7)], False, 0.5),
        (Rises("train/reward_mean", 1, 0.4), [rewards(0, 1), rewards(1, 0.9)], True, 0.45),
        (Rises("train/reward_mean", 2, 0.1), [rewards(0, 1, 2)], False, None),
        (Bound("train/reward_mean", Statistic.MAX, at_most=1), [rewards(0, 1)], True, 1),
        (Bound("train/reward_mean", Statistic.MAX, at_most=0.9), [rewards(0, 1)], False, 1),
        (
            Bound("train/reward_mean", Statistic.MIN, at_least=0),
            [rewards(1), rewards(-1)],
            False,
            -1,
        ),
        (
            Bound("train/reward_mean", Statistic.LAST, 0, 2),
            [rewards(9, 1), rewards(9, 3)],
            False,
            3,
        ),
        (
            Bound("train/reward_mean", Statistic.MEAN, at_least=2, from_step=2),
            [rewards(0, 2)],
            True,
            2,
        ),
        (Bound("train/loss", Statistic.MEAN, at_most=2), [rewards(0, 2)], False, None),
        (AgeBound(), [[{"age/max": 0}]], True, 0),
        (AgeBound(), [[{"age/max": 1}]], False, 1),
        (AgeBound(), [[{}]], False, None),
    ],
)
def test_a_bound_and_a_rise_are_decided(
    assertion: Assertion, found: list[list[dict[str, float]]], passed: bool, value: float | None
) -> None:
    verdict = assertion.decide(evidence(*found))
    assert verdict.passed is passed, verdict.text
    assert verdict.value == (None if value is None else pytest.approx(value))


@pytest.mark.parametrize(
    "assertion",
    [
        Bound("correction/mismatch_kl", Statistic.MAX, at_most=1),
        Rises("correction/mismatch_kl", 1, 0.1),
        AgeBound(),
        LedgerClosed(),
        StepTime(),
    ],
)
def test_a_value_that_is_not_finite_fails_whatever_the_others_are(assertion: Assertion) -> None:
    """metrics.jsonl has null for it."""
    names = ["correction/mismatch_kl", "age/max", "perf/step_s", "tokens/generated", *PARTS]
    good: dict[str, float | None] = dict.fromkeys(names, 0.0)
    rising = good | {"correction/mismatch_kl": 0.5}
    assert decide(assertion, evidence([good, good, rising])).passed
    verdict = decide(assertion, evidence([good, dict.fromkeys(names, None), rising]))
    assert not verdict.passed and verdict.text.startswith("seed 0, step 2: ")


def test_parity_fails_over_a_value_that_is_not_finite() -> None:
    parity = ParitySpec("", "two", ("a", "b"), "train/loss", Statistic.LAST, within=0.1)
    lost: list[dict[str, float | None]] = [{"train/loss": None}, {"train/loss": 0.0}]
    found = {"a": evidence([{"train/loss": 0.0}]), "b": evidence(lost)}
    (verdict,) = compare(parity, found).verdicts.values()
    assert verdict is not None and not verdict.passed
    assert verdict.text.startswith("b, seed 0, step 1: train/loss was not finite")


def test_a_rise_begins_with_the_validation_before_the_first_step() -> None:
    lines = [{"step": step, "validation/accuracy": 0.1 * step} for step in (0, 5)]
    run = Evidence([SeedRun(1, Path(), lines)], config(), None)
    assert Rises("validation/accuracy", 1, 0.5).decide(run).passed
    assert not Rises("validation/accuracy", 1, 0.6).decide(run).passed


def test_the_age_bound_is_that_of_the_run() -> None:
    lines: list[dict[str, float]] = [{"age/max": 2}]
    for age, passed in ((2, True), (1, False)):
        overrides = ("grpo=async", f"grpo.max_trajectory_age_steps={age}")
        assert AgeBound().decide(evidence(lines, overrides=overrides)).passed is passed


def test_the_ledger_must_add_up_at_every_step() -> None:
    line = {name: float(i) for i, name in enumerate(PARTS)}
    line["tokens/generated"] = sum(line.values())
    assert LedgerClosed().decide(evidence([line, line])).passed
    assert not LedgerClosed().decide(evidence([line, line | {"tokens/stale": 99.0}])).passed
    assert not LedgerClosed().decide(evidence([{"tokens/generated": 0.0}])).passed
    assert not LedgerClosed().decide(evidence([])).passed, "nothing was looked at"


def test_steps_more_than_five_percent_slower_than_the_trend_fail() -> None:
    lines: list[dict[str, float]] = [{"perf/step_s": s} for s in (9.0, 1.0, 1.04, 1.08)]
    assert StepTime().decide(evidence(lines, baseline=1.0)).passed
    assert not StepTime().decide(evidence(lines, baseline=0.98)).passed
    assert StepTime(0.1).decide(evidence(lines, baseline=0.98)).passed
    first = StepTime().decide(evidence(lines))
    assert first.passed and "no trend yet" in first.text


@pytest.mark.parametrize(
    ("metric", "statistic", "limits", "good", "bad"),
    [
        ("train/reward_mean", "mean", {"at_least": 0.2}, (0.1, 0.4), (0.1, 0.2)),
        (
            "correction/token_mult_prob_error",
            "median",
            {"at_most": 1.1},
            (1.0, 1.05, 9.0),
            (1.0, 1.2, 9.0),
        ),
        ("correction/mismatch_kl", "max", {"at_most": 0.02}, (0.0, 0.02), (0.0, 0.021)),
        ("perf/ceiling_efficiency", "median", {"at_least": 0.25}, (0.1, 0.3, 0.9), (0.1, 0.2, 0.9)),
    ],
)
def test_what_recipes_promise_can_be_broken(
    metric: str,
    statistic: str,
    limits: dict[str, float],
    good: tuple[float, ...],
    bad: tuple[float, ...],
) -> None:
    promise = Bound(metric, Statistic(statistic), **limits)
    for values, kept in ((good, True), (bad, False)):
        lines = [{metric: value} for value in values]
        assert promise.decide(evidence(lines)).passed is kept


def audited(folder: Path) -> Verdict:
    return decide(Audited(), Evidence([SeedRun(1, folder, [])], config(), None))


def test_a_run_whose_books_are_wrong_fails_its_audit(tmp_path: Path) -> None:
    record(tmp_path, events=25, kills=1)
    honest = audited(tmp_path)
    assert honest.passed and honest.text == "no violation over 1 restart"
    first = min((tmp_path / "trained").iterdir())
    lines = first.read_text().splitlines(keepends=True)
    first.write_text("".join(lines[2:]))
    found = audited(tmp_path)
    assert not found.passed and found.text.startswith("seed 1: ")
    assert found.value is not None and found.value >= 1


def test_a_damaged_file_fails_the_assertion_that_reads_it(tmp_path: Path) -> None:
    record(tmp_path, events=25)
    events = tmp_path / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    events.write_text("".join([lines[0], "no event\n", *lines[2:]]))
    found = audited(tmp_path)
    assert not found.passed and "events.jsonl" in found.text


@pytest.mark.parametrize(("other", "passed"), [(0.9, True), (0.84, False), (1.06, False)])
def test_parity_fails_where_two_runs_end_apart(other: float, passed: bool) -> None:
    parity = ParitySpec("", "two", ("a", "b"), "train/reward_mean", Statistic.LAST, within=0.1)
    found = {
        "a": evidence(rewards(0, 0.9), rewards(0, 1.0)),
        "b": evidence(rewards(0, other), rewards(0, other)),
    }
    result = compare(parity, found)
    assert result.name == "parity-two" and result.passed is passed
    verdict = result.verdicts["parity"]
    assert verdict is not None and verdict.value == pytest.approx(other - 0.95)


def test_parity_without_its_runs_is_skipped_and_counts_as_failed() -> None:
    parity = ParitySpec("", "two", ("a", "b"), "train/loss", Statistic.LAST, within=0.1)
    assert compare(parity, {"a": evidence(rewards(1))}).verdicts == {"parity": None}
    both = {"a": evidence(rewards(1)), "b": evidence(rewards(1))}
    missing = compare(parity, both)
    assert not missing.passed
    assert missing.verdicts["parity"] is not None
    assert "never logged train/loss" in missing.verdicts["parity"].text


def entry(seconds: float, nightly: str, **more: object) -> dict[str, object]:
    return {
        "name": "run.v1",
        "machine": "this",
        "nightly": nightly,
        "passed": True,
        "step_s": seconds,
        **more,
    }


@given(st.lists(st.floats(0.1, 10), min_size=4, max_size=12), st.floats(0.1, 10))
def test_the_trend_never_becomes_more_lenient(seconds: list[float], more: float) -> None:
    entries = [entry(value, str(i)) for i, value in enumerate(seconds)]
    before = baseline_step_s(entries, "run.v1", "this", "now")
    after = baseline_step_s([*entries, entry(more, "last")], "run.v1", "this", "now")
    assert before is not None and after is not None and after <= before


def test_the_trend_is_of_passed_runs_of_this_version_on_this_machine() -> None:
    entries = [
        entry(1.0, "a", name="run.v0"),
        entry(1.0, "b", machine="other"),
        entry(1.0, "c", passed=False),
        entry(1.0, "e", step_s=None),
        entry(1.0, "now"),
        entry(5.0, "d"),
    ]
    assert baseline_step_s(entries, "run.v1", "this", "now") == 5.0
    assert baseline_step_s(entries[:5], "run.v1", "this", "now") is None


def test_a_nightly_is_in_the_trend_once_and_a_torn_line_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "trend.jsonl"
    append_trend(path, entry(1.0, "a"))
    with path.open("ab") as file:
        file.write(b'{"name": "run')
    append_trend(path, entry(2.0, "a"))
    append_trend(path, entry(3.0, "b"))
    assert [one["step_s"] for one in read_trend(path)] == [1.0, 3.0]


def test_reports_count_what_passed_failed_and_never_ran() -> None:
    good = CaseResult("a.v1", [Ending("a.v1", 1, 0, "", 60.0, 1)], {"x": Verdict(True, "a | b")})
    bad = CaseResult("b.v1", [Ending("b.v1", 1, 6, "ended \x00", 1.0, 0)], {"x": None})
    off = CaseResult("parity-c", [], {"parity": Verdict(False, "differ")})
    root = ElementTree.fromstring(junit([good, bad, off]))
    counts = [(s.get("tests"), s.get("failures"), s.get("skipped")) for s in root]
    assert counts == [("2", "0", "0"), ("2", "1", "1"), ("1", "1", "0")]
    text = markdown([good, bad, off], 3, "this machine")
    assert text.startswith("# Nightly: 3 of 3 done, 2 failed\n")
    assert "| a.v1 | passed | 1 | 1.0 | - | 1 |" in text
    assert "a \\| b" in text
    assert markdown([good], 1, "here").startswith("# Nightly: all passed\n")
    assert markdown([good], 2, "here").startswith("# Nightly: 1 of 2 done, none failed\n")
