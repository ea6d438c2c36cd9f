# SPDX-License-Identifier: Apache-2.0
"""The audit accepts honest run directories, over restarts, and names what is wrong with others."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlrun.audit import audit
from rlrun.batching.fifo import Fifo
from rlrun.batching.in_order import InOrder
from rlrun.errors import CheckFailed, StorageError
from rlrun.interfaces import Batching
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.event_log import EventLog, truncate_after
from rlrun.run_dir.retention import keep_newest
from rlrun.scheduler import (
    Admit,
    Cancel,
    Event,
    GroupFailed,
    GroupFinished,
    OnAgeLimit,
    Outcome,
    Scheduler,
    SchedulerSettings,
    StepTrained,
    TokenCategory,
    Train,
    Verdict,
    VersionPublished,
    lost_tokens,
)

ROWS = 10


@dataclass(kw_only=True)
class Homemade(Fifo):
    """A user's own policy."""


def settings(limit: OnAgeLimit = OnAgeLimit.HOLD) -> SchedulerSettings:
    return SchedulerSettings(
        prompts_per_step=3,
        max_age=2,
        in_flight_batches=2,
        on_age_limit=limit,
        max_expiries=2,
        max_generation_failures=50,
        max_attempts=2,
        max_gen_batches=None,
        rows_per_epoch=ROWS,
        total_positions=3 * ROWS,
        max_steps=None,
    )


class Recorded:
    """A run that writes what a real one writes of its schedule, killed and resumed on the way."""

    def __init__(self, run_dir: Path, batching: Batching, limit: OnAgeLimit, seed: int) -> None:
        self.run_dir, self.batching, self.settings = run_dir, batching, settings(limit)
        self.rng = random.Random(seed)
        self.path = run_dir / "events.jsonl"
        self.log = EventLog(self.path)
        self.scheduler = Scheduler(self.settings, batching)
        self.running: dict[int, tuple[int, int]] = {}
        self.batch: Train | None = None
        self.apply(self.scheduler.started_event())

    def apply(self, event: Event) -> None:
        decisions = self.scheduler.apply(event)
        self.log.append(self.scheduler.seq, event, decisions)
        for decision in decisions:
            if isinstance(decision, Admit):
                self.running[decision.position] = decision.attempt, self.scheduler.version
            elif isinstance(decision, Cancel):
                self.running.pop(decision.position, None)
            elif isinstance(decision, Train):
                self.batch = decision

    def act(self) -> None:
        if self.batch is not None:
            batch, self.batch = self.batch, None
            self.write_trained(batch)
            outcomes = dict.fromkeys(batch.positions, Outcome.TRAINED)
            self.apply(
                StepTrained(batch.step, outcomes, {TokenCategory.TRAINED: 5 * len(outcomes)})
            )
            self.apply(VersionPublished(batch.step))
            return
        position = self.rng.choice(list(self.running))
        attempt, version = self.running.pop(position)
        kind = self.rng.randrange(8)
        if kind == 0:
            self.apply(GroupFailed(position, attempt, "boom", 2))
        else:
            verdict = (Verdict.FILTERED, Verdict.NO_SIGNAL, *[Verdict.KEEP] * 6)[kind]
            self.apply(GroupFinished(position, attempt, version, 5, verdict))

    def write_trained(self, batch: Train) -> None:
        folder = self.run_dir / "trained"
        folder.mkdir(exist_ok=True)
        lines = []
        for position in batch.positions:
            prompt_id = f"rows.jsonl:{position % ROWS + 1}"
            row = {
                "prompt_id": prompt_id,
                "group_id": f"{position // ROWS}/{prompt_id}",
                "step": batch.step,
            }
            lines += [json.dumps(row) + "\n"] * 2
        (folder / f"step_{batch.step:06d}.jsonl").write_text("".join(lines))

    def kill_and_resume(self, state: dict[str, Any]) -> None:
        self.log.close()
        with self.path.open("ab") as file:
            file.write(b'{"seq":')
        self.scheduler = Scheduler.restore(self.settings, self.batching, state)
        cut = truncate_after(self.path, self.scheduler.seq, self.run_dir / "superseded")
        self.running, self.batch = {}, None
        self.log = EventLog(self.path)
        trained = state["at"]["trained"]
        for path in (self.run_dir / "trained").glob("*.jsonl"):
            if int(path.stem[5:]) > trained:
                path.unlink()
        self.apply(self.scheduler.restored_event(lost_tokens(state, cut.events)))


def record(
    run_dir: Path,
    batching: Batching | None = None,
    limit: OnAgeLimit = OnAgeLimit.HOLD,
    seed: int = 0,
    events: int = 10**6,
    kills: int = 0,
) -> Recorded:
    run = Recorded(run_dir, batching or Fifo(), limit, seed)
    state = None
    for count in range(events):
        if run.scheduler.ended:
            break
        run.act()
        if count % 9 == 0:
            state = json.loads(json.dumps(run.scheduler.state()))
        elif count % 9 == 7 and kills and state is not None:
            kills -= 1
            run.kill_and_resume(state)
    run.log.close()
    return run


@pytest.mark.parametrize("policy", [Fifo, InOrder])
@pytest.mark.parametrize("limit", list(OnAgeLimit))
@pytest.mark.parametrize("seed", range(3))
def test_honest_run_over_restarts_passes(
    tmp_path: Path, policy: type[Batching], limit: OnAgeLimit, seed: int
) -> None:
    run = record(tmp_path, policy(), limit, seed, kills=4)
    report = audit(tmp_path)
    assert report.ok, report.text()
    report.raise_if_failed()
    assert report.restarts == 4
    assert report.notes == []
    assert [epoch.finished for epoch in report.epochs] == [True] * 3
    totals = {o.value: sum(e.outcomes[o] for e in report.epochs) for o in Outcome}
    assert totals == run.scheduler.outcomes()
    assert report.steps == run.scheduler.version
    assert "epoch 2: 10 prompts (finished)" in report.text()


def test_open_epoch_is_told_as_such(tmp_path: Path) -> None:
    record(tmp_path, events=25)
    report = audit(tmp_path)
    assert report.ok
    assert not report.epochs[-1].finished
    assert "(open, " in report.text()


def test_torn_last_line_is_noted_and_tolerated(tmp_path: Path) -> None:
    record(tmp_path, events=25)
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"seq":26,')
    report = audit(tmp_path)
    assert report.ok
    assert any("torn" in note for note in report.notes)


def test_policy_of_a_user_is_replayed_only_if_it_is_given(tmp_path: Path) -> None:
    record(tmp_path, Homemade())
    report = audit(tmp_path)
    assert report.ok
    assert any("not replayed" in note and "Homemade" in note for note in report.notes)
    assert audit(tmp_path, Homemade()).notes == []
    assert not audit(tmp_path, InOrder()).ok


@pytest.mark.parametrize("content", [None, b"", b'{"seq":0'])
def test_folder_without_a_log_is_an_error_of_storage(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "events.jsonl").write_bytes(content)
    with pytest.raises(StorageError):
        audit(tmp_path)


Lines = list[dict[str, Any]]


def train_twice(lines: Lines) -> None:
    """A later step trains a group of the first step again."""
    steps = [line for line in lines if line["event"]["type"] == "StepTrained"]
    trains = [d for line in lines for d in line["decisions"] if d["type"] == "Train"]
    old = trains[0]["positions"][0]
    new = trains[2]["positions"][0]
    trains[2]["positions"][0] = old
    outcomes = steps[2]["event"]["outcomes"]
    outcomes[str(old)] = outcomes.pop(str(new))


def too_old(lines: Lines) -> None:
    """A step trains a token three steps old."""
    trains = [d for line in lines for d in line["decisions"] if d["type"] == "Train"]
    trains[5]["oldest_versions"][0] = 2


def lose_a_prompt(lines: Lines) -> None:
    """A step's outcomes leave out a group that it trained."""
    steps = [line for line in lines if line["event"]["type"] == "StepTrained"]
    outcomes = steps[1]["event"]["outcomes"]
    del outcomes[next(iter(outcomes))]


def change_a_decision(lines: Lines) -> None:
    """A prompt was admitted under another attempt than decided."""
    admits = [d for line in lines for d in line["decisions"] if d["type"] == "Admit"]
    admits[9]["attempt"] += 1


def drop_a_decision(lines: Lines) -> None:
    """A line does not tell that a step began."""
    line = next(line for line in lines if any(d["type"] == "Train" for d in line["decisions"]))
    line["decisions"] = [d for d in line["decisions"] if d["type"] != "Train"]


def start_again(lines: Lines) -> None:
    """The run starts from version 0 a second time."""
    lines[12]["event"] = lines[0]["event"]


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (train_twice, "ended as trained before and as trained now"),
        (too_old, "trains tokens of age 3, above 2"),
        (lose_a_prompt, "is lost"),
        (change_a_decision, "replays to other decisions"),
        (drop_a_decision, "is not the one in training"),
        (start_again, "cannot be replayed"),
    ],
)
def test_dishonest_log_is_found_out(
    tmp_path: Path, forge: Callable[[Lines], None], message: str
) -> None:
    record(tmp_path)
    path = tmp_path / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    forge(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = audit(tmp_path)
    assert any(message in text for text in report.violations), report.text()
    with pytest.raises(CheckFailed) as caught:
        report.raise_if_failed()
    assert caught.value.exit_code == 1


def test_trained_files_must_tell_the_same(tmp_path: Path) -> None:
    run = record(tmp_path)
    folder = tmp_path / "trained"
    second, third = folder / "step_000002.jsonl", folder / "step_000003.jsonl"
    honest = second.read_text()

    second.write_text(third.read_text().replace('"step": 3', '"step": 2'))
    assert any("was trained in steps 2 and 3" in text for text in audit(tmp_path).violations)

    second.write_text(honest.splitlines(keepends=True)[0])
    assert any("groups by epoch" in text for text in audit(tmp_path).violations)

    second.write_text(honest.replace('"step": 2', '"step": 9'))
    assert any("step 9" in text for text in audit(tmp_path).violations)

    second.unlink()
    assert any("no file of step 2" in text for text in audit(tmp_path).violations)

    second.write_text(honest)
    next_step = run.scheduler.version + 1
    (folder / f"step_{next_step:06d}.jsonl").write_text("")
    report = audit(tmp_path)
    assert report.ok
    assert any("did not complete" in note for note in report.notes)
    (folder / f"step_{next_step + 1:06d}.jsonl").write_text("")
    assert any("no such step" in text for text in audit(tmp_path).violations)


def test_files_that_were_removed_on_purpose_are_told_from_lost_ones(tmp_path: Path) -> None:
    record(tmp_path)
    run_dir = RunDir(tmp_path)
    first, *_, last = run_dir.trained_steps()
    keep_newest(run_dir, 3)
    assert run_dir.trained_steps() == [last - 2, last - 1, last] and first == 1
    report = audit(tmp_path)
    assert report.ok
    assert any(f"files up to step {last - 3} were removed" in note for note in report.notes)

    run_dir.trained_file(last - 1).unlink()
    assert f"trained/ has no file of step {last - 1}" in audit(tmp_path).violations
    (tmp_path / "trained" / "removed.json").write_text('{"up_to_step": 10000}')
    assert f"trained/ has no file of step {last - 1}" in audit(tmp_path).violations
    (tmp_path / "trained" / "removed.json").unlink()
    assert "trained/ has no file of step 1" in audit(tmp_path).violations


def written(trained: bool, keep: str = "null") -> str:
    return f"logging:\n  trained: {str(trained).lower()}\n  keep_trained_steps: {keep}\n"


@pytest.mark.parametrize("emptied", [True, False])
def test_trained_that_is_wholly_gone_is_found_if_the_run_wrote_it(
    tmp_path: Path, emptied: bool
) -> None:
    last = record(tmp_path).scheduler.version
    shutil.rmtree(tmp_path / "trained")
    if emptied:
        (tmp_path / "trained").mkdir()
    report = audit(tmp_path)
    assert report.ok
    assert any("trained/ is missing or empty" in note for note in report.notes)

    config = tmp_path / "config.yaml"
    config.write_text(written(trained=True))
    (violation,) = audit(tmp_path).violations
    assert violation.endswith(f"it should hold the files of steps 1 to {last}")
    config.write_text(written(trained=True, keep="3"))
    (violation,) = audit(tmp_path).violations
    assert violation.endswith(f"it should hold the files of steps {last - 2} to {last}")


def test_what_a_run_did_not_write_is_noted_and_not_missed(tmp_path: Path) -> None:
    record(tmp_path)
    run_dir = RunDir(tmp_path)
    config, former = run_dir.config, run_dir.superseded / "config.yaml"
    config.write_text(written(trained=True))
    for step in (1, 2):
        run_dir.trained_file(step).unlink()
    assert audit(tmp_path).violations == ["trained/ has no file of step 1"]
    former.parent.mkdir()
    former.write_text(written(trained=False))
    report = audit(tmp_path)
    assert report.ok
    assert any("no file of 2 steps" in note and "=false" in note for note in report.notes)

    shutil.rmtree(run_dir.trained)
    former.unlink()
    config.write_text(written(trained=False))
    assert audit(tmp_path).ok and "logging.trained=false" in audit(tmp_path).text()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"up_to_step": true}', '{"up_to_step": -1}'])
def test_broken_record_of_what_was_removed_is_an_error_of_storage(
    tmp_path: Path, text: str
) -> None:
    record(tmp_path)
    (tmp_path / "trained" / "removed.json").write_text(text)
    with pytest.raises(StorageError, match=r"removed.json"):
        audit(tmp_path)


def test_broken_trained_file_is_an_error_of_storage(tmp_path: Path) -> None:
    record(tmp_path)
    (tmp_path / "trained" / "step_000002.jsonl").write_text('{"step": 2}\n')
    with pytest.raises(StorageError, match=r"step_000002.jsonl:1"):
        audit(tmp_path)


@pytest.mark.parametrize(
    "line", [b"\xff\n", b"[" * 100_000 + b"\n", b'{"step": 2, "group_id": [], "prompt_id": "a"}\n']
)
def test_first_line_of_a_trained_file_that_is_damaged_is_named(tmp_path: Path, line: bytes) -> None:
    record(tmp_path)
    (tmp_path / "trained" / "step_000002.jsonl").write_bytes(line)
    with pytest.raises(StorageError, match=r"step_000002.jsonl:1"):
        audit(tmp_path)


def test_metrics_of_another_run_are_found(tmp_path: Path) -> None:
    record(tmp_path)
    trained = [5 * 3 * step for step in range(4)]  # three groups of five tokens a step
    metrics = tmp_path / "metrics.jsonl"

    def write(tokens: list[int]) -> None:
        lines = [{"step": step, "tokens/trained": n} for step, n in enumerate(tokens)]
        metrics.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"torn')

    write(trained)
    assert audit(tmp_path).ok
    write([*trained[:3], trained[3] + 1])
    (violation,) = audit(tmp_path).violations
    assert violation == (
        "metrics.jsonl has 46 trained tokens after step 3, events.jsonl 45: they are not of one run"
    )
    metrics.write_text("{}\nx\n")
    with pytest.raises(StorageError, match=r"metrics.jsonl:2"):
        audit(tmp_path)


def test_foreign_file_in_trained_is_no_step(tmp_path: Path) -> None:
    record(tmp_path)
    (tmp_path / "trained" / "step_abc.jsonl").write_text("{}")
    assert audit(tmp_path).ok


@pytest.mark.parametrize("group", ["x/y", "nope", "9" * 5000 + "/a", "-1/a"])
def test_group_id_without_an_epoch_is_a_violation(tmp_path: Path, group: str) -> None:
    record(tmp_path)
    path = tmp_path / "trained" / "step_000002.jsonl"
    row = {"step": 2, "group_id": group, "prompt_id": "a"}
    path.write_text(path.read_text() + json.dumps(row) + "\n")
    report = audit(tmp_path)
    assert any("names no epoch" in text for text in report.violations), report.text()


def test_step_that_is_no_number_is_a_violation(tmp_path: Path) -> None:
    record(tmp_path)
    path = tmp_path / "trained" / "step_000002.jsonl"
    path.write_text(path.read_text().replace('"step": 2', '"step": [2]'))
    assert any("no step" in text for text in audit(tmp_path).violations)


@pytest.mark.parametrize("value", ["null", '"a"', "[]", "1e300", "9" * 17])
def test_event_with_an_impossible_position_is_named(tmp_path: Path, value: str) -> None:
    record(tmp_path)
    path = tmp_path / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if '"decisions":[{"type":"Admit"' in line)
    lines[number] = re.sub(r'("Admit","position":)\d+', rf"\g<1>{value}", lines[number], count=1)
    path.write_text("".join(lines))
    with pytest.raises(StorageError, match=rf"events.jsonl:{number + 1}: "):
        audit(tmp_path)


def test_finished_group_without_a_position_is_named(tmp_path: Path) -> None:
    record(tmp_path)
    path = tmp_path / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    number = next(n for n, line in enumerate(lines) if '"GroupFinished"' in line)
    lines[number] = re.sub(
        r'("GroupFinished","position":)\d+', r"\g<1>null", lines[number], count=1
    )
    path.write_text("".join(lines))
    with pytest.raises(StorageError, match=rf"events.jsonl:{number + 1}: "):
        audit(tmp_path)
