# SPDX-License-Identifier: Apache-2.0
"""Derives from a log's events and decisions, without the scheduler, what became of every prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rlrun.scheduler import events as ev
from rlrun.scheduler.decisions import Admit, Cancel, Decision, Train
from rlrun.scheduler.events import Event, Outcome, Verdict
from rlrun.scheduler.settings import OnAgeLimit, SchedulerSettings

CODES: tuple[Outcome | None, ...] = (None, *Outcome)
"""Outcomes by the byte that stands for them; 0 is none yet."""


class History:
    """What happened to every prompt, and what must not have happened.

    Attributes:
        violations: In the order of the log.
        steps: Positions of every completed step.
        trained_tokens: Tokens that were trained until the end of every completed step.
    """

    def __init__(self) -> None:
        """Waits for the Started event."""
        self.violations: list[str] = []
        self.steps: dict[int, tuple[int, ...]] = {}
        self.trained_tokens: dict[int, int] = {}
        self._tokens = 0
        self._settings: SchedulerSettings | None = None
        self._outcomes = bytearray()
        self._running: dict[int, int] = {}
        self._ready: dict[int, int] = {}
        self._again: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._training: tuple[int, ...] = ()

    @property
    def rows_per_epoch(self) -> int:
        """Prompts of an epoch."""
        return self.settings.rows_per_epoch

    @property
    def settings(self) -> SchedulerSettings:
        """Settings since the last start."""
        assert self._settings is not None
        return self._settings

    def apply(self, seq: int, event: Event, decisions: Iterable[Decision]) -> None:
        """Takes in one line of the log."""
        self._apply_event(seq, event)
        for decision in decisions:
            self._apply_decision(seq, decision)

    def outcome(self, position: int) -> Outcome | None:
        """How a prompt ended, if it did."""
        return CODES[self._outcomes[position]] if position < len(self._outcomes) else None

    def lost_prompts(self) -> list[str]:
        """Prompts that were handed out, did not end, and are nowhere."""
        held = {*self._running, *self._ready, *self._again, *self._training}
        return [
            f"{self._name(position)} was handed out and is lost"
            for position, code in enumerate(self._outcomes)
            if code == 0 and position not in held
        ]

    def epochs(self) -> Iterator[tuple[int, int, dict[Outcome, int]]]:
        """(epoch, prompts handed out, prompts by outcome) for every epoch that was begun."""
        rows = self.rows_per_epoch
        for start in range(0, len(self._outcomes), rows):
            part = self._outcomes[start : start + rows]
            counts = {outcome: part.count(code) for code, outcome in enumerate(CODES) if outcome}
            yield start // rows, len(part), counts

    def _apply_event(self, seq: int, event: Event) -> None:
        match event:
            case ev.Started():
                self._settings = event.settings
            case ev.Restored():
                self._settings = event.settings
                self._again |= self._running.keys()
                self._ready |= dict.fromkeys(self._training, -1)
                self._running, self._training = {}, ()
            case ev.GroupFinished() if self._is_current(event.position, event.attempt):
                del self._running[event.position]
                if event.verdict is Verdict.KEEP:
                    self._ready[event.position] = event.attempt
                else:
                    self._end(seq, event.position, Outcome(event.verdict.value))
            case ev.GroupFailed() if self._is_current(event.position, event.attempt):
                del self._running[event.position]
                self._failures[event.position] += 1
                if self._failures[event.position] >= self.settings.max_attempts:
                    self._end(seq, event.position, Outcome.FAILED)
                else:
                    self._again.add(event.position)
            case ev.GroupCancelled() if self._is_current(event.position, event.attempt):
                del self._running[event.position]
                self._again.add(event.position)
            case ev.EnginesLost():
                for position in event.positions:
                    if self._running.pop(position, None) is not None:
                        self._again.add(position)
            case ev.StepTrained():
                self._end_step(seq, event)

    def _apply_decision(self, seq: int, decision: Decision) -> None:
        match decision:
            case Admit(position, attempt):
                if position in self._running or position in self._ready:
                    self.violations.append(f"event {seq}: {self._name(position)} admitted twice")
                if self.outcome(position) is not None:
                    self.violations.append(
                        f"event {seq}: {self._name(position)} admitted after it ended"
                    )
                self._hand_out(position)
                self._running[position] = attempt
                self._again.discard(position)
            case Cancel(position):
                self._running.pop(position, None)
                self._ready.pop(position, None)
                self._again.add(position)
            case Train():
                self._begin_step(seq, decision)

    def _begin_step(self, seq: int, train: Train) -> None:
        if train.step != len(self.steps) + 1 or self._training:
            self.violations.append(f"event {seq}: step {train.step} begins out of order")
        for position in train.positions:
            if self._ready.pop(position, None) is None:
                self.violations.append(
                    f"event {seq}: {self._name(position)} trains in step {train.step} "
                    "but is not ready"
                )
        limit = self.settings.max_age
        masked = self.settings.on_age_limit is OnAgeLimit.MASK
        age = train.age_max if masked else train.step - 1 - min(train.oldest_versions)
        if age > limit:
            self.violations.append(
                f"event {seq}: step {train.step} trains tokens of age {age}, above {limit}"
            )
        self._training = train.positions

    def _end_step(self, seq: int, event: ev.StepTrained) -> None:
        if event.step != len(self.steps) + 1 or set(event.outcomes) != set(self._training):
            self.violations.append(f"event {seq}: step {event.step} is not the one in training")
        for position, outcome in event.outcomes.items():
            self._end(seq, position, outcome)
        self.steps[event.step] = tuple(event.outcomes)
        self._tokens += event.tokens.get(ev.TokenCategory.TRAINED, 0)
        self.trained_tokens[event.step] = self._tokens
        self._training = ()

    def _end(self, seq: int, position: int, outcome: Outcome) -> None:
        before = self.outcome(position)
        if before is not None:
            self.violations.append(
                f"event {seq}: {self._name(position)} ended as {before.value} before and as "
                f"{outcome.value} now"
            )
        self._hand_out(position)
        self._outcomes[position] = CODES.index(outcome)
        self._failures.pop(position, None)

    def _hand_out(self, position: int) -> None:
        self._outcomes.extend(bytes(max(0, position + 1 - len(self._outcomes))))

    def _is_current(self, position: int, attempt: int) -> bool:
        return self._running.get(position) == attempt

    def _name(self, position: int) -> str:
        rows = self.rows_per_epoch
        return f"prompt {position % rows} of epoch {position // rows} (position {position})"
