# SPDX-License-Identifier: Apache-2.0
"""Audits a run directory: was every prompt of an epoch used exactly once, over all restarts?

The history is events.jsonl (what a resume moved to superseded/ is not part of it). The outcomes are
derived from the events without the scheduler's own books; the log is then replayed through the
scheduler to the same decisions, and trained/step_*.jsonl and metrics.jsonl must tell the same.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from pathlib import Path

import rlrun.batching
from rlrun.console.counted import counted
from rlrun.errors import RESTORE, CheckFailed, StorageError
from rlrun.interfaces import REGISTRY, Batching
from rlrun.run_dir.directory import RunDir, refuse_special_files
from rlrun.run_dir.event_log import LogLine, LogReader
from rlrun.run_dir.file_audit import compare_files
from rlrun.scheduler import Outcome, Replay, Restored, Started
from rlrun.scheduler.history import History
from rlrun.scheduler.intake import identity

MAX_SHOWN = 20
"""Violations that the text names one by one."""


@dataclass(frozen=True, slots=True)
class EpochAudit:
    """What became of the prompts of one epoch.

    Attributes:
        epoch: From 0.
        prompts: Prompts that were handed out, of all its rows.
        rows: Prompts of a whole epoch.
        outcomes: Prompts that ended, by outcome.
    """

    epoch: int
    prompts: int
    rows: int
    outcomes: dict[Outcome, int]

    @property
    def finished(self) -> bool:
        """Whether every prompt of the epoch ended."""
        return sum(self.outcomes.values()) == self.rows


@dataclass(slots=True)
class AuditReport:
    """The result of an audit.

    Attributes:
        run_dir: What was audited.
        events: Events of the log.
        restarts: How often the run was resumed.
        steps: Completed steps.
        epochs: Every epoch that was begun.
        violations: What must not be; empty if the run is in order.
        notes: What a reader should know, such as what could not be checked.
    """

    run_dir: Path
    events: int = 0
    restarts: int = 0
    steps: int = 0
    epochs: list[EpochAudit] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violations

    def text(self) -> str:
        """The report for a reader, without a final line end."""
        lines = [
            f"{self.run_dir}: {counted(self.steps, 'step')}, {counted(self.events, 'event')}, "
            f"{counted(self.restarts, 'restart')}"
        ]
        for epoch in self.epochs:
            counts = ", ".join(f"{n} {o.value}" for o, n in epoch.outcomes.items() if n)
            rows = counted(epoch.rows, "prompt")
            state = "finished" if epoch.finished else f"open, {epoch.prompts} handed out"
            lines.append(f"epoch {epoch.epoch}: {rows} ({state}): {counts or '-'}")
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"violation: {text}" for text in self.violations[:MAX_SHOWN]]
        if len(self.violations) > MAX_SHOWN:
            lines.append(f"and {counted(len(self.violations) - MAX_SHOWN, 'more violation')}")
        lines.append("ok: each prompt that ended did so exactly once" if self.ok else "FAILED")
        return "\n".join(lines)

    def raise_if_failed(self) -> None:
        """Turns violations into an error.

        Raises:
            CheckFailed: There is a violation; it names the first.
        """
        if not self.ok:
            raise CheckFailed(
                str(self.run_dir),
                f"{counted(len(self.violations), 'violation')}, the first: {self.violations[0]}",
                "Do not trust this run's data accounting",
            )


def audit(run_dir: Path, batching: Batching | None = None) -> AuditReport:
    """Audits a run directory.

    Args:
        run_dir: The folder of a run.
        batching: The run's policy, needed for the replay only if it is a user's own.

    Raises:
        StorageError: There is no readable event log, or a line of a file makes no sense.
    """
    refuse_special_files(run_dir)
    report = AuditReport(run_dir)
    history = History()
    reader = LogReader(run_dir / "events.jsonl")
    replay = _ReplayCheck(batching, report)
    for line in reader:
        if line.seq == 0 and not isinstance(line.event, Started):
            raise StorageError(
                f"{run_dir / 'events.jsonl'}:1", "the first event is not Started", ""
            )
        report.restarts += isinstance(line.event, Restored)
        report.events += 1
        try:
            history.apply(line.seq, line.event, line.decisions)
            replay.check(line)
        except (TypeError, ValueError, LookupError, ArithmeticError, MemoryError) as error:
            # The reader knows the fields of an event, but not what they may hold.
            raise StorageError(
                f"{run_dir / 'events.jsonl'}:{line.seq + 1}",
                f"holds a value that cannot be ({type(error).__name__}: {error})",
                "Restore the file from a copy",
            ) from error
    if reader.torn:
        report.notes.append("the last line of events.jsonl is torn, as a crash leaves it")
    if report.events == 0:
        raise StorageError(str(run_dir / "events.jsonl"), "holds no event", RESTORE)
    report.steps = len(history.steps)
    report.violations += history.violations + history.lost_prompts()
    report.epochs = [
        EpochAudit(epoch, prompts, history.rows_per_epoch, outcomes)
        for epoch, prompts, outcomes in history.epochs()
    ]
    compared = compare_files(RunDir(run_dir), history)
    report.violations += compared.violations
    report.notes += compared.notes
    return report


class _ReplayCheck:
    """Replays the log and reports the first difference."""

    def __init__(self, batching: Batching | None, report: AuditReport) -> None:
        self._batching = batching
        self._report = report
        self._replay: Replay | None = None
        self._over = False

    def check(self, line: LogLine) -> None:
        if line.seq == 0 and isinstance(line.event, Started):
            self._start(line.event)
        if self._over or self._replay is None:
            return
        try:
            decisions = self._replay.apply(line.event)
        except ValueError as error:
            self._fail(f"event {line.seq} cannot be replayed: {error}")
            return
        if decisions != line.decisions:
            self._fail(
                f"event {line.seq} ({type(line.event).__name__}) replays to other decisions: "
                f"{_short(decisions)} instead of {_short(line.decisions)}"
            )
            return
        assert self._replay.scheduler is not None
        tokens = self._replay.scheduler.ledger()
        if tokens["generated"] != sum(tokens.values()) - tokens["generated"]:
            self._fail(f"event {line.seq}: the token ledger does not close: {tokens}")

    def _start(self, event: Started) -> None:
        batching = self._batching or _own_policy(event.batching)
        if batching is None:
            self._report.notes.append(
                f"the decisions were not replayed: batching policy {event.batching} is not ours"
            )
        elif identity(batching) != event.batching:
            self._fail(f"the run used {event.batching}, not {identity(batching)}")
        else:
            self._replay = Replay(batching)

    def _fail(self, text: str) -> None:
        self._report.violations.append(text)
        # What follows a difference differs too and says nothing.
        self._over = True


def _short(decisions: tuple[object, ...]) -> str:
    text = str(list(decisions))
    return text if len(text) < 200 else text[:200] + "..."


def _own_policy(name: str) -> Batching | None:
    """The policy of that identity among those of the package that have no settings."""
    for module in pkgutil.iter_modules(rlrun.batching.__path__):
        importlib.import_module(f"rlrun.batching.{module.name}")
    for key, cls in REGISTRY.items():
        if key.startswith("batching/") and name == f"{cls.__module__}:{cls.__qualname__}()":
            policy = cls()
            assert isinstance(policy, Batching)
            return policy
    return None
